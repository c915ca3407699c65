"""Loops that are read by pieces and periods: the operations are those of every iteration, one after the other."""

from __future__ import annotations

from random import Random

import pytest

from rsn.streams.check import check
from rsn.streams.reader import read
from rsn.streams.tree import Body, FixedLoop, Op, total
from rsn.tests.effort import cases, in_both

HEAD = """from rsn.streams import *
s = Stream[i32, 2][8]
c = 5
chosen = 2, 9, -4
@task(mapping=[4])
def a():
    tid = get_tid()
    m = 3
"""


def condition(random: Random, names: list[str], nesting: int = 2) -> str:
    """A condition on loop indices, constants and the place in the grid."""
    kind = random.random()
    if nesting and kind < 0.3:
        word = random.choice([" and ", " or "])
        return "(" + word.join(condition(random, names, nesting - 1) for _ in range(2)) + ")"
    if nesting and kind < 0.35:
        return f"not {condition(random, names, nesting - 1)}"
    k = random.choice(names)
    index = random.choice([k, k, k, f"({k} + {random.randint(-3, 3)})", f"(3 - 2 * {k})", f"-{k}"])
    constant = random.choice([str(random.randint(-6, 12)), "c", "m", "c - m", "tid", "2 * tid - 1", "n - 1"])
    if kind < 0.5:
        modulus = random.choice(["m", "2", "c", "(c - 1)", "7", "(n // 3)"])
        return f"{index} % {modulus} {random.choice(['==', '<', '!='])} {random.randint(0, 2)}"
    if kind < 0.57:
        return f"{index} // {random.choice(['m', '2'])} % {random.choice(['2', 'm'])} == {random.randint(0, 2)}"
    if kind < 0.62:
        return f"{index} & 3 {random.choice(['==', '>'])} {random.randint(0, 3)}"
    if kind < 0.7:
        return f"{index} {random.choice(['in', 'not in'])} {random.choice(['chosen', '{0, m, 7}', '(c,)'])}"
    if kind < 0.78:
        return f"{random.randint(-4, 5)} <= {index} < {constant}"
    if kind < 0.83:
        return f"{constant} {random.choice(['<', '>=', '=='])} {index}"
    return f"{index} {random.choice(['<', '<=', '>', '>=', '==', '!='])} {constant}"


def statements(random: Random, names: list[str], margin: str, nesting: int) -> list[str]:
    lines: list[str] = []
    for _ in range(random.randint(1, 3)):
        kind = random.random()
        if nesting and kind < 0.35:
            lines += loop(random, names, margin, nesting)
        elif nesting and names and kind < 0.85:
            test = condition(random, names)
            lines.append(f"{margin}with meta_if({test}):" if random.random() < 0.3 else f"{margin}if {test}:")
            lines += statements(random, names, margin + "    ", nesting - 1)
            if lines[-1].strip() != "break" and "meta" not in test and random.random() < 0.4:
                lines += [f"{margin}if {condition(random, names)}:", *statements(random, names, margin + "    ", 0)]
            if random.random() < 0.15:
                lines += [
                    f"{margin}if {condition(random, names)}:",
                    f"{margin}    {random.choice(['break', 'continue'])}",
                ]
        else:
            lines.append(f"{margin}s[{random.randint(0, 7)}].put(1)")
    return lines


def loop(random: Random, names: list[str], margin: str, nesting: int) -> list[str]:
    k = "ijk"[len(names)] if len(names) < 3 else f"i{len(names)}"
    if random.random() < 0.25:
        other = f"{k}{k}"
        head = f"for {k}, {other} in grid({random.randint(0, 5)}, {random.randint(0, 6)}):"
        inside = [*names, k, other]
    else:
        a, b, step = random.randint(-5, 5), random.randint(0, 25), random.choice([1, 1, 1, 2, 3, -1, -2])
        bounds = f"{a}, {b}" if step > 0 else f"{b}, {a}"
        head = f"for {k} in range({random.choice([str(b), 'n']) if step == 1 and a < 0 else f'{bounds}, {step}'}):"
        inside = [*names, k]
    return [margin + head, *statements(random, inside, margin + "    ", nesting - 1)]


def expected(body: str, tid: int) -> list[int]:
    """The streams that Python itself puts on, in order."""
    puts: list[int] = []

    class Stream:
        def __init__(self, number: int) -> None:
            self.number = number

        def put(self, value: int) -> None:
            puts.append(self.number)

    def grid(*sizes: int) -> list[tuple[int, int]]:
        return [(i, j) for i in range(sizes[0]) for j in range(sizes[1])]

    names = {"s": [Stream(k) for k in range(8)], "grid": grid, "c": 5, "chosen": (2, 9, -4), "m": 3, "tid": tid}
    exec(body.replace("with meta_if(", "if (").replace("    n = 20\n", "n = 20\n", 1), names)
    return puts


def flat(body: Body) -> list[int]:
    out: list[int] = []
    for node in body:
        if isinstance(node, FixedLoop):
            out += flat(node.body) * node.times
        else:
            assert isinstance(node, Op)
            out.append(node.stream)
    return out


@in_both
def test_every_iteration_is_there() -> None:
    random = Random(11)
    stepped = 0
    for _ in range(cases(800, 30)):
        lines = loop(random, [], "    ", 3)
        text = f"{HEAD}    n = 20\n" + "\n".join(lines) + "\n"
        region = read(text)
        assert not region.source.findings, f"{text}\n{region.source.render(region.source.findings[0])}"
        plain = "n = 20\n" + "\n".join(line[4:] for line in lines) + "\n"
        for tid in (0, 3):
            body = region.instances[tid].body
            assert flat(body) == expected(plain, tid), text
            stepped += any(isinstance(node, FixedLoop) for node in body)
    assert stepped > cases(800, 30) // 2


@pytest.mark.parametrize(
    ("head", "puts"),
    [
        ("for i in reversed(range(5)):", [4, 3, 2, 1, 0]),
        ("for i in reversed(range(1, 7, 2)):", [5, 3, 1]),
        ("for k, i in enumerate(range(2, 5)):", [2, 3, 4]),
        ("for i, k in enumerate(reversed((7, 7))):", [0, 1]),
        ("for i, k in zip(chosen, range(9)):\n        i = k", [0, 1, 2]),
        ("for k, (i, j) in enumerate(zip(range(3), range(5))):", [0, 1, 2]),
        ("for i in (3, 1):", [3, 1]),
        ("for i in order:", [6, 0]),
    ],
)
def test_loops_over_what_is_known(head: str, puts: list[int]) -> None:
    text = f"{HEAD.replace('c = 5', 'c, order = 5, [6, 0]')}    {head}\n        s[i].put(1)\n"
    region = read(text)
    assert not region.source.findings, region.source.render(region.source.findings[0])
    assert flat(region.instances[0].body) == puts


def test_reversed_ranges_are_stepped() -> None:
    region = read(f"{HEAD}    for i in reversed(range(10**9)):\n        if i > 2:\n            s[i % 2].put(1)\n")
    assert not region.source.findings
    assert total(region.instances[0].body) == (((0, True, 499999998), (1, True, 499999999)), True)


@pytest.mark.parametrize("head", ["for i in enumerate(x):", "for i in zip(range(3), x):", "for i in reversed(x):"])
def test_loops_over_what_is_not_known(head: str) -> None:
    assert check(f"{HEAD}    x = data()\n    {head}\n        s[0].put(1)\n").code == "join"


def test_long_loops_over_tuples_end_at_a_limit() -> None:
    assert check(f"{HEAD}    for i in enumerate(range(10**9)):\n        s[0].put(1)\n").code == "limit"
    assert check(f"{HEAD}    for i in reversed(range(2**63)):\n        s[0].put(1)\n").code == "limit"
