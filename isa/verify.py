"""What a program must satisfy before a machine may load it. Nothing here runs data; `dry_run` decides deadlock."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .datapath import Overlay
from .errors import DeadlockError, ProgramError
from .network import Network
from .packet import Packet, expand
from .program import Layout, Program

MOST_UOPS = 4_000_000
"""A program that expands to more is refused: the largest real one (24 layers, B=8, L=384) has about 270,000."""


@dataclass(frozen=True)
class Finding:
    """Something wrong: a stable code, what it is and what to do, and where. A warning does not keep a program from
    loading."""

    code: str
    message: str
    where: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {'warning' if self.warning else 'error'} {self.code}: {self.message}"


def verify(program: Program) -> list[Finding]:
    """Every defect that can be seen without running: headers, terminators, ranges, memory bounds, parameters."""
    findings = [*_buffers(program), *_preloaded(program), *_parameters(program)]
    total = sum(_uops_in(p, program.overlay) for p in program.packets)
    if total > MOST_UOPS:
        return [*findings, Finding("P01", f"expands to {total} uOPs; {MOST_UOPS} is the most", "program")]
    return [*findings, *_packets(program)]


def require(program: Program) -> None:
    """Raise `ProgramError` with the first errors of `verify`, if any."""
    errors = [f for f in verify(program) if not f.warning]
    if errors:
        more = f"\n... and {len(errors) - 5} more" if len(errors) > 5 else ""
        raise ProgramError("\n".join(str(f) for f in errors[:5]) + more)


def dry_run(program: Program) -> list[Finding]:
    """Run the image without data: sends against receives on every stream, and deadlock at the datapath's depths."""
    net = Network(program.overlay, packets=program.packets, preloaded=program.preloaded, where=program.where)
    try:
        net.run()
    except DeadlockError as e:
        return [Finding("D01", str(e), "program")]
    except ProgramError as e:
        return [Finding("D02", str(e), "program")]
    return []


def _uops_in(packet: Packet, overlay: Overlay) -> int:
    """An upper bound of the uOPs a packet expands to, from its counts alone."""
    return packet.header.reuse * sum(int(getattr(m, "chunks", 1)) for m in packet.mops)


def _buffers(program: Program) -> Iterator[Finding]:
    seen: set[str] = set()
    for b in program.buffers:
        where = f"buffer {b.name}"
        if b.name in seen:
            yield Finding("B01", "declared twice", where)
        seen.add(b.name)
        bank = program.overlay.banks.get(b.bank)
        if bank is None:
            yield Finding("B02", f"overlay {program.overlay.name} has no bank {b.bank!r}", where)
        elif b.offset < 0 or (b.offset * program.overlay.address_unit + b.size) * 4 > bank:
            yield Finding("B03", f"does not fit in the {bank >> 20} MiB of {b.bank}", where)
        blocked = b.layout is Layout.BLOCKED
        if blocked and (len(b.shape) != 2 or b.shape[0] % 128 or b.shape[1] % 64):
            yield Finding("B04", f"shape {_x(b.shape)} is no whole number of 128x64 blocks", where)
        if b.view is not None and not _view_fits(b.view, b.shape):
            yield Finding("B05", f"view {_x(b.view)} does not fit in shape {_x(b.shape)}", where)
        for name, values in (("scale", b.scale), ("shift", b.shift)):
            if values is not None and len(values) != (b.view or b.shape)[-1]:
                yield Finding("B06", f"{name} has {len(values)} values for {(b.view or b.shape)[-1]} columns", where)


def _x(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _view_fits(view: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    if not view or min(view) < 1:
        return False
    if len(shape) == 1:
        return len(view) == 1 and view[0] <= shape[0]
    if len(view) == 3:
        return shape[0] % view[0] == 0 and view[1] <= shape[0] // view[0] and view[2] <= shape[1]
    return len(view) == 2 and view[0] <= shape[0] and view[1] <= shape[1]


def _preloaded(program: Program) -> Iterator[Finding]:
    overlay = program.overlay
    for unit, ops in program.preloaded.items():
        spec = overlay.by_unit.get(unit)
        if spec is None or spec.kind not in overlay.preloaded:
            yield Finding("M01", f"overlay {overlay.name} has no unit {unit} with an op list", unit)
            continue
        record, most = overlay.preloaded[spec.kind]
        if len(ops) > most:
            yield Finding("M02", f"{len(ops)} ops; it holds {most}", unit)
        for i, op in enumerate(ops):
            where = f"{unit} {program.where(unit, i)}"
            if type(op) is not record:
                yield Finding("M03", f"{type(op).__name__} is no op of a {spec.kind}", where)
                continue
            for reason in overlay.legal(unit, op):
                yield Finding("M04", reason, where)


def _parameters(program: Program) -> Iterator[Finding]:
    for p in program.parameters:
        where = f"parameter {p.name}"
        if not p.low <= p.default <= p.high:
            yield Finding("R01", f"default {p.default} is out of range {p.low}..{p.high}", where)
        for patch in p.patches:
            try:
                spec = program.patched_field(patch)
            except (IndexError, ProgramError, ValueError):
                yield Finding("R02", "a patch point lies on no field", where)
                continue
            low, high = spec.bounds
            if spec.real or not (low <= patch.value(p.low) and patch.value(p.high) <= high):
                yield Finding("R03", f"values up to {patch.cap} do not fit {patch.field} ({low}..{high})", where)


def _packets(program: Program) -> Iterator[Finding]:
    overlay = program.overlay
    ended: set[str] = set()
    memory = _Memory(program)
    legal: dict[tuple[str, Any], tuple[str, ...]] = {}
    for number, packet in enumerate(program.packets):
        header = packet.header
        if not header.opcode:
            continue
        form = overlay.by_opcode[header.opcode]
        units = overlay.selected(header.opcode, header.mask)
        where = program.where(units[0].name if units else "", number)
        if not units:
            yield Finding("P02", f"mask {header.mask:#b} selects no {form.kind}", where, warning=True)
        if header.reuse > form.max_reuse:
            yield Finding("P03", f"reuse {header.reuse}; a {form.name} decoder counts to {form.max_reuse}", where)
        if form.config and (header.window, header.reuse) != (1, 1):
            yield Finding("P06", f"a {form.name} packet has window 1 and reuse 1", where)
        for unit in units:
            if unit.name in ended:
                yield Finding("P04", f"{unit.name} has ended; this packet would block the dispatcher for ever", where)
            if header.last:
                ended.add(unit.name)
                continue
            for uop in expand(packet, overlay):
                fixed = uop._replace(addr=0) if hasattr(uop, "_replace") else uop
                key = (unit.name, fixed)
                if key not in legal:
                    legal[key] = tuple(overlay.legal(unit.name, uop))
                for reason in legal[key]:
                    yield Finding("U01", f"{unit.name}: {reason}", where)
                touch = overlay.transfer(unit.name, uop)
                if touch is not None and not memory.holds(touch.bank, touch.addr, touch.size):
                    verb = "writes" if touch.store else "reads"
                    yield Finding(
                        "A01",
                        f"{unit.name} {verb} {touch.size} elements at {touch.bank} address {touch.addr:#x}, which lie "
                        f"in no declared buffer{memory.nearest(touch.bank, touch.addr)}",
                        where,
                    )
                    break
    for spec in overlay.units:
        if spec.kind not in overlay.preloaded and spec.name not in ended:
            yield Finding("P05", f"no terminator (`last {spec.name}`): its decoder would never end", spec.name)


class _Memory:
    """Which address ranges are declared."""

    def __init__(self, program: Program) -> None:
        self.unit = program.overlay.address_unit
        self.ranges: dict[str, list[tuple[int, int]]] = {}
        self.names: dict[tuple[str, int], str] = {}
        for b in program.buffers:
            start = b.offset * self.unit
            self.ranges.setdefault(b.bank, []).append((start, start + b.size))
            self.names.setdefault((b.bank, start), b.name)
        self.ranges = {bank: sorted(set(r)) for bank, r in self.ranges.items()}
        self.longest = {bank: max(e - s for s, e in r) for bank, r in self.ranges.items()}

    def holds(self, bank: str, addr: int, size: int) -> bool:
        start = addr * self.unit
        ranges = self.ranges.get(bank, [])
        i = bisect_right(ranges, (start, 1 << 62)) - 1
        while i >= 0 and ranges[i][0] > start - self.longest[bank]:
            if start + size <= ranges[i][1]:
                return True
            i -= 1
        return False

    def nearest(self, bank: str, addr: int) -> str:
        before = [r for r in self.ranges.get(bank, []) if r[0] <= addr * self.unit]
        if not before:
            return ""
        start, end = before[-1]
        return f" (the one before is {self.names[bank, start]}, up to {end // self.unit:#x})"
