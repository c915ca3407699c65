"""Checks of a program: those that it must pass before a machine may load it, and the further ones of `rsn check`.

`verify` decides whether a program may be loaded; it is fast. `check` also finds errors of programs that can be loaded:
sends that do not equal receives, hazards in memory, wrong contents of buffers and tiles. Neither computes data.
`dry_run` decides deadlock with a run without data.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Container, Iterator

import numpy as np

from ..base.errors import DeadlockError, ProgramError, UndecidedError
from ..base.finding import Finding as Finding
from ..base.garbage import gc_disabled
from ..machine.balance import Balance, balance
from ..machine.plan import TimedWorkload
from .expansion import Accesses, ExpandedProgram, Ints, place_of, preloaded_uops, uop_upper_bound
from .hazards import hazards
from .instruction_path import plan_of
from .overlay import Overlay
from .packet import Packet
from .program import Layout, Parameter, Patch, Program

MAX_UOPS = 4_000_000
"""Largest number of uOPs of a program: the largest real program (24 layers, B=8, L=384) has about 270,000."""

REPEATS = ("M06", "M07", "M08")
"""Codes of repeats in op lists that are not possible."""

MAX_VALUES = 64
"""Largest number of values of a run-time parameter that changes addresses: the check tries all of them."""


@gc_disabled()
def verify(program: Program) -> list[Finding]:
    """Check what a loader requires: headers, terminators, ranges, memory bounds, parameters.

    Returns errors and warnings; a program with errors must not be loaded.
    """
    findings, _ = _loadable(program)
    return findings


def require(program: Program) -> None:
    """Raise `ProgramError` with the first five errors of `verify`, if there are errors."""
    errors = [f for f in verify(program) if not f.warning]
    if errors:
        more = f"\n... and {len(errors) - 5} more" if len(errors) > 5 else ""
        raise ProgramError("\n".join(str(f) for f in errors[:5]) + more)


def missing_declarations(program: Program) -> list[Finding]:
    """Find declarations that a program disassembled from a bare image lacks: buffers (A01) and op lists (M05).

    A01: the program accesses a memory without a buffer. M05: no unit with an op list has ops, but other units exchange
    words with one. Fast if the program has both. Raises `KeyError` for a packet with an unknown opcode."""
    without = set(program.overlay.banks) - {b.bank for b in program.buffers}
    if not without and not _lists_missing(program):
        return []
    listed = preloaded_uops(program.overlay, program.preloaded)
    if sum(uop_upper_bound(p, program.overlay) for p in program.packets) + listed > MAX_UOPS:
        return []  # P01
    expansion = ExpandedProgram(program)
    out = [f for f in _bounds(expansion, _Memory(program), without) if f.code == "A01"]
    return out + missing_op_lists(program, balance(expansion.uop_table) if _lists_missing(program) else None)


def missing_op_lists(program: Program, counted: Balance | None) -> list[Finding]:
    """Return the finding M05 for each FU type with op lists, if no unit has ops but other units exchange words with
    that type.

    counted: the balance of the program, None to find nothing. A finding replaces the findings S01 for those streams.
    """
    preloaded = program.overlay.preloaded
    kind_of = {u.name: u.kind for u in program.overlay.units}
    found: dict[str, Finding] = {}
    for i in counted.uneven if counted is not None and _lists_missing(program) else ():
        kind = kind_of[i.peer]
        if kind in preloaded and kind not in found:
            verb = f"sends {i.sent} words to" if i.sent else f"waits for {i.received} words from"
            text = f"no {kind} has ops, but {i.unit} {verb} {i.peer}"
            way_out = (
                f"write the ops of each {kind} that works, as a section `{i.peer} {{ ... }}`; a bare image does not "
                "hold them: rsn dis --raw IMAGE --mme OPS.json"
            )
            found[kind] = Finding("M05", text, i.where, help=way_out)
    return list(found.values())


def _lists_missing(program: Program) -> bool:
    """Whether the overlay has units with op lists and the program has no ops at all."""
    return bool(program.overlay.preloaded) and not any(program.preloaded.values())


def _too_large(program: Program) -> list[Finding]:
    """P09: the image is larger than the host's buffer for it, whose size depends on the set-up, not on the machine."""
    most, size = program.overlay.image_bytes, 4 * (2 + sum(p.words for p in program.packets))
    if most is None or size <= most:
        return []
    text = f"the image has {size} bytes; the buffer of the reference set-up has {most}"
    return [Finding("P09", text, "program", True, "give the host a larger buffer, or store in larger pieces")]


@gc_disabled()
def check(program: Program, *, roles: bool = True, op_lists: bool = True) -> list[Finding]:
    """Check everything that can be decided without a run: `verify`, streams, hazards, contents of tiles, parameters.
    Returns errors and warnings; with errors that keep uOPs from being made, those alone.

    roles: the buffers have the right roles; with False (a bare image) hazards in memory are not checked. op_lists: the
    op lists are complete; with False the streams of their units are not counted.
    """
    findings, expansion = _loadable(program)
    if expansion is None:
        return findings
    if not op_lists:
        expansion.missing = frozenset(u.name for u in program.overlay.units if u.kind in program.overlay.preloaded)
    if any(f.code in ("M01", "M03") for f in findings):
        return findings
    findings += _ignored_bits(program)
    findings += _too_large(program)
    counted = balance(expansion.uop_table)
    unlisted = missing_op_lists(program, counted)
    kinds = set(program.overlay.preloaded) if unlisted else set()
    by_unit = program.overlay.by_unit
    findings += unlisted
    findings += [i.finding for i in counted.uneven if not {by_unit[i.src].kind, by_unit[i.dst].kind} & kinds]
    reasons = dict.fromkeys(counted.undecided.values())
    findings += [Finding("S02", f"not every stream was counted: {r}", "program", True) for r in reasons]
    if not any(f.code in ("U01", "M04") for f in findings):  # semantic checks assume legal uOPs
        findings += program.overlay.semantic_checks(expansion, counted.even)
    if roles and not any(f.code == "A01" for f in findings):
        findings += hazards(expansion)
    if not any(f.code in ("S01", "M05", "R02", "R03") for f in findings):
        findings += _moving_streams(program)
    return findings


def dry_run(program: Program) -> list[Finding]:
    """Run the program, which must pass `verify`, without data. Returns a finding for deadlock at the overlay's FIFO
    depths (D01, D03) and words left over (D02), or that data decides (D04, a warning); none if it ends."""
    plan = plan_of(program)
    try:
        plan.run()
    except DeadlockError as e:
        depth = _deep_enough(plan, sum(len(p.mops) + 1 for p in program.packets))
        if depth is None:
            way_out = "units wait for each other whatever the order of packets: change what they send or receive"
            return [Finding("D01", str(e), "program", help=way_out)]
        way_out = f"issue the packets of the starving unit earlier, or use mOP FIFOs of depth {depth}"
        return [Finding("D03", f"the order of packets stalls the dispatcher; {e}", "program", help=way_out)]
    except UndecidedError as e:
        return [Finding("D04", str(e), "program", True, help="a run with data shows whether it ends")]
    except ProgramError as e:
        return [Finding("D02", str(e), "program", help="make sends equal receives on the streams named")]
    return []


def smallest_depth(program: Program) -> int | None:
    """Return the smallest depth of mOP FIFOs, in slots, at which the program runs, at most the overlay's; None if it
    does not run at the overlay's depth either. The program must pass `verify`."""
    plan, depth = plan_of(program), program.overlay.mop_fifo_depth
    return _search(plan, 1, depth) if _runs(plan, depth) else None


def _runs(plan: TimedWorkload[Overlay], depth: int) -> bool:
    try:
        plan.run(dataclasses.replace(plan.machine, mop_fifo_depth=depth))
    except ProgramError:
        return False
    return True


def _search(plan: TimedWorkload[Overlay], low: int, high: int) -> int:
    """The smallest depth in low..high at which the program runs; it runs at `high`.

    More room never causes a deadlock, so binary search is correct.
    """
    return low + bisect_left(range(low, high), True, key=lambda depth: _runs(plan, depth))


def _deep_enough(plan: TimedWorkload[Overlay], longest: int) -> int | None:
    """The smallest depth above the overlay's at which the program runs; None if it runs at no depth.

    longest: a depth at which every mOP has a slot.
    """
    low = plan.machine.mop_fifo_depth + 1
    high = max(longest, low)
    return _search(plan, low, high) if _runs(plan, high) else None


def _loadable(program: Program) -> tuple[list[Finding], ExpandedProgram | None]:
    findings = [*_buffers(program), *_preloaded(program)]
    total = sum(uop_upper_bound(p, program.overlay) for p in program.packets)
    total += preloaded_uops(program.overlay, program.preloaded)
    if total > MAX_UOPS:
        text = f"expands to {total} uOPs; at most {MAX_UOPS} are allowed"
        return [*findings, *_parameters(program), Finding("P01", text, "program", help="split the program")], None
    findings += _packets(program)
    findings += _absent(program)
    if any(f.code in REPEATS for f in findings):
        return [*findings, *_parameters(program)], None  # nobody knows what the lists execute
    expansion = ExpandedProgram(program)
    findings += _uops(expansion)
    memory = _Memory(program)
    findings += _bounds(expansion, memory)
    findings += _parameters(program, memory)
    return findings, expansion


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
        elif b.offset < 0 or 4 * program.place(b).stop > bank:
            yield Finding("B03", f"does not fit in the {bank >> 20} MiB of {b.bank}", where)
        blocked = b.layout is Layout.BLOCKED
        if blocked and (len(b.shape) != 2 or b.shape[0] % 128 or b.shape[1] % 64):
            yield Finding("B04", f"shape {_x(b.shape)} is no whole number of 128x64 blocks", where)
        if not b.view_fits:
            rows = f" with rows {', '.join(map(str, b.rows))}" if b.rows else ""
            yield Finding("B05", f"view {_x(b.view or ())}{rows} does not fit in shape {_x(b.shape)}", where)
        for name, values in (("scale", b.scale), ("shift", b.shift)):
            if values is not None and len(values) != (b.view or b.shape)[-1]:
                yield Finding("B06", f"{name} has {len(values)} values for {(b.view or b.shape)[-1]} columns", where)


def _x(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _preloaded(program: Program) -> Iterator[Finding]:
    overlay = program.overlay
    for unit, ops in program.preloaded.items():
        spec = overlay.by_unit.get(unit)
        if spec is None or spec.kind not in overlay.preloaded:
            yield Finding("M01", f"overlay {overlay.name} has no unit {unit} with an op list", unit)
            continue
        held = overlay.preloaded[spec.kind]
        if len(ops) > held.longest:
            yield Finding("M02", f"{len(ops)} ops; it holds {held.longest}", unit)
        for fault in held.faults(ops):
            way_out = "repeat ops that lie directly before it, behind the repeat before"
            yield Finding(fault.code, fault.message, f"{unit} {program.where(unit, fault.index)}", help=way_out)
        for i, op in enumerate(ops):
            where = f"{unit} {program.where(unit, i)}"
            if type(op) is not held.record:
                yield Finding("M03", f"{op.NAME} is no op of a {spec.kind}", where)
                continue
            if held.repeated(op) is not None:
                continue  # it does nothing itself
            for reason in overlay.legal(spec, op):
                yield Finding("M04", reason, where)


def _parameters(program: Program, memory: _Memory | None = None) -> Iterator[Finding]:
    for p in program.parameters:
        where = f"parameter {p.name}"
        if not p.low <= p.default <= p.high:
            yield Finding("R01", f"default {p.default} is out of range {p.low}..{p.high}", where)
        for patch in p.patches:
            try:
                spec = program.patched_field(patch)
            except (IndexError, ProgramError, ValueError):
                yield Finding("R02", "a patch names a packet, mOP or field that does not exist", where)
                continue
            low, high = spec.bounds
            if spec.real or not (low <= patch.value(p.low) and patch.value(p.high) <= high):
                yield Finding("R03", f"values up to {patch.cap} do not fit {patch.field} ({low}..{high})", where)
            elif memory is not None:
                yield from _moved_accesses(program, memory, p, patch)


def _patched(program: Program, patch: Patch, value: int) -> Packet:
    """The packet that a patch changes, with `value` in its field."""
    packet = program.packets[patch.packet]
    mops = list(packet.mops)
    mops[patch.mop] = mops[patch.mop].replace(**{patch.field: value})
    return dataclasses.replace(packet, mops=tuple(mops))


def _alone(program: Program, packet: Packet) -> ExpandedProgram:
    """The uOPs of a packet."""
    return ExpandedProgram(dataclasses.replace(program, packets=(packet,), preloaded={}, parameters=(), places=()))


def _moved_accesses(program: Program, memory: _Memory, p: Parameter, patch: Patch) -> Iterator[Finding]:
    """R04: off-chip accesses outside of buffers at any value of a parameter. Two parameters in a mOP are an error."""
    overlay = program.overlay
    header = program.packets[patch.packet].header
    units = overlay.selected(header.opcode, header.mask)
    if not any(u.bank for u in units) or patch.field in overlay.by_opcode[header.opcode].inside:
        return
    where = f"parameter {p.name}"
    ends = (_alone(program, _patched(program, patch, patch.value(x))) for x in (p.low, p.high))
    if not any(end.accesses for end in ends):
        return  # such as an entry of the table of rows; a store of rows has its own limit
    others = [q for r in program.parameters for q in r.patches if (q.packet, q.mop) == (patch.packet, patch.mop)]
    if len(others) > 1 or patch.value(p.high) - patch.value(p.low) >= MAX_VALUES:
        text = f"{patch.field} of packet {patch.packet} changes addresses and has too many values to check"
        yield Finding("R04", text, where, help=f"at most {MAX_VALUES} values, and one parameter in an operation")
        return
    for value in range(patch.value(p.low), patch.value(p.high) + 1):
        packet = _patched(program, patch, value)
        if uop_upper_bound(packet, overlay) > MAX_UOPS:
            yield Finding("P01", f"with {p.name} at its limit the program has too many uOPs", where)
            return
        for finding in _bounds(_alone(program, packet), memory):
            text = f"with {patch.field}={value}, {finding.message}"
            yield Finding("R04", text, where, help="narrow the range of the parameter")
            return


def _moving_streams(program: Program) -> Iterator[Finding]:
    """R05: parameters that change the words sent or received at only one end of a stream."""
    forms = program.overlay.by_opcode
    patches = [
        (p, patch)
        for p in program.parameters
        for patch in p.patches
        if not forms[program.packets[patch.packet].header.opcode].config
    ]
    for end in ("lowest", "highest") if patches else ():
        now = dataclasses.replace(program, parameters=())
        packets = list(program.packets)
        for p, patch in patches:
            packets[patch.packet] = _patched(now, patch, patch.value(p.low if end == "lowest" else p.high))
            now = dataclasses.replace(now, packets=tuple(packets))
        if sum(uop_upper_bound(p, program.overlay) for p in packets) > MAX_UOPS:
            yield Finding("P01", f"with all parameters at their {end}, more than {MAX_UOPS} uOPs", "program")
            return
        for finding in balance(ExpandedProgram(now).uop_table).findings[:1]:
            text = f"with all parameters at their {end}, {finding.message}"
            yield Finding("R05", text, finding.where, help="patch both ends of the stream alike")


def _packets(program: Program) -> Iterator[Finding]:
    overlay = program.overlay
    ended: dict[str, int] = {}
    for number, packet in enumerate(program.packets):
        header = packet.header
        if not header.opcode:
            continue
        form = overlay.by_opcode[header.opcode]
        kind = overlay.by_kind[form.kind]
        units = overlay.selected(header.opcode, header.mask)
        where = place_of(program, units[0].name if units else "", number)
        if not units:
            text = f"mask {header.mask:#b} selects no {form.kind}"
            yield Finding("P02", text, where, warning=True, help="drop the packet, or set the bits of its units")
        known = sum(1 << u.index for u in kind) if len(kind) > 1 else 0
        if units and header.mask & ~known:
            text = f"mask {header.mask:#b} has bits that select nothing; {form.kind} has {_instances(len(kind))}"
            yield Finding("P07", text, where, warning=True, help="clear them: the decoder ignores them")
        if header.reuse > form.max_reuse:
            text = f"reuse {header.reuse}; a {form.name} decoder counts to {form.max_reuse}"
            yield Finding("P03", text, where, help="split the packet")
        if form.config and (header.window, header.reuse) != (1, 1):
            yield Finding("P06", f"a {form.name} packet has window 1 and reuse 1", where, help="one packet each")
        if not header.last and not packet.mops:
            yield Finding("P08", "a packet without mOPs does nothing", where, warning=True, help="drop it")
        for unit in units:
            if unit.name in ended:
                since = place_of(program, unit.name, ended[unit.name])
                text = f"{unit.name} has ended; this packet would block the dispatcher for ever"
                way_out = "drop it: it was ended before" if header.last else "move it before the terminator"
                yield Finding("P04", text, where, help=f"{way_out} ({since})")
            elif header.last:
                ended[unit.name] = number
    for spec in overlay.units:
        if spec.kind not in overlay.preloaded and spec.name not in ended:
            text = f"no terminator (`last {spec.name}`): its decoder would never end"
            yield Finding("P05", text, spec.name, help="end the image with one terminator per unit")


def _instances(count: int) -> str:
    return "one instance, for which the mask is 0" if count == 1 else f"{count} instances"


def _ignored_bits(program: Program) -> Iterator[Finding]:
    """U02: bits that are set and that the units ignore."""
    known: dict[object, tuple[str, ...]] = {}
    overlay = program.overlay
    way_out = "clear the bits that the unit ignores"
    for number, packet in enumerate(program.packets):
        for mop in packet.mops:
            if mop not in known:
                known[mop] = tuple(overlay.lint(mop))
            for text in known[mop]:
                unit = overlay.by_kind[overlay.by_opcode[packet.header.opcode].kind][0].name
                yield Finding("U02", text, place_of(program, unit, number), True, way_out)
    for unit, ops in program.preloaded.items():
        for i, op in enumerate(ops):
            for text in overlay.lint(op):
                yield Finding("U02", f"{unit}: {text}", place_of(program, unit, i), True, way_out)


def _absent(program: Program) -> Iterator[Finding]:
    """U01: fields that name a unit which the overlay does not have, because an overlay file took it away."""
    overlay = program.overlay
    known: dict[object, list[str]] = {}
    for number, packet in enumerate(program.packets):
        for mop in packet.mops:
            if mop not in known:
                named = [f for f in mop.FIELDS if (f.to or f.source) and getattr(mop, f.name)]
                ends = [end for f in named for end in (f.source, f.to) if end]
                known[mop] = [end for end in dict.fromkeys(ends) if end not in overlay.by_unit]
            for end in known[mop]:
                text = f"names {end}, which overlay {overlay.name} does not have"
                unit = overlay.by_kind[overlay.by_opcode[packet.header.opcode].kind][0].name
                yield Finding("U01", text, place_of(program, unit, number), help="use the units that it has")


def _uops(expansion: ExpandedProgram) -> Iterator[Finding]:
    """U01: uOPs that their unit cannot execute, once per distinct uOP and unit."""
    for name, run in expansion.sequences.items():
        if run.unit.kind in expansion.overlay.preloaded:
            continue  # M04
        distinct, first, times = np.unique(run.kinds, return_index=True, return_counts=True)
        for kind, uop, n in zip(distinct.tolist(), first.tolist(), times.tolist(), strict=True):
            for reason in expansion.overlay.legal(run.unit, expansion.uops[kind]):
                yield Finding("U01", f"{name}: {reason}", expansion.where(name, uop), times=n)


class _Memory:
    """The declared address ranges of a program, in float32 elements."""

    def __init__(self, program: Program) -> None:
        self.unit = program.overlay.address_unit
        self.starts: dict[str, Ints] = {}
        self.reach: dict[str, Ints] = {}
        self.names: dict[str, list[str]] = {}
        for bank in program.overlay.banks:
            rows = sorted((program.place(b).start, b.size, b.name) for b in program.in_bank(bank))
            self.starts[bank] = np.array([at for at, _, _ in rows], np.int64)
            # an access fits if, of the buffers that begin at or before it, the one that reaches farthest holds its end
            self.reach[bank] = np.maximum.accumulate(np.array([at + n for at, n, _ in rows], np.int64))
            self.names[bank] = [name for _, _, name in rows]

    def outside(self, bank: str, accesses: Accesses) -> Ints:
        """Indices of the accesses that lie in no single buffer."""
        starts = self.starts.get(bank)
        if starts is None or not len(starts):
            return np.arange(len(accesses))
        i = np.searchsorted(starts, accesses.start, side="right") - 1
        (out,) = np.nonzero((i < 0) | (accesses.end > self.reach[bank][i]))
        return out

    def nearest(self, bank: str, start: int) -> str:
        i = int(np.searchsorted(self.starts.get(bank, np.zeros(0)), start, side="right")) - 1
        if i < 0:
            return ""
        return f" (the one before is {self.names[bank][i]}, up to {self.reach[bank][i] // self.unit:#x})"


def _bounds(expansion: ExpandedProgram, memory: _Memory, banks: Container[str] | None = None) -> Iterator[Finding]:
    """A01: accesses that lie in no buffer, the first of each packet; one finding for a bank without any buffer.

    banks: the banks to check; None for all.
    """
    for bank, a in expansion.accesses.items():
        if banks is not None and bank not in banks:
            continue
        seen: dict[tuple[int, int], int] = {}
        out = memory.outside(bank, a)
        for i in out.tolist():
            seen.setdefault((int(a.unit[i]), int(a.origin[i])), i)
        for i in seen.values():
            unit = a.units[a.unit[i]].name
            start, size = int(a.start[i]), int(a.size[i])
            verb = "writes" if a.store[i] else "reads"
            text = (
                f"{unit} {verb} {size} elements at {bank} address {start // memory.unit:#x}, which lie "
                f"in no declared buffer{memory.nearest(bank, start)}"
            )
            way_out = "correct address, size, chunks or strides, or declare the buffer as large as it is"
            where = expansion.where(unit, int(a.uop[i]))
            if not memory.names.get(bank):
                text += f": the program declares none in {bank}, and accesses its elements up to {int(a.end.max())}"
                way_out = (
                    f"declare what lies in {bank}, as `buffer NAME {bank} ROWSxCOLUMNS blocked input`; a bare image "
                    "does not say it, but runs as it is: rsn run --raw"
                )
                yield Finding("A01", text, where, help=way_out, times=len(seen))
                break
            yield Finding("A01", text, where, help=way_out)
