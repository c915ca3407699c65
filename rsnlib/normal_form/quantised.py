"""The pass that gives quantised numbers, and products of them, the five operators of `quantised_ops`.

Their spellings are those of torchao, in two forms (`linear` of dequantised operands, and `_int_mm` with what scales
it), and of PT2E. What has no form here stays as it is: PyTorch computes it, on the host.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ...base.errors import TensorError, UnsupportedError
from ...base.quantised import check_accumulator
from ..capture import SPELLED, Constants, arguments, dtype_of, is_static, lifted, op_name, packet, shape_of, site
from ..quantised_ops import DEQUANTISE, INTEGER_LINEAR, INTEGER_MATMUL, QUANTISE, ROW_SCALES
from .editor import Editor, respell

aten = torch.ops.aten
COPIES = {aten.detach, aten.clone, aten.contiguous}
SAME = {aten.reshape, *COPIES}
"""Operators whose result has the same elements in the same order."""
RANGE = -128, 127
SHIFT = 128
"""What torchao adds to int8 rows where a CPU multiplies unsigned by signed integers."""
PART_OF_TENSOR = "export::access_subclass_inner_tensor"
"""The operator by which an exported graph reads a part of a tensor subclass."""


def schema_name(node: Node) -> str:
    """Return the name of a node's operator with its library, such as torchao::quantize_affine; "" if it has none. The
    library need not be imported to compare it."""
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name)


def quantised(graph: Editor) -> None:
    """Replace operators on quantised numbers, which each library spells its own way, by the operators of the normal
    form, in place: first those that quantise and dequantise, then products of their results by products of integers.

    Raises `UnsupportedError`, with operator and module path, for products whose sums may overflow, for unsigned
    integers beside signed ones, and for groups that do not divide a row.
    """
    for node in list(graph.graph.nodes):
        rule = SPELLINGS.get(schema_name(node))
        if rule is not None and all(map(is_static, (node, *node.all_input_nodes))):
            rule(graph, node, arguments(node))
    for node in list(graph.graph.nodes):
        product = PRODUCTS.get(packet(node))
        if product is not None and all(map(is_static, (node, *node.all_input_nodes))):
            product(graph, node, arguments(node))


# -- one operator each


def _behind(x: Node, shape: tuple[int, ...]) -> Node | None:
    """The nearest node with this shape among `x` and what it is a reshape of."""
    while shape_of(x) != shape:
        if packet(x) not in SAME:
            return None
        x = x.all_input_nodes[0]
    return x


def _original(x: Node, skipped: Container[Any] = COPIES) -> Node:
    """What a node is a copy of. skipped: the operators that count as copies."""
    while packet(x) in skipped:
        x = x.all_input_nodes[0]
    return x


def _reshaped(graph: Editor, at: Node, x: Node, shape: tuple[int, ...]) -> Node:
    """`x` in another shape with the same elements."""
    found = _behind(x, shape)
    return graph.insert(at, aten.reshape.default, x, list(shape)) if found is None else found


def _as_zero(graph: Editor, at: Node, zero: Node | None, shape: tuple[int, ...]) -> Node | None:
    """Zero points as int32, in some shape; None if they are known to be 0."""
    if zero is None:
        return None
    root = _original(zero, SAME)
    chosen = _unconverted(root)
    if chosen.target is operator.getitem and packet(chosen.all_input_nodes[0]) is ROW_SCALES:
        zero = chosen  # perhaps converted to int8, in which it lies
        a = arguments(chosen.all_input_nodes[0])
        if a["is_symmetric"] and a["low"] + a["high"] in (-1, 0):
            return None
    zero = _reshaped(graph, at, zero, shape)
    if dtype_of(zero) == torch.int32:
        return zero
    return graph.insert(at, aten._to_copy.default, zero, dtype=torch.int32)


def _bits(limits: tuple[int, int]) -> int:
    """Bits of signed integers of a range."""
    return max(int(-limits[0] - 1).bit_length(), int(limits[1]).bit_length()) + 1


def _limits(a: dict[str, Any], dtype: torch.dtype) -> tuple[int, int] | None:
    """The range of signed integers of at most 8 bits; None for others."""
    low, high = a["quant_min"], a["quant_max"]
    low, high = RANGE[0] if low is None else low, RANGE[1] if high is None else high
    return (low, high) if dtype == torch.int8 and isinstance(low, int) and isinstance(high, int) else None


def _shape_of_scales(node: Node, shape: tuple[int, ...], block: list[int]) -> tuple[int, ...] | None:
    """The shape of scales that have one value for each block: (..., G) for blocks within a row, () for a single block
    over several rows; None for other blocks. Raises `UnsupportedError` for blocks that do not divide a tensor."""
    for axis, (size, each) in enumerate(zip(shape, block, strict=True)):
        if each < 1 or size % each:
            raise UnsupportedError(f"{site(node)}: groups of {each} do not divide the {size} positions of axis {axis}")
    if any(n != 1 for n in block[:-1]):
        return () if shape == tuple(block) else None
    return (*shape[:-1], shape[-1] // block[-1])


def _choose_qparams_affine(graph: Editor, node: Node, a: dict[str, Any]) -> None:
    x, limits = a["input"], _limits(a, a["target_dtype"])
    shape = _shape_of_scales(node, shape_of(x), a["block_size"])
    is_plain = dtype_of(x) == torch.float32 and a["scale_dtype"] in (None, torch.float32)
    if limits is None or not is_plain or a["mapping_type"] not in ("SYMMETRIC", "ASYMMETRIC"):
        return
    if shape != (*shape_of(x)[:-1], 1) or prod(a["block_size"]) == 1:  # torchao has one scale for blocks of one number
        return
    least = torch.finfo(torch.float32).smallest_normal if a["eps"] is None else a["eps"]
    made = graph.insert(node, ROW_SCALES.default, x, a["mapping_type"] == "SYMMETRIC", least, *limits)
    for part in list(node.users):
        which = graph.insert(node, operator.getitem, made, part.args[1])
        if dtype_of(which) != dtype_of(part):
            which = graph.insert(node, aten._to_copy.default, which, dtype=dtype_of(part))
        part.replace_all_uses_with(_reshaped(graph, node, which, shape_of(part)))
        graph.graph.erase_node(part)
    graph.graph.erase_node(node)


def _scales(graph: Editor, node: Node, a: dict[str, Any]) -> tuple[Node, Node | None] | None:
    """Scales and zero points of an operator with blocks, in the shape that the normal form has; None for others."""
    scale, zero = a["scale"], a["zero_point"]
    shape = _shape_of_scales(node, shape_of(node), a["block_size"])
    given = [x for x in (scale, zero) if x is not None]
    if shape is None or any(prod(shape_of(x)) != prod(shape) for x in given):
        return None
    if zero is not None and zero.meta["val"].is_floating_point():
        return None
    return _reshaped(graph, node, scale, shape), _as_zero(graph, node, zero, shape)


def _scale_of_tensor(graph: Editor, node: Node, a: dict[str, Any]) -> tuple[Node, Node | None] | None:
    """The one scale and zero point of a tensor, which may be numbers."""
    scale, zero = a["scale"], a["zero_point"]
    if isinstance(scale, Node) and isinstance(zero, Node):
        if prod(shape_of(scale)) != 1 or prod(shape_of(zero)) != 1:
            return None
        return _reshaped(graph, node, scale, ()), _as_zero(graph, node, zero, ())
    if isinstance(scale, Node) or isinstance(zero, Node):
        return None
    # PT2E computes the reciprocal of a number in float64.
    number = graph.insert(node, aten.full.default, [], scale, dtype=torch.float64)
    return number, graph.insert(node, aten.full.default, [], zero, dtype=torch.int32) if zero else None


Scales = Callable[[Editor, Node, dict[str, Any]], tuple[Node, Node | None] | None]


def _to_integers(dtype: str, scales: Scales) -> Callable[[Editor, Node, dict[str, Any]], None]:
    """The spelling of operators that quantise. dtype: the argument that is the type of the integers."""

    def spelled(graph: Editor, node: Node, a: dict[str, Any]) -> None:
        limits = _limits(a, a[dtype])
        found = None if limits is None or dtype_of(a["input"]) != torch.float32 else scales(graph, node, a)
        if limits is None or found is None or shape_of(found[0])[-1:] not in ((), (1,)):
            return
        respell(node, QUANTISE.default, a["input"], *found, *limits)

    return spelled


def _from_integers(dtype: str, scales: Scales) -> Callable[[Editor, Node, dict[str, Any]], None]:
    """The spelling of operators that dequantise. dtype: the argument that is the type of the integers."""

    def spelled(graph: Editor, node: Node, a: dict[str, Any]) -> None:
        limits = _limits(a, a[dtype])
        found = None if limits is None or dtype_of(node) != torch.float32 else scales(graph, node, a)
        if limits is not None and found is not None:
            respell(node, DEQUANTISE.default, a["input"], *found, _bits(limits))

    return spelled


def _scales_of_channels(graph: Editor, node: Node, a: dict[str, Any]) -> tuple[Node, Node | None] | None:
    """Scales and zero points of the rows of a matrix (N, K): (N, 1)."""
    if a["axis"] != 0 or len(shape_of(node)) != 2:
        return None
    shape = shape_of(node)[0], 1
    return _reshaped(graph, node, a["scales"], shape), _as_zero(graph, node, a["zero_points"], shape)


SPELLINGS: dict[str, Callable[[Editor, Node, dict[str, Any]], None]] = {
    "torchao::choose_qparams_affine": _choose_qparams_affine,
    "torchao::quantize_affine": _to_integers("output_dtype", _scales),
    "torchao::dequantize_affine": _from_integers("input_dtype", _scales),
    "quantized_decomposed::quantize_per_tensor": _to_integers("dtype", _scale_of_tensor),
    "quantized_decomposed::dequantize_per_tensor": _from_integers("dtype", _scale_of_tensor),
    "quantized_decomposed::dequantize_per_channel": _from_integers("dtype", _scales_of_channels),
}
"""By the name of an operator, what spells it in the normal form, if it can."""


# -- products of dequantised tensors


def _check_sum(node: Node, count: int, x: Node, zero: Node | None, bits: int, other_zero: Node | None) -> None:
    """Check the accumulator of a product. Raises `UnsupportedError`."""
    a = arguments(x)
    rows = (a["low"], a["high"]) if packet(x) is QUANTISE else RANGE
    other = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    try:
        check_accumulator(count, _largest(zero, *rows), _largest(other_zero, *other))
    except UnsupportedError as error:
        raise UnsupportedError(f"{site(node)}: {error}") from error


def _largest(zero: Node | None, low: int, high: int) -> int:
    """The largest magnitude of integers of a range behind their zero point."""
    return max(-low, high) if zero is None else high - low


def _check_signs(node: Node, x: Node, y: Node) -> None:
    """Raises `UnsupportedError` for two dequantised operands whose integers have different types."""
    types = [dtype_of(t.all_input_nodes[0]) for t in (x, y) if "dequanti" in schema_name(t)]
    if len(types) == 2 and types[0] != types[1]:
        raise UnsupportedError(
            f"{site(node)}: it multiplies {types[0]} by {types[1]}; a product of integers takes one signed type: "
            "quantise both operands to int8"
        )


QuantisedNodes = tuple[Node, Node, Node | None]
"""Integers, their scales, and their zero points."""


def _linear(graph: Editor, node: Node, a: dict[str, Any]) -> None:
    x, weight = _original(a["input"]), _original(a["weight"])
    _check_signs(node, x, weight)
    if packet(x) is not DEQUANTISE or packet(weight) is not DEQUANTISE:
        return
    rows, matrix = arguments(x), arguments(weight)
    if shape_of(rows["scale"])[-1:] not in ((), (1,)) or len(shape_of(matrix["scale"])) != 2:
        return
    left, right = ((t["x"], t["scale"], t["zero"]) for t in (rows, matrix))
    _put_linear(node, node, left, right, a["bias"], matrix["bits"])


def _put_linear(
    end: Node, node: Node, rows: QuantisedNodes, weights: QuantisedNodes, bias: Node | None, bits: int
) -> None:
    """Put `rsn::integer_linear` in the place of `end`. node: the product in the user's model."""
    _check_sum(node, shape_of(weights[0])[1] // shape_of(weights[1])[1], rows[0], rows[2], bits, weights[2])
    spelled = op_name(node)
    respell(end, INTEGER_LINEAR.default, *rows, *weights, bias, bits)
    end.meta[SPELLED] = spelled


def _matmul(graph: Editor, node: Node, a: dict[str, Any]) -> None:
    """A product of two quantised matrices; or one of float32 rows and of integers whose columns are scaled behind it,
    which becomes a linear layer of the dequantised weight."""
    x, y = _original(a["self"]), _original(a["other"])
    source = _swapped(y) or y
    _check_signs(node, x, source)
    if packet(x) is DEQUANTISE:
        left = arguments(x)
        found = _columns(graph, node, y) if shape_of(left["scale"])[-1:] in ((), (1,)) else None
        if found is not None:
            other, bits = found
            _check_sum(node, shape_of(x)[-1], left["x"], left["zero"], bits, other[2])
            respell(node, INTEGER_MATMUL.default, left["x"], left["scale"], left["zero"], *other)
            return
    if packet(source) is DEQUANTISE:
        return
    weight = _transposed(y.all_input_nodes[0]) if packet(y) is aten._to_copy else None
    if weight is None or dtype_of(weight) != torch.int8 or dtype_of(x) != torch.float32:
        return
    line = _Sequence(node)
    scale = _factor_of_columns(graph, line, shape_of(weight)[0])
    if scale is None:
        return
    end, bias = next(line.ends())
    made = graph.insert(end, DEQUANTISE.default, weight, scale, None, _bits(RANGE))
    rows = _reshaped(graph, end, x, (*shape_of(end)[:-1], shape_of(x)[-1]))
    spelled = op_name(node)
    respell(end, aten.linear.default, rows, made, bias)
    made.meta[SPELLED] = end.meta[SPELLED] = spelled


def _columns(graph: Editor, at: Node, y: Node) -> tuple[QuantisedNodes, int] | None:
    """The right operand of a product of integers, with one scale or one for each column, and the bits of its integers:
    a dequantised tensor, perhaps with its last two dimensions swapped, or int8 that are converted. None for others."""
    if packet(y) is aten._to_copy and dtype_of(y.all_input_nodes[0]) == torch.int8:
        return (y.all_input_nodes[0], graph.insert(at, aten.full.default, [], 1.0, dtype=torch.float32), None), 8
    swapped = _swapped(y)
    source = y if swapped is None else swapped
    a = arguments(source) if packet(source) is DEQUANTISE else {}
    if not a or shape_of(a["scale"])[-1:] not in ((), (1,) if swapped is not None else ()):
        return None

    def placed(x: Node | None) -> Node | None:
        return (
            x
            if x is None or swapped is None or not shape_of(x)
            else graph.insert(at, aten.permute.default, x, y.args[1])
        )

    integers, scale, zero = (placed(a[name]) for name in ("x", "scale", "zero"))
    assert integers is not None
    assert scale is not None
    return (integers, scale, zero), a["bits"]


def _swapped(x: Node) -> Node | None:
    """The tensor of which a node is the one with its last two dimensions swapped."""
    rank = len(shape_of(x))
    if packet(x) is aten.permute and x.args[1] == [*range(rank - 2), rank - 1, rank - 2]:
        return _original(x.all_input_nodes[0])
    return None


# -- _int_mm, and what follows it


class _Sequence:
    """Operators each of which is the only one that reads the one before. node: the last one so far."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def next(self, op: Any) -> Following | None:
        """The operator that follows, behind copies, if it is this one; it is then the last one so far."""
        read = self.node
        while len(read.users) == 1:
            user = next(iter(read.users))
            if packet(user) is op:
                self.node = user
                return Following(user, read)
            if packet(user) not in COPIES:
                return None
            read = user
        return None

    def ends(self) -> Iterator[tuple[Node, Node | None]]:
        """Where a product of N columns may end, the last place first: behind reshapes of its rows, and behind a bias of
        N numbers; each with that bias."""
        width = shape_of(self.node)[-1:]
        places = [self.node]
        while (found := _Sequence(places[-1]).next(aten.reshape)) is not None and shape_of(found.node)[-1:] == width:
            places.append(found.node)
        for place in reversed(places):
            added = _Sequence(place).next(aten.add)
            bias = None if added is None or arguments(added.node)["alpha"] != 1 else added.other
            if added is not None and bias is not None and _is_float32(bias, width):
                yield added.node, bias
            yield place, None


@dataclass(frozen=True)
class Following:
    """An operator behind an earlier one. node: the operator. operand: that of its operands which is, or is computed
    from, the earlier operator's result."""

    node: Node
    operand: Node

    @property
    def is_first(self) -> bool:
        """Whether `operand` is the first operand."""
        return self.node.args[0] is self.operand

    @property
    def other(self) -> Node | None:
        """The other one of two operands; None if it is no tensor, or if there are not two operands."""
        given = [x for x in self.node.args if x is not self.operand]
        return given[0] if len(given) == 1 and isinstance(given[0], Node) else None


def _transposed(node: Node) -> Node | None:
    """The matrix of which a node is the transposed one."""
    node = _original(node)
    return _swapped(node) if len(shape_of(node)) == 2 else None


def _factor_of_columns(graph: Editor, line: _Sequence, width: int) -> Node | None:
    """The factor (N, 1) by which the columns of a product are multiplied next; None if they are not."""
    found = line.next(aten.mul)
    factor = None if found is None else found.other
    if factor is not None and _is_float32(factor, (1,)):
        return graph.insert(line.node, aten.expand.default, _reshaped(graph, line.node, factor, (1, 1)), [width, 1])
    return None if factor is None or not _is_float32(factor, (width,)) else _behind(factor, (width, 1))


def _is_float32(x: Node, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is float32, so that a result keeps that type, and has a shape."""
    return dtype_of(x) == torch.float32 and shape_of(x) == shape


def _int_mm(graph: Editor, node: Node, a: dict[str, Any]) -> None:
    """A product of integers, converted to float32; * scale of the row; - what its zero point adds; * scale of the
    column; + bias."""
    line, weight = _Sequence(node), _transposed(a["mat2"])
    x = _unshifted(a["self"], line, a["mat2"]) if dtype_of(a["self"]) == torch.uint8 else a["self"]
    if weight is None or x is None or dtype_of(x) != torch.int8 or dtype_of(weight) != torch.int8:
        return
    converted = line.next(aten._to_copy)
    scaled = None if converted is None or dtype_of(converted.node) != torch.float32 else line.next(aten.mul)
    factor = None if scaled is None else scaled.other
    if factor is None or not any(_is_float32(factor, (rows, 1)) for rows in (shape_of(x)[0], 1)):
        return
    zero, corrected = None, line.next(aten.sub)
    if corrected is not None:
        is_minus = corrected.is_first and arguments(corrected.node)["alpha"] == 1
        correction = corrected.other if is_minus else None
        zero = None if correction is None else _zero_of(correction, factor, weight)
        if zero is None or prod(shape_of(zero)) != shape_of(factor)[0]:
            return
    scale_of_columns = _factor_of_columns(graph, line, shape_of(weight)[0])
    if scale_of_columns is None:
        return
    for end, bias in line.ends():
        lead = shape_of(end)[:-1]
        shape = () if shape_of(factor) == (1, 1) != (shape_of(x)[0], 1) else (*lead, 1)
        rows, scale = _behind(x, (*lead, shape_of(x)[-1])), _reshaped(graph, end, factor, shape)
        if rows is not None:
            at = _as_zero(graph, end, zero, shape)
            _put_linear(end, node, (rows, scale, at), (weight, scale_of_columns, None), bias, _bits(RANGE))
            return


def _unshifted(x: Node, line: _Sequence, matrix: Node) -> Node | None:
    """The int8 rows of which `x` is (rows + 128) as uint8, if 128 times the sums of the matrix's columns are subtracted
    next."""
    added = _unconverted(x)
    wide = arguments(added)["self"] if packet(added) is aten.add and arguments(added)["other"] == SHIFT else None
    found = line.next(aten.sub)
    if wide is None or packet(wide) is not aten._to_copy or found is None or not found.is_first:
        return None
    times = found.other
    total = None if times is None or packet(times) is not aten.mul or times.args[1] != SHIFT else times.args[0]
    if not isinstance(total, Node) or packet(total) is not aten.sum:
        return None
    a = arguments(total)
    is_wide = dtype_of(total) in (torch.int32, torch.int64)
    is_one = is_wide and _original(a["self"]) is _original(matrix) and a.get("dim") == [0] and a["keepdim"]
    return wide.all_input_nodes[0] if is_one and arguments(found.node)["alpha"] == 1 else None


def _zero_of(correction: Node, factor: Node, weight: Node) -> Node | None:
    """The zero points, if a correction is these as float32 * factor * the sums of the weight's rows."""
    for outer, sums in _operands(correction):
        total = _unconverted(sums)
        a = arguments(total) if packet(total) is aten.sum else {}
        if not a or _original(a["self"]) is not weight or a["dim"] not in ([-1], [1]) or a["keepdim"]:
            continue
        if dtype_of(total) not in (torch.int32, torch.int64):
            continue
        for inner, scale in _operands(outer):
            zero = _unconverted(inner)
            is_same = _original(scale, SAME) is _original(factor, SAME)
            if is_same and dtype_of(zero) in (torch.int8, torch.int32):
                return zero
    return None


def _unconverted(x: Node) -> Node:
    """What a node is a copy of, perhaps of another type."""
    x = _original(x)
    return _original(x.all_input_nodes[0]) if packet(x) is aten._to_copy else x


def _operands(node: Node) -> Iterator[tuple[Node, Node]]:
    """The operands of a product of two tensors, in both orders."""
    node = _original(node)
    if packet(node) is aten.mul and len(node.all_input_nodes) == 2:
        x, y = node.all_input_nodes
        yield from ((x, y), (y, x))


PRODUCTS: dict[Any, Callable[[Editor, Node, dict[str, Any]], None]] = {
    aten.linear: _linear,
    aten.matmul: _matmul,
    aten._int_mm: _int_mm,
}
"""By operator, what makes a product of integers of it and of what follows it, if it is one."""


# -- values


def plain_tensors(program: ExportedProgram) -> None:
    """Replace reads of the parts of tensor subclasses, as quantised weights are, by the parts themselves, as constants
    that share their memory. The subclasses are then no inputs of the graph."""
    graph, specs = program.graph, program.graph_signature.input_specs
    found = [node for node in graph.nodes if schema_name(node) == PART_OF_TENSOR]
    values = lifted(program) if found else {}
    for node in found:
        owner, part = node.args
        values[node] = getattr(values[owner], part)
        if any(x in found for x in node.users):
            continue  # a subclass itself
        name = f"rsn_part_{len(specs)}"
        with graph.inserting_before(next(iter(graph.nodes))):
            made = graph.placeholder(name)
        made.meta = node.meta
        specs.insert(0, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(made.name), name))
        program.constants[name] = values[node]
        node.replace_all_uses_with(made)
    for node in reversed(found):
        graph.erase_node(node)
    for node, spec in list(zip(graph.find_nodes(op="placeholder"), specs, strict=True)):
        if not node.users and is_traceable_wrapper_subclass(values.get(node)):
            specs.remove(spec)
            graph.erase_node(node)


def check_values(program: ExportedProgram) -> None:
    """Check scales, integers and zero points that are constant. Raises `TensorError`, with operator and module path,
    for a scale that is no positive number, and for integers beyond their range."""
    constants: Constants | None = None
    for node in program.graph.nodes:
        a = arguments(node)
        if packet(node) is DEQUANTISE:
            checked = {"scale": None, "x": a["bits"], "zero": a["bits"]}
        elif packet(node) is QUANTISE:
            checked = {"scale": None}
        elif packet(node) in (INTEGER_LINEAR, INTEGER_MATMUL):
            bits = a.get("bits", 8)
            checked = {"scale": None, "other_scale": None, "weight_scale": None, "weight": bits, "weight_zero": bits}
        else:
            continue
        constants = constants or Constants(program)
        for name, limit in checked.items():
            x = a.get(name)
            if isinstance(x, Node) and x in constants:
                _check_constant(node, name.replace("_", " "), constants.value(x), limit)


def _check_constant(node: Node, name: str, x: torch.Tensor, bits: int | None) -> None:
    """Check a constant operand. bits: of its signed integers; None for scales."""
    if bits is None:
        wrong, what = ~((x > 0) & torch.isfinite(x)), "a scale is a positive finite number"
    else:
        half = 1 << (bits - 1)
        wrong, what = (x.int() < -half) | (x.int() >= half), f"int{bits} is from {-half} to {half - 1}"
    if wrong.any():
        at = wrong.nonzero()[0].tolist()
        place = f" at {tuple(at)}" if at else ""
        raise TensorError(f"{site(node)}: its {name} is {x[tuple(at)].item():g}{place}; {what}")
