"""The bodies of kernels' tasks, in the language of stream programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ...streams.orders.order import Order
from ...streams.orders.text import loops_of, nest, span
from . import pointwise as p
from .operators import StreamOperator
from .plans import KernelPlan

LONGEST = 88
"""Letters of an expression that is written in one line."""


@dataclass(frozen=True)
class BodyNames:
    """Names that a body uses. gets: streams of the operands. puts: streams of the result. vectors: of constants, and of
    positions. stored: the stream to the task that stores new rows of a cache, "" for none."""

    gets: Sequence[str]
    puts: Sequence[str]
    vectors: Mapping[str, str]
    stored: str = ""

    def put(self, value: str) -> list[str]:
        """Statements that put a value on all streams of the result."""
        if len(self.puts) == 1:
            return [f"{self.puts[0]}.put({value})"]
        lines = [] if value.isidentifier() else [f"result = {value}"]
        name = "result" if lines else value
        return [*lines, *(f"{stream}.put({name})" for stream in self.puts)]


def linear(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> list[str]:
    """The product of a row of tiles and a column of tiles, summed tile by tile; or, outward, sums of a row of tiles, to
    which each tile of the operand adds."""
    s, n = plan.sizes, plan.loops
    columns = span("j", s["tn"], x.shape[2])
    bias = f" + {ends.vectors['bias']}[{columns}]" if "bias" in ends.vectors else ""
    if "sent" in s:
        part = f"row[:, {columns}]"
        product = [f"{part} = {part} + tile @ {ends.gets[1]}.get()", f"cycles({plan.cycles})"]
        step = [f"tile = {ends.gets[0]}.get()", *nest([("j", n["columns"])], product)]
        sent = [*ends.put(f"{part}{bias}"), f"cycles({s['sent']})"]
        body = [f"row = zeros(f32, {s['tm']}, {x.shape[2]})", *nest([("k", n["parts"])], step)]
        return nest([("i", n["rows"])], [*body, *nest([("j", n["columns"])], sent)])
    total = f"total{bias}"
    return nest(
        [("i", n["rows"]), ("j", n["columns"])],
        [
            f"total = zeros(f32, {s['tm']}, {s['tn']})",
            *nest(
                [("k", n["parts"])],
                [f"total = total + {ends.gets[0]}.get() @ {ends.gets[1]}.get()", f"cycles({plan.cycles})"],
            ),
            *ends.put(total),
        ],
    )


def pointwise(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> list[str]:
    """An expression of the operands' tiles."""
    s, n = plan.sizes, plan.loops
    names = [chr(ord("a") + k) for k in range(len(ends.gets))]
    lines: list[str] = []

    def leaf(operand: p.OperandIndex | p.RowConstant) -> str:
        if isinstance(operand, p.RowConstant):
            return f"{ends.vectors[operand.name]}[{span('j', s['tn'], x.shape[2])}]"
        return names[operand.index]

    def written(e: p.Expression) -> p.Expression:
        """The expression, of which parts that are too long become statements."""
        if not isinstance(e, p.PointwiseCall):
            return e
        made = p.PointwiseCall(e.name, tuple(map(written, e.arguments)))
        if len(p.text(made, leaf)) <= LONGEST:
            return made
        short: list[p.Expression] = []
        for argument in made.arguments:
            if isinstance(argument, p.PointwiseCall):
                lines.append(f"t{len(lines)} = {p.text(argument, leaf)}")
                names.append(f"t{len(lines) - 1}")
                short.append(p.OperandIndex(len(names) - 1))
            else:
                short.append(argument)
        return p.PointwiseCall(made.name, tuple(short))

    value = p.text(written(x.attributes["expression"]), leaf)
    gets = [f"{name} = {stream}.get()" for name, stream in zip(names, ends.gets, strict=False)]
    body = [*gets, f"cycles({plan.cycles})", *lines, *ends.put(value)]
    return nest([("h", n["heads"]), ("i", n["rows"]), ("j", n["columns"])], body)


def along_rows(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> list[str]:
    """Gather a row of tiles, compute, give it tile by tile."""
    s, n = plan.sizes, plan.loops
    arguments = [ends.vectors[name] for name in ("gamma", "beta") if name in ends.vectors]
    eps = [] if x.op == "softmax" else [f"eps={x.attributes['eps']!r}"]
    columns = x.attributes.get("columns", x.shape[2])

    def computed(value: str) -> str:
        return f"{x.op}({', '.join([value, *arguments, *eps])})"

    outer = [("h", n["heads"]), ("i", n["rows"])]
    if columns < x.shape[2] or n["columns"] == 1:
        body = [f"tile = {ends.gets[0]}.get()", f"cycles({plan.cycles})", *ends.put(computed("tile"))]
        return nest([*outer, ("j", n["columns"])], body)
    part = f"row[:, {span('j', s['tn'], columns)}]"
    loop = [("j", n["columns"])]
    return nest(
        outer,
        [
            f"row = zeros(f32, {s['tm']}, {columns})",
            *nest(loop, [f"{part} = {ends.gets[0]}.get()", f"cycles({plan.cycles})"]),
            f"row = {computed('row')}",
            *nest(loop, [*ends.put(part), f"cycles({plan.cycles})"]),
        ],
    )


def rotary(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> list[str]:
    """Each column of a head, and its partner, times their factors."""
    partners: Sequence[int] = x.attributes["partners"]
    runs = []
    for _, group in groupby(enumerate(partners), lambda pair: pair[1] - pair[0]):
        columns = [column for _, column in group]
        runs.append(f"tile[:, {columns[0]}:{columns[-1] + 1}]")
    turned = f"concat({', '.join(runs)}, axis=1)" if len(runs) > 1 else "tile"
    return nest(
        [("i", plan.loops["rows"]), ("j", plan.loops["columns"])],
        [
            f"tile = {ends.gets[0]}.get()",
            f"own = {ends.gets[1]}.get()",
            f"partner = {ends.gets[2]}.get()",
            f"cycles({plan.cycles})",
            f"turned = {turned}",
            *ends.put("tile * own + turned * partner"),
        ],
    )


def turn(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> list[str]:
    """The columns of each head in another order, some with their sign changed."""
    columns: Sequence[int] = x.attributes["partners"]
    signs: Sequence[int] = x.attributes["signs"]
    runs = []
    for (_, sign), group in groupby(
        zip(range(len(columns)), columns, signs, strict=True), lambda at: (at[1] - at[0], at[2])
    ):
        taken = [column for _, column, _ in group]
        runs.append(f"{'-' if sign < 0 else ''}tile[:, {taken[0]}:{taken[-1] + 1}]")
    made = f"concat({', '.join(runs)}, axis=1)" if len(runs) > 1 else runs[0]
    body = [f"tile = {ends.gets[0]}.get()", f"cycles({plan.cycles})", *ends.put(made)]
    return nest([("i", plan.loops["rows"]), ("j", plan.loops["columns"])], body)


def scores(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> list[str]:
    """The product of queries and keys, scaled; what the mask hides is minus infinity."""
    s, n, a = plan.sizes, plan.loops, x.attributes
    value = f"queries @ transpose({ends.gets[1]}.get())"
    if a["scale"] != 1:
        value = f"scale({value}, {a['scale']!r})"
    if len(ends.gets) > 2:
        value = f"{value} + {ends.gets[2]}.get()"
    if "first" in a or "last" in a:
        shift = f"i * {s['tm']} - j * {s['tn']}"
        first = _shifted(shift, a["first"]) if "first" in a else str(-s["tm"])
        last = _shifted(shift, a["last"]) if "last" in a else str(s["tn"])
        value = f"banded({value}, {first}, {last})"
    inner = nest([("j", n["columns"])], [f"tile = {value}", f"cycles({plan.cycles})", *ends.put("tile")])
    return nest([("h", n["heads"]), ("i", n["rows"])], [f"queries = {ends.gets[0]}.get()", *inner])


def _shifted(text: str, number: int) -> str:
    return text if number == 0 else f"{text} {'+' if number > 0 else '-'} {abs(number)}"


def attend(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> list[str]:
    """The product of the weights and the values, summed tile by tile."""
    s, n = plan.sizes, plan.loops
    step = [f"total = total + {ends.gets[0]}.get() @ {ends.gets[1]}.get()", f"cycles({plan.cycles})"]
    body = [f"total = zeros(f32, {s['tm']}, {s['width']})", *nest([("k", n["parts"])], step), *ends.put("total")]
    return nest([("h", n["heads"]), ("i", n["rows"])], body)


def append(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> list[str]:
    """The rows of the cache, then the new ones."""
    lines = []
    for name, stream in zip(("before", "new"), ends.gets, strict=True):
        body = [f"tile = {stream}.get()", f"cycles({plan.cycles})", *ends.put("tile")]
        lines += nest([("i", plan.loops[name])], body)
    return nest([("h", plan.loops["heads"])], lines)


def replace(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> list[str]:
    """The new rows, then the cache tile by tile, with them in the rows at their positions."""
    s, n = plan.sizes, plan.loops
    new, width, positions = n["new"] * s["tn"], s["width"], ends.vectors["positions"]
    kept = [
        f"rows = {ends.gets[1]}.get()",
        f"cycles({s['new_cycles']})",
        f"buffer[{span('k', s['tn'], new)}, :] = rows",
        *([f"{ends.stored}.put(rows)"] if ends.stored else []),
    ]
    inside = [f"if p >= 0 and p < {s['tm']}:", f"    tile[p, :] = buffer[{'r' if new > 1 else '0'}, :]"]
    shift = f" - i * {s['tm']}" if n["tiles"] > 1 else ""
    place = nest([("r", new)], [f"p = {positions}[{'r' if new > 1 else '0'}]{shift}", *inside])
    tile = [f"tile = {ends.gets[0]}.get()", f"cycles({plan.cycles})", *place, *ends.put("tile")]
    if not ends.puts:
        tile = [f"drop({ends.gets[0]}.get())"]
    body = [f"buffer = zeros(f32, {new}, {width})", *nest([("k", n["new"])], kept), *nest([("i", n["tiles"])], tile)]
    return nest([("h", n["heads"])], body)


def stored_rows(cache: str, positions: str, order: Order, stream: str, after: Sequence[str]) -> list[str]:
    """Store rows at their positions in a cache. order: of the rows, as those of a tensor like the cache. after:
    statements behind each get."""
    front, axis, columns = len(order.axes) - 2, order.axes[-2], order.axes[-1]
    tn, width = order.element[-2:]
    loops = loops_of(order)
    sequence = [loops[axis.loop][0] if axis.loop is not None else "0" for axis in order.axes[:front]]
    assert axis.loop is not None
    assert columns.loop is not None
    part = span(loops[columns.loop][0], width, order.tensor[-1])
    first = f"{loops[axis.loop][0]} * {tn} + " if loops[axis.loop][1] > 1 else ""
    row = f"{positions}[{first}{'r' if tn > 1 else '0'}]" if first or tn > 1 else f"{positions}[0]"
    place = f"{cache}[{', '.join([*sequence, row, part])}] = rows[{'r' if tn > 1 else '0'}, :]"
    return nest(loops, [f"rows = {stream}.get()", *after, *nest([("r", tn)], [place])])


BODIES: Mapping[str, Callable[[StreamOperator, KernelPlan, BodyNames], list[str]]] = {
    "linear": linear,
    "pointwise": pointwise,
    "softmax": along_rows,
    "layernorm": along_rows,
    "rmsnorm": along_rows,
    "rotary": rotary,
    "turn": turn,
    "scores": scores,
    "attend": attend,
    "append": append,
    "replace": replace,
}
"""The body of each kernel's task."""
