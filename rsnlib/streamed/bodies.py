"""The bodies of kernels' tasks, in the language of stream programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from ...base.element_types import SCALARS
from ...streams.orders.order import Order
from ...streams.orders.text import loops_of, span
from ...streams.syntax.builder import NamedNumber, Operand, Term, assign, both, call, do, expression, named, nest, when
from ...streams.syntax.nodes import Identifier, StatementNode
from ...streams.syntax.printer import laid_out
from ...streams.words import MOVED
from . import pointwise as p
from .arrays import SharedArrays, is_of_arrays
from .knobs import fit
from .lengths import LENGTH
from .operators import ROW_SCALE, StreamOperator
from .plans import SUMS, KernelPlan

LONGEST = 88
"""Letters of an expression that is written in one line."""

BUFFER, OWN, PARTNER, QUERIES = map(named, ("buffer", "own", "partner", "queries"))
ABOVE, BELOW, HIGHEST, LOWEST = map(named, ("above", "below", "highest", "lowest"))
FACTOR, OFFSET, GROUP_SUMS = map(named, ("factor", "offset", "sums"))
SCALE, WEIGHT_OFFSET, WEIGHT_SCALE = map(named, ("scales", "weight_offset", "weight_scales"))
INTEGERS, ROW, ROWS, TILE, TOTAL, TURNED = map(named, ("integers", "row", "rows", "tile", "total", "turned"))

Statements = list[StatementNode]
"""Statements of a task."""


@dataclass(frozen=True)
class BodyNames:
    """The names that the statements of a kernel's task use.

    gets: streams of the operands, in order. An epilogue has no streams of the operands that go to its arrays; the
    streams of the sums from its arrays come last. puts: streams of the result, each of which gets all of it; an array
    has one stream for each product. vectors: tensors of constants, and of positions, by name. stored: the stream to the
    task that stores new rows of a cache, None for none. beside: streams of each further result of the kernel, in the
    order of the plan. turns: only for an array: for each turn in which it computes a product, the stream of the left
    operand and that of its zero points, None without these.
    """

    gets: Sequence[Term]
    puts: Sequence[Term]
    vectors: Mapping[str, Term]
    stored: Term | None = None
    beside: Mapping[StreamOperator, Sequence[Term]] = field(default_factory=dict)
    turns: Sequence[tuple[Term, Term | None]] = ()

    def put(self, value: Term) -> Statements:
        """Return statements that put a value on all streams of the result."""
        return put_on(self.puts, value)


def put_on(streams: Sequence[Term], value: Term) -> Statements:
    """Return statements that put a value on streams, computed once."""
    if len(streams) == 1 or isinstance(value.node, Identifier):
        return [stream.put(value) for stream in streams]
    return [assign("result", value), *(stream.put("result") for stream in streams)]


def _gathered(into: Term, plan: KernelPlan, get: Term) -> Statements:
    """Statements that get the row tiles that a kernel takes together into one tile, which exists if they are several.
    get: the next one."""
    tm, together = plan.sizes["tm"], plan.sizes["together"]
    if together == 1:
        return [assign(into, get)]
    return nest([("t", together)], [assign(into[span("t", tm, together * tm), :], get)])


def _given(streams: Sequence[Term], name: Term, plan: KernelPlan) -> Statements:
    """Statements that put the row tiles of a tile in a variable one by one on streams (`_gathered`)."""
    tm, together = plan.sizes["tm"], plan.sizes["together"]
    if together == 1:
        return put_on(streams, name)
    return nest([("t", together)], put_on(streams, name[span("t", tm, together * tm), :])) if streams else []


def linear(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> Statements:
    """Body (`BODIES`) of a linear operator: the product of a row of tiles and a column of tiles, summed tile by tile.
    With the knob `outward`, the kernel keeps the sums of a row of tiles, and adds to them what each tile of the operand
    gives."""
    s, n = plan.sizes, plan.loops
    columns = span("j", s["tn"], x.shape[2])

    def with_bias(value: Term) -> Term:
        return value + ends.vectors["bias"][columns] if "bias" in ends.vectors else value

    if x.operand("weight_scale") is not None:
        return _quantised_linear(x, plan, ends, with_bias)
    a, b = ends.gets
    if list(n) == ["rows", "parts", "columns"]:
        part = ROW[:, columns]
        step = [assign(TILE, a.get()), *nest([("j", n["columns"])], [assign(part, part + _product(x, TILE, b.get()))])]
        sent = ends.put(with_bias(part))
        body = [assign(ROW, call("zeros", x.dtype, s["tm"], x.shape[2])), *nest([("k", n["parts"])], step)]
        return nest([("i", n["rows"])], [*body, *nest([("j", n["columns"])], sent)])
    return nest(
        [("i", n["rows"]), ("j", n["columns"])],
        [*_summed(x, a, b, (s["tm"], s["tn"]), n["parts"]), *ends.put(with_bias(TOTAL))],
    )


def _quantised_linear(
    x: StreamOperator, plan: KernelPlan, ends: BodyNames, with_bias: Callable[[Term], Term]
) -> Statements:
    """Body of a linear operator with a quantised weight, as `base.quantised` defines it. A weight beside float32 is
    dequantised in front of the product. with_bias: adds the bias to a tile of the result."""
    n, shape = plan.loops, (plan.sizes["tm"], plan.sizes["tn"])
    get = {name: stream.get() for name, stream in zip(x.attributes["operand_names"], ends.gets, strict=True)}
    of_rows = [assign(name, get[kind]) for name, kind in ((SCALE, "scale"), (OFFSET, "zero")) if kind in get]
    of_group = [assign(WEIGHT_OFFSET, get["weight_zero"])] if "weight_zero" in get else []
    a, b = get["x"], get["weight"]
    if not x.multiplies_integers:
        b = call(x.dtype, b)
        b = b - call(x.dtype, WEIGHT_OFFSET) if of_group else b
        step = [assign(TOTAL, TOTAL + a @ (b * WEIGHT_SCALE))]
        of_group.insert(0, assign(WEIGHT_SCALE, get["weight_scale"]))
        inner = nest([("g", n["groups"])], [*of_group, *nest([("k", n["parts"])], step)])
        body = [assign(TOTAL, call("zeros", x.dtype, *shape)), *inner]
        return nest([("i", n["rows"]), ("j", n["columns"])], [*body, *ends.put(with_bias(TOTAL))])
    a, b = _without_zero(a, OFFSET if "zero" in get else x.attributes.get("zero")), call(SUMS, b)
    b = b - call(SUMS, WEIGHT_OFFSET) if of_group else b
    summed, sums = _integer_sums(a @ b, shape, n["parts"])
    scaled, total = call(x.dtype, sums) * get["weight_scale"], TOTAL
    if n["groups"] > 1:
        step = [*of_group, *summed, assign(TOTAL, TOTAL + scaled)]
        body = [assign(TOTAL, call("zeros", x.dtype, *shape)), *nest([("g", n["groups"])], step)]
    else:
        body, total = [*of_group, *summed], scaled
    scale = SCALE if "scale" in get else _static_scale(x, ends, span("j", plan.sizes["tn"], x.shape[2]))
    sent = ends.put(with_bias(total * scale))
    return nest([("i", n["rows"])], [*of_rows, *nest([("j", n["columns"])], [*body, *sent])])


def array(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> Statements:
    """Body (`BODIES`) of a shared array of multipliers: the sums of its products, one product after the other. All
    products are written alike, so that C++ has one array for all of them."""
    shared: SharedArrays = x.attributes["arrays"]
    shape, number = (plan.sizes["tm"], plan.sizes["tn"]), shared.names.index(x.name)
    sums, puts, streams = SUMS if x.multiplies_integers else x.dtype, iter(ends.puts), iter(ends.turns)
    body: Statements = []
    for turn in shared.turns:
        own = shared.of_turn(turn, number)
        if not own:
            continue
        left, zero = next(streams)
        inner = [assign(OFFSET, zero.get())] if zero is not None else Statements()
        a, b = left.get(), ends.gets[0].get()
        if x.multiplies_integers:
            a, b = _without_zero(a, OFFSET if zero is not None else x.attributes["zero"]), call(SUMS, b)
        more = GROUP_SUMS + a @ b
        step = assign(GROUP_SUMS, call(sums, more) if x.multiplies_integers else more)
        for product in own:
            summed = [assign(GROUP_SUMS, call("zeros", sums, *shape)), *nest([("k", product.parts)], [step])]
            loops = [("j", product.columns), ("g", product.groups)]
            inner += nest(loops, [*summed, next(puts).put(GROUP_SUMS)])
        rest = shared.rounds(turn) - sum(product.columns for product in own)
        if rest:  # others have more tiles of columns
            again = rest * own[0].groups * own[0].parts
            inner += nest([("k", again)], [do("drop", left.get())])
        body += nest([("i", plan.loops["rows"])], inner)
    return body


def epilogue(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> Statements:
    """Body (`BODIES`) of the epilogue of a product on shared arrays: it puts the sums of its arrays side by side,
    multiplies sums of integers by their scales, and adds the bias."""
    n, (tm, tn) = plan.loops, (plan.sizes["tm"], plan.sizes["tn"])
    arrays: SharedArrays = x.attributes["arrays"]
    own = [name for name in x.attributes["operand_names"] if not is_of_arrays(name)]
    get = dict(zip(own, ends.gets, strict=False))
    each, is_scaled = arrays.tile[1], "weight_scale" in get
    kept = [assign(GROUP_SUMS, call("zeros", SUMS if is_scaled else x.dtype, tm, tn))]
    group = [
        assign(GROUP_SUMS[:, k * each : (k + 1) * each], sums.get()) for k, sums in enumerate(ends.gets[len(own) :])
    ]
    of_rows, total = Statements(), GROUP_SUMS
    if is_scaled:
        of_rows = [assign(SCALE, get["scale"].get())] if "scale" in get else []
        scaled = call(x.dtype, GROUP_SUMS) * get["weight_scale"].get()
        total = scaled
        if n["groups"] > 1:
            group, total = [*group, assign(TOTAL, TOTAL + scaled)], TOTAL
            group = [assign(TOTAL, call("zeros", x.dtype, tm, tn)), *nest([("g", n["groups"])], group)]
        total = total * (SCALE if "scale" in get else _static_scale(x, ends, span("j", tn, x.shape[2])))
    if "bias" in ends.vectors:
        total = total + ends.vectors["bias"][span("j", tn, x.shape[2])]
    inner = nest([("j", n["columns"])], [*group, *ends.put(total)])
    return [*kept, *nest([("i", n["rows"])], [*of_rows, *inner])]


def _static_scale(x: StreamOperator, ends: BodyNames, columns: slice) -> Operand:
    """The static scale of the rows of a product, beside a tile of some of its columns."""
    return ends.vectors[ROW_SCALE][columns] if ROW_SCALE in ends.vectors else x.attributes["scale"]


def _without_zero(rows: Term, zero: Operand) -> Term:
    """A tile of i8 in the type of sums, from which a zero point is subtracted: `OFFSET`, a number, or None for none."""
    a = call(SUMS, rows)
    return a if zero is None else a - (call(SUMS, zero) if zero is OFFSET else zero)


def join(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> Statements:
    """Body (`BODIES`) of the columns of several products side by side."""
    loop = [("j", plan.loops["columns"])]
    parts = [nest(loop, ends.put(get.get())) for get in ends.gets]
    return nest([("i", plan.loops["rows"])], [statement for part in parts for statement in part])


def quantise(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> Statements:
    """Body (`BODIES`) of the quantisation of rows, as `base.quantised` defines it: gather a row of tiles, put the scale
    and zero point of each row, then its integers tile by tile. Where a row has several tiles, these are first compared
    element by element, so that only one tile is searched for the largest number of each row. The least number is found
    as the largest one of the row with changed signs."""
    s, n, a, together = plan.sizes, plan.loops, x.attributes, plan.sizes["together"]
    low, high, rows = a["low"], a["high"], s["tm"] * together
    loop, columns = [("j", n["columns"])], a["columns"]
    part = ROW[:, span("j", s["tn"], columns)] if n["columns"] > 1 else ROW
    most = {ABOVE: call("maximum", part, -part)} if a["is_symmetric"] else {ABOVE: part, BELOW: -part}
    if n["columns"] > 1:
        body = [
            assign(name, call("zeros", "f32", s["tm"], size))
            for name, size in ((ROW, columns), *((end, s["tn"]) for end in most))
        ]
        compared = [assign(end, call("maximum", end, value)) for end, value in most.items()]
        body += nest(loop, [assign(part, ends.gets[0].get()), *compared])
    else:
        body = _gathered(ROW, plan, ends.gets[0].get())
    for name, (end, value) in zip((HIGHEST, LOWEST), most.items(), strict=False):
        combined = call("reduce_max", end if n["columns"] > 1 else value, axis=1, keepdims=True)
        body.append(assign(name, combined if n["columns"] > 1 else call("maximum", combined, 0.0)))
    dtype = next((y.dtype for y in ends.beside if y.attributes.get("kind") == "zero"), "i8")
    if a["is_symmetric"]:
        scale = HIGHEST / ((high - low) / 2)
        zero = call("full", dtype, int((high + low + 1) / 2), rows, 1)
    else:
        scale = (HIGHEST + LOWEST) / float(high - low)
        nearest = call("rint", LOWEST / SCALE) + float(low)
        zero = call(dtype, call("minimum", call("maximum", nearest, float(low)), float(high)))
    body.append(assign(SCALE, call("maximum", scale, a["least"])))
    found = {kind: streams for y, streams in ends.beside.items() if (kind := y.attributes.get("kind"))}
    body += _given(found.get("scale", ()), SCALE, plan)
    if "zero" in found:
        body += [assign(OFFSET, zero), *_given(found["zero"], OFFSET, plan)]
    integers = Statements()
    for y, streams in ends.beside.items():
        if y.op == "integers":
            nearest = call("rint", part * FACTOR)
            nearest = nearest + call("f32", OFFSET) if "zero" in y.attributes["operand_names"] else nearest
            bounded = call("minimum", call("maximum", nearest, y.attributes["low"]), y.attributes["high"])
            made = call("i8", bounded)
            if together > 1:
                integers += [assign(INTEGERS, made), *_given(streams, INTEGERS, plan)]
            else:
                integers += put_on(streams, made)
    if integers:
        body += [assign(FACTOR, call("full", "f32", 1.0, rows, 1) / SCALE), *nest(loop, integers)]
    heads, parts = n["heads"], n["parts"]
    if together == 1:
        return nest([("h", heads), ("i", n["rows"]), ("g", parts)], body)
    heads, parts = (heads, parts // together) if parts > 1 else (heads // together, parts)
    kept = assign(ROW, call("zeros", "f32", rows, columns))
    return [kept, *nest([("h", heads), ("i", n["rows"]), ("g", parts)], body)]


def scale_columns(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> Statements:
    """Body (`BODIES`) of attention weights whose columns are multiplied by the scales of the rows of quantised
    values."""
    n, (weights, scales) = plan.loops, ends.gets
    body = ends.put(weights.get() * call("transpose", scales.get()))
    return nest([("h", n["heads"]), ("i", n["rows"]), ("j", n["columns"])], body)


def _summed(x: StreamOperator, a: Term, b: Term, shape: tuple[int, int], parts: int) -> Statements:
    """The sum of products of tiles of two streams, in the element type of the result."""
    product = _product(x, a.get(), b.get())
    if parts == 1:
        return [assign(TOTAL, product)]
    more = TOTAL + product
    if SCALARS[x.dtype].integer:  # sums of integers are exact, and would be of a wider type
        more = call(x.dtype, more)
    return [assign(TOTAL, call("zeros", x.dtype, *shape)), *nest([("k", parts)], [assign(TOTAL, more)])]


def _product(x: StreamOperator, a: Term, b: Term) -> Term:
    """The product of tiles of the two operands, in the element type of the result."""
    left, right = (
        tile if operand.dtype == x.dtype else call(x.dtype, tile)
        for tile, operand in zip((a, b), x.operands, strict=False)
    )
    return left @ right


def pointwise(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> Statements:
    """Body (`BODIES`) of an elementwise operator: an expression of the operands' tiles."""
    s, n = plan.sizes, plan.loops
    names = [chr(ord("a") + k) for k in range(len(ends.gets))]
    steps: Statements = []

    def leaf(operand: p.OperandIndex | p.RowConstant) -> Term:
        if isinstance(operand, p.RowConstant):
            return ends.vectors[operand.name][span("j", s["tn"], x.shape[2])]
        return named(names[operand.index])

    def written(e: p.Expression) -> p.Expression:
        """The expression, of which parts that are too long become statements."""
        if not isinstance(e, p.PointwiseCall):
            return e
        made = p.PointwiseCall(e.name, tuple(map(written, e.arguments)))
        if len(laid_out(p.term(made, leaf).node)) <= LONGEST:
            return made
        short: list[p.Expression] = []
        for argument in made.arguments:
            if isinstance(argument, p.PointwiseCall):
                names.append(f"t{len(steps)}")
                steps.append(assign(names[-1], p.term(argument, leaf)))
                short.append(p.OperandIndex(len(names) - 1))
            else:
                short.append(argument)
        return p.PointwiseCall(made.name, tuple(short))

    value = p.term(written(x.attributes["expression"]), leaf)
    gets = [assign(name, stream.get()) for name, stream in zip(names, ends.gets, strict=False)]
    body = [*gets, *steps, *ends.put(value)]
    return nest([("h", n["heads"]), ("i", n["rows"]), ("j", n["columns"])], body)


def along_rows(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> Statements:
    """Body (`BODIES`) of softmax and norms: gather a row of tiles (or the row tiles of several heads), compute it, and
    put it tile by tile."""
    s, n, together = plan.sizes, plan.loops, plan.sizes["together"]
    arguments = [ends.vectors[name] for name in ("gamma", "beta") if name in ends.vectors]
    eps = {} if x.op == "softmax" else {"eps": x.attributes["eps"]}
    columns = x.attributes.get("columns", x.shape[2])
    hides: Statements = []
    if "hidden" in ends.vectors:
        added = x.attributes["hidden"].size
        value = call("zeros", "f32", s["tm"] * together, added) + ends.vectors["hidden"]
        whole = TILE if n["columns"] == 1 else ROW
        hides = [assign(whole[:, columns - added :], value)]

    def computed(value: Term) -> Term:
        return call(x.op, value, *arguments, **eps)

    outer = [("h", n["heads"]), ("i", n["rows"])]
    if together > 1:
        of_heads = columns == x.shape[2]
        loops = [("h", n["heads"] // (together if of_heads else 1)), ("i", n["rows"])]
        loops.append(("j", 1 if of_heads else n["columns"] // together))
        body = [*_gathered(TILE, plan, ends.gets[0].get()), *hides, assign(ROWS, computed(TILE))]
        kept = assign(TILE, call("zeros", x.operands[0].dtype, *plan.computed))
        return [kept, *nest(loops, [*body, *_given(ends.puts, ROWS, plan)])]
    if columns < x.shape[2] or n["columns"] == 1:
        body = [assign(TILE, ends.gets[0].get()), *hides, *ends.put(computed(TILE))]
        return nest([*outer, ("j", n["columns"])], body)
    part = ROW[:, span("j", s["tn"], columns)]
    loop = [("j", n["columns"])]
    return nest(
        outer,
        [
            assign(ROW, call("zeros", x.operands[0].dtype, s["tm"], columns)),
            *nest(loop, [assign(part, ends.gets[0].get())]),
            *hides,
            assign(ROW, computed(ROW)),
            *nest(loop, ends.put(part)),
        ],
    )


def rotary(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> Statements:
    """Body (`BODIES`) of rotary positions: each column of a head, and its partner, times their factors."""
    partners: Sequence[int] = x.attributes["partners"]
    runs = []
    for _, group in groupby(enumerate(partners), lambda pair: pair[1] - pair[0]):
        columns = [column for _, column in group]
        runs.append(TILE[:, columns[0] : columns[-1] + 1])
    return nest(
        [("i", plan.loops["rows"]), ("j", plan.loops["columns"])],
        [
            assign(TILE, ends.gets[0].get()),
            assign(OWN, ends.gets[1].get()),
            assign(PARTNER, ends.gets[2].get()),
            assign(TURNED, call("concat", *runs, axis=1) if len(runs) > 1 else TILE),
            *ends.put(TILE * OWN + TURNED * PARTNER),
        ],
    )


def turn(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> Statements:
    """Body (`BODIES`) of a turn: it puts the columns of each head in another order, and changes the sign of some."""
    columns: Sequence[int] = x.attributes["partners"]
    signs: Sequence[int] = x.attributes["signs"]
    runs = []
    for (_, sign), group in groupby(
        zip(range(len(columns)), columns, signs, strict=True), lambda at: (at[1] - at[0], at[2])
    ):
        taken = [column for _, column, _ in group]
        part = TILE[:, taken[0] : taken[-1] + 1]
        runs.append(-part if sign < 0 else part)
    made = call("concat", *runs, axis=1) if len(runs) > 1 else runs[0]
    body = [assign(TILE, ends.gets[0].get()), *ends.put(made)]
    return nest([("i", plan.loops["rows"]), ("j", plan.loops["columns"])], body)


def scores(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> Statements:
    """Body (`BODIES`) of scores: the product of queries and keys, scaled; what the mask hides is minus infinity."""
    s, n, a = plan.sizes, plan.loops, x.attributes
    get = {name: stream.get() for name, stream in zip(a["operand_names"], ends.gets, strict=True)}
    of_rows, queries, keys, factor = _of_integers(x, get, "queries", "keys")
    value, summed = QUERIES @ call("transpose", keys), Statements()
    if factor is not None:  # a statement, so that keys are taken as they come
        summed, sums = _integer_sums(value, (s["tm"], s["tn"]), 1)
        value = call(x.dtype, sums) * factor
    if a["scale"] != 1:
        value = call("scale", value, a["scale"])
    if "mask" in get:
        value = value + get["mask"]
    if "first" in a or "last" in a:
        shift = named("i") * s["tm"] - named("j") * s["tn"]
        first = _shifted(shift, a["first"]) if "first" in a else -s["tm"]
        last = _shifted(shift, a["last"]) if "last" in a else s["tn"]
        value = call("banded", value, first, last)
    inner = nest([("j", n["columns"])], [*summed, *ends.put(value)])
    return nest([("h", n["heads"]), ("i", n["rows"])], [*of_rows, assign(QUERIES, queries), *inner])


def _shifted(value: Term, number: int) -> Term:
    return value if number == 0 else value.joined("+" if number > 0 else "-", abs(number))


def attend(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> Statements:
    """Body (`BODIES`) of attention weights times values: their product, summed tile by tile. Integers have exact sums,
    which are multiplied by their factor at the end."""
    s, n = plan.sizes, plan.loops
    get = {name: stream.get() for name, stream in zip(x.attributes["operand_names"], ends.gets, strict=True)}
    shape, outer = (s["tm"], s["width"]), [("h", n["heads"]), ("i", n["rows"])]
    of_rows, weights, values, factor = _of_integers(x, get, "weights", "values")
    if factor is None:
        return nest(outer, [*_summed(x, ends.gets[0], ends.gets[1], shape, n["parts"]), *ends.put(TOTAL)])
    summed, sums = _integer_sums(call(SUMS, weights) @ call(SUMS, values), shape, n["parts"])
    return nest(outer, [*of_rows, *summed, *ends.put(call(x.dtype, sums) * factor)])


def _of_integers(
    x: StreamOperator, get: Mapping[str, Term], left: str, right: str
) -> tuple[Statements, Term, Term, Operand]:
    """Of a product of two activations: statements that get the scales and zero points of rows, the tiles of both
    operands, from which zero points are subtracted, and the factor of the sums. Of float32: no statements, the tiles,
    and None. get: the next token of each operand, by its name. left, right: names of both."""
    given = x.attributes
    a, b = get[left], get[right]
    if not x.multiplies_integers:
        return [], a, b, None
    of_rows = [assign(name, get[kind]) for name, kind in ((SCALE, "left_scale"), (OFFSET, "left_zero")) if kind in get]
    zero: Operand = OFFSET if "left_zero" in get else given.get("left_zero")
    other_zero: Operand = get.get("other_zero", given.get("other_zero"))
    if zero or other_zero:
        a, b = _without(a, zero), _without(b, other_zero)
    other = call("transpose", get["other_scale"]) if "other_scale" in get else None
    if "left_scale" not in get:
        scale = np.float32(given["left_scale"])
        return of_rows, a, b, float(scale * np.float32(given["other_scale"])) if other is None else other * float(scale)
    if other is None and given["other_scale"] == 1:
        return of_rows, a, b, SCALE
    return of_rows, a, b, SCALE * (given["other_scale"] if other is None else other)


def _without(tile: Term, zero: Operand) -> Term:
    """A tile of i8 from which a zero point is subtracted, in the type of both operands, which holds the differences."""
    if isinstance(zero, Term):
        return call("i16", call("i16", tile) - call("i16", zero))
    return call("i16", tile - zero if zero else tile)


def _integer_sums(product: Term, shape: tuple[int, int], parts: int) -> tuple[Statements, Term]:
    """Statements that add up products of tiles of integers, and what is then their sum. A product that is a statement
    takes its right operand as it comes."""
    if parts == 1:
        return [assign(GROUP_SUMS, call(SUMS, product))], GROUP_SUMS
    added = nest([("k", parts)], [assign(GROUP_SUMS, call(SUMS, GROUP_SUMS + product))])
    return [assign(GROUP_SUMS, call("zeros", SUMS, *shape)), *added], GROUP_SUMS


def append(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> Statements:
    """Body (`BODIES`) of a cache with new rows behind it: the rows of the cache, then the new ones. The tile that has
    the last rows of the cache has the first new ones too."""
    s, n = plan.sizes, plan.loops
    cache, new = ends.gets
    tm, tn, cut, kept = s["tm"], s["tn"], s["cut"], s["kept"]
    body: Statements = []
    if n["before"]:
        body += nest([("i", n["before"])], ends.put(cache.get()))
    if not kept:
        return nest([("h", n["heads"])], [*body, *nest([("k", n["new"])], ends.put(new.get()))])
    if cut and kept == tm:
        body.append(assign(BUFFER, cache.get()))
    else:
        body.append(assign(BUFFER, call("zeros", x.dtype, kept, s["width"])))
        body += [assign(BUFFER[:tm, :], cache.get())] if cut else []
    if n["got"] > n["before"] + (cut > 0):
        body += nest([("i", n["got"] - n["before"] - (cut > 0))], [do("drop", cache.get())])
    begin = named("k") * tn + cut if n["new"] > 1 else cut
    end = named("k") * tn + (cut + tn) if n["new"] > 1 else cut + tn
    body += nest([("k", n["new"])], [assign(BUFFER[begin:end, :], new.get())])
    part = slice(0, tm) if n["tiles"] == 1 else span("i", tm, kept)
    body += nest([("i", n["tiles"])], ends.put(BUFFER[part, :]))
    return nest([("h", n["heads"])], body)


def replace(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> Statements:
    """Body (`BODIES`) of a cache with rows replaced: the kernel first gets the new rows, then the cache tile by tile,
    and puts each tile with the new rows at their positions. If there is a single new row and one kernel reads the
    result, a tile is put as it comes, and none is kept."""
    s, n = plan.sizes, plan.loops
    new, width, positions, at = new_row_count(x), s["width"], ends.vectors["positions"], named("p")
    if new == 1 and not x.operands[1].row_tile and len(ends.puts) == 1:
        index = at - named("i") * s["tm"] if n["tiles"] > 1 else at
        tile = ends.put(call("replace_row", ends.gets[0].get(), ROWS, index))
        of_head = [assign(ROWS, ends.gets[1].get()), *([ends.stored.put(ROWS)] if ends.stored else [])]
        return [assign(at, positions[0]), *nest([("h", n["heads"])], [*of_head, *nest([("i", n["tiles"])], tile)])]
    kept = [
        assign(ROWS, ends.gets[1].get()),
        assign(BUFFER[span("k", s["tn"], n["new"] * s["tn"]), :], ROWS),
        *([ends.stored.put(ROWS)] if ends.stored else []),
    ]
    row: Operand = "r" if new > 1 else 0
    place = positions[row] - named("i") * s["tm"] if n["tiles"] > 1 else positions[row]
    # By parts that move in a cycle: then a row takes as long in its tile as elsewhere, and the time depends on no data.
    part = fit(width, MOVED)
    columns = span("c", part, width)
    inside = when(both(at >= 0, at < s["tm"]), [assign(TILE[at, columns], BUFFER[row, columns])])
    found = nest([("r", new), ("c", width // part)], [assign(at, place), inside])
    tile = [assign(TILE, ends.gets[0].get()), *found, *ends.put(TILE)]
    if not ends.puts:
        tile = [do("drop", ends.gets[0].get())]
    body = [
        assign(BUFFER, call("zeros", x.operands[1].dtype, n["new"] * s["tn"], width)),
        *nest([("k", n["new"])], kept),
    ]
    return nest([("h", n["heads"])], [*body, *nest([("i", n["tiles"])], tile)])


def select(x: StreamOperator, plan: KernelPlan, ends: BodyNames) -> Statements:
    """Body (`BODIES`) of rows at positions, such as the last row of a sequence. Of each row of tiles that comes, the
    kernel keeps the rows that are wanted; at the end it puts these rows."""
    s, n, (_, count, width) = plan.sizes, plan.loops, x.shape
    row: Operand = "r" if count > 1 else 0
    at, place = named("p"), ends.vectors["positions"][row]
    # By parts that move in a cycle, as `replace` has it.
    part = fit(width, MOVED)
    columns, tile, loop = span("c", part, width), span("j", s["tn"], width), [("j", n["columns"])]
    inside = when(both(at >= 0, at < s["tm"]), [assign(BUFFER[row, columns], ROW[at, columns])])
    index = place - named("i") * s["tm"] if n["rows"] > 1 else place
    of_tiles = [
        assign(ROW, call("zeros", x.dtype, s["tm"], width)),
        *nest(loop, [assign(ROW[:, tile], ends.gets[0].get())]),
        *nest([("r", count), ("c", width // part)], [assign(at, index), inside]),
    ]
    buffer = assign(BUFFER, call("zeros", x.dtype, count, width))
    return [buffer, *nest([("i", n["rows"])], of_tiles), *nest(loop, ends.put(BUFFER[:, tile]))]


def new_row_count(x: StreamOperator) -> int:
    """Return how many new rows of a cache exist; for sequences of any length a number that each run gives
    (`NamedNumber`). x: the operator that replaces rows of the cache."""
    _, new = x.attributes["rows"]
    return NamedNumber(new, LENGTH) if x.operands[1].row_tile else int(new)


def stored_rows(
    cache: str,
    positions: str,
    new: int,
    order: Order,
    stream: str,
    after: Sequence[StatementNode],
    fronts: tuple[Sequence[Operand], Sequence[Operand]] = ((), ()),
) -> Statements:
    """Return the statements that store new rows at their positions in a cache.

    cache, positions, stream: names of the tensor with the cache, of the tensor with the positions, and of the stream
    that brings the rows. new: how many of the rows that come exist; the others are not stored. order: of the stream:
    that of a tensor with the new rows in the form of the cache. after: statements behind each get. fronts: indices of
    further axes, such as that of the layers, in front of the axes of the cache, and in front of the axis of the
    positions.
    """
    front, axis, columns = len(order.axes) - 2, order.axes[-2], order.axes[-1]
    tn, width = order.element[-2:]
    loops = loops_of(order)
    sequence: list[Operand] = [loops[axis.loop][0] if axis.loop is not None else 0 for axis in order.axes[:front]]
    assert axis.loop is not None
    assert columns.loop is not None
    index, steps = loops[axis.loop]
    part = span(loops[columns.loop][0], width, order.tensor[-1])
    row: Operand = "r" if tn > 1 else 0
    place = named(index) * tn + row if steps > 1 else row
    at = named(positions)[(*fronts[1], place)]
    stored: Statements = [assign(named(cache)[(*fronts[0], *sequence, at, part)], ROWS[row, :])]
    if new < order.tensor[-2] or (isinstance(new, NamedNumber) and tn > 1):
        stored = [when(Term(expression(place)) < new, stored)]
    return nest(loops, [assign(ROWS, named(stream).get()), *after, *nest([("r", tn)], stored)])


BODIES: Mapping[str, Callable[[StreamOperator, KernelPlan, BodyNames], Statements]] = {
    "linear": linear,
    "array": array,
    "epilogue": epilogue,
    "join": join,
    "pointwise": pointwise,
    "quantise": quantise,
    "scale_columns": scale_columns,
    "softmax": along_rows,
    "layernorm": along_rows,
    "rmsnorm": along_rows,
    "rotary": rotary,
    "turn": turn,
    "scores": scores,
    "attend": attend,
    "append": append,
    "replace": replace,
    "select": select,
}
"""The body of each kernel's task: called with the operator, its plan, and the names of what it reads and writes. It
returns the statements of the task, in the language of stream programs."""
