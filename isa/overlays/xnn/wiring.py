"""Units, streams, rates, limits, patterns: the two overlays. Source: contract sections 1 and 2, paper section 4 and
Fig. 10.

The patterns are derived from units, streams and routes: those that a changed description leaves. MemA i feeds row i of
the grid, MemB j column j. The MemCs of a row that can send to a further product unit form a row of the attention
pipeline, with that unit (contract section 2).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ....base.errors import ProgramError
from ....machine.description import Rate, Stream, StreamNetwork, UnitSpec, memory_of
from ....machine.resources import VC1902, Deviation
from ...fields import Record
from ...layout import UNIT, UNIT_BYTES
from ...overlay import AttentionPipeline, InstructionFormat, OpList, Overlay, Patterns, ProductGrid
from ...versal.mme import MAX_OPS
from ...versal.off_chip import addresses
from ...versal.rates import ISSUING, LINK, MOVING
from ...versal.tiles import BLOCK_TOKEN, BLOCK_WORDS, ROW_SUM_TOKEN, ROW_TOKEN, TILE_TOKEN
from ...work import Emit, Item, Patched
from . import formats as f
from . import mem_a, mem_b, mem_c, mesh, mme, off_chip
from .calibration import deviations
from .checks import rules
from .cycles import LOOPS, costs
from .mem_a import MemAUnit
from .mem_b import MemB2Unit, MemBUnit
from .mem_c import MemCUnit
from .mesh import MeshUnit
from .mme import MmeUnit
from .off_chip import OffChipUnit, ddr_uops
from .resources import needs
from .ring import check_slots

PAIR = 2
"""Columns of the grid of Q K^T, whose MemCs share the rows of a softmax."""


def patterns(machine: StreamNetwork) -> Patterns | None:
    """Return the patterns that a machine of XNN's units has, derived from its units, streams and routes; None if it has
    not even a grid of one product unit.
    """
    units = machine.by_unit
    switches = [u for u in machine.units if u.routes is not None]
    if len(switches) != 2:
        return None
    left_switch, right_switch = (u.name for u in switches)
    activations = next((u.name for u in machine.units_with("load") if u.capability("store")), None)
    weights = next((u.name for u in machine.units_with("load_vector")), None)
    if activations is None or weights is None:
        return None
    left, right = (_sources(machine, switch) for switch in (left_switch, right_switch))
    lefts = [u for u in left if _feeds(machine, activations, u)]
    rights = [u for u in right if _feeds(machine, weights, u)]
    products = [[_common(left[a], right[b]) for b in rights] for a in lefts]
    rows = [i for i, row in enumerate(products) if row and all(row)]
    results = {u.name: _result(machine, u.name) for u in machine.units_with("matmul")}
    if not rows:
        return None
    grid = ProductGrid(
        tuple(lefts[i] for i in rows),
        tuple(rights),
        tuple(tuple(map(str, products[i])) for i in rows),
        tuple(tuple(results[str(p)] for p in products[i]) for i in rows),
        left_switch,
        right_switch,
        activations,
        weights,
    )
    if len(rights) != PAIR or not all(units[u].capability("softmax") for u in grid.results[0]):
        return Patterns(grid, None)
    values = next((u for u in right if u not in rights and _feeds(machine, activations, u)), None)
    targets = [_target(left, row) for row in grid.results]
    score_rows = [i for i, target in enumerate(targets) if target is not None and target in right.get(str(values), ())]
    seconds = tuple(str(targets[i]) for i in score_rows)
    stored = next((u for u in lefts if seconds and set(seconds) <= set(left[u])), None)
    if values is None or stored is None or score_rows != list(range(PAIR)):
        return Patterns(grid, None)
    pipeline = AttentionPipeline(
        grid.upper_left(len(score_rows), PAIR), seconds, tuple(results[u] for u in seconds), values, stored
    )
    return Patterns(grid, pipeline)


def _sources(machine: StreamNetwork, switch: str) -> dict[str, list[str]]:
    """What each source of a switch can be connected to, in the order of the units; only units that exist."""
    out: dict[str, list[str]] = {}
    routes = machine.by_unit[switch].routes or ()
    for unit in machine.units:
        sinks = [d for s, d in routes if s == unit.name and d in machine.by_unit]
        if sinks:
            out[unit.name] = sinks
    return out


def _feeds(machine: StreamNetwork, source: str, unit: str) -> bool:
    return any(port.receives and port.peer == source for port in machine.ports[unit])


def _common(a: Sequence[str], b: Sequence[str]) -> str | None:
    """The only unit in both."""
    both = [unit for unit in a if unit in b]
    return both[0] if len(both) == 1 else None


def _result(machine: StreamNetwork, product: str) -> str:
    """The memory that receives the results of a product unit."""
    return next(port.peer for port in machine.ports[product] if not port.receives)


def _target(left: dict[str, list[str]], row: Sequence[str]) -> str | None:
    """The product unit that all results of a row can be sent to."""
    targets = {unit for result in row for unit in left.get(result, ("",))}
    return targets.pop() or None if len(targets) == 1 else None


_LOOPS = {**LOOPS, **mem_c.BASE_LOOPS}


def _fill(*loops: str, of: str, per: str) -> Rate:
    """Cycles until the first round of loops of hw/versal has gone through: an estimate, but nothing is fitted. of:
    their labels in the source."""
    cycles = sum(_LOOPS[name].fill for name in loops)
    return Rate(cycles, "PL cycles", f"depth of loops {of} in hw/versal/pl/softmax.h, per {per}", "post-op")


RATES = {
    **MOVING,
    "mme_setup_us": Rate(3.0, "us", "per (a_iter, b_iter), fitted on the square GEMMs", "MME set-up", True),
    "softmax_beat": Rate(
        1, "PL cycles", "structure: a pass is 512 beats a 128x128 tile; exp, multiply; with opcode 8 maxima", "post-op"
    ),
    "softmax_fill": _fill("softmax_exp", "softmax_scale", of="exps, products", per="uOP"),
    "softmax_max_fill": _fill("softmax_max", of="maxima", per="uOP that subtracts maxima (opcode 8)"),
    "exchange_fill": _fill("exchange", of="send_rows, combine_*", per="vector of rows to or from the neighbour"),
    "gelu_beat": Rate(
        8, "PL cycles", "structure: 4 elements a cycle; always 512 columns, so 32768 cycles a MemC buffer", "post-op"
    ),
    "norm_us": Rate(162.0, "us", "per 256x512 MemC buffer, fitted on Table 9", "post-op", True),
    **ISSUING,
    **LINK,
}


EXTENSION_RATES = {
    "softmax_beat": Rate(1, "PL cycles", "structure: a pass is 512 beats a 128x128 tile; maxima, exp", "post-op"),
    "softmax_fill": _fill("softmax_exp", of="exps", per="uOP"),
    "rotate_beat": Rate(
        LOOPS["rotate"].rounds, "PL cycles", "structure: 8 elements a cycle, of the columns that are stored", "post-op"
    ),
    "softcap_beat": Rate(LOOPS["softcap"].rounds, "PL cycles", "structure: 4 elements a cycle", "post-op"),
    "normalise_word": Rate(
        LOOPS["normalise"].rounds, "PL cycles", "structure: 32 elements a cycle, at a load", "on-chip transfer"
    ),
}
"""Of what opcodes 9 to 14 add; and of a softmax whose product is made while it leaves."""


def _units(*, registers: bool) -> tuple[UnitSpec, ...]:
    """All units. registers: those of opcodes 8 to 14 exist, and with them masks and more operations."""
    memory = mem_b.WIDE_VALUES_MEMORY if registers else mem_b.VALUES_MEMORY
    values = UnitSpec("MemB2", "MemB", 2, MemB2Unit, memory=memory)
    norms = mem_a.capabilities(mem_a.MEMORY) if registers else ()
    return (
        UnitSpec("DDR", "DDR", 0, OffChipUnit, "ddr", capabilities=off_chip.capabilities("ddr", keeps_rows=registers)),
        UnitSpec("LPDDR", "LPDDR", 0, OffChipUnit, "lpddr", capabilities=off_chip.capabilities("lpddr")),
        *(UnitSpec(f"MemA{i}", "MemA", i, MemAUnit, memory=mem_a.MEMORY, capabilities=norms) for i in range(3)),
        *(
            UnitSpec(f"MemB{i}", "MemB", i, MemBUnit, memory=mem_b.MEMORY, capabilities=mem_b.CAPABILITIES)
            for i in range(2)
        ),
        dataclasses.replace(values, capabilities=mem_b.capabilities(values, registers=registers)),
        UnitSpec("MeshA", "MeshA", 0, MeshUnit, routes=mesh.routes(f.MeshA)),
        UnitSpec("MeshB", "MeshB", 0, MeshUnit, routes=mesh.routes(f.MeshB)),
        *(UnitSpec(f"MME{i}", "MME", i, MmeUnit, capabilities=mme.CAPABILITIES) for i in range(6)),
        *(
            UnitSpec(
                f"MemC{i}",
                "MemC",
                i,
                MemCUnit,
                memory=mem_c.MEMORY,
                capabilities=mem_c.capabilities(mem_c.MEMORY, registers=registers, sends=i < mem_c.SENDS),
            )
            for i in range(6)
        ),
    )


def _streams() -> list[Stream]:
    """Off-chip edges hold one 128x64 block; an MME holds two tiles of each operand; every other edge holds one tile."""
    edges = {("DDR", x.to) for x in f.Ddr.FIELDS if x.to} | {("LPDDR", x.to) for x in f.Lpddr.FIELDS if x.to}
    edges |= {(x.source, "DDR") for x in f.Ddr.FIELDS if x.source}
    out = [Stream(str(a), str(b), BLOCK_WORDS, token=BLOCK_TOKEN) for a, b in sorted(edges, key=str)]
    for switch, form in (("MeshA", f.MeshA), ("MeshB", f.MeshB)):
        routes = [x for x in form.FIELDS if x.source]
        out += [Stream(s, switch, 1, token=TILE_TOKEN) for s in sorted({str(x.source) for x in routes})]
        out += [Stream(switch, d, 2, token=TILE_TOKEN) for d in sorted({str(x.to) for x in routes})]
    out += [Stream(f"MME{i}", f"MemC{i}", 2, token=TILE_TOKEN) for i in range(6)]
    for i in range(6):
        out.append(Stream(f"MemC{i}", f"MemC{i ^ 1}", mem_c.MEMORY.rows, "norm", ROW_SUM_TOKEN))
        if i < mem_c.SENDS:
            out.append(Stream(f"MemC{i}", f"MemC{i ^ 1}", mem_c.MEMORY.rows, "softmax", ROW_TOKEN))
    return out


_BASE_FORMS = (
    InstructionFormat("DDR", 1, "DDR", f.Ddr, True, 8, ddr_uops, uop_bytes=12, addresses=addresses),
    InstructionFormat("LPDDR", 2, "LPDDR", f.Lpddr, True, 8, off_chip.lpddr_uops, uop_bytes=12, addresses=addresses),
    InstructionFormat("MemA", 3, "MemA", f.MemA, False, 8, uop_bytes=4),
    InstructionFormat("MemB", 4, "MemB", f.MemB, False, 8, uop_bytes=8),
    InstructionFormat("MemC", 5, "MemC", f.MemC, False, 8, uop_bytes=8),
    InstructionFormat("MeshA", 6, "MeshA", f.MeshA, True, 6, uop_bytes=8),
    InstructionFormat("MeshB", 7, "MeshB", f.MeshB, True, 6, uop_bytes=8, max_reuse=0x7FFF),
)

_LEGAL: Mapping[type, Callable[[UnitSpec, Any], Iterator[str]]] = {
    f.Transfer: off_chip.legal,
    f.RowTransfer: off_chip.legal_rows,
    f.MemA: mem_a.legal,
    f.MemANorm: mem_a.legal_norm,
    f.MemB: mem_b.legal,
    f.MemBConfig: mem_b.legal_config,
    f.MemC: mem_c.legal,
    f.MemCConfig: mem_c.legal_config,
    f.MemCScores: mem_c.legal_scores,
    f.MemCStore: mem_c.legal_store,
    f.MemCTable: mem_c.legal_table,
    f.MeshA: mesh.legal,
    f.MeshB: mesh.legal,
    f.Mme: mme.legal,
}
_LINT: Mapping[type, Callable[[Any], Iterator[str]]] = {
    f.Ddr: off_chip.lint_ddr,
    f.Lpddr: off_chip.lint_lpddr,
    f.MemC: mem_c.lint,
    f.Mme: mme.lint,
}


def legal(unit: UnitSpec, uop: Any) -> Iterator[str]:
    """Yield the reasons why a unit cannot execute a uOP whose fields are all in range (contract 1.4, 2, 7)."""
    return _LEGAL[type(uop)](unit, uop) if type(uop) in _LEGAL else iter(())


def lint(mop: Any) -> Iterator[str]:
    """Yield warnings on fields of a mOP that the unit ignores, or that contradict each other (contract 1.4, 2)."""
    return _LINT[type(mop)](mop) if type(mop) in _LINT else iter(())


def refit(overlay: Overlay) -> Overlay:
    """Return an overlay whose sizes were changed, with the capabilities and the depths of streams between neighbours
    that the new sizes need. Raises `ProgramError` for sizes that no field can say, for an MME without a MemC, and for a
    MemC without a neighbour."""
    registers = any(form.config for form in overlay.formats)
    units = []
    for u in overlay.units:
        ports = overlay.ports[u.name]
        if u.memory is not None:
            check_slots(u)
        match u.kind:
            case "MemA":
                mem_a.check_memory(u)
                u = dataclasses.replace(u, capabilities=mem_a.capabilities(memory_of(u)) if registers else ())
            case "MemB":
                mem_b.check_memory(u, registers=registers)
                u = dataclasses.replace(u, capabilities=mem_b.capabilities(u, registers=registers))
            case "MemC":
                mem_c.check_memory(u, registers=registers)
                if not any(p.label == "norm" for p in ports):
                    raise ProgramError(f"units.MemC: {u.name} has no neighbour left; leave an even number of MemCs")
                sends = u.capability("send") is not None
                made = mem_c.capabilities(memory_of(u), registers=registers, sends=sends)
                u = dataclasses.replace(u, capabilities=made)
            case "MME" if all(p.receives for p in ports):
                raise ProgramError(f"units.MME: {u.name} has no MemC to send to; leave as many MemCs as MMEs")
        units.append(u)
    refitted = dataclasses.replace(overlay, units=tuple(units))
    rows = {
        s.name: memory_of(refitted.by_unit[s.src]).rows
        for s in refitted.streams
        if s.token in (ROW_TOKEN, ROW_SUM_TOKEN)  # neighbours send a whole column before they receive one
    }
    return refitted.with_depths({s.name: rows[s.name] for s in refitted.streams if s.depth < rows.get(s.name, 0)})


_EMIT: Mapping[str, Emit] = {
    "DDR": off_chip.emit,
    "LPDDR": off_chip.emit,
    "MeshA": partial(mesh.emit, f.MeshA),
    "MeshB": partial(mesh.emit, f.MeshB),
    "MME": mme.emit,
}
_EMIT_REGISTERS: Mapping[str, Callable[..., Iterator[Record | Patched]]] = {
    "MemA": mem_a.emit,
    "MemB": mem_b.emit,
    "MemC": mem_c.emit,
}


def emit(unit: UnitSpec, items: Iterable[Item], *, registers: bool) -> Iterator[Record | Patched]:
    """Yield the instructions of a unit's work items. registers: the Mems have registers. Raises what the unit's own
    `emit` raises, such as `FieldError`, and `KeyError` for a kind of unit that XNN does not have.
    """
    if unit.kind in _EMIT_REGISTERS:
        return _EMIT_REGISTERS[unit.kind](unit, items, registers=registers)
    return _EMIT[unit.kind](unit, items)


def _deviations() -> Iterator[Deviation]:
    """How far the estimate of resources is from the published figures; its units and streams are always those of the
    base machine."""
    return deviations(XNN_BASE)


XNN_BASE = Overlay(
    name="xnn-base",
    units=_units(registers=False),
    streams=tuple(_streams()),
    formats=_BASE_FORMS,
    rates=RATES,
    terminators=("DDR", "LPDDR", "MemA", "MemB", "MemC", "MeshB", "MeshA"),
    preloaded={"MME": OpList(f.Mme, MAX_OPS)},
    banks={"ddr": 8 << 30, "lpddr": 8 << 30},
    clock_hz=260e6,  # paper section 5
    address_unit=UNIT,
    image_bytes=512 << 10,  # of the reference setup, contract section 4
    legal=legal,
    transfer=off_chip.transfer,
    flops=mme.flops,
    lint=lint,
    semantic_checks=rules,
    refit=refit,
    max_bank_bytes=(f.Ddr.field("addr").bounds[1] + 1) * UNIT_BYTES,
    device=VC1902,
    resources=needs,
    deviations=_deviations,
    costs=costs,
    emit=partial(emit, registers=False),
    find_patterns=patterns,
)

XNN = dataclasses.replace(
    XNN_BASE,
    name="xnn",
    units=_units(registers=True),
    rates=RATES | EXTENSION_RATES,
    formats=(
        *_BASE_FORMS,
        InstructionFormat("MemCConfig", 8, "MemC", f.MemCConfig, False, 8, config=True, max_reuse=1, uop_bytes=16),
        InstructionFormat("MemCScores", 9, "MemC", f.MemCScores, False, 8, config=True, max_reuse=1, uop_bytes=16),
        InstructionFormat("MemCStore", 10, "MemC", f.MemCStore, False, 8, config=True, max_reuse=1, uop_bytes=4),
        InstructionFormat("MemCTable", 11, "MemC", f.MemCTable, False, 8, config=True, max_reuse=1, uop_bytes=4),
        InstructionFormat("MemANorm", 12, "MemA", f.MemANorm, False, 8, config=True, max_reuse=1, uop_bytes=8),
        InstructionFormat("MemBConfig", 13, "MemB", f.MemBConfig, False, 8, config=True, max_reuse=1, uop_bytes=4),
        InstructionFormat(
            "DdrRows", 14, "DDR", f.DdrRows, True, 8, off_chip.row_uops, config=True, max_reuse=1, uop_bytes=24
        ),
    ),
    emit=partial(emit, registers=True),
    extends="xnn-base",
    extension=4,  # 1 had opcode 8 alone; 2 multiplied by 1 / row sums in a third pass of softmax; 3 had no opcode 14
)
