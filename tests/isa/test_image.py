"""Images made by other tools: padding, reuse 0 and opcode 0 are read as by the hardware; defects are reported."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import ImageError
from rsn.isa.image import decode_image, read_image
from rsn.isa.op_lists import read_op_lists
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.packet import Header, Packet, encode_image

GOOD = (
    Packet.of(3, [f.MemA(load=1, dim1=128, dim2=128)], mask=7, reuse=2),
    Packet.of(1, [f.Ddr(size=8192, load=1, to_a0=1)]),
    Packet.terminator(1),
)


def image(*words: int) -> bytes:
    return np.array(words, "<u4").tobytes()


def words_of(*packets: Packet) -> list[int]:
    return [int(w) for w in encode_image(packets)]


def seen(data: bytes) -> list[str]:
    return [f"{x.where}: {x.code}{'?' if x.warning else ''}" for x in read_image(data, XNN_BASE).findings]


def test_a_good_image_has_no_findings() -> None:
    read = read_image(image(*words_of(*GOOD)), XNN_BASE)
    assert (read.packets, read.findings, read.complete) == (GOOD, [], True)


def test_padding_is_masked_and_reported() -> None:
    words = words_of(*GOOD)
    words[3] |= 0xFE00_0000
    read = read_image(image(*words), XNN_BASE)
    assert read.packets == GOOD
    (finding,) = read.findings
    assert str(finding) == "word 3: warning F10: padding bits are set; the hardware ignores them (word 3)"


def test_reuse_0_is_kept() -> None:
    packets = Packet.of(3, [f.MemA(load=1)], mask=1, reuse=0), *GOOD
    read = read_image(image(*words_of(*packets)), XNN_BASE)
    assert read.packets == packets
    assert [str(x) for x in read.findings] == [
        "word 2: warning F13: reuse 0: the operations are consumed and nothing is issued (word 2)"
    ]


def test_opcode_0_is_one_skipped_word_that_counts() -> None:
    body = words_of(*GOOD)[2:]
    data = image(len(body) + 2, len(GOOD) + 2, 0, *body, 0xFFFF_FFF0)
    read = read_image(data, XNN_BASE)
    nop = Packet(Header(opcode=0))
    assert read.packets == (nop, *GOOD, nop)
    assert read.complete
    assert seen(data) == ["word 2: F11?", f"word {2 + len(body) + 1}: F11?"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ["word 0: F01"]),
        ([1], ["word 0: F01"]),
        ([5, 0], ["word 0: F02"]),
        ([0, 0, 0], ["word 0: F02"]),
        ([0, 1], ["word 1: F03"]),
        ([1, 0, 0x401], ["word 1: F03"]),
        ([1, 1, 9], ["word 2: F04"]),
        ([1, 1, 8], ["word 2: F04"]),
        ([1, 1, 0x0C01], ["word 2: F05"]),
        ([1, 1, 0x1_0401], ["word 2: F05"]),
        ([1, 1, 0x0801], ["word 2: F06"]),
    ],
)
def test_what_the_hardware_would_misread(words: list[int], expected: list[str]) -> None:
    assert seen(image(*words)) == expected


def test_a_cut_file_and_its_announced_length_are_two_findings() -> None:
    data = image(*words_of(*GOOD))
    assert seen(data[:-2]) == [f"word {len(data) // 4 - 1}: F01", "word 0: F02", "word 1: F03"]
    assert [x.help for x in read_image(data[:-4], XNN_BASE).findings][:1] == ["write 7, or all the words"]


def test_values_that_are_no_numbers() -> None:
    words = words_of(Packet.of(8, [f.MemCConfig()], mask=1))
    words[5] = 0x7F80_0000  # infinity as a score scale
    read = read_image(image(*words), XNN)
    assert [(x.code, x.where) for x in read.findings] == [("F07", "word 3")]
    assert not read.complete


def test_op_lists() -> None:
    ops, found = read_op_lists({"MME0": [0x0040_0000, 0xF800_0000], "MME1": []}, XNN_BASE)
    assert ops == {"MME0": (f.Mme(n128=1), f.Mme()), "MME1": ()}
    assert [str(x) for x in found] == ["MME0: warning F10: padding bits are set in op 1; the hardware ignores them"]
    for wrong, code in (([], "F12"), ({"MemA0": []}, "M01"), ({"MME0": [-1]}, "F12"), ({"MME0": ["1"]}, "F12")):
        assert [x.code for x in read_op_lists(wrong, XNN_BASE)[1]] == [code]


@given(st.binary(max_size=80) | st.lists(st.integers(0, 2**32 - 1), max_size=20).map(lambda w: image(len(w), 1, *w)))
def test_any_bytes_are_read_or_reported(data: bytes) -> None:
    """There are no errors exactly if the loader accepts the image; the packets are then the same."""
    for overlay in (XNN, XNN_BASE):
        read = read_image(data, overlay)
        try:
            packets = decode_image(np.frombuffer(data, "<u4"), overlay) if len(data) % 4 == 0 else None
        except ImageError:
            packets = None
        assert (packets is not None) == all(x.warning for x in read.findings)
        if packets is not None:
            assert read.packets == packets
            assert read.complete


@given(st.integers(0, 10**6), st.integers(0, 31))
def test_one_flipped_bit_of_a_good_image(word: int, bit: int) -> None:
    words = encode_image(GOOD).copy()
    words[word % len(words)] ^= np.uint32(1 << bit)
    read = read_image(words.tobytes(), XNN_BASE)
    errors = [x.where for x in read.findings if not x.warning]
    if errors:
        with pytest.raises(ImageError) as caught:
            decode_image(words, XNN_BASE)
        assert f"word {caught.value.word}" in errors
    else:
        assert read.packets == decode_image(words, XNN_BASE)
