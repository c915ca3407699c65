"""Compares a compiled model on the simulator with PyTorch, segment by segment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base.deferred import deferred
from ...base.errors import ProgramError, TensorError
from ...base.tolerance import BOUND
from ...isa.expansion import ExpandedProgram
from ...isa.layout import BLOCK_ROWS, padded, unblock
from ...isa.program import Array, Buffer, Layout, Program
from ...isa.segments import stored_buffers
from ...rsnlib.key_spans import KeySpans
from ...scheduler.lower import columns_on
from ...scheduler.memory import Columns
from ..boards.sim import SimBoard
from ..tensors import pack, unpack

if TYPE_CHECKING:
    from ...rsnlib import reference
    from ...rsnlib.quality import Quality
    from ...scheduler.graph import LayerGraph
else:
    reference = deferred("rsn.rsnlib.reference")


@dataclass(frozen=True)
class Compared:
    """The comparison of one result of a segment. name: of the activation. path: of its layer. layers: module paths of
    all layers in its segment. where: source line of its first store. difference: from the result of PyTorch, which
    computes all segments itself. own: from what PyTorch computes from the machine's inputs of this segment, so that
    errors of earlier segments do not count. Both are the largest absolute difference divided by the largest magnitude
    of the expected tensor."""

    name: str
    path: str
    where: str
    difference: float
    own: float
    layers: tuple[str, ...] = ()

    @property
    def fused(self) -> str:
        """The module paths of the other layers of its segment, as text."""
        return ", ".join(path for path in self.layers if path != self.path)


@dataclass(frozen=True)
class ComparedModel:
    """The comparison of a compiled model with the model in float32 that it was quantised from.

    segments: the results of each segment beside those of PyTorch, as `compare` returns them. quantisation: results of
    the quantised model in PyTorch, beside those of the model in float32. machine: results of the compiled model, beside
    those of the quantised one in PyTorch.
    """

    segments: list[Compared]
    quantisation: Quality
    machine: Quality

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON object: `segments`, a list of `Compared`, and `quantisation` and `machine`, a
        `Quality` each."""
        steps = {"quantisation": vars(self.quantisation), "machine": vars(self.machine)}
        return {"segments": [vars(row) for row in self.segments], **steps}

    def __str__(self) -> str:
        """The segments, and `difference_table` for quantisation and machine."""
        return "\n".join(
            [show(self.segments), "", *difference_table(quantisation=self.quantisation, machine=self.machine)]
        )


def difference_table(**steps: Quality) -> list[str]:
    """Return a table as lines of text: one for each step from a reference to a result. Cosines and the rank correlation
    are shown as what they lack to 1."""
    head = (
        "difference by",
        "rows",
        "worst cosine",
        "mean cosine",
        "Spearman of pairs",
        "largest difference",
        "perplexity",
    )
    table = [head, *(_line(name, found) for name, found in steps.items())]
    kept = [column for column in zip(*table, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in kept]
    return [
        "  ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:]))) for row in zip(*kept, strict=True)
    ]


def _line(name: str, found: Quality) -> tuple[str, ...]:
    cosines = found.worst, found.mean, found.spearman
    near = ["" if x is None else f"1 - {max(1 - x, 0.0):.1e}" for x in cosines]  # above 1 is rounding
    perplexity = "" if found.perplexity is None else f"{found.of_reference:.6g} -> {found.perplexity:.6g}"
    return (name, str(found.rows), *near, f"{found.largest:.1e}", perplexity)


def compare(
    program: Program,
    weights: Mapping[str, Array],
    network: LayerGraph,
    inputs: Mapping[str, Array],
    spans: KeySpans | None = None,
) -> list[Compared]:
    """Run a program on the simulator, and compare what each segment stores with PyTorch. Segments are in the network's
    order. Of an overlay of row lanes, what stays on chip is not compared by itself.

    network: the one that `program` was compiled from. weights: by buffer name, packed: flat float32. inputs: float32
    (batch, seq, columns) by name. spans: the valid keys of each sequence, or None. Raises `ProgramError` if the program
    does not store the network's segments, `TensorError` for other inputs than the program's.
    """
    columns = columns_on(network, program.overlay)
    expansion = ExpandedProgram(program)
    where = {s.name: s for s in stored_buffers(expansion)}
    layers = {name: s.layers for s in program.segments for name in s.outputs}
    outputs = {output.name for output in network.outputs}
    for layer in network.layers:
        if layer.y not in where and program.overlay.lanes is not None and layer.y not in outputs:
            continue  # it stays on chip
        if layer.y not in where:
            raise ProgramError(f"the program has no segment that stores {layer.y!r}: was it compiled from this model?")
        buffer = where[layer.y].buffer
        if not _fits(buffer, network, layer.y, columns[layer.y]):
            shape = "x".join(map(str, buffer.view or buffer.shape))
            raise ProgramError(f"{layer.y!r} is {shape} in the program: was it compiled from this model?")
    taken = {b.name for b in program.buffers if b.role.value == "input"}
    if set(inputs) != taken:
        given = ", ".join(sorted(inputs)) or "none"
        raise TensorError(f"the inputs are {given}; this program takes {', '.join(sorted(taken))}")
    packed = {name: pack(program.buffer(name), x) for name, x in inputs.items()}
    chain = {name: x.reshape(network.batch, network.seq_of(name), -1) for name, x in inputs.items()}
    machine = dict(chain)

    def keep(buffer: Buffer, flat: Array) -> None:
        if buffer.name in columns:
            machine[buffer.name] = _logical(buffer, flat, network, columns[buffer.name])

    board = SimBoard()
    board.load(program, weights)
    board.run(program.bind({} if spans is None else spans.parameters()), packed, watch=keep)
    lengths, starts = (None, None) if spans is None else (spans.lengths, spans.starts)
    out = []
    for layer in network.layers:
        chain[layer.y] = reference.compute(network, layer, chain, lengths, starts)
        own = reference.compute(network, layer, machine, lengths, starts)
        if layer.y not in where:
            machine[layer.y] = own
            continue
        got, at = machine[layer.y], where[layer.y]
        for sequence, rows in enumerate(network.rows_of(layer.y)):  # the machine computes no rows beyond
            chain[layer.y][sequence, rows:] = own[sequence, rows:] = 0
        place = expansion.where(at.unit, at.first)
        differences = _difference(got, chain[layer.y]), _difference(got, own)
        together = layers.get(layer.y, (layer.path, *layer.fused))
        out.append(Compared(layer.y, layer.path, place, *differences, together))
    return out


def _fits(buffer: Buffer, network: LayerGraph, name: str, columns: Columns) -> bool:
    """Return whether a buffer can hold activation `name` of the network."""
    rows = network.rows_of(name)
    if buffer.view is not None:
        return (buffer.view, buffer.rows) == ((network.batch, network.seq_of(name), columns.count), network.lengths)
    if buffer.layout is Layout.LINEAR:
        return buffer.shape[0] >= network.batch * max(rows) and buffer.shape[1] == columns.stored
    panels = -(-columns.stored // buffer.shape[1])
    blocks, rest = divmod(buffer.shape[0], panels * BLOCK_ROWS)
    return not rest and blocks >= sum(padded(n, BLOCK_ROWS) // BLOCK_ROWS for n in rows)


def _logical(buffer: Buffer, flat: Array, network: LayerGraph, columns: Columns) -> Array:
    """Convert a stored activation to (batch, seq, columns)."""
    if buffer.view is not None:
        return unpack(dataclasses.replace(buffer, scale=None, shift=None), flat)
    out = np.zeros((network.batch, network.seq_of(buffer.name), columns.count), np.float32)
    if buffer.layout is Layout.LINEAR:
        stored = flat.reshape(network.batch, -1, buffer.shape[1])
        for item, matrix, rows in zip(out, stored, network.rows_of(buffer.name), strict=True):
            item[:rows] = matrix[:rows, columns.positions()]
        return out
    width = buffer.shape[1]
    panels = -(-columns.stored // width)
    matrix = unblock(flat, *buffer.shape).reshape(panels, -1, width).transpose(1, 0, 2).reshape(-1, panels * width)
    at = 0
    for item, rows in zip(out, network.rows_of(buffer.name), strict=True):
        item[:rows] = matrix[at : at + rows, columns.positions()]
        at += padded(rows, BLOCK_ROWS)
    return out


def _difference(got: Array, expected: Array) -> float:
    """Return the largest difference relative to the largest magnitude; infinity if there is a NaN."""
    largest = float(np.abs(expected).max(initial=0.0)) or 1.0
    worst = float(np.abs(got - expected).max(initial=0.0)) / largest
    return worst if worst == worst else float("inf")


def show(rows: list[Compared], bound: float = BOUND) -> str:
    """Format the results of `compare` as text: a line for each, then the first one whose difference exceeds the bound,
    or that all are within it. bound: a relative difference, as in `Compared`."""
    width = max([len(r.name) for r in rows] + [7])
    place = max([len(r.where) for r in rows] + [9])
    out = [f"{'segment':<{width}}  from PyTorch  its own    {'stored at':<{place}}  fused with"]
    for r in rows:
        mark = "  <- beyond the bound" if r.difference > bound else ""
        line = f"{r.name:<{width}}  {r.difference:12.1e}  {r.own:9.1e}  {r.where:<{place}}  {r.fused}"
        out.append(line.rstrip() + mark)
    bad = next((r for r in rows if r.difference > bound), None)
    if bad is None:
        out.append(f"all {len(rows)} results within {bound:g} of PyTorch")
    else:
        path = f" ({bad.path})" if bad.path else ""
        out.append(f"first beyond {bound:g}: {bad.name}{path}, stored at {bad.where}")
    return "\n".join(out)
