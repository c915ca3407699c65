"""Streams that can take part in a cycle of waits: against a search, and by the verdicts of programs in larger ones."""

from __future__ import annotations

from random import Random

from rsn.streams.check import check
from rsn.streams.run import bridges
from rsn.tests.effort import cases, in_both, in_full
from rsn.tests.streams.test_exhaustive import program_of, source_of


def joined(ends: dict[int, tuple[int, int]], a: int, b: int) -> bool:
    """Whether a path leads from one instance to another."""
    seen, todo = {a}, [a]
    while todo:
        node = todo.pop()
        for pair in ends.values():
            for other in set(pair) - {node} if node in pair else ():
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
    return b in seen


@in_both
def test_bridges_against_a_search() -> None:
    random = Random(5)
    some = 0
    for _ in range(cases(2000, 100)):
        count = random.randint(2, 9)
        ends = {s: tuple(random.sample(range(count), 2)) for s in range(random.randint(1, 12))}
        pairs = {s: (a, b) for s, (a, b) in ends.items()}
        expected = {s for s, (a, b) in pairs.items() if not joined({k: e for k, e in pairs.items() if k != s}, a, b)}
        assert bridges(pairs) == expected, pairs
        some += bool(expected) and len(expected) < len(pairs)
    assert some > cases(400, 20)


@in_full
def test_a_program_behind_a_bridge_has_the_same_verdict() -> None:
    """One task gets a token from a new source before all else, and another gives one to a new sink at its end."""
    random = Random(6)
    verdicts = set()
    for _ in range(cases(400, 60)):
        depths, bodies = program_of(random)
        text = source_of(depths, bodies)
        verdict = check(text).code
        first, last = random.sample(range(len(bodies)), 2)
        lines = text.split("\n")
        lines.insert(lines.index(f"def t{first}():") + 1, "    use(inp.get())")
        end = lines.index(f"def t{last + 1}():") - 1 if last + 1 < len(bodies) else len(lines)
        lines.insert(end, "    out.put(1)")
        lines[1:1] = ["inp: Stream[i32, 1]", "out: Stream[i32, 1]"]
        lines += ["@task(mapping=[1])", "def source():", "    inp.put(1)"]
        lines += ["@task(mapping=[1])", "def sink():", "    use(out.get())"]
        assert check("\n".join(lines)).code == verdict, "\n".join(lines)
        verdicts.add(verdict)
    assert {"", "depth", "deadlock", "starved", "join"} <= verdicts
