"""Random layout programs: the check's verdict against numbers.

Every instance of the mesh computes on its own shards, with NumPy; what they store is compared with the same expression
of the whole tensors. A program that the check accepts must be right for every input. One that it refuses is wrong for
some input, or is refused for a reason that `kind_of_refusal` names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from scipy import special

from rsn.host.tasks import run_tasks
from rsn.streams.build import build
from rsn.streams.check import check
from rsn.streams.syntax.nodes import COLLECTIVES
from rsn.tests.effort import cases, in_both, in_full, sampled

Mesh = tuple[int, ...]
Labels = tuple[int | None, ...]
Values = Mapping[Mesh, "np.ndarray[Any, Any]"]
TRIES = 8

UNARY: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: np.maximum(x, 0),
    "-": np.negative,
    "transpose": np.transpose,
    "softmax": lambda x: special.softmax(x, axis=-1),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "@": np.matmul,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
WITH_NUMBER: dict[str, Callable[[Any, float], Any]] = {
    "*": lambda x, c: c * x,
    "/": lambda x, c: x / c,
    "+": lambda x, c: x + c,
    "less": lambda x, c: c - x,
}
"""Operators with a constant."""


@dataclass(frozen=True)
class Node:
    """An expression. what: an input, number (an operator with a constant), an operator, a reduction, a collective."""

    what: str
    parts: tuple[Node, ...] = ()
    number: float = 0
    axis: int = 0
    op: str = ""
    axes: tuple[int, ...] = ()

    def below(self) -> Iterator[Node]:
        """This expression and its parts."""
        yield self
        for part in self.parts:
            yield from part.below()

    def has_allreduce(self, op: str) -> bool:
        return any(node.what == "allreduce" and node.op == op for node in self.below())

    def text(self) -> str:
        inner = [part.text() for part in self.parts]
        if self.what == "input":
            return self.op
        if self.what == "number":
            if self.op in "*less":
                return f"({self.number} {'-' if self.op == 'less' else '*'} {inner[0]})"
            return f"({inner[0]} {self.op} {self.number})"
        if self.what == "allreduce":
            return f'{inner[0]}.allreduce("{self.op}", axes={self.axes})'
        if self.what == "allgather":
            return f"{inner[0]}.allgather({self.axis})"
        if self.what == "reduce_scatter":
            return f'{inner[0]}.reduce_scatter("{self.op}", {self.axis}, {self.axes[0]})'
        if self.what.startswith("reduce"):
            return f"{self.what}({inner[0]}, {self.axis})"
        if len(inner) == 1:
            return f"(-{inner[0]})" if self.what == "-" else f"{self.what}({inner[0]})"
        if self.what in ("maximum", "minimum"):
            return f"{self.what}({', '.join(inner)})"
        return f"({inner[0]} {self.what} {inner[1]})"


@dataclass(frozen=True)
class Program:
    mesh: Mesh
    shapes: dict[str, tuple[int, ...]]
    labels: dict[str, Labels]
    tree: Node

    def text(self) -> str:
        lines = ["from rsn.streams import *"]
        loads = [f"    {name} = {name}[:]" for name, shape in self.shapes.items() if shape and name != "out"]
        lines += [f"{name.upper()}: f64{list(shape) or ''}" for name, shape in self.shapes.items()]
        lines.append(f"@task(mapping={list(self.mesh)}, args=[{', '.join(self.shapes).upper()}])")
        parts = []
        for name, shape in self.shapes.items():
            text = "".join("R" if axis is None else f"S{axis}" for axis in self.labels[name])
            parts.append(f'{name}: f64{list(shape) or ""} @ Layout("{text}")')
        return "\n".join([*lines, f"def t({', '.join(parts)}):", *loads, f"    out[:] = {self.tree.text()}", ""])


# -- numbers -----------------------------------------------------------------------------------------------------------


def whole(node: Node, inputs: Mapping[str, Any]) -> Any:
    """The value of an expression of whole tensors: collectives change nothing."""
    if node.what == "input":
        return inputs[node.op]
    parts = [whole(part, inputs) for part in node.parts]
    return parts[0] if node.what in COLLECTIVES else local(node, parts)


def local(node: Node, parts: list[Any]) -> Any:
    if node.what == "number":
        return WITH_NUMBER[node.op](parts[0], node.number)
    if node.what.startswith("reduce"):
        return (np.sum if node.what == "reduce_sum" else np.max)(parts[0], axis=node.axis)
    return UNARY[node.what](parts[0]) if len(parts) == 1 else BINARY[node.what](*parts)


def sharded(node: Node, inputs: Mapping[str, Values], mesh: Mesh) -> Values:
    """The value of an expression on every instance."""
    if node.what == "input":
        return inputs[node.op]
    parts = [sharded(part, inputs, mesh) for part in node.parts]
    points = list(product(*map(range, mesh)))
    if node.what not in COLLECTIVES:
        return {at: local(node, [part[at] for part in parts]) for at in points}
    result = {}
    for at in points:
        group = [to for to in points if all(to[k] == at[k] for k in range(len(mesh)) if k not in node.axes)]
        if node.what == "allgather":
            result[at] = np.concatenate([parts[0][to] for to in group], axis=node.axis)
            continue
        stack = np.stack([parts[0][to] for to in group])
        made = stack.sum(axis=0) if node.op == "+" else stack.max(axis=0)
        result[at] = np.split(made, len(group), node.axis)[group.index(at)] if node.what == "reduce_scatter" else made
    return result


def cut(tensor: Any, labels: Labels, mesh: Mesh, at: Mesh) -> Any:
    index = []
    for size, axis in zip(tensor.shape, labels, strict=True):
        n = size if axis is None else size // mesh[axis]
        index.append(slice(0, n) if axis is None else slice(at[axis] * n, (at[axis] + 1) * n))
    return tensor[tuple(index)]


def right(program: Program, seed: int) -> bool:
    """Whether all instances store what they should, for random inputs."""
    random = np.random.default_rng(seed)
    points = list(product(*map(range, program.mesh)))
    for labels in program.labels.values():
        cutting = [axis for axis in labels if axis is not None]
        if len(set(cutting)) < len(cutting):
            return False
    for _ in range(TRIES):
        tensors = {name: random.normal(random.uniform(-3, 3), size=shape) for name, shape in program.shapes.items()}
        expected = whole(program.tree, tensors)
        shards = {
            name: {at: cut(tensor, program.labels[name], program.mesh, at) for at in points}
            for name, tensor in tensors.items()
        }
        try:
            found = sharded(program.tree, shards, program.mesh)
        except ValueError:  # shapes do not meet
            return False
        for at in points:
            wanted = cut(expected, program.labels["out"], program.mesh, at)
            if found[at].shape != wanted.shape:
                return False
            if not np.allclose(found[at], wanted, rtol=1e-9, atol=1e-9 * (1 + np.abs(expected).max())):
                return False
    return True


# -- random programs ---------------------------------------------------------------------------------------------------


class Maker:
    """Makes programs. Tensors have axes of the kinds m, k, n and p; mostly, each kind has one label in all tensors."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.mesh: Mesh = tuple(random.choice((1, 2, 2, 3)) for _ in range(random.randint(1, 3)))
        self.sizes = {kind: random.choice((6, 12)) for kind in "mknp"}
        free: list[int | None] = [*range(len(self.mesh))]
        self.kinds: dict[str, int | None] = {}
        for kind in random.sample("mknp", 4):
            chosen = random.choice([*free, None])
            self.kinds[kind] = chosen
            if chosen is not None:
                free.remove(chosen)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.labels: dict[str, Labels] = {}

    def label(self, kind: str) -> int | None:
        if self.random.random() < 0.95:
            return self.kinds[kind]
        return self.random.choice([None, *range(len(self.mesh))])

    def input(self, kinds: str) -> Node:
        name = f"x{len(self.shapes)}"
        self.shapes[name] = tuple(self.sizes[kind] for kind in kinds)
        self.labels[name] = tuple(self.label(kind) for kind in kinds)
        return Node("input", op=name)

    def tree(self, kinds: str, depth: int) -> Node:
        random = self.random
        choice = random.random() if depth else 1.0
        if choice < 0.03:
            axes = tuple(axis for axis in range(len(self.mesh)) if random.random() < 0.5)
            return self.reduced(self.tree(kinds, depth - 1), random.choice(["+", "max"]), axes or (0,))
        if choice < 0.28 and len(kinds) >= 2:
            inner = random.choice([kind for kind in "mknp" if kind not in kinds] or ["k"])
            batch = kinds[:-2]
            if random.random() < 0.3:
                batch = ""
            first = self.tree(kinds[:-1] + inner, depth - 1)
            product_of = Node("@", (first, self.tree(batch + inner + kinds[-1], depth - 1)))
            return self.paid(product_of, "+", inner)
        if choice < 0.45 and len(kinds) < 3:
            inner = random.choice([kind for kind in "mknp" if kind not in kinds])
            at = random.randint(0, len(kinds))
            op = random.choice(["+", "max"])
            of = self.tree(kinds[:at] + inner + kinds[at:], depth - 1)
            return self.paid(Node("reduce_sum" if op == "+" else "reduce_max", (of,), axis=at), op, inner)
        if choice < 0.6:
            what = random.choice(["+", "+", "-", "*", "maximum", "minimum"])
            first = self.tree(kinds, depth - 1)
            if random.random() < 0.3:
                return Node(what, (first, first))
            return Node(what, (first, self.tree(kinds[random.choice([0, 0, 0, 1]) :] if kinds else "", depth - 1)))
        if choice < 0.72:
            op, number = random.choice(
                [("*", 2), ("*", 0.5), ("*", -1), ("*", -3), ("/", 4), ("/", -2), ("+", 0), ("+", 1.5), ("less", 2)]
            )
            return Node("number", (self.tree(kinds, depth - 1),), number=number, op=op)
        if choice < 0.8:
            return Node("relu", (self.tree(kinds, depth - 1),))
        if choice < 0.84:
            return Node("-", (self.tree(kinds, depth - 1),))
        if choice < 0.86 and kinds:
            return Node("softmax", (self.tree(kinds, depth - 1),))
        if choice < 0.9 and len(kinds) >= 2:
            return Node("transpose", (self.tree(kinds[::-1], depth - 1),))
        return self.input(kinds)

    def paid(self, node: Node, op: str, inner: str) -> Node:
        """Mostly, what a contraction leaves is reduced at once; sometimes with another operator, or by nobody."""
        axis = self.kinds[inner]
        if axis is None or self.random.random() < 0.25:
            return node
        return self.reduced(node, op if self.random.random() < 0.95 else "max" if op == "+" else "+", (axis,))

    def reduced(self, node: Node, op: str, axes: tuple[int, ...]) -> Node:
        return Node("allreduce", (node,), op=op, axes=axes)

    def program(self) -> Program:
        kinds = self.random.choice(["mn", "mn", "m", "", "mnk"])
        tree = self.tree(kinds, self.random.randint(1, 4))
        if self.random.random() < 0.3:  # what is still pending may be reduced at the end
            tree = self.reduced(tree, "+", (self.random.randrange(len(self.mesh)),))
        self.shapes["out"] = tuple(self.sizes[kind] for kind in kinds)
        self.labels["out"] = tuple(self.label(kind) for kind in kinds)
        return Program(self.mesh, self.shapes, self.labels, tree)


def kind_of_refusal(program: Program, seed: int) -> str:
    """Why a program that is right for all inputs that were tried may be refused: "" if there is no such reason."""
    larger = Program(
        tuple(2 if size == 1 else size for size in program.mesh), program.shapes, program.labels, program.tree
    )
    if larger.mesh != program.mesh and not right(larger, seed):
        return "right only because a mesh axis has size 1"
    ops = {"reduce_max": "max", "reduce_sum": "+"}
    if any(node.what in ops and node.parts[0].has_allreduce(ops[node.what]) for node in program.tree.below()):
        return "tiles of different shards are combined before the reduction of that axis"
    random = np.random.default_rng(seed)
    inputs = [{name: random.normal(size=shape) for name, shape in program.shapes.items()} for _ in range(2)]
    for node in program.tree.below():
        if node.what != "input" and np.allclose(*(whole(node, tensors) for tensors in inputs)):
            return "a part of the expression does not depend on the inputs"
    for name in sorted(program.shapes.keys() - {"out"}):
        if np.allclose(whole(program.tree, inputs[0]), whole(program.tree, inputs[0] | {name: inputs[1][name]})):
            return "the result does not depend on one of the inputs"
    return ""


@in_full
@pytest.mark.parametrize("seed", sampled([1, 2], [1]))
def test_verdicts_are_those_of_numbers(seed: int) -> None:
    random = Random(seed)
    counts: Counter[str] = Counter()
    for number in range(cases(1000, 100)):
        program = Maker(random).program()
        text = program.text()
        report = check(text)
        good = right(program, number)
        assert report.code in ("", "layout", "pending", "type"), f"{text}\n{report}"
        if report.code == "":
            assert good, f"accepted, and wrong:\n{text}"
            counts["well"] += 1
        elif not good or not all(right(program, number + more) for more in range(1, 30)):
            counts["ill"] += 1
        else:
            kind = kind_of_refusal(program, number)
            assert kind, f"refused, and right:\n{text}\n{report}"
            counts[kind] += 1
    print(dict(counts))
    assert counts["well"] >= cases(300, 30)
    assert counts["ill"] >= cases(200, 20)


def runs_as_numpy(program: Program, text: str, seed: int) -> None:
    """Run a well-typed program on random inputs, and compare the result with that of the whole tensors."""
    inputs = np.random.default_rng(seed)
    tensors = {name: inputs.normal(size=shape) for name, shape in program.shapes.items()}
    expected = whole(program.tree, tensors)
    given = {name.upper(): tensor for name, tensor in tensors.items() if name != "out"}
    found = run_tasks(build(check(text)), given).outputs["OUT"]
    assert np.allclose(found, expected, rtol=1e-9, atol=1e-9 * (1 + np.abs(expected).max())), text


@in_both
def test_accepted_programs_run_on_the_engine() -> None:
    random, ran = Random(3), 0
    for number in range(cases(300, 12, share=25)):
        program = Maker(random).program()
        report = check(program.text())
        if report.code or not all(1 <= len(shape) <= 2 for shape in program.shapes.values()):
            continue
        runs_as_numpy(program, program.text(), number)
        ran += 1
    assert ran > cases(50, 2, share=25)


def relaid(program: Program, random: Random) -> Program:
    """A program with a collective at its end that changes the labels, and mostly with these labels."""
    rank = len(program.shapes["out"])
    axis, over = random.randrange(rank), random.randrange(len(program.mesh))
    labels = list(program.labels["out"])
    tree = program.tree
    if random.random() < 0.5:
        op = random.choice(["+", "max"])
        if tree.what == "allreduce" and random.random() < 0.9:
            op, over, tree = tree.op, tree.axes[0], tree.parts[0]
        tree = Node("reduce_scatter", (tree,), axis=axis, op=op, axes=(over,))
        labels[axis] = over if random.random() < 0.95 else None
    else:
        label = labels[axis]
        if label is not None and random.random() < 0.8:
            over = label
        tree = Node("allgather", (tree,), axis=axis, axes=(over,))
        labels[axis] = None if random.random() < 0.95 else over
    return replace(program, tree=tree, labels=program.labels | {"out": tuple(labels)})


@in_both
def test_collectives_that_change_labels_are_those_of_numbers() -> None:
    random = Random(11)
    counts: Counter[str] = Counter()
    for number in range(cases(3000, 300)):
        program = Maker(random).program()
        if not program.shapes["out"]:
            continue
        program = relaid(program, random)
        report = check(program.text())
        assert report.code in ("", "layout", "pending", "type"), f"{program.text()}\n{report}"
        if report.code:
            counts["refused"] += 1
            continue
        made = [c.axes for c in report.region.collectives if c.what == program.tree.what]
        if program.tree.what == "allgather" and made not in ([program.tree.axes], []):
            continue  # the mesh axis that cuts it is another one than was drawn
        if program.tree.what == "allgather" and not made and program.mesh[program.tree.axes[0]] > 1:
            continue
        assert right(program, number), f"accepted, and wrong:\n{program.text()}"
        counts[program.tree.what] += 1
        runs_as_numpy(program, program.text(), number)
    assert min(counts["allgather"], counts["reduce_scatter"]) >= cases(40, 4), counts


@in_both
def test_collectives_that_a_layout_asks_for_give_the_numbers() -> None:
    """The labels of the result are any, and it asks for what is missing: what is accepted is right."""
    random = Random(12)
    counts: Counter[str] = Counter()
    for number in range(cases(3000, 300)):
        program = Maker(random).program()
        rank, free = len(program.shapes["out"]), [*range(len(program.mesh))]
        random.shuffle(free)
        labels = tuple(free.pop() if free and random.random() < 0.4 else None for _ in range(rank))
        tree = program.tree.parts[0] if program.tree.what == "allreduce" else program.tree
        program = replace(program, tree=tree, labels=program.labels | {"out": labels})
        text = program.text().replace('")):', '!")):')
        report = check(text)
        assert report.code in ("", "layout", "pending", "type"), f"{text}\n{report}"
        if not report.code and rank:
            counts.update({c.what for c in report.region.collectives if c.inserted})
            runs_as_numpy(program, text, number)
    assert min(counts[what] for what in COLLECTIVES) >= cases(20, 2), counts
