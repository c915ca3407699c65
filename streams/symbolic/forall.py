"""Whether a stream program is well-typed for every size: a proof, a counterexample, or the reason why it is open.

Small sizes are tried by the ordinary check. Then the program is read for all sizes at once. Where a comparison has
several answers, the sizes are cut into cases, each read anew; a case without symbolic sizes is tried. A proof holds for
the rules of the language; the limits of the ordinary check (`source.CODES`: limit) are not part of it. A counterexample
is always one that the ordinary check refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from math import prod
from time import monotonic
from typing import Any

from ...base.errors import RsnError
from ..check import Report, check
from ..source import SourceFinding
from ..syntax import nodes as syn
from ..syntax.parser import UnreadableError, parsed, parsed_expression
from ..syntax.printer import shown
from .accesses import same_orders, separate
from .domain import Domain, SplitIndex, SplitRests, SplitSizes, Undecided
from .ends import Wrong, balanced, cells, joins, packed
from .live import Liveness
from .polynomial import ZERO, Polynomial, TooHigh
from .reading import constants, read
from .run import Stuck

TRIED = 4096
"""Limit of the points of a range that is tried whole."""

FIRST = 16
"""How many of the smallest points are tried before a proof is looked for."""

CASES = 1000
"""Limit of the cases of a proof."""

CUTS = 60
"""Limit of how often the sizes are cut on the way to one case."""

SECONDS = 30.0
"""Limit of the time of a proof."""

SMALLER = 400
"""How many points below a counterexample are tried in search of a smaller one."""


class DomainError(RsnError):
    """A domain of sizes that cannot be read, or that names no size of the file."""

    exit_code = 2


@dataclass(frozen=True)
class SizeRange:
    """The values of a size, from `low` to `high`, both included. high: None for no upper bound. multiple: the number or
    the size that divides it; 1 for any.
    """

    low: int
    high: int | None = None
    multiple: int | str = 1


@dataclass(frozen=True)
class Proof:
    """The result of a proof for all sizes.

    verdict: "proved", "counterexample" or "undecided". domain: the sizes that were meant, as text. claims: what is
    proved, as sentences. sizes: of the counterexample, by name. report: the ordinary check of the counterexample; None
    without one. reason: why it is undecided, or what the counterexample shows; "" if it is proved. tried: at how many
    points, that is choices of all sizes, the ordinary check ran. enumerated: whether these are all points of the
    domain. cases: how many cases were proved, each for infinitely many sizes."""

    verdict: str
    domain: str
    claims: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    report: Report | None = None
    reason: str = ""
    tried: int = 0
    enumerated: bool = False
    cases: int = 0

    @property
    def ok(self) -> bool:
        """Whether the program is proved."""
        return self.verdict == "proved"

    def __str__(self) -> str:
        if self.verdict == "proved":
            return "\n".join([f"proved for all {self.domain}: {self.claims[0]}", *self.claims[1:]])
        if self.verdict == "counterexample":
            at = ", ".join(f"{name} = {value}" for name, value in self.sizes.items()) or "every size"
            return f"counterexample: {at}: {self.reason}\n{self.report}"
        return (
            f"undecided for all {self.domain}: {self.reason}\nnote: {self.tried} sizes were tried, and are well-typed"
        )

    def json(self) -> dict[str, Any]:
        """Return the result as data for JSON: each field by its name; in place of the report, its findings."""
        findings = self.report.findings if self.report else ()
        return {
            "verdict": self.verdict,
            "domain": self.domain,
            "claims": list(self.claims),
            "sizes": dict(self.sizes),
            "reason": self.reason,
            "tried": self.tried,
            "enumerated": self.enumerated,
            "cases": self.cases,
            "findings": [_row(f) for f in findings],
        }


def _row(f: SourceFinding) -> dict[str, Any]:
    place = {} if f.place is None else {"line": f.place.line, "column": f.place.column}
    return {"code": f.code, "message": f.message, "warning": f.warning, "notes": list(f.notes)} | place


def prove(text: str, file: str, domain: str, strict: bool = False, region: str | None = None) -> Proof:
    """Try to prove that a program is correct for all sizes of a domain; return the proof, a counterexample, or why
    neither was found.

    domain: such as "n >= 1, m >= 2", "2 <= n <= 64" or "n >= 1, n % 8 == 0". A size is a constant at the top of the
    file, or a name that the file uses without giving it a value. text: of the program. file: the name of the file in
    findings. strict, region: as for `check.check`. Raises `DomainError` for a domain that cannot be read or that names
    no size of the file."""
    bounds = bounds_of(domain)
    return _CaseSearch(text, file, bounds, strict, region).result()


def bounds_of(domain: str) -> dict[str, SizeRange]:
    """Return the values of each size of a domain such as "n >= 1, m >= 2, n % m == 0", by the name of the size. Raises
    `DomainError` for any other text, for a size without a least value or without any value, and for numbers above
    2^40."""
    bounds: dict[str, SizeRange] = {}
    multiples: dict[str, int | str] = {}
    given = parsed_expression(domain.strip().replace(" and ", ", "))
    if given is None:
        raise DomainError(f"{domain!r} states no sizes; write for example 'n >= 1, m >= 2' or '2 <= n <= 64'")
    for part in given.items if syn.is_tuple(given) else (given,):
        whole = _multiple(part)
        if whole is not None:
            if whole[0] in multiples:
                raise DomainError(f"{domain!r}: {whole[0]} is stated to be a multiple twice")
            multiples[whole[0]] = whole[1]
            continue
        for name, low, high in _comparisons(part, domain):
            before = bounds.get(name, SizeRange(-1))
            highs = [h for h in (before.high, high) if h is not None]
            bounds[name] = SizeRange(max(before.low, low), min(highs) if highs else None)
    for name, bound in bounds.items():
        if bound.low < 0:
            raise DomainError(f"{domain!r}: the least {name} is missing, or below 0")
        if bound.high is not None and bound.high < bound.low:
            raise DomainError(f"{domain!r}: no {name} is from {bound.low} to {bound.high}")
        if max(bound.low, bound.high or 0) > 1 << 40:
            raise DomainError(f"{domain!r}: {name} is larger than {1 << 40}")
    for name, multiple in multiples.items():
        of, seen = multiple, {name}
        while isinstance(of, str):
            if of in seen or of not in bounds or bounds[of].low < 1:
                raise DomainError(f"{domain!r}: {name} is a multiple of {of}, which has no least value of 1 or more")
            seen.add(of)
            of = multiples.get(of, 1)
        if name not in bounds:
            raise DomainError(f"{domain!r}: the least {name} is missing, or below 0")
        low, high = bounds[name].low, bounds[name].high
        if high is not None and (isinstance(multiple, str) or -(-low // multiple) * multiple > high):
            raise DomainError(f"{domain!r}: no {name}, or an unknown number of them, is a multiple of {multiple}")
        bounds[name] = replace(bounds[name], multiple=multiple)
    return bounds


def _multiple(node: syn.ExpressionNode) -> tuple[str, int | str] | None:
    """Read `n % 8 == 0` or `n % m == 0`: the size, and of what it is a multiple; None for other expressions."""
    match node:
        case syn.ComparisonChain(
            left=syn.Infix(op="%", left=syn.Identifier(name=name), right=by), ops=("==",), others=(zero,)
        ) if _number(zero) == 0:
            if isinstance(by, syn.Identifier):
                return name, by.name
            divisor = _number(by)
            return (name, divisor) if divisor else None
    return None


MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "=="}


def _comparisons(node: syn.ExpressionNode, domain: str) -> Iterator[tuple[str, int, int | None]]:
    wrong = DomainError(f"{domain!r}: {shown(node)} is no bound of a size; write for example 'n >= 1'")
    if not isinstance(node, syn.ComparisonChain):
        raise wrong
    parts = (node.left, *node.others)
    for left, op, right in zip(parts, node.ops, parts[1:], strict=False):
        a, b = _number(left), _number(right)
        if isinstance(right, syn.Identifier) and a is not None:
            name, value, op = right.name, a, MIRRORED.get(op, op)
        elif isinstance(left, syn.Identifier) and b is not None:
            name, value = left.name, b
        else:
            raise wrong
        bounds = {">=": (value, None), ">": (value + 1, None), "<=": (-1, value), "<": (-1, value - 1)}
        bounds["=="] = value, value
        if op not in bounds:
            raise wrong
        yield name, *bounds[op]


def _number(node: syn.ExpressionNode) -> int | None:
    return node.value if isinstance(node, syn.Literal) and type(node.value) is int else None


def with_constants(text: str, sizes: Mapping[str, int]) -> str:
    """Return the text of a program in which constants have other values. sizes: the values, by the name of the
    constant; names that the program does not declare are declared in its first line. Raises `UnreadableError` for a
    text that is no Python.
    """
    values = constants(parsed(text))
    lines = text.split("\n")
    for name in sorted(sizes.keys() & values.keys(), key=lambda name: values[name].place, reverse=True):
        line, first, end = values[name].place
        lines[line - 1] = f"{lines[line - 1][: first - 1]}{sizes[name]}{lines[line - 1][end - 1 :]}"
    new = "".join(f"{name} = {value}; " for name, value in sizes.items() if name not in values)
    return new + "\n".join(lines)


@dataclass(frozen=True)
class _ProvedCase:
    """A case that is proved. sizes: in its variables. counts: tokens of each stream, in the same. used: the rules."""

    sizes: Mapping[str, Polynomial]
    counts: Mapping[str, Polynomial]
    used: Sequence[str]


class _CaseSearch:
    def __init__(self, text: str, file: str, bounds: Mapping[str, SizeRange], strict: bool, region: str | None) -> None:
        self.text, self.file, self.bounds, self.strict, self.region = text, file, bounds, strict, region
        self.names = list(bounds)
        self.domain = ", ".join(_text(name, bound) for name, bound in bounds.items())
        self.known: dict[tuple[int, ...], Report] = {}
        self.end = monotonic() + SECONDS
        self.proved: list[_ProvedCase] = []
        self.tensors = False

    def result(self) -> Proof:
        """Search. Raises `DomainError`."""
        try:
            self._named()
        except UnreadableError:
            report = check(self.text, self.file, self.strict, self.region)
            return Proof("counterexample", self.domain, report=report, reason="the file cannot be read")
        widths = [None if bound.high is None else bound.high - bound.low + 1 for bound in self.bounds.values()]
        points = prod(width or 1 for width in widths)
        whole = None not in widths and points <= TRIED
        start = monotonic()
        tried = 0
        for k, point in enumerate(self._points()):
            tried += 1
            if not whole and (k >= FIRST or (k > 3 and monotonic() - start > SECONDS / 10)):
                break
            if self._refused(point) is not None:
                return self._smallest(point)  # type: ignore[return-value]
            if whole and monotonic() > self.end:
                whole = False
                break
        if whole:
            claim = f"each of the {tried} sizes was tried, and is well-typed"
            return Proof("proved", self.domain, (claim,), tried=tried, enumerated=True)
        return self._cases()

    # -- points -------------------------------------------------------------------------------------------------------

    def _named(self) -> None:
        tree = parsed(self.text)
        given = constants(tree)
        names = frozenset[str]().union(*(statement.facts.names for statement in tree))
        plain = [s for s in tree if not isinstance(s, syn.FunctionDefinition) or s.coroutine]
        bound = {node.name for s in plain for node in syn.walk(s) if isinstance(node, syn.Identifier) and node.stored}
        for name in self.names:
            if name not in names:
                raise DomainError(f"{self.file} has no size {name}; a size is a constant at its top, as {name} = 8")
            if name in bound and (name not in given or _number(given[name]) is None):
                raise DomainError(f"{self.file}: {name} is no size: it is not one plain number at the top of the file")

    def _forms(self) -> dict[str, Polynomial]:
        """The sizes as forms in variables from 0 on, one for each size. They have all sizes of the domain, and may have
        smaller ones where one size is a multiple of another one."""
        forms: dict[str, Polynomial] = {}

        def form(name: str) -> Polynomial:
            if name not in forms:
                bound, variable = self.bounds[name], Polynomial.variable(name)
                if isinstance(bound.multiple, str):
                    forms[name] = form(bound.multiple) * (variable + min(bound.low, 1))
                else:
                    forms[name] = (variable + -(-bound.low // bound.multiple)) * bound.multiple
            return forms[name]

        return {name: form(name) for name in self.bounds}

    def _at(self, point: Sequence[int]) -> dict[str, int]:
        return dict(zip(self.names, point, strict=True))

    def _points(self) -> Iterator[tuple[int, ...]]:
        """All points, those with the least sum first; with multiples, those with the least sum of factors."""
        forms = self._forms().values()
        widths = [None if bound.high is None else bound.high - bound.low for bound in self.bounds.values()]
        most = None if None in widths else sum(width or 0 for width in widths)
        for total in count():
            if most is not None and total > most:
                return
            for steps in _compositions(total, len(widths)):
                if all(width is None or step <= width for step, width in zip(steps, widths, strict=True)):
                    at = self._at(steps)
                    point = tuple(int(form.at(at)) for form in forms)
                    if self._inside(point):
                        yield point

    def _inside(self, point: Sequence[int]) -> bool:
        at = self._at(point)
        return all(
            bound.low <= value
            and (bound.high is None or value <= bound.high)
            and value % (at[bound.multiple] if isinstance(bound.multiple, str) else bound.multiple) == 0
            for value, bound in zip(point, self.bounds.values(), strict=True)
        )

    def _check(self, point: tuple[int, ...]) -> Report:
        if point not in self.known:
            text = with_constants(self.text, self._at(point))
            self.known[point] = check(text, self.file, self.strict, self.region)
        return self.known[point]

    def _refused(self, point: tuple[int, ...]) -> Proof | None:
        report = self._check(point)
        if report.code == "limit":
            raise Undecided(f"{self._written(point)} is beyond a limit of the check: {report.findings[0].message}")
        if not report.code:
            return None
        message = next(f.message for f in report.findings if not f.warning)
        return Proof("counterexample", self.domain, (), self._at(point), report, message, len(self.known))

    def _written(self, point: Sequence[int]) -> str:
        return ", ".join(f"{name} = {value}" for name, value in zip(self.names, point, strict=True))

    # -- cases --------------------------------------------------------------------------------------------------------

    def _cases(self) -> Proof:
        todo = [(0, self._forms())]
        done = 0
        try:
            while todo:
                cuts, case = todo.pop()
                done += 1
                if done > CASES:
                    raise Undecided(f"the sizes fall into more than {CASES} cases")
                if monotonic() > self.end:
                    raise Undecided(f"the proof takes more than {SECONDS:.0f} s")
                point = [form.number for form in case.values()]
                if None not in point:
                    found = self._small(tuple(p or 0 for p in point))
                else:
                    try:
                        found = self._case(case)
                    except SplitSizes as split:
                        if cuts == CUTS:
                            raise Undecided(f"the sizes are cut more than {CUTS} times, and none of it ends") from None
                        todo += [
                            (cuts + 1, {name: form.put(part) for name, form in case.items()})
                            for part in reversed(split.parts)
                        ]
                        continue
                if found is not None:
                    return found
        except Undecided as why:
            return Proof("undecided", self.domain, reason=str(why), tried=len(self.known))
        return Proof("proved", self.domain, self._claims(), tried=len(self.known), cases=len(self.proved))

    def _small(self, point: tuple[int, ...]) -> Proof | None:
        if self._inside(point) and self._check(point).code:
            return self._smallest(point)
        return None

    def _case(self, case: Mapping[str, Polynomial]) -> Proof | None:
        """Prove one case, or find a counterexample in it. Raises `SplitSizes`, `Undecided`."""
        sizes = sorted({name for form in case.values() for name in form.variables()})
        names = {f"={name}": Polynomial.variable(name) for name in case}
        domain = Domain(sizes, {name: form.put(names) for name, form in _inverse(case).items()})
        try:
            self._prove(case, domain)
            return None
        except Wrong as wrong:
            reason, unequal = str(wrong), wrong.unequal
            if wrong.place is not None:
                reason = f"line {wrong.place.line}: {reason}"
        except Stuck:
            reason, unequal = "instances wait for each other for ever", None
        except (SplitIndex, SplitRests):
            raise Undecided("a comparison within a loop has several answers") from None
        except TooHigh as error:
            raise Undecided(str(error)) from None
        except RecursionError:
            raise Undecided("expressions or blocks are nested too deeply") from None
        return self._search(case, sizes, reason, unequal)

    def _prove(self, case: Mapping[str, Polynomial], domain: Domain) -> None:
        program, source = read(self.text, self.file, case, domain, self.region)
        for f in source.findings:
            if not f.warning or (self.strict and f.code == "unread"):
                raise Wrong(f.code, f.message, f.place)
        joins(program.groups)
        found = cells(program, program.groups, domain)
        packed(program, found, domain)
        balanced(found, domain)
        same_orders(program.groups, domain)
        live = Liveness(program, domain)
        live.prove(program.groups, found)
        separate(program.groups, domain)
        counts = {
            f"each {cell.stream}" if cell.bound else cell.shown(domain): cell.writer.count
            for cell in found
            if cell.writer is not None
        }
        self.tensors |= any(group.accesses for group in program.groups)
        self.proved.append(_ProvedCase(case, counts, list(live.used)))

    def _search(
        self, case: Mapping[str, Polynomial], sizes: Sequence[str], reason: str, unequal: Polynomial | None
    ) -> Proof | None:
        """Look for a counterexample in a case that is not proved. Raises `Undecided` if none is found."""
        for k, steps in enumerate(_many(len(sizes))):
            at = dict(zip(sizes, steps, strict=True))
            if k > 4000 or (unequal is None and k >= 40):
                break
            if unequal is not None and not unequal.at({**at, **dict.fromkeys(unequal.variables() - at.keys(), 0)}):
                continue
            point = tuple(int(form.at(at)) for form in case.values())
            if self._inside(point) and self._check(point).code not in ("", "limit"):
                return self._smallest(point)
            if unequal is not None:
                break
        raise Undecided(f"{reason}; but no counterexample was found")

    def _smallest(self, point: tuple[int, ...]) -> Proof | None:
        """Return the least counterexample, as far as all points below this one can be tried."""
        for other in sorted(islice(self._points(), SMALLER), key=sum):
            found = self._refused(other) if sum(other) < sum(point) else None
            if found is not None:
                return found
        return self._refused(point)

    # -- claims -------------------------------------------------------------------------------------------------------

    def _claims(self) -> tuple[str, ...]:
        all_counts = self._counts()
        counts = all_counts[:6] + ([f"... {len(all_counts)} in all"] if len(all_counts) > 6 else [])
        shown = f" ({'; '.join(counts)})" if counts else ""
        rules = list(dict.fromkeys(rule for case in self.proved for rule in case.used))
        claims = [f"every put has its get{shown}, no instance waits for ever"]
        if self.tensors:
            claims.append("tiles have the types that are stated, and accesses stay inside their tensors")
        claims += [f"because: {rule}" for rule in rules]
        cases = f"{len(self.proved)} case{'s' if len(self.proved) > 1 else ''} for infinitely many sizes each"
        claims.append(f"{cases}; {len(self.known)} small sizes were tried one by one")
        return tuple(claims)

    def _counts(self) -> list[str]:
        """The token counts of streams that are one form in the sizes for all cases."""
        best = max(self.proved, key=lambda case: len({v for form in case.sizes.values() for v in form.variables()}))
        back = _inverse(best.sizes)
        counts: list[str] = []
        for name, tokens in best.counts.items():
            form = tokens.put(back)
            if form.number is not None or not all(variable.startswith("=") for variable in form.variables()):
                continue
            if all(
                form.put({f"={size}": its for size, its in case.sizes.items()}) == case.counts.get(name, ZERO)
                for case in self.proved
            ):
                counts.append(f"{name}: {form.put({f'={size}': Polynomial.variable(size) for size in self.names})}")
        return counts


def _text(name: str, bound: SizeRange) -> str:
    text = f"{name} >= {bound.low}" if bound.high is None else f"{bound.low} <= {name} <= {bound.high}"
    return text if bound.multiple == 1 else f"{text}, {name} % {bound.multiple} == 0"


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a sum of so many numbers from 0 on."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)


def _many(sizes: int) -> Iterator[tuple[int, ...]]:
    return (steps for total in count() for steps in _compositions(total, sizes))


def _inverse(case: Mapping[str, Polynomial]) -> dict[str, Polynomial]:
    """Return the variables of a case in terms of the sizes, as far as one after the other can be solved. A size n is
    the variable =n."""
    solved: dict[str, Polynomial] = {}
    for _ in case:
        for name, form in case.items():
            left = form.put(solved)
            (variable, *others) = [v for v in form.variables() if v not in solved] or [""]
            if variable and not others and left.degree(variable) == 1:
                base, slope = left.coefficients(variable)
                if slope.constant:
                    solved[variable] = (Polynomial.variable(f"={name}") - base) * (1 / slope.constant)
    return solved
