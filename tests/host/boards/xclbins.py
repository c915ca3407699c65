"""Bitstreams that hold metadata alone: enough for XRT to load them, and for its no-op device to run them."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID
from xml.sax.saxutils import quoteattr

from rsn.host.boards.profile import VCK190
from rsn.host.boards.tiles import tiles
from rsn.host.boards.xclbin import (
    AIE_METADATA,
    CLOCK,
    CLOCK_FREQ_TOPOLOGY,
    EMBEDDED_METADATA,
    HEADER,
    HEADER_AT,
    MAGIC,
    SECTION,
)
from rsn.isa.versal.board import ARGUMENTS, FINGERPRINT, KERNEL

MEM_TOPOLOGY, CONNECTIVITY, IP_LAYOUT, GROUP_TOPOLOGY, GROUP_CONNECTIVITY = 6, 7, 8, 26, 27
MEMORY = struct.Struct("<BB6xQQ16s")
"""Type, whether it is used, KiB, address, name (mem_data of xclbin.h)."""
IP = struct.Struct("<IIQ64s")
MEMORIES = ("DDR", "LPDDR")
OURS = (*(a.name for a in ARGUMENTS), FINGERPRINT)
PUBLISHED = OURS[:-1]


OUR_UUID = UUID("6f1c5b0e-34a3-4d6b-9d0c-2a64f7a1c190")


@dataclass(frozen=True)
class Made:
    """An xclbin of our kernel, or of one that differs. arguments: all of the kernel that are no streams."""

    uuid: UUID = OUR_UUID
    kernel: str = KERNEL
    arguments: Sequence[str] = OURS
    graph: str = "G"
    ports: Sequence[str] | None = None
    platform: str = "xilinx_vck190_base_202410_1"

    def write(self, path: Path) -> Path:
        path.write_bytes(self.bytes())
        return path

    def bytes(self) -> bytes:
        sections = list(self._sections())
        at = HEADER_AT + HEADER.size + SECTION.size * len(sections)
        table, body = b"", b""
        for kind, data in sections:
            table += SECTION.pack(kind, b"", at + len(body), len(data))
            body += data + bytes(-len(data) % 8)
        fields = (at + len(body), 0, 0, 0, 2, 17, 0, 0, bytes(16), self.platform.encode(), self.uuid.bytes, b"")
        head = MAGIC + struct.pack("<i", -1) + b"\xff" * 28 + bytes(256 + 8) + HEADER.pack(*fields, len(sections))
        return head + table + body

    def _sections(self) -> list[tuple[int, bytes]]:
        memories = struct.pack("<i4x", len(MEMORIES))
        memories += b"".join(MEMORY.pack(1, 1, 8 << 20, i << 40, m.encode()) for i, m in enumerate(MEMORIES))
        places = [(i, MEMORIES.index(a.memory)) for i, a in enumerate(ARGUMENTS)]
        connected = struct.pack("<i", len(places)) + b"".join(struct.pack("<iii", i, 0, m) for i, m in places)
        layout = struct.pack("<i4x", 1) + IP.pack(1, 0, 0xA404_0000, f"{self.kernel}:{self.kernel}_1".encode())
        ports = [p for p, _, _ in tiles(VCK190.overlay, self.graph)] if self.ports is None else self.ports
        aie = {
            "graphs": {"graph0": {"name": self.graph, "id": "0"}},
            "RTPs": {f"rtp{i}": {"port_name": p, "number_of_bytes": "2048"} for i, p in enumerate(ports)},
        }
        return [
            (EMBEDDED_METADATA, self._xml().encode() + b"\0"),
            (MEM_TOPOLOGY, memories),
            (CONNECTIVITY, connected),
            (IP_LAYOUT, layout),
            (GROUP_TOPOLOGY, memories),
            (GROUP_CONNECTIVITY, connected),
            (CLOCK_FREQ_TOPOLOGY, struct.pack("<h", 1) + CLOCK.pack(260, 2, b"KERNEL_CLK")),
            (AIE_METADATA, json.dumps({"aie_metadata": aie}).encode()),
        ]

    def _xml(self) -> str:
        """Memory arguments have addressQualifier 1, scalars 0, streams 4; each is 64 bit wide."""
        arguments = "".join(
            f'<arg name="{name}" addressQualifier="{int(i < len(ARGUMENTS))}" id="{i}" port="S_AXI_CONTROL" size="0x8" '
            f'offset="{0x10 + 12 * i:#x}" hostOffset="0x0" hostSize="0x8" type="{"void*" if i < 5 else "ulong"}"/>'
            for i, name in enumerate(self.arguments)
        )
        stream = '<arg name="a0_0" addressQualifier="4" id="" port="a0_0" size="0x8" offset="0x0" '
        stream += 'hostOffset="0x0" hostSize="0x8" type="stream"/>'
        return (
            '<?xml version="1.0" encoding="UTF-8"?><project name="rsn"><platform vendor="xilinx" boardid="vck190" '
            'name="p"><device name="fpga0"><core name="OCL_REGION_0" target="hw" type="clc_region" clockFreq="0MHz" '
            f'numComputeUnits="1"><kernel name={quoteattr(self.kernel)} language="c" hwControlProtocol="ap_ctrl_hs">'
            '<port name="S_AXI_CONTROL" mode="slave" range="0x1000" dataWidth="32" portType="addressable" base="0x0"/>'
            f'{arguments}{stream}<instance name="{self.kernel}_1"><addrRemap base="0xA4040000" range="0x10000" '
            'port="S_AXI_CONTROL"/></instance></kernel></core></device></platform></project>'
        )
