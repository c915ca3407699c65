"""Channels of the memory off the chip: no port and no channel moves more than it can, and bursts cost what they do."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, gcd
from random import Random

import pytest

from rsn.streams.placing.channels import ChannelError, ChannelShares, MovedTensor, burst_bytes, shares, widest
from rsn.streams.placing.devices import DEVICES, PORT_BYTES, U55C, U280, VC1902, MemoryChannel, OffChip, StreamDevice
from rsn.tests.effort import cases, in_both


def drawn(random: Random) -> tuple[dict[str, MovedTensor], StreamDevice]:
    """Tensors with a few ports each, some of them given, and a device with channels of one speed or of several."""
    channels = tuple(
        MemoryChannel(f"M[{k}]", random.choice([6.4, 14.375, 19.2, 25.6]), 20.0) for k in range(random.randint(1, 12))
    )
    device = replace(random.choice([U55C, U280, VC1902]), off_chip=(OffChip("M", 1, channels),))
    if random.random() < 0.3:
        device = random.choice([U55C, U280, VC1902])
    tensors = {}
    for t in range(random.randint(1, 14)):
        ports = {
            f"p{t}_{k}": random.choice([1, 5, 30, 57, 200, 700]) * random.random()
            for k in range(random.choice([0, 1, 1, 1, 2, 3]))
        }
        given = frozenset(port for port, wanted in ports.items() if 1 <= wanted < 20 and random.random() < 0.3)
        tensors[f"t{t}"] = MovedTensor(random.choice([1, 3, 8, 64, 256]), ports, given)
    return tensors, device


def check(tensors: dict[str, MovedTensor], device: StreamDevice, found: ChannelShares, most: int) -> None:
    room = [channel.gbs * 1e9 / (device.mhz * 1e6) for channel in device.channels]
    assert found.channels.keys() == tensors.keys()
    for name, tensor in tensors.items():
        chosen = found.channels[name]
        assert list(chosen) == sorted(set(chosen))
        assert tensor.pieces % len(chosen) == 0
        for port, wanted in tensor.ports.items():
            share = found.share(name, port)
            assert 1 <= share <= PORT_BYTES
            assert found.bytes[port] <= max(most, wanted)
            if port in tensor.given:
                assert found.bytes[port] == int(wanted)
            for k in chosen:
                room[k] -= share
    assert min(room) >= 0


@in_both
def test_no_channel_and_no_port_is_over_its_bandwidth() -> None:
    random, refused = Random(3), 0
    for _ in range(cases(3000, 150)):
        tensors, device = drawn(random)
        most = random.choice([16, 1024])
        try:
            ways = list(shares(tensors, device, most))
        except ChannelError:
            refused += 1
            continue
        for found in ways:
            check(tensors, device, found, most)
    assert refused < cases(3000, 150) / 10


def test_what_is_left_goes_to_ports_that_want_more() -> None:
    tensors = {name: MovedTensor(8, {name: wanted}) for name, wanted in (("a", 400.0), ("b", 400.0), ("c", 10.0))}
    four = replace(U55C, off_chip=(replace(U55C.off_chip[0], channels=U55C.channels[:4]),))
    found = next(shares(tensors, four, 1024))
    # All four channels of 57.5 bytes for the large ones, and beside them in one the small one.
    assert [found.channels[name] for name in "abc"] == [(0, 1, 2, 3), (0, 1, 2, 3), (0,)]
    assert [found.share(name, name) for name in "abc"] == [27, 27, 3]


def test_small_tensors_are_spread() -> None:
    tensors = {
        "large": MovedTensor(256, {"large": 400.0}),
        "small": MovedTensor(4, {"load": 26.0, "store": 2.0}),
        "row": MovedTensor(1, {"row": 26.0}),
        "least": MovedTensor(256, {"least": 7.0}),
    }
    found = next(shares(tensors, U55C, 26))
    assert [len(chosen) for chosen in found.channels.values()] == [8, 4, 1, 1]
    assert [found.share("small", port) for port in ("load", "store")] == [7, 6]  # 26 bytes on four channels


def test_a_device_with_too_few_channels_is_refused_with_the_numbers() -> None:
    one = replace(U55C, off_chip=(replace(U55C.off_chip[0], channels=U55C.channels[:1]),))
    many = {f"t{k}": MovedTensor(1, {f"t{k}": 9.0}) for k in range(58)}
    with pytest.raises(
        ChannelError, match="U55C: 58 loads and stores need at least 58 bytes a cycle, and its 1 memory"
    ):
        list(shares(many, one, 64))
    given = {"t": MovedTensor(1, {"t": 60.0}, frozenset("t"))}
    with pytest.raises(ChannelError, match=r"need at least 60 bytes a cycle.* move 1,824, none more than 57\.5"):
        list(shares(given, U55C, 64))


def test_a_burst_has_its_words_and_a_begin() -> None:
    hbm = U55C.channels[0]
    begin = ceil(23.5 * 14.375)  # bytes that the channel could move meanwhile
    assert burst_bytes(hbm, 4096, 4096) == 4096 + begin
    assert burst_bytes(hbm, 16384, 16384) == 4 * (4096 + begin)
    assert burst_bytes(hbm, 256, 256) == 256 + begin
    assert burst_bytes(hbm, 32, 32) == 64 + begin  # half a word, which may begin in its middle
    assert burst_bytes(hbm, 96, 32) == 128 + 2 * begin  # 32 + 64, or 64 + 32; a border of 4 KiB between them
    assert burst_bytes(hbm, 144, 16) == 192 + 2 * begin
    assert burst_bytes(hbm, 4096, 64) == 4096 + 2 * begin  # a border of 4 KiB in its middle
    # In order, 4 KiB a burst, HBM gives what was measured of it.
    assert 460 * 4096 / burst_bytes(hbm, 4096, 4096) == pytest.approx(425, rel=0.001)


@in_both
def test_a_run_costs_the_words_and_pages_that_it_touches_at_most() -> None:
    random = Random(4)
    for _ in range(cases(2000, 100)):
        apart, size = random.choice([4, 12, 32, 48, 64, 192, 1024, 4096]), random.randint(1, 2000) * 4
        begins = range(0, 4096 * apart // gcd(apart, 4096), apart)
        most = max(
            64 * ((at + size - 1) // 64 - at // 64 + 1) + 10 * ((at + size - 1) // 4096 - at // 4096 + 1)
            for at in begins
        )
        assert burst_bytes(MemoryChannel("M", 10.0, 1.0), size, apart) >= most
        if size <= 64:
            assert burst_bytes(MemoryChannel("M", 10.0, 1.0), size, apart) == most


def test_channels_of_devices() -> None:
    assert [len(device.channels) for device in (VC1902, U55C, U280)] == [3, 32, 34]
    for device in DEVICES.values():
        assert device.gbs == pytest.approx(sum(channel.gbs for channel in device.channels))
    assert U55C.bytes_a_cycle(U55C.channels[31].gbs) == 57.5
    assert [channel.name for channel in U280.channels[31:]] == ["HBM[31]", "DDR[0]", "DDR[1]"]
    assert widest(U55C, 256) == 32 * 57
    assert widest(U55C, 24) == 24 * 57
    assert widest(VC1902, 256, ports=2) == 2 * 30  # two of three channels, the slowest with 61.5 bytes a cycle
