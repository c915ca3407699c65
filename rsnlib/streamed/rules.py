"""What each operator of PyTorch is on streams."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from math import isfinite, prod
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ...base.element_types import SCALARS
from ..capture import arguments, dtype_of, packet, shape_of, short_name, site
from ..quantised_ops import DEQUANTISE, INTEGER_LINEAR, INTEGER_MATMUL, QUANTISE, ROW_SCALES
from ..rotate import ROTATE
from ..rules import SAME, VIEWS, seen
from ..view import View, merge
from . import pointwise as p
from .attention import attend, flat_matrices, joined_rows, replaced_rows, scaled_columns, scores_of
from .operators import Array, Positions, StreamOperator
from .products import ConstantWeight, is_number, product, rows_scaled_by
from .reading import GraphReader, Host, Missing, OperatorRefused, Rule, Value
from .showing import ColumnSlice, ShownTensor, heads_of

aten = torch.ops.aten


# -- views


def view(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) of operators that only rearrange their operand. Raises `OperatorRefused` for a conversion
    to another type, and for a result that is no view."""
    x = node.all_input_nodes[0]
    value = reader.of[x]
    if isinstance(value, Host):
        return None
    assert isinstance(value, ShownTensor)
    if dtype_of(node) != dtype_of(x):
        raise OperatorRefused(f"it converts from {dtype_of(x)} to {dtype_of(node)}; kernels compute in float32")
    made = value.view if packet(node) in SAME else seen(value.view, node)
    if isinstance(made, str):
        raise OperatorRefused(made)
    return ShownTensor(value.operator, made)


# -- products


def linear(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) of x @ weight.T + bias. weight: (N, K). Raises `OperatorRefused` for a weight that depends
    on the arguments, and for an operand that is no matrix as it is stored."""
    if a["weight"] not in reader.constants:
        raise OperatorRefused("its weight depends on the arguments; kernels of products take constant weights")
    return product(reader, node, a["input"], ConstantWeight.of(reader, a["weight"]), a["bias"])


def matmul(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) of a product with a constant matrix (K, N), or of an attention's operands. Raises
    `OperatorRefused` for a product with a vector, and for other products that no kernel computes."""
    x, y = node.all_input_nodes[0], node.all_input_nodes[-1]
    if all(isinstance(reader.of[z], Host) and not reader.of[z].given for z in (x, y)):  # type: ignore[union-attr]
        return None
    if y in reader.constants and len(shape_of(y)) == 2:
        is_transpose = packet(y) is aten.permute
        weight = ConstantWeight.of(reader, y.all_input_nodes[0]) if is_transpose else ConstantWeight(reader.array(y))
        return product(reader, node, x, weight, None)
    if min(len(shape_of(x)), len(shape_of(y))) < 2:
        raise OperatorRefused("it multiplies with a vector")
    return attend(reader, node, x, y) or scores_of(reader, node, x, y)


# -- along rows


def norm(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) of layer_norm and rms_norm, of whole rows or of each head's columns. Raises
    `OperatorRefused` for a norm over other elements."""
    if a["input"] in reader.constants:
        return None
    columns = prod(a["normalized_shape"])
    part = reader.part(a["input"])
    if len(a["normalized_shape"]) != 1 or part.view.dims[-1] != merge([(columns, 1)]) or part.width % columns:
        raise OperatorRefused(
            f"it is taken over {list(a['normalized_shape'])}, which are no columns that stand side by side"
        )
    operand = reader.whole(part)
    eps = a["eps"]
    attributes = {
        "columns": columns,
        "gamma": reader.vector(a["weight"], columns),
        "beta": reader.vector(a.get("bias"), columns),
        "eps": float(torch.finfo(torch.float32).eps if eps is None else eps),
    }
    op = "rmsnorm" if packet(node) is aten.rms_norm else "layernorm"
    return ShownTensor(reader.operator(node, op, (operand,), operand.shape, **attributes), part.view)


def softmax(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) of softmax over the last dimension. Raises `OperatorRefused` for another dimension or type,
    and for rows that are not stored as rows."""
    x: Node = a["self"]
    if isinstance(host := reader.of[x], Host) and not host.given:
        return None
    if a["dim"] % len(shape_of(x)) != len(shape_of(x)) - 1 or a["dtype"] not in (None, torch.float32):
        raise OperatorRefused("kernels take it over the last dimension, in float32")
    part = reader.part(x)
    if part.view.dims[-1] != merge([(part.width, 1)]):
        raise OperatorRefused("its rows are no rows as they are stored")
    operand = reader.whole(part)
    return ShownTensor(reader.operator(node, "softmax", (operand,), operand.shape), part.view)


def rotary(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) of rotary positions: x[c] * own[c] + x[partners[c]] * partner[c] in each head's columns.
    Raises `OperatorRefused` for heads that do not stand side by side, and for tables that differ from head to head."""
    if isinstance(reader.of[a["x"]], Host):
        return None
    part = reader.part(a["x"])
    columns = len(a["partners"])
    read = heads_of(ShownTensor(reader.whole(part), part.view))
    if read is None or read.part.operator.shape[0] != 1 or read.repeats != 1 or read.columns != columns:
        raise OperatorRefused("its heads do not stand side by side in the columns of one matrix")
    tables = []
    for kind in ("own", "partner"):
        table = reader.constants.value(a[kind]).detach().to(torch.float32)
        every = table.broadcast_to(shape_of(node)).reshape(read.sequences, -1, read.rows, columns)
        if not torch.equal(every, every[:, :1].expand_as(every)):
            raise OperatorRefused("its tables differ from head to head")
        alike = torch.equal(every, every[:1].expand_as(every))
        rows = every[:1, 0] if alike else every[:, 0]
        tables.append(reader.constant(node, kind, rows.reshape(-1, columns).numpy()))
    operand = reader.whole(part)
    made = reader.operator(
        node, "rotary", (operand, *tables), operand.shape, columns=columns, partners=tuple(a["partners"])
    )
    return ShownTensor(made, part.view)


# -- elementwise


def unary(make: Callable[[p.Expression], p.Expression]) -> Rule:
    """Return the rule (`reading.Rule`) of an operator of one operand. make: from the operand's expression to that of
    the result."""

    def rule(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
        return elementwise(reader, node, [node.all_input_nodes[0]], lambda x: make(x[0]))

    return rule


def gelu(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) of GELU with the error function, or in its tanh form. Raises as `elementwise` does."""
    make = p.gelu_tanh if a["approximate"] == "tanh" else lambda x: p.call("gelu", x)
    return elementwise(reader, node, [a["self"]], lambda x: make(x[0]))


def binary(name: str) -> Rule:
    """Return the rule (`reading.Rule`) of an operator of two operands. name: one of + - * /. The rule raises
    `OperatorRefused` for a division that rounds, and as `elementwise` does."""

    def rule(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
        x, y, alpha = a["self"], a["other"], a.get("alpha", 1)
        if a.get("rounding_mode") is not None:
            raise OperatorRefused("it rounds its quotients")

        if name == "*" and isinstance(x, Node) and isinstance(y, Node):
            scaled = scaled_columns(reader, node, x, y) or scaled_columns(reader, node, y, x)
            if scaled is not None:
                return scaled

        def make(e: list[p.Expression]) -> p.Expression:
            return p.call(name, e[0], e[1] if alpha == 1 else p.call("*", e[1], float(alpha)))

        return elementwise(reader, node, [x, y], make)

    return rule


def power(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) of x to the power of a number. Raises `OperatorRefused` for other powers than 2, 3, 0.5,
    -0.5 and -1."""
    exponent = reader.known(a["exponent"])
    if exponent is None or p.power(1.0, exponent) is None:
        raise OperatorRefused("kernels compute powers of 2, 3, 0.5, -0.5 and -1")
    return elementwise(reader, node, [a["self"]], lambda x: p.power(x[0], exponent) or x[0])


def elementwise(
    reader: GraphReader,
    node: Node,
    given: list[Any],
    make: Callable[[list[p.Expression]], p.Expression],
    dtype: str = "f32",
) -> Value | None:
    """Read an elementwise operator; None if the host computes it.

    reader, node: as for a `reading.Rule`. given: the operands, nodes and numbers. make: from their expressions to that
    of the result. dtype: of the result. All tensors must be stored alike; constants of one row, and tensors of the host
    of any shape that fits, are repeated. Raises `OperatorRefused` for operands that are stored otherwise,
    for another type than float32, and for numbers that are not finite.
    """
    values = [reader.of.get(x) if isinstance(x, Node) else None for x in given]
    if not any(isinstance(value, ShownTensor) for value in values):
        free = [x for x, value in zip(given, values, strict=True) if isinstance(value, Host) and value.given]
        same = [x for x in free if shape_of(x) == shape_of(node) and dtype_of(x) == torch.float32]
        if not same or len(shape_of(node)) < 2:
            return None  # the host does it
        main = same[0]
    else:
        main = next(
            (x for x, v in zip(given, values, strict=True) if isinstance(v, ShownTensor) and v.shape == shape_of(node)),
            None,
        )
        if main is None:
            raise OperatorRefused(f"no operand has the shape of the result, {list(shape_of(node))}")
    if dtype == "f32" and dtype_of(node) != torch.float32:
        raise OperatorRefused(f"its result is {dtype_of(node)}; kernels compute in float32")
    part = reader.part(main)
    first = reader.whole(part)
    operands: list[StreamOperator] = []
    vectors: dict[str, Array] = {}
    leaves: list[p.Expression] = []
    for x, value in zip(given, values, strict=True):
        number = reader.known(x)
        if number is not None:
            if not isfinite(number):
                raise OperatorRefused(f"{number} is no finite number; kernels compute with finite constants")
            leaves.append(number)
            continue
        if x is main:
            leaf: p.Expression = _operand(operands, first)
        elif isinstance(value, ShownTensor) or (
            isinstance(value, Host) and value.given and shape_of(x) == shape_of(node)
        ):
            leaf = _operand(operands, _alike(reader, x, part, first))
        else:
            leaf = _table(reader, x, part, first, operands, vectors)
        leaves.append(leaf)
    name = reader.name(node, short_name(node))
    made = p.pointwise(name, operands, make(leaves), vectors, site(node), dtype)
    return ShownTensor(made, part.view)


def _operand(operands: list[StreamOperator], operator: StreamOperator) -> p.OperandIndex:
    operands.append(operator)
    return p.OperandIndex(len(operands) - 1)


def _alike(reader: GraphReader, x: Node, like: ColumnSlice, first: StreamOperator) -> StreamOperator:
    part = reader.part(x)
    operator = reader.whole(part)
    if part.view != like.view or operator.shape != first.shape:
        raise OperatorRefused(
            f"{x.name} {list(shape_of(x))} is stored as {list(operator.shape)} (heads, rows, columns), the other "
            f"operand as {list(first.shape)} in another order; elementwise kernels take tensors that are stored alike"
        )
    return operator


def _table(
    reader: GraphReader,
    x: Node,
    part: ColumnSlice,
    first: StreamOperator,
    operands: list[StreamOperator],
    vectors: dict[str, Array],
) -> p.Expression:
    """A tensor of the host beside one on streams: a vector if it is constant and the same for all rows."""
    if x not in reader.constants:
        return _operand(operands, reader.memory(x, part.view, first.shape))
    if dtype_of(x) != torch.float32:
        raise OperatorRefused(f"{x.name} is {dtype_of(x)}; kernels compute in float32")
    table = flat_matrices(reader.constants.value(x), part.view).reshape(first.shape)
    if (table == table[:1, :1]).all():
        name = f"v{len(vectors)}"
        vectors[name] = np.ascontiguousarray(table[0, 0])
        return p.RowConstant(name)
    return _operand(operands, reader.constant(x, "table", table))


# -- quantised numbers


def row_scales(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) of the scale of each row. Raises `OperatorRefused` for rows that are not stored as rows."""
    return None if a["x"] in reader.constants else _of_rows(reader, node, node, "scale")


def part_of_result(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) of one result of an operator with several results: the scales of rows, or their zero
    points. Raises as `row_scales` does."""
    source, index = node.args
    assert isinstance(source, Node)
    if packet(source) is not ROW_SCALES or isinstance(reader.of[source], Host):
        return None
    return _of_rows(reader, node, source, "zero") if index else reader.of[source]


def _of_rows(reader: GraphReader, node: Node, source: Node, kind: str) -> ShownTensor:
    """The scales or the zero points (kind) of the rows of a tensor. source: computes both. node: is what is wanted."""
    a = arguments(source)
    part = _rows_of(reader, a["x"])
    operand, columns = reader.whole(part), shape_of(a["x"])[-1]
    of = {"columns": columns, **{key: a[key] for key in ("low", "high", "is_symmetric", "least")}}
    low, high = SCALARS["i8"].limits
    zero = "i8" if low <= a["low"] and a["high"] <= high else "i32"
    kernel = reader.once(
        ("quantise", operand, *of.values()),
        lambda: reader.operator(source, "quantise", (operand,), operand.shape, **of),
    )

    def make() -> StreamOperator:
        name, dtype = reader.name(node, f"row_{kind}s"), zero if kind == "zero" else "f32"
        shape = *operand.shape[:2], operand.shape[2] // columns
        return StreamOperator(name, "row_scales", (kernel,), shape, {"kind": kind}, site=site(source), dtype=dtype)

    return ShownTensor(reader.once(("row_scales", kernel, kind), make), _numbers_of_rows(part, columns))


def _numbers_of_rows(part: ColumnSlice, columns: int) -> View:
    """The view of a number for each row, (..., 1): the first element of the row, counted in rows. columns: of a row."""
    dims = (merge([(size, stride // columns) for size, stride in dim]) for dim in part.view.dims[:-1])
    return View((*dims, ()), part.view.offset // columns)


def _rows_of(reader: GraphReader, x: Node) -> ColumnSlice:
    """The part that a tensor shows, whose rows are those of a matrix or of its heads. Raises `OperatorRefused` for
    others."""
    part, columns = reader.part(x), shape_of(x)[-1]
    if part.view.dims[-1] != merge([(columns, 1)]) or part.width % columns:
        raise OperatorRefused(f"{x.name} has no rows that are stored as rows")
    return part


def quantise(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) of quantisation: the nearest integers, with a constant scale and zero point, or with those
    that a kernel computes for each row of the same tensor. Raises `OperatorRefused` for other scales, and as
    `elementwise` does."""
    if a["x"] in reader.constants:
        return None
    scale, zero = a["scale"], a["zero"]
    low, high = float(a["low"]), float(a["high"])
    if is_number(reader, scale) and (zero is None or is_number(reader, zero)):
        # Rounded to float32 once, from the scale's own type (`base.quantised.quantise`).
        factor = float((1 / reader.constants.value(scale).numpy()).astype(np.float32))

        def make(e: list[p.Expression]) -> p.Expression:
            nearest = p.call("rint", p.call("*", e[0], factor))
            if zero is not None:
                nearest = p.call("+", nearest, float(reader.constants.value(zero)))
            return p.call("i8", p.call("minimum", p.call("maximum", nearest, low), high))

        return elementwise(reader, node, [a["x"]], make, "i8")
    part, of_rows = _rows_of(reader, a["x"]), rows_scaled_by(reader, a)
    operand = reader.whole(part)
    kernel, columns = of_rows["scale"].kernel, shape_of(node)[-1]
    views = {reader.shown(a[name]).view for name in of_rows}
    is_same = kernel.operands == (operand,) and views == {_numbers_of_rows(part, columns)}
    if not is_same or any(x.kernel is not kernel for x in of_rows.values()):
        raise OperatorRefused("its scales, or zero points, are those of other rows")
    operands = {"x": kernel, **of_rows}
    named = {"operand_names": tuple(operands), "low": low, "high": high}

    def make_integers() -> StreamOperator:
        made = reader.operator(node, "integers", tuple(operands.values()), operand.shape, **named)
        return replace(made, dtype="i8")

    return ShownTensor(reader.once(("integers", *operands.values(), *named.values()), make_integers), part.view)


def dequantise(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) of the numbers that integers stand for, with a constant scale and zero point. Raises
    `OperatorRefused` for other scales, and as `elementwise` does."""
    if isinstance(reader.of[a["x"]], Host):
        return None
    scale, zero = reader.known(a["scale"]), 0.0 if a["zero"] is None else reader.known(a["zero"])
    if scale is None or zero is None:
        raise OperatorRefused("kernels dequantise activations with one constant scale")

    def make(e: list[p.Expression]) -> p.Expression:
        whole = p.call("f32", e[0])
        return p.call("*", p.call("-", whole, zero) if zero else whole, scale)

    return elementwise(reader, node, [a["x"]], make)


def integer_linear(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) of a linear layer of quantised rows and a quantised weight. Raises `OperatorRefused` for a
    weight that depends on the arguments, for rows that the host quantises, and as `product` does."""
    if isinstance(reader.of[a["x"]], Host):
        return None
    parts = [a[name] for name in ("weight", "weight_scale", "weight_zero") if a[name] is not None]
    if any(part not in reader.constants for part in parts):
        raise OperatorRefused("its weight depends on the arguments; kernels of products take constant weights")
    weight = ConstantWeight.quantised(reader, a["weight"], a["weight_scale"], a["weight_zero"], a["bits"])
    return product(reader, node, a["x"], weight, a["bias"], rows=a)


def integer_matmul(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) of a product of two quantised activations: scores, or weights times values. Raises
    `OperatorRefused` for integers, scales and zero points that the host computes, and for operands that `scores_of` and
    `attend` refuse."""
    x, y = a["x"], a["other"]
    hosted = [isinstance(reader.of[z], Host) for z in (x, y)]
    if all(hosted):
        return None
    if any(hosted):
        raise OperatorRefused("one of its operands is no quantised activation that a kernel computes")
    of_integers: dict[str, float | Node] = {}
    for name in ("scale", "other_scale", "zero", "other_zero"):
        if a[name] is None:
            continue
        named = name if name.startswith("other") else f"left_{name}"
        if is_number(reader, a[name]):
            value = reader.constants.value(a[name])
            of_integers[named] = float(value.to(torch.float32)) if name.endswith("scale") else int(value)
        elif isinstance(reader.of[a[name]], ShownTensor):
            of_integers[named] = a[name]
        else:
            raise OperatorRefused(f"its {name.replace('_', ' ')} is neither one constant nor one number for each row")
    return attend(reader, node, x, y, of_integers) or scores_of(reader, node, x, y, of_integers=of_integers)


def cat(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) of cat: columns of each head in another order, as rotary positions have them; or rows of
    the host in front of rows that are computed, head by head: a cache of keys or values. Raises `OperatorRefused` for
    other joins."""
    if all(isinstance(reader.of[x], Host) for x in a["tensors"]):
        return None
    if a["dim"] % len(shape_of(node)) == len(shape_of(node)) - 1:
        return _turned(reader, node, a["tensors"])
    missing = next((value for x in a["tensors"] if isinstance(value := reader.of[x], Missing)), None)
    if missing is not None:
        return missing
    return joined_rows(reader, node, a["tensors"], a["dim"])


def index_copy(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) of index_copy: new rows replace rows of a cache, head by head. Raises `OperatorRefused` as
    `replaced_rows` does."""
    if all(isinstance(reader.of[x], Host) for x in (a["self"], a["source"])):
        return None
    return replaced_rows(reader, node, a["self"], a["dim"], a["index"], a["source"])


def index_put(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) as `index_copy`, of the spelling cache[:, :, positions] = rows. Raises `OperatorRefused`
    also for more than one list of positions, for rows that are added to those of the cache, and for rows that PyTorch
    repeats."""
    cache, rows = a["self"], a["values"]
    if all(isinstance(reader.of[x], Host) for x in (cache, rows)):
        return None
    given = [(dim, index) for dim, index in enumerate(a["indices"]) if index is not None]
    if a["accumulate"] or len(given) != 1:
        raise OperatorRefused("kernels replace rows, at one list of positions")
    ((dim, positions),) = given
    shape = shape_of(cache)
    if tuple(shape_of(rows)) != (*shape[:dim], *shape_of(positions), *shape[dim + 1 :]):
        raise OperatorRefused(f"its rows have shape {list(shape_of(rows))}, which PyTorch repeats")
    return replaced_rows(reader, node, cache, dim, positions, rows)


def chosen_rows(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) of rows that an argument chooses, such as the last one of a sequence. If they are rows of a
    norm, they are chosen in front of it, so that the norm computes only these. Raises `OperatorRefused` for several
    sequences, for indices of other dimensions, and for indices that a kernel computes."""
    x: Node = a["self"]
    if isinstance(reader.of[x], Host):
        return None
    sizes, found = shape_of(x), {k: index for k, index in enumerate(a["indices"]) if index is not None}
    ((dim, positions),) = found.items() if len(found) == 1 else [(-1, x)]
    if dim != len(sizes) - 2 or prod(sizes[:-2]) != 1 or len(shape_of(positions)) != 1:
        raise OperatorRefused("kernels choose rows of one sequence, by a list of positions")
    if not isinstance(reader.of[positions], Host) or dtype_of(positions) not in (torch.int32, torch.int64):
        raise OperatorRefused("its positions must be integers that the host computes")

    def chosen(of: StreamOperator) -> StreamOperator:
        if of.op in ("layernorm", "rmsnorm") and of.attributes["columns"] == of.shape[2]:
            return reader.again(of, chosen(of.operands[0]))
        attributes = {"positions": Positions(positions, of.name, sizes[-2]), "rows": (sizes[-2],)}
        shape = 1, shape_of(positions)[0], of.shape[2]
        return replace(reader.operator(node, "select", (of,), shape, **attributes), dtype=of.dtype)

    return ShownTensor(chosen(reader.matrix(x)), View.dense(shape_of(node)))


def _turned(reader: GraphReader, node: Node, parts: list[Node]) -> Value:
    """cat of ranges of one tensor's columns along its last dimension, some negated."""
    columns: list[int] = []
    signs: list[int] = []
    sources = set()
    for x in parts:
        sign = 1
        if packet(x) is aten.neg:
            sign, x = -1, x.all_input_nodes[0]
        a = arguments(x)
        if packet(x) is not aten.slice or a["step"] != 1 or a["dim"] % len(shape_of(x)) != len(shape_of(x)) - 1:
            raise OperatorRefused("kernels join ranges of one tensor's columns, or a cache and new rows")
        source: Node = a["self"]
        start, stop, _ = slice(a["start"], a["end"]).indices(shape_of(source)[-1])
        columns += range(start, stop)
        signs += [sign] * (stop - start)
        sources.add(source)
    if len(sources) != 1 or sorted(columns) != list(range(shape_of(node)[-1])):
        raise OperatorRefused("kernels join ranges that are all columns of one tensor, each once")
    (source,) = sources
    if isinstance(reader.of[source], Missing):
        return reader.of[source]
    part = reader.part(source)
    operand = reader.whole(part)
    width = len(columns)
    if part.view.dims[-1] != merge([(width, 1)]) or operand.shape[0] != 1 or part.width % width:
        raise OperatorRefused("its columns do not stand side by side in one matrix")
    attributes = {"columns": width, "partners": tuple(columns), "signs": tuple(signs)}
    return ShownTensor(reader.operator(node, "turn", (operand,), operand.shape, **attributes), part.view)


def sdpa(reader: GraphReader, node: Node, a: dict[str, Any]) -> Value | None:
    """Rule (`reading.Rule`) of scaled_dot_product_attention: scores, softmax, and the product with the values. Raises
    `OperatorRefused` for dropout in training mode, and for operands that `scores_of` and `attend` refuse."""
    if a["dropout_p"]:
        raise OperatorRefused("dropout in training mode")
    queries, keys, values = a["query"], a["key"], a["value"]
    if all(isinstance(x, Host) and not x.given for x in (reader.of[y] for y in (queries, keys, values))):
        return None
    scale = shape_of(queries)[-1] ** -0.5 if a["scale"] is None else float(a["scale"])
    scored = scores_of(
        reader, node, queries, keys, scale=scale, mask=a["attn_mask"], causal=bool(a["is_causal"]), transposed=True
    )
    soft = reader.operator(node, "softmax", (scored.operator,), scored.operator.shape)
    return attend(reader, node, ShownTensor(soft, scored.view), values)


UNARY: dict[Any, Callable[[p.Expression], p.Expression]] = {
    aten.relu: lambda x: p.call("relu", x),
    aten.silu: lambda x: p.call("silu", x),
    aten.tanh: lambda x: p.call("tanh", x),
    aten.exp: lambda x: p.call("exp", x),
    aten.sqrt: lambda x: p.call("sqrt", x),
    aten.rsqrt: lambda x: p.call("/", 1.0, p.call("sqrt", x)),
    aten.neg: lambda x: p.call("-", x),
    aten.sigmoid: p.sigmoid,
}

RULES: dict[Any, Rule] = {
    **dict.fromkeys(VIEWS, view),
    **{op: unary(make) for op, make in UNARY.items()},
    aten.linear: linear,
    **dict.fromkeys((aten.matmul, aten.bmm), matmul),
    aten.scaled_dot_product_attention: sdpa,
    aten.softmax: softmax,
    **dict.fromkeys((aten.layer_norm, aten.rms_norm), norm),
    ROTATE: rotary,
    aten.gelu: gelu,
    aten.pow: power,
    aten.add: binary("+"),
    aten.sub: binary("-"),
    aten.mul: binary("*"),
    aten.div: binary("/"),
    aten.cat: cat,
    aten.index_copy: index_copy,
    aten.index_put: index_put,
    aten.index: chosen_rows,
    ROW_SCALES: row_scales,
    operator.getitem: part_of_result,
    QUANTISE: quantise,
    DEQUANTISE: dequantise,
    INTEGER_LINEAR: integer_linear,
    INTEGER_MATMUL: integer_matmul,
}
"""The rule of each operator."""
