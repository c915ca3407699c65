"""Proofs for every size against the ordinary check of many sizes."""

from __future__ import annotations

import ast
import json
import tomllib
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from rsn.cli.main import main
from rsn.streams.check import check
from rsn.streams.symbolic.domain import Domain, SplitSizes, never_negative
from rsn.streams.symbolic.forall import DomainError, Proof, bounds_of, prove, with_constants
from rsn.streams.symbolic.polynomial import Polynomial, power_sum
from rsn.tests.effort import cases, full, in_both, long, sampled
from rsn.tests.streams.symbolic_programs import Writer

LISTED: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "symbolic.toml").read_text(encoding="utf-8"))
QUICK = ["W5", "W6", "W10", "I5"]
HEAD = "from rsn.streams import *\nn = 4\n"


def points(proof: Proof, domain: str, most: int) -> list[dict[str, int]]:
    """Sizes of a domain, each up to a limit."""
    out: list[dict[str, int]] = [{}]
    for name, bound in bounds_of(domain).items():
        top = most if len(bounds_of(domain)) == 1 else 6 if len(bounds_of(domain)) == 2 else 3
        out = [{**point, name: value} for point in out for value in range(bound.low, bound.low + top)]
    multiples = {name: bound.multiple for name, bound in bounds_of(domain).items()}
    return [p for p in out if not any(p[name] % (p[m] if isinstance(m, str) else m) for name, m in multiples.items())]


def agrees(text: str, domain: str, most: int) -> Proof:
    """Prove a program, and compare with the ordinary check of sizes up to a limit."""
    proof = prove(text, "prog.py", domain)
    verdicts = {tuple(p.values()): check(with_constants(text, p)).code for p in points(proof, domain, most)}
    if proof.ok:
        assert not any(verdicts.values()), f"{text}\n{proof}\n{verdicts}"
    elif proof.verdict == "counterexample":
        assert proof.report is not None
        assert check(with_constants(text, proof.sizes)).code == proof.report.code, f"{text}\n{proof}"
        smaller = [p for p, code in verdicts.items() if code and sum(p) < sum(proof.sizes.values())]
        assert not smaller, f"{text}\n{proof}\n{smaller}"
    else:
        assert proof.reason
    return proof


@pytest.mark.parametrize("name", sampled(LISTED, QUICK))
def test_listed(name: str) -> None:
    case = LISTED[name]
    proof = agrees(case["program"], case["domain"], 40 if name not in QUICK else 12)
    if case["verdict"] == "proved":
        assert proof.ok, str(proof)
        assert not proof.enumerated
    else:
        assert proof.report is not None, str(proof)
        assert (proof.report.code, [*proof.sizes.values()]) == (case["verdict"], [case["at"]])


def test_all_listed_programs_are_here() -> None:
    assert len(LISTED) == 40


@in_both
@pytest.mark.parametrize("seed", sampled([1, 2], [1], full))
def test_random_programs(seed: int) -> None:
    verdicts: Counter[str] = Counter()
    for number in range(cases(100, 4)):
        random = Random(seed * 1000 + number)
        text = Writer(random).text()
        domain = "n >= 1, m >= 1" if "\nm = " in text else f"n >= {random.choice('12')}"
        verdicts[agrees(text, domain, cases(40, 8)).verdict] += 1
    assert verdicts["proved"] >= cases(30, 1), verdicts
    assert verdicts["counterexample"] >= cases(30, 1), verdicts
    assert verdicts["undecided"] <= cases(15, 3), verdicts


FORK = """s: Stream[i32, {depth}]
t: Stream[i32, 1]
@task(mapping=[1])
def fork():
    for i in range(n):
        s.put(i)
    for i in range(n):
        t.put(i)
@task(mapping=[1])
def join():
    for i in range(n):
        use(s.get(), t.get())
"""
PAIR = """s: Stream[i32, 2]
@task(mapping=[1])
def a():
{writer}
@task(mapping=[1])
def b():
{reader}
"""


EACH = "for i in range(n):\n    s.put(i)"
ALL = "for i in range(n):\n    use(s.get())"
TRIANGLE = "for i, j in grid(n, n):\n    if j <= i:\n        s.put(i)"
DOUBLED = "i = 1\nwhile i < n:\n    s.put(i)\n    i *= 2"


def pair(writer: str, reader: str) -> str:
    """A program in which one task puts, and another gets."""
    lines = ["\n".join("    " + line for line in text.split("\n")) for text in (writer, reader)]
    return HEAD + PAIR.format(writer=lines[0], reader=lines[1])


@pytest.mark.parametrize(
    ("text", "domain", "verdict", "sizes"),
    [
        (HEAD + FORK.format(depth="n - 1"), "n >= 2", "proved", {}),
        (HEAD + FORK.format(depth="n - 2"), "n >= 3", "counterexample", {"n": 3}),
        (HEAD + FORK.format(depth="20"), "n >= 1", "counterexample", {"n": 22}),
        (pair(EACH, "for i in range(min(n, 90)):\n    use(s.get())"), "n >= 1", "counterexample", {"n": 91}),
        (pair(EACH, ALL), "n >= 0", "proved", {}),
        (pair(EACH, ALL.replace("n)", "0, 3 * n, 3)", 1)), "n >= 0", "proved", {}),
        (
            pair("for i in range(n):\n    if i < 5:\n        s.put(i)", ALL.replace("(n)", "(5)")),
            "n >= 5",
            "proved",
            {},
        ),
        (
            pair(EACH.replace("s.put", "if i % 2 == 0: s.put"), ALL.replace("n)", "(n + 1) // 2)")),
            "n >= 1",
            "proved",
            {},
        ),
        (pair(TRIANGLE, ALL.replace("n)", "n * (n + 1) // 2)")), "n >= 1", "proved", {}),
        long(pair(DOUBLED, DOUBLED.replace("s.put(i)", "use(s.get())")), "n >= 1", "undecided", {}),
        (pair(EACH, ALL), "2 <= n <= 64", "proved", {}),
        (pair(EACH, ALL.replace("n)", "min(n, 63))")), "2 <= n < 64", "proved", {}),
        (pair(EACH, ALL.replace("n)", "min(n, 63))")), "2 <= n <= 64", "counterexample", {"n": 64}),
    ],
)
def test_verdict(text: str, domain: str, verdict: str, sizes: dict[str, int]) -> None:
    proof = prove(text, "prog.py", domain)
    assert (proof.verdict, dict(proof.sizes)) == (verdict, sizes), str(proof)
    assert proof.enumerated == (verdict == "proved" and "<" in domain)


def test_as_printed() -> None:
    writer = "for i in range(n):\n    for j in range(i + 1):\n        s.put(j)"
    proof = prove(pair(writer, "for i in range(n * (n + 1) // 2):\n    use(s.get())"), "prog.py", "n>=1")
    assert str(proof).split("\n")[:2] == [
        "proved for all n >= 1: every put has its get (s: (n^2 + n)/2), no instance waits for ever",
        "because: a stream on no cycle of streams makes nobody wait for ever",
    ]
    proof = prove(pair(writer, "for i in range(8 * n):\n    use(s.get())"), "prog.py", "n>=15")
    assert str(proof) == (
        "counterexample: n = 16: 8 puts more than gets on s: 136 put, 128 got\n"
        "prog.py:8:13: error: 8 puts more than gets on s: 136 put, 128 got [leak]\n"
        "            s.put(j)\n"
        "            ^^^^^^^^\n"
        "note: they are left on the stream at the end; its depth is 2"
    )
    assert proof.json()["findings"][0]["line"] == 8


def test_sizes_that_one_line_gives_together() -> None:
    text = """
from rsn.streams import *
N, M = 8, 4
assert M % 2 == 0, "pairs"
s: Stream[i32, 2]
@task(mapping=[1])
def a():
    for i in range(N * M):
        s.put(i)
@task(mapping=[1])
def b():
    for i in range(N * M // 2):
        use(s.get() + s.get())
"""
    assert prove(text, "prog.py", "N >= 1").verdict == "proved"
    odd = prove(text, "prog.py", "N >= 1, M >= 2")
    assert (odd.verdict, dict(odd.sizes)) == ("counterexample", {"N": 1, "M": 3})
    assert odd.report is not None
    assert odd.report.code == "assert"


def test_a_name_that_the_file_does_not_declare() -> None:
    text = pair("for i in range(n):\n    s.put(i)", "for i in range(n):\n    use(s.get())").replace("n = 4\n", "")
    assert check(text).code == "unsupported"
    assert prove(text, "prog.py", "n >= 1").ok


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        ("n", "n is no bound of a size"),
        ("n >=", "states no sizes"),
        ("n <= 8", "the least n is missing"),
        ("5 <= n <= 3", "no n is from 5 to 3"),
        ("q >= 1", "prog.py has no size q"),
        ("s >= 1", "s is no size"),
        ("n >= 2 ** 9", "no bound of a size"),
        ("n >= 1, n % m == 0", "multiple of m, which has no least value"),
        ("n >= 1, n % n == 0", "multiple of n, which has no least value"),
        ("n >= 1, n % 2 == 0, n % 3 == 0", "a multiple twice"),
        ("1 <= n <= 7, n % 8 == 0", "no n, or an unknown number of them, is a multiple of 8"),
        ("n % 8 == 0", "the least n is missing"),
        ("n >= 1, n % 0 == 0", "no bound of a size"),
        ("n >= 99999999999999", "is larger than"),
        ("(" * 500, "states no sizes"),
    ],
)
def test_domains_that_are_refused(domain: str, message: str) -> None:
    text = pair("for i in range(n):\n    s.put(i)", "for i in range(n):\n    use(s.get())")
    with pytest.raises(DomainError, match=message.replace("(", r"\(")):
        prove(text, "prog.py", domain)


def test_command_line(tmp_path: Path) -> None:
    file = tmp_path / "prog.py"
    file.write_text(pair(EACH, ALL.replace("(n)", "(6)")), encoding="utf-8")
    refused = CliRunner().invoke(main, ["check", str(file), "--for-all", "n>=6", "--json"])
    assert refused.exit_code == 1
    result = json.loads(refused.stdout)
    assert (result["ok"], result["verdict"], result["sizes"]) == (False, "counterexample", {"n": 7})
    assert result["findings"][0]["code"] == "leak"
    proved = CliRunner().invoke(main, ["check", str(file), "--for-all", "6 <= n <= 6"])
    assert (proved.exit_code, proved.stdout) == (
        0,
        "proved for all 6 <= n <= 6: each of the 1 sizes was tried, and is well-typed\n",
    )
    wrong = CliRunner().invoke(main, ["check", "prog.bin", "--for-all", "n >= 1"])
    assert wrong.exit_code == 2
    assert "--for-all: only with a stream program (.py)" in wrong.stderr


REGIONS = """from rsn.streams import *
n = 4
m = 3
@region()
def pair(count: int, s: Stream[i32]):
    @task(mapping=[1])
    def a():
        for i in range(count):
            s.put(i)
    @task(mapping=[1])
    def b():
        for i in range({reads}):
            use(s.get())
x: Stream[i32, n]
y: Stream[i32, m]
pair(n, x)
pair(n * m, y)
"""


def test_regions() -> None:
    assert prove(REGIONS.format(reads="count"), "prog.py", "n >= 1, m >= 1").ok
    assert dict(prove(REGIONS.format(reads="n"), "prog.py", "n >= 1, m >= 1").sizes) == {"n": 1, "m": 2}
    part = REGIONS.format(reads="count").replace("y: Stream[i32, m]", "y: Stream[i32, m][2]")
    part = part.replace("pair(n * m, y)", "pair(n * m, y[1])")
    assert "a part of an array of streams" in prove(part, "prog.py", "n >= 1, m >= 1").reason


def test_tasks_with_rates() -> None:
    text = """from rsn.streams import *
N, D = 4, 4
s = Stream[f32[D, 4], 2]
@task(mapping=[1], rates=dict(matmul=4))
def a():
    for i in range(N):
        s.put(zeros(f32, D, 4))
@task(mapping=[1], rates=dict(matmul=4, elements=2))
def b():
    for i in range(N):
        drop(s.get())
"""
    proof = prove(text, "p.py", "N >= 1, D >= 1")
    assert proof.ok, str(proof)


@in_both
def test_changed_programs_are_proved_or_not_and_give_no_traceback() -> None:
    random = Random(9)
    verdicts: Counter[str] = Counter()
    for _ in range(cases(500, 12, share=40)):
        case = random.choice([*LISTED.values()])
        tree = ast.parse(case["program"])
        parts = [node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.stmt)]
        donors = ast.walk(ast.parse(random.choice([*LISTED.values()])["program"]))
        others = [node for node in donors if isinstance(node, ast.expr | ast.stmt)]
        for _ in range(random.randint(1, 3)):
            target, donor = random.choice(parts), random.choice(others)
            for name in set(target._fields) & set(donor._fields):
                setattr(target, name, getattr(donor, name))
        try:
            text = ast.unparse(tree)
            ast.parse(text)
        except (ValueError, TypeError, AttributeError, SyntaxError, RecursionError):
            continue
        try:
            verdicts[agrees(text, case["domain"], 8).verdict] += 1
        except DomainError:
            verdicts["no size"] += 1
    assert verdicts["proved"] >= cases(80, 0, share=40), verdicts


def test_sums_of_powers() -> None:
    for power in range(6):
        for count in range(7):
            assert power_sum(power).at({"": count}) == sum(x**power for x in range(count))


@in_both
def test_decisions_hold_at_all_points() -> None:
    random = Random(5)
    x, y = Polynomial.variable("x"), Polynomial.variable("y")
    decided = 0
    for _ in range(cases(1000, 40)):
        p = x * x * random.randint(-1, 2) + x * y * random.randint(-1, 2) + x * random.randint(-3, 3)
        p = p + y * random.randint(-3, 3) + random.randint(-4, 6)
        values = [p.at({"x": a, "y": b}) for a in range(12) for b in range(12)]
        if never_negative(p, 4):
            assert min(values) >= 0
        domain = Domain(["x", "y"])
        try:
            answer = domain.at_least(p)
        except SplitSizes as split:
            covered = {
                (part.get("x", x).at({"x": a, "y": b}), part.get("y", y).at({"x": a, "y": b}))
                for part in split.parts
                for a in range(20)
                for b in range(20)
            }
            assert covered >= {(a, b) for a in range(6) for b in range(6)}
            continue
        decided += 1
        assert all((value >= 0) is answer for value in values)
    assert decided > cases(1000, 40) // 8
