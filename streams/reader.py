"""Reads a stream program: Python's syntax tree of a file to streams, tasks, and the operations of each instance.

Nothing of the file is executed. What is not understood becomes a finding with its place, never a traceback.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from itertools import product
from math import prod

from .elaborate import Elaborator
from .expressions import Context, Expressions
from .source import Refusal, Source
from .tree import Instance, Region, StreamDecl, TaskDecl
from .values import Data, Value, element_type, integer, sizes

INSTANCES = 1 << 16
"""Limit of task instances of a file."""

STREAMS = 1 << 20
"""Limit of streams of a file, elements of arrays counted."""

LETTERS = 1 << 20
"""Limit of characters of a file."""


def read(text: str, file: str = "<program>", timed: bool = False) -> Region:
    """Read a program. file: its name in findings. timed: the operations of instances are in beats, with cycles.

    Mistakes are in `source.findings` of the result.
    """
    source = Source(text, file)
    if len(text) > LETTERS:
        source.add("limit", f"the file has more than {LETTERS} characters", None)
        return Region(source, (), (), ())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as an invalid escape: the user's own Python says it
            tree = ast.parse(text)
    except SyntaxError as error:
        node = ast.Pass(lineno=min(error.lineno or 1, len(source.lines)), col_offset=0)
        source.add("syntax", f"this is not Python: {error.msg}", source.place(node))
        return Region(source, (), (), ())
    except (RecursionError, MemoryError, ValueError) as error:
        source.add("syntax", f"this cannot be read: {error or type(error).__name__}", None)
        return Region(source, (), (), ())
    return _File(source).region(tree, timed)


class _File:
    """Collects the declarations of a file."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.streams: dict[str, StreamDecl] = {}
        self.constants: dict[str, Value] = {}
        self.tasks: dict[str, TaskDecl] = {}
        self.functions: dict[str, ast.FunctionDef] = {}
        self.count = 0

    def region(self, tree: ast.Module, timed: bool) -> Region:
        for statement in tree.body:
            self._guard(self._declare, statement)
        context = self._context()
        uses = {name: _mentions(function, self.streams) for name, function in self.functions.items()}
        context = Context(
            self.source, self.streams, self.constants, self.tasks, uses, context.nodes, context.steps, timed
        )
        instances: list[Instance] = []
        for task in self.tasks.values():
            if len(instances) + prod(task.mapping) > INSTANCES:
                message = f"{task.name} brings the task instances to more than {INSTANCES}"
                self.source.add("limit", message, task.place)
                break
            for tid in product(*map(range, task.mapping)):
                alone = prod(task.mapping) == 1
                name = task.name if alone else f"{task.name}[{','.join(map(str, tid))}]"
                instances.append(Elaborator(context, task, name, tid).instance())
        return Region(
            self.source,
            tuple(self.streams.values()),
            tuple(self.tasks.values()),
            tuple(instances),
            dict(self.constants),
            tuple(context.by_data),
        )

    def _guard(self, action: Callable[[ast.stmt], None], statement: ast.stmt) -> None:
        try:
            action(statement)
        except Refusal as r:
            self.source.add(r.code, r.message, self.source.place(r.node or statement), *r.notes)
        except RecursionError:
            self.source.add("limit", "this is nested too deeply", self.source.place(statement))

    def _context(self) -> Context:
        return Context(self.source, self.streams, self.constants, self.tasks, {})

    def _constant(self, node: ast.expr) -> Value:
        """Evaluate an expression at the top of the file."""
        return Expressions(self._context(), "the file", (0,)).eval(node)

    def _declare(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case ast.ImportFrom(module=module):
                if module != "rsn.streams" and module != "__future__":
                    for alias in statement.names:
                        self.constants[alias.asname or alias.name] = Data()
            case ast.Import():
                for alias in statement.names:
                    self.constants[(alias.asname or alias.name).split(".")[0]] = Data()
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                if statement.value is None:
                    self._stream(name, annotation, statement)
                else:
                    self._name(name, statement)
                    self.constants[name] = self._constant(statement.value)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._name(name, statement)
                self.constants[name] = self._constant(value)
            case ast.FunctionDef():
                self._function(statement)
            case _:
                what = type(statement).__name__
                raise Refusal(
                    "unsupported",
                    f"a statement of this kind ({what}) at the top of the file",
                    statement,
                    "a region holds streams, constants, tasks and functions",
                )

    def _name(self, name: str, node: ast.AST) -> None:
        if name in self.streams or name in self.tasks:
            raise Refusal("unsupported", f"{name} is declared twice", node)

    def _stream(self, name: str, annotation: ast.expr, statement: ast.stmt) -> None:
        self._name(name, statement)
        shape: tuple[int, ...] = ()
        node = annotation
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Subscript):
            shape = sizes(node.slice, self._constant)
            node = node.value
        if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Stream"):
            raise Refusal("unsupported", f"{name} is no stream", annotation, f"{name}: Stream[i32, 4]")
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if not 1 <= len(parts) <= 3:
            raise Refusal("unsupported", "Stream takes an element type, a depth and a packing", node)
        kind = element_type(parts[0], self._constant)
        depth = integer(parts[1], self._constant) if len(parts) > 1 else 2
        packing = integer(parts[2], self._constant) if len(parts) > 2 else 1
        place = self.source.place(statement)
        if depth < 1:
            self.source.add("depth0", f"{name} has depth {depth}; it must be at least 1", place, subject=name)
            depth = 1
        if packing < 1 or depth % packing:
            message = f"{name}: transfers of {packing} elements do not divide its depth of {depth}"
            self.source.add("pack", message, place, subject=name)
            packing = 1
        if self.count + prod(shape) > STREAMS:
            raise Refusal("limit", f"{name} brings the streams to more than {STREAMS}", statement)
        self.streams[name] = StreamDecl(name, kind, depth, packing, shape, place, self.count)
        self.count += prod(shape)

    def _function(self, node: ast.FunctionDef) -> None:
        self._name(node.name, node)
        call = next((d for d in node.decorator_list if _called(d) == "task"), None)
        if call is None:
            self.functions[node.name] = node
            return
        keywords = {k.arg: k.value for k in call.keywords} if isinstance(call, ast.Call) else {}
        if "mapping" not in keywords:
            raise Refusal("unsupported", "a task states its grid: @task(mapping=[1])", call)
        if keywords.keys() - {"mapping", "args"} or len(node.decorator_list) > 1:
            raise Refusal("unsupported", "a task has mapping= and args=, and no other decorators", call)
        arguments = node.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs or arguments.defaults:
            raise Refusal("unsupported", "a task has plain parameters only, one for each tensor of args=", node)
        listed = keywords.get("args")
        given = len(listed.elts) if isinstance(listed, ast.List | ast.Tuple) else 0
        if given != len(arguments.args):
            message = f"{node.name} has {len(arguments.args)} parameters, and args= has {given} tensors"
            raise Refusal("unsupported", message, listed or node)
        grid = keywords["mapping"]
        shape = sizes(grid, self._constant)
        if prod(shape) > INSTANCES:
            raise Refusal("limit", f"a grid of {prod(shape)} instances; the limit is {INSTANCES}", grid)
        place = self.source.place(node)
        self.tasks[node.name] = TaskDecl(node.name, shape, node, place)


def _called(decorator: ast.expr) -> str:
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return function.id if isinstance(function, ast.Name) else ""


def _mentions(function: ast.FunctionDef, streams: dict[str, StreamDecl]) -> bool:
    return any(isinstance(part, ast.Name) and part.id in streams for part in ast.walk(function))
