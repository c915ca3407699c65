"""The tree of a file: printing it and parsing the text gives the same tree; nothing else reads Python's own tree."""

from __future__ import annotations

import ast
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.streams.syntax.builder import assign, both, call, do, named, nest, program, task, when
from rsn.streams.syntax.nodes import Assignment, Block, Foreign, SyntaxNode, TooDeep, alike, walk
from rsn.streams.syntax.parser import UnreadableError, parsed, parsed_expression
from rsn.streams.syntax.printer import printed, shown
from rsn.tests.effort import cases, spread
from rsn.tests.statements import statements
from rsn.tests.streams.grammar import program as drawn_program
from rsn.tests.streams.sizes import FOLDER
from rsn.tests.streams.trees import places

ROOT = Path(__file__).resolve().parent.parent.parent
EXPRESSIONS = st.recursive(
    st.sampled_from(["x", "s.get()", "1", "2.5", "'t'", "...", "None", "1e999", "x.T", "a[i, :]", "b[:, None, 1:n:2]"]),
    lambda inner: st.one_of(
        st.tuples(
            inner, st.sampled_from(["+", "-", "*", "@", "/", "//", "%", "**", "<<", ">>", "&", "|", "^"]), inner
        ).map(" ".join),
        st.tuples(inner, st.sampled_from(["<", "in", "not in", "is", "=="]), inner, st.just("!="), inner).map(" ".join),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner, st.sampled_from(["and", "or"]), inner).map(" ".join),
        st.tuples(st.sampled_from(["-", "not ", "~", "+", "await ", "lambda y: "]), inner).map("".join),
        st.tuples(inner, inner, inner).map(lambda p: f"{p[0]} if {p[1]} else {p[2]}"),
        st.tuples(inner, inner).map(lambda p: f"({p[0]})[{p[1]}]({p[0]}, *x, k={p[1]}, **m).shape"),
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(inner, max_size=3).map(lambda items: f"({''.join(f'{item}, ' for item in items)})"),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"[y for y in ({text}) if y]"),
    ),
    max_leaves=12,
)


@given(EXPRESSIONS)
def test_an_expression_is_printed_as_python_prints_it(text: str) -> None:
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        return
    node = parsed_expression(text)
    assert node is not None
    assert shown(node) == ast.unparse(tree)
    assert alike(node, parsed_expression(shown(node)))


@given(st.integers(0, 10**9))
def test_a_drawn_program_is_printed_and_parsed_again(seed: int) -> None:
    _same_again(drawn_program(Random(seed), "0"))


FILES = sorted([*FOLDER.glob("*.py"), *(ROOT / "streams").rglob("*.py")])


@pytest.mark.parametrize("file", spread(FILES, 2, quick=FILES[::6]), ids=str)
def test_a_file_is_printed_and_parsed_again(file: Path) -> None:
    _same_again(file.read_text(encoding="utf-8"))


def _same_again(text: str) -> None:
    try:
        tree = parsed(text)
    except UnreadableError:
        return
    out, made = printed(tree)
    again = parsed(out)
    assert alike(again, tree), out
    assert places(made) == places(again), out
    assert printed(again).text == out
    assert ast.dump(ast.parse(out)) == ast.dump(ast.parse(ast.unparse(ast.parse(text))))


def test_a_tree_is_made_with_operators() -> None:
    x, i, s = map(named, "xis")
    rows = x[:, i * 2 : i * 2 + 2]
    body = [
        assign(rows, (rows - -0.5).in_brackets() @ s.get() + call("f", x[0], None, axis=-1)),
        when(both(i >= 0, i < 4), [do("drop", s.get()), s.put(True)]),
    ]
    made = printed(
        program("A program.", [task("t", nest([("i", 3), ("j", 1)], body), {"x": named("f32")[8, 8]}, "One")])
    )
    assert (
        made.text
        == '''"""A program."""

from rsn.streams import *


@task(mapping=[1], args=[x])
def t(x: f32[8, 8]) -> None:
    # One
    for i in range(3):
        x[:, i * 2 : i * 2 + 2] = (x[:, i * 2 : i * 2 + 2] - -0.5) @ s.get() + f(x[0], None, axis=-1)
        if i >= 0 and i < 4:
            drop(s.get())
            s.put(True)
'''
    )
    assert alike(made.tree, parsed(made.text))
    assert places(made.tree) == places(parsed(made.text))
    assert [shown(node.targets[0]) for node in walk(made.tree[-1]) if isinstance(node, Assignment)] == [
        "x[:, i * 2:i * 2 + 2]"
    ]


def test_a_loop_without_an_iteration_is_refused() -> None:
    with pytest.raises(ValueError, match=r"loops without an iteration: i \(0\)$"):
        nest([("i", 0), ("j", 2)], [do("drop", "s")])


def test_what_a_node_holds() -> None:
    (loop,) = parsed("for i in range(n):\n    a[i][0], (b, _) = f(x) @ c, s.get()\n    q.put(not b)\n")
    facts = loop.facts
    assert facts.names == frozenset(["i", "n", "range", "a", "b", "_", "f", "x", "c", "s", "q"])
    assert facts.assigned == frozenset(("i", "a", "b", "_"))
    assert {"range", "f", "matmul", "get", "put", "neg"} <= facts.calls
    assert (facts.touches, facts.ends_beat) == (True, True)
    (plain,) = parsed("x = allreduce(y, '+')")
    assert (plain.facts.touches, plain.facts.ends_beat) == (True, False)
    assert facts.size == sum(1 for _ in walk(loop))


def test_x_is_the_sum_of_x_and_more() -> None:
    """`x += y` has one meaning for all readers: x is what `x + y` gives."""
    augmented, plain = parsed("a[i] += f(y)\na[i] = a[i] + f(y)\n")
    assert alike(getattr(augmented, "value", None), getattr(plain, "value", 0))
    assert (augmented.kind, plain.kind) == ("AugAssign", "Assign")
    assert not alike(augmented, plain)


def test_a_statement_that_is_nested_too_deeply_is_known_as_such() -> None:
    def inside(calls: int) -> Block:
        return inside(calls - 1) if calls else parsed("x = " + "+1" * 800 + "\ny = 1")

    deep, fine = inside(500)
    assert isinstance(deep, TooDeep)
    assert fine.kind == "Assign"


def test_what_the_language_does_not_have_is_kept_with_what_is_in_it() -> None:
    node = parsed_expression("[x + k for k in xs]")
    assert isinstance(node, Foreign)
    assert (node.form, node.own, node.text) == ("ListComp", ("k",), "[x + k for k in xs]")
    assert node.facts.names == frozenset(("x", "k", "xs"))


def test_python_is_parsed_in_one_module() -> None:
    """Under streams/, isa/ and cli/, Python's syntax tree is used by the parser alone."""
    users = set()
    for folder in ("streams", "isa", "cli"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in statements(ast.parse(file.read_text(encoding="utf-8"))):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                if "ast" in names or (isinstance(node, ast.ImportFrom) and node.module == "ast"):
                    users.add(str(file.relative_to(ROOT)))
    assert users == {"streams/syntax/parser.py"}


def test_every_kind_of_node_names_its_kind() -> None:
    def kinds(base: type[SyntaxNode]) -> set[type[SyntaxNode]]:
        return {base, *(kind for below in base.__subclasses__() for kind in kinds(below))}

    seen = {type(node) for k in range(cases(300, 60)) for node in _drawn(k)}
    assert {kind.__name__ for kind in seen} >= {"Assignment", "MetaChain", "Foreign", "ForeignStatement", "ForLoop"}
    assert all(node.kind for k in range(20) for node in _drawn(k))
    assert seen <= kinds(SyntaxNode)


def _drawn(seed: int) -> list[SyntaxNode]:
    try:
        return [node for statement in parsed(drawn_program(Random(seed), "0")) for node in walk(statement)]
    except UnreadableError:
        return []
