"""Variants of kernels as C++: functions of the user's headers, and operands in the layouts that these take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np

from ...base.element_types import ElementType
from ...isa.overlays.tasks import tree as t
from ...isa.overlays.tasks.kernels import CONTRACTS, KERNELS
from ...isa.overlays.tasks.program import Shot, Task, TaskProgram
from ..datapath import COLUMNS, ROWS, KernelVariant, VariantChoice, block_of, by, lying
from ..words import TileWord, matrix, port_elements
from .ends import StreamEndWriter
from .kinds import Val, ValueKind, of_element, written
from .library import EPSILON, ON_FLOATS, ON_ROWS, TURNED_MATRIX
from .names import CppNames
from .variables import NO_WIDTHS

VariantCalls = Mapping[tuple[str, str], VariantChoice]
"""By task and variable of the machine, the variant of which it is the result."""
NO_CALLS: VariantCalls = {}


class VariantWriter(StreamEndWriter):
    """Writes calls of kernel variants as C++.

    program, task, shot, unit, float_add, widths: as for `StreamEndWriter`. calls: the chosen variant of each call, by
    task and by the variable that gets the result. Attributes: functions: the name of the C++ function that calls a
    variant, by the name of the variant. banks: for each tile, by its C++ name, which elements loops and variants read
    or write in a cycle, where the C++ text does not show it. views: tiles in other layouts than by rows, by the C++
    name under which they are read: the C++ type of that name, and the name of the tile. arriving: for variables that
    are got in the layout of a variant, that variant, and the number of the operand."""

    def __init__(
        self,
        program: TaskProgram,
        task: Task,
        shot: Shot,
        unit: str,
        float_add: int,
        widths: Mapping[str, int] = NO_WIDTHS,
        calls: VariantCalls = NO_CALLS,
    ) -> None:
        super().__init__(program, task, shot, unit, float_add, widths)
        self.functions = function_names(calls)
        self.calls = {name: choice for (of, name), choice in calls.items() if of == task.name}
        self.banks: dict[str, list[TileWord]] = {}
        self.views: dict[str, tuple[str, str]] = {}
        self.arriving: dict[str, tuple[KernelVariant, int]] = {}
        for node in t.nodes(task.body):
            choice = self.calls.get(node.names[0]) if isinstance(node, t.Assign) else None
            if choice is None or choice.variant is None or not isinstance(node, t.Assign):
                continue
            for k, operand in enumerate(_arguments_of(choice.variant.kernel, node.value)[0]):
                if isinstance(operand, t.Name) and choice.copies[k] is None and choice.variant.layout(k) != ROWS:
                    self.arriving[operand.name] = choice.variant, k

    def call_variant(self, choice: VariantChoice, node: t.Expression) -> Val:
        """Write the C++ call of a kernel variant, and return its result. choice: one whose `variant` is not None. node:
        the expression of the kernel and its operands. Raises `HlsError` for an operand or a result that has no C++, and
        for an option that is not known before the run."""
        variant = choice.variant
        assert variant is not None
        nodes, options = _arguments_of(variant.kernel, node)
        operands = [self._lies(variant, k, x, choice.copies[k]) for k, x in enumerate(nodes)]
        kind = self._result_of(variant.kernel, operands)
        self.marks.append("loop")
        out = self.tile(kind)
        self._vectors(out, variant.vector(1 if variant.kernel == "matmul" else 0))
        given = [x.text if x.kind.shape else self._number(variant.kernel, x, kind) for x in operands]
        for option in CONTRACTS[variant.kernel].options:
            value = self.fixed(self.value(options[option]), option) if option in options else EPSILON
            given.append(written((np.float32 if kind.dtype == "f32" else np.float64)(value)))
        self.emit(f"variants::{self.functions[variant.name]}({', '.join((out, *given))});")
        return Val(kind, out)

    def _number(self, kernel: str, value: Val, kind: ValueKind) -> str:
        """An operand that is a number, as a function takes it. kind: of the result."""
        return self.scalar_converted(value, "i64") if kernel == "banded" else self.beside(value, kind)

    def _result_of(self, kernel: str, operands: list[Val]) -> ValueKind:
        """The kind of the result of a kernel."""
        if kernel == "matmul":
            return self.matmul_kind(operands)
        if kernel in ON_FLOATS or kernel in ON_ROWS:
            return ValueKind("f64" if operands[0].kind.dtype in ("f64", "float") else "f32", operands[0].kind.shape)
        return self.result_of(KERNELS[kernel], tuple(x.kind for x in operands))

    def _lies(self, variant: KernelVariant, number: int, node: t.Expression, copied: int | None) -> Val:
        """An operand in the layout of a variant. copied: None if it lies or arrives so."""
        layout = variant.layout(number)
        part = self.shard_part(node) if copied is None and layout == COLUMNS else None
        if part is not None:
            shard, parts = part
            shape = tuple(p.length for p in parts if p.step)
            view = self._view(variant, number, of_element(shard.dtype, shape))
            self._takes(view, layout, TileWord(1, port_elements(shard.dtype, shape[-1], shard.shape[-1])))
            self.load(shard, parts, view.text, self.views[view.text][0])
            return view
        value = self.number(self.value(node))
        if value.adapted:
            self.fail_adapted(value)
        if not value.kind.shape or value.text in self.views:
            return value
        turned = TURNED_MATRIX.fullmatch(value.text)
        if layout == ROWS:
            value = self.held(value)
            self._vectors(value.text, variant.vector(number))
            return value
        if copied is None and turned:
            name = turned[1]
            self._vectors(name, variant.vector(number))
            return self._declared(variant, number, value.kind, name)
        view = self._view(variant, number, value.kind)
        taken = self.datapath.copy_word(value.kind.shape, turned is not None, layout)
        self.takes(value.kind.shape, taken)
        self._takes(view, layout, taken)
        copy = "assign_blocks" if block_of(layout) else "assign"
        self.emit(f"rsn::{copy}<{taken}>({view.text}, {value.text if turned else self.held(value).text});")
        return view

    def _view(self, variant: KernelVariant, number: int, kind: ValueKind) -> Val:
        """A new tile in the layout of an operand of a variant, as it is read."""
        block = block_of(variant.layout(number))
        rows, columns = matrix(kind.shape)
        if block:
            stored = (rows * columns // prod(block), prod(block))
        else:
            of_matrix = _matrix_rows(variant, kind)
            stored = (rows // of_matrix * columns, of_matrix)
        name = self.tile(ValueKind(kind.dtype, stored))
        self._vectors(name, variant.vector(number))
        return self._declared(variant, number, kind, name)

    def _declared(self, variant: KernelVariant, number: int, kind: ValueKind, stored: str) -> Val:
        """How a tile is read that lies in the layout of an operand of a variant. kind: as it is read."""
        block, sizes = block_of(variant.layout(number)), f"rsn::Shape<{', '.join(map(str, kind.shape))}>"
        how = f"Blocks<{self.tiles[stored].cpp}, {sizes}, {block[0]}, {block[1]}>" if block else ""
        cpp = f"rsn::By{how or f'Columns<{self.tiles[stored].cpp}, {sizes}, {_matrix_rows(variant, kind)}>'}"
        name = self.fresh("view")
        self.emit(f"const {cpp} {name}{{{{}}, {stored}}};")
        self.views[name] = f"const {cpp}", stored
        return Val(kind, name)

    def _vectors(self, tile: str, vector: int) -> None:
        """Note what a function takes of a row of a tile in a cycle."""
        self.banks.setdefault(tile, []).append(TileWord(1, vector))

    def _takes(self, view: Val, layout: str, taken: TileWord) -> None:
        """Note what a loop writes of a tile in a cycle. taken: as it is read."""
        block, found = block_of(layout), TileWord(taken.columns, taken.rows)
        if block:
            across = max(1, taken.columns // block[1])
            found = TileWord(across, taken.elements // across)
        self.banks.setdefault(self.views[view.text][1], []).append(found)

    def _renamed(self, name: str, target: str) -> bool:
        done = super()._renamed(name, target)
        if done:
            self.banks.setdefault(target, []).extend(self.banks.pop(name, ()))
        return done

    def comes(self, node: t.Get, behind: t.Statement | None) -> bool:
        """Let a statement read the tile of a get directly from the stream, as `StreamEndWriter.comes` does, but not if
        a kernel variant computes the statement, since a variant needs the whole tile. Returns whether the statement
        does."""
        varied = isinstance(behind, t.Assign) and behind.names[0] in self.calls
        return not varied and super().comes(node, behind)

    def got_tile(self, name: str, kind: ElementType, taken: TileWord) -> str:
        """Return the C++ name of the tile into which a token is read. If only a kernel variant reads it, the tile has
        the layout of that variant."""
        if name not in self.arriving:
            return super().got_tile(name, kind, taken)
        variant, number = self.arriving[name]
        view = self._view(variant, number, of_element(kind.dtype, kind.shape))
        self._takes(view, variant.layout(number), taken)
        return view.text


def _matrix_rows(variant: KernelVariant, kind: ValueKind) -> int:
    """Rows of each matrix of an operand. A product takes a batch of matrices, another kernel all rows as one."""
    return kind.shape[-2] if variant.kernel == "matmul" else matrix(kind.shape)[0]


def _arguments_of(kernel: str, node: t.Expression) -> tuple[Sequence[t.Expression], Mapping[str, t.Expression]]:
    """The operands of a kernel, in order, and its options."""
    match node:
        case t.Binary(_, left, right):
            return (left, right), {}
        case t.Unary(_, operand):
            return (operand,), {}
        case t.Kernel(_, arguments, named):
            contract = CONTRACTS[kernel]
            bound = dict(zip((*contract.operands, *contract.options), arguments, strict=False)) | dict(named)
            operands = [bound[name] for name in contract.operands if name in bound]
            return operands, {name: bound[name] for name in contract.options if name in bound}
    raise AssertionError(node)


def called(calls: VariantCalls) -> list[KernelVariant]:
    """Return the variants that are called, in the order of their names."""
    found = {choice.variant.name: choice.variant for choice in calls.values() if choice.variant is not None}
    return [found[name] for name in sorted(found)]


def function_names(calls: VariantCalls) -> dict[str, str]:
    """Return the name of the C++ function that calls a variant, by the name of the variant."""
    names = CppNames()
    return {variant.name: names.of(variant.name) for variant in called(calls)}


def functions(calls: VariantCalls) -> Iterator[str]:
    """Yield the lines of the C++ functions that call kernel variants. Such a function takes whole operands, and calls
    the variant once for each part of them of the variant's size. calls: of all tasks."""
    names, variants = function_names(calls), called(calls)
    if not variants:
        return
    yield from ("namespace variants {", "")
    for variant in variants:
        counts = {len(choice.copies) for choice in calls.values() if choice.variant == variant}
        for count in sorted(counts):
            yield from (*_function(variant, names[variant.name], count), "")
    yield from ("}  // namespace variants", "")


def _function(variant: KernelVariant, name: str, count: int) -> Iterator[str]:
    """The lines of a function that calls a variant for each of its tiles. What the contract says of these is checked
    when it is compiled. count: of the operands."""
    contract, product = CONTRACTS[variant.kernel], variant.kernel == "matmul"
    operands = contract.operands[:count]
    parameters = [f"const Of_{x} &{x}" for x in operands]
    parameters += [f"typename Out::Element {x}" for x in contract.options]
    yield f"// {variant.name}: {variant.call} of {Path(variant.source).name}"
    yield f"template <class Out, {', '.join(f'class Of_{x}' for x in operands)}>"
    yield f"void {name}({', '.join(('Out &out', *parameters))}) {{"
    yield "    using Sizes = typename Out::Sizes_;"
    rows = "size(Sizes::rank - 2)" if product else "rows"
    yield f"    constexpr std::size_t rows = Sizes::{rows}, columns = Sizes::columns;"
    if product:
        yield "    constexpr std::size_t depth = Of_a::Sizes_::columns;"
        taken = variant.tile[0] * variant.tile[2]
        yield f"    constexpr std::size_t turns = rsn::words_in_turn(rows * columns, {taken});"
    yield from _checks(variant, name, operands)
    yield from _loops(variant, operands)
    yield "}"


def _checks(variant: KernelVariant, name: str, operands: Sequence[str]) -> Iterator[str]:
    """What a contract says of sizes, layouts and vectors, for the compiler."""
    whole = " && ".join(f"{size} % {one} == 0" for size, one in zip(variant.sizes, variant.tile, strict=True))
    yield f'    static_assert({whole}, "{name}: a call takes {by(variant.tile)}");'
    if variant.shapes:
        ways = (" && ".join(f"{x} == {n}" for x, n in zip(variant.sizes, s, strict=True)) for s in variant.shapes)
        shapes = " or ".join(map(by, variant.shapes))
        yield f'    static_assert({" || ".join(f"({way})" for way in ways)}, "{name}: it takes {shapes}");'
    for k, x in enumerate(operands):
        layout, vector = variant.layout(k), variant.vector(k)
        text = f"{name}: {x} lies {lying(layout)}, in vectors of {vector}"
        yield f'    static_assert(rsn::lies<Of_{x}, {_layout_type(layout)}, {vector}>(), "{text}");'


def _loops(variant: KernelVariant, operands: Sequence[str]) -> Iterator[str]:
    """The loops around a call. That over a sum is an outer one, so that calls behind each other add to different sums.
    Calls that overlap are iterations of a pipeline; others may have loops of their own."""
    product, options = variant.kernel == "matmul", CONTRACTS[variant.kernel].options
    ends = dict(zip("ikj" if product else "ij", zip(variant.sizes, variant.tile, strict=True), strict=True))
    loops = "nkij" if product else "ij"
    for deep, x in enumerate(loops, 1):
        end, step = ("Sizes::rows / rows", "++n") if x == "n" else (ends[x][0], f"{x} += {ends[x][1]}")
        yield f"{'    ' * deep}for (std::size_t {x} = 0; {x} < {end}; {step}){' {' * (x == 'j')}"
    yield f"#pragma HLS latency min={variant.latency} max={variant.latency}"
    if variant.interval <= variant.latency:
        yield f"#pragma HLS pipeline II={variant.interval} style=flp"
        if product:
            yield "#pragma HLS dependence variable=out.v type=inter direction=raw distance=turns dependent=true"
    indent = "    " * (len(loops) + 1)
    yield f"{indent}{'' if variant.call.startswith('::') else '::'}{variant.call}("
    for k, x in enumerate(operands):
        rows, columns = variant.call_tile(k)
        first = ("i, k", "k, j")[k] if product else "i, j"
        matrix_of = f"rsn::matrix_of<Sizes, typename Of_{x}::Sizes_>(n) + " if product else ""
        yield f"{indent}    rsn::call_tile<{rows}, {columns}>({x}, {matrix_of}{first}),"
    out = f"rsn::call_tile<{variant.tile[0]}, {variant.tile[-1]}>(out, {'n * rows + ' if product else ''}i, j)"
    yield f"{indent}    {', '.join((out, *options, *(('k == 0',) if product else ())))});"
    yield f"{'    ' * len(loops)}}}"


def _layout_type(layout: str) -> str:
    """A layout as a type of C++."""
    block = block_of(layout)
    return f"rsn::Blocks<{block[0]}, {block[1]}>" if block else "rsn::Columns" if layout == COLUMNS else "rsn::Rows"
