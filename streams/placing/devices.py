"""Devices that machines are generated for: what each die has, and the memory off the chip.

All figures are of the whole device, before any shell or platform takes its share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ...base.errors import ProgramError
from ...machine.resources import VC1902 as VC1902_CAPACITIES

RESOURCES = ("LUT", "DSP", "BRAM", "URAM")
"""6-input tables, multipliers, block RAMs of 36 Kbit, UltraRAMs of 288 Kbit."""

BRAM_BYTES = 36 * 1024 // 8
"""36 Kbit (UG573, AM007)."""
URAM_BYTES = 288 * 1024 // 8
"""4096 words of 72 bit (UG573, AM007)."""


PORT_BYTES = 64
"""The widest AXI port of a kernel: 512 bit (UG1399, AXI4 master interface)."""
BURST_BYTES = 4096
"""The longest burst of such a port: AXI allows 256 beats, and no burst crosses a border of 4 KiB (UG1399)."""
LATENCY = 64
"""Clock cycles of a kernel from a request to the first word, and from the last word to the response of a store. It is
what Vitis HLS schedules with (UG1399, "Options for Controlling AXI4 Burst Behavior"): 256 ns at 250 MHz, and about
twice what Shuhai (FCCM 2020, 10.1109/FCCM48280.2020.00024) measures at the AXI ports of a U280's HBM."""


@dataclass(frozen=True)
class MemoryChannel:
    """A channel of a memory off the chip, which memory ports share.

    name: as `sp=` of v++ takes it (UG1393). gbs: peak bandwidth in GB/s, 10**9 bytes a second. begin_ns: nanoseconds
    that the channel spends on each burst besides those of its bytes. latency: clock cycles from a request to its first
    word (`LATENCY`)."""

    name: str
    gbs: float
    begin_ns: float
    latency: int = LATENCY


@dataclass(frozen=True)
class OffChip:
    """A memory off the chip, with its channels. gb: capacity in GB (2**30 bytes)."""

    name: str
    gb: int
    channels: tuple[MemoryChannel, ...]

    @property
    def gbs(self) -> float:
        """Peak bandwidth of all channels together, in GB/s, 10**9 bytes a second."""
        return sum(channel.gbs for channel in self.channels)


@dataclass(frozen=True)
class StreamDevice:
    """A device for which stream programs are built.

    dies: how many of each of `RESOURCES` each die (super logic region) has, in the order in which dies are connected.
    lutram_bytes: bytes of all LUTs that can be memory, on all dies together. off_chip: its memories off the chip. mhz:
    the clock of published designs. part: its name for AMD's tools. float_add: clock cycles of a float32 addition at
    that clock."""

    name: str
    dies: tuple[Mapping[str, int], ...]
    lutram_bytes: int
    off_chip: tuple[OffChip, ...]
    mhz: int
    part: str
    float_add: int

    @cached_property
    def total(self) -> Mapping[str, int]:
        """How many of each of `RESOURCES` all dies have together."""
        return {name: sum(die[name] for die in self.dies) for name in RESOURCES}

    @property
    def gbs(self) -> float:
        """Peak bandwidth of all memories off the chip together, in GB/s, 10**9 bytes a second."""
        return sum(memory.gbs for memory in self.off_chip)

    @cached_property
    def channels(self) -> tuple[MemoryChannel, ...]:
        """The channels of all memories off the chip, memory by memory."""
        return tuple(channel for memory in self.off_chip for channel in memory.channels)

    def bytes_a_cycle(self, gbs: float) -> float:
        """Return a bandwidth in bytes in a clock cycle of the device. gbs: in GB/s, 10**9 bytes a second."""
        return gbs * 1e9 / (self.mhz * 1e6)


# XCU280 and XCU55C have the same fabric as XCVU37P: three dies, 1,303,680 LUTs, 9,024 DSPs, 2,016 block RAMs and 960
# UltraRAMs (data sheets DS963 and DS978, DS890 for the XCVU37P). Per die: table "SLR CLB Logic and Dedicated Block
# Utilization" of Vivado's reports for the part; the bottom die has more LUTs and fewer DSPs.
_VU37P_DIES = (
    {"LUT": 439_680, "DSP": 2_880, "BRAM": 672, "URAM": 320},
    {"LUT": 432_000, "DSP": 3_072, "BRAM": 672, "URAM": 320},
    {"LUT": 432_000, "DSP": 3_072, "BRAM": 672, "URAM": 320},
)
# DS890: 36.7 Mbit of distributed RAM.
_VU37P_LUTRAM = int(36.7 * (1 << 20)) // 8

# UG1393, "HBM Configuration and Use": 32 pseudo-channels of 14.375 GB/s, each with an AXI port of its own. Shuhai reads
# 425 of the 460 GB/s in order: a burst of 4 KiB loses 23.5 ns, about what it measures from a page hit to a page miss.
_HBM = tuple(MemoryChannel(f"HBM[{k}]", 14.375, 23.5) for k in range(32))

# Reports of Vitis HLS for UltraScale+ name the unit fadd_32ns_32ns_32_7_full_dsp_1, whose LATENCY is one less.
_ULTRASCALE_ADD = 6

U55C = StreamDevice(
    "U55C",
    _VU37P_DIES,
    _VU37P_LUTRAM,
    # UG1393, as above: 16 GB in channels of 512 MB.
    (OffChip("HBM", 16, _HBM),),
    # StreamTensor (MICRO'25), table 6.
    250,
    "xcu55c-fsvh2892-2L-e",
    _ULTRASCALE_ADD,
)

U280 = StreamDevice(
    "U280",
    _VU37P_DIES,
    _VU37P_LUTRAM,
    # UG1393, as above, with 8 GB in channels of 256 MB; DS963: two DDR4 modules of 16 GB at 19.2 GB/s (DDR4-2400). To
    # close a row and to open another one takes tRP + tRCD = 2 * 14.16 ns (JESD79-4, DDR4-2400R).
    (OffChip("HBM", 8, _HBM), OffChip("DDR4", 32, tuple(MemoryChannel(f"DDR[{k}]", 19.2, 28.3) for k in range(2)))),
    # StreamTensor (MICRO'25), table 6: Allo on a U280 at 250 MHz (DFX: 200 MHz).
    250,
    "xcu280-fsvh2892-2L-e",
    _ULTRASCALE_ADD,
)

VC1902 = StreamDevice(
    "VC1902",
    # One die; its amounts and their sources are those of the device of the VCK190 in machine/resources.py.
    ({name: VC1902_CAPACITIES.capacities[name].amount for name in RESOURCES},),
    # AM005: half of the LUTs can be memory of 64 bit each.
    VC1902_CAPACITIES.capacities["LUT"].amount // 2 * 64 // 8,
    # RSN paper, section 2.1: the memories of the VCK190 and their peak bandwidth. Of the four controllers of the chip
    # (UG907, "DDR Memory Controller") the board uses three: one for a DDR4 module, two for LPDDR4 (AMD's base platform
    # xilinx_vck190_base, whose tags for `sp=` name the memory alone). The module is DDR4-3200AA with tRP + tRCD =
    # 2 * 13.75 ns (there); LPDDR4 takes 2 * 18 ns (JESD209-4).
    (
        OffChip("DDR4", 8, (MemoryChannel("DDR", 25.6, 27.5),)),
        OffChip("LPDDR4", 8, tuple(MemoryChannel("LPDDR", 16.0, 36.0) for _ in range(2))),
    ),
    # RSN paper, section 5: clock of the programmable logic.
    260,
    "xcvc1902-vsva2197-2MP-e-S",
    # Vitis HLS builds an addition of DSPFP32, whose output register is the sum: reports for Versal show a latency of 1.
    1,
)

DEVICES: Mapping[str, StreamDevice] = {device.name.lower(): device for device in (VC1902, U55C, U280)}
"""By the name in lower case."""


def device_named(name: str) -> StreamDevice:
    """Return the device of this name, in upper or lower case. Raises `ProgramError` for an unknown name; the message
    lists the names."""
    found = DEVICES.get(name.lower())
    if found is None:
        raise ProgramError(f"no device has the name {name!r}; there are {', '.join(d.name for d in DEVICES.values())}")
    return found
