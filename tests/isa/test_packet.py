"""Packets: expansion to uOPs, encoding, and images that the decoder refuses."""

import numpy as np
import pytest

from rsn.base.errors import ImageError, ProgramError
from rsn.isa.image import decode_image
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.packet import Header, Packet, encode_image, expand


def test_ddr_loops_over_the_window_and_over_chunks() -> None:
    a = f.Ddr(addr=100, size=8192, reuse_stride=10, chunks=2, chunk_stride=1000, load=1, to_a0=1)
    b = f.Ddr(addr=7, size=2048, store=1, from_c3=1)
    uops = list(expand(Packet.of(1, [a, b], reuse=2), XNN_BASE))
    assert [(u.addr, u.store, u.peer) for u in uops] == [
        (100, False, "MemA0"),
        (1100, False, "MemA0"),
        (7, True, "MemC3"),
        (110, False, "MemA0"),
        (1110, False, "MemA0"),
        (7, True, "MemC3"),
    ]


def test_addresses_wrap_at_32_bits() -> None:
    mop = f.Lpddr(addr=0xFFFF_FFFF, size=8192, chunks=2, chunk_stride=3, to_b1=1)
    assert [u.addr for u in expand(Packet.of(2, [mop]), XNN_BASE)] == [0xFFFF_FFFF, 2]


def test_mems_repeat_each_mop_on_its_own() -> None:
    a, b = f.MemA(dim1=128), f.MemA(dim1=256)
    assert list(expand(Packet.of(3, [a, b], mask=1, reuse=3), XNN_BASE)) == [a, a, a, b, b, b]


def test_reuse_zero_touches_nothing() -> None:
    assert list(expand(Packet.of(1, [f.Ddr(addr=5, size=8192, load=1, to_a0=1)], reuse=0), XNN_BASE)) == []


def test_load_wins_over_store_and_the_first_peer_wins() -> None:
    both = f.Ddr(size=8192, load=1, store=1, to_a2=1, to_b0=1, from_c0=1)
    assert [(u.store, u.peer) for u in expand(Packet.of(1, [both]), XNN_BASE)] == [(False, "MemA2")]


def image(*body: int, packets: int) -> np.ndarray:
    return np.array([len(body), packets, *body], np.uint32)


def test_an_opcode_zero_word_is_skipped_and_counted() -> None:
    words = image(0xFFFF_FFF0, 0x0000_0401, packets=2)
    packets = decode_image(words, XNN_BASE)
    assert [p.header.opcode for p in packets] == [0, 1]
    assert packets[1].header.last


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (np.array([1], np.uint32), "at least 2 words"),
        (np.array([5, 1, 0], np.uint32), "word 0: the image announces 5 packet words and holds 1"),
        (np.array([1, 9, 0], np.uint32), "word 1: the image announces 9 packets"),
        (image(0x0000_000F, packets=1), "word 2: opcode 15 is not defined in overlay xnn"),
        (image(0x0001_0C01, packets=1), "word 2: a terminator has window = reuse = 0"),
        (image(0x0001_0801, packets=1), "word 2: a packet of 1 DDR mOPs runs past the end"),
        (image(0x0000_0408, packets=1), "word 2: a MemCConfig packet cannot be a terminator"),
        (image(0x0000_0401, packets=2), "announces 2 packets"),
    ],
)
def test_images_that_the_hardware_would_misread(words: np.ndarray, message: str) -> None:
    with pytest.raises(ImageError) as e:
        decode_image(words, XNN)
    assert message in str(e.value)


def test_opcode_8_is_no_opcode_of_the_base() -> None:
    words = encode_image([Packet.of(8, [f.MemCConfig()], mask=1)])
    assert decode_image(words, XNN)[0].mops == (f.MemCConfig(),)
    with pytest.raises(ImageError, match="opcode 8 is not defined in overlay xnn-base"):
        decode_image(words, XNN_BASE)


def test_a_header_that_lies_about_its_window_is_not_encoded() -> None:
    with pytest.raises(ImageError, match="window=2"):
        encode_image([Packet(Header(opcode=3, window=2), (f.MemA(),))])


def test_no_format_drives_an_unknown_type_of_unit() -> None:
    with pytest.raises(ProgramError, match="type MemD"):
        XNN.format_of("MemD")
