"""Which sizes are meant, and what holds for all of them.

A domain has sizes, which are any whole numbers from 0 on, and indices, each from 0 to its count - 1. A question that
all points answer alike is decided. Otherwise an exception says where the domain should be cut: who has bound the
variable catches it, and asks again in each part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import count
from math import gcd
from typing import Any

from ..values import FLOAT, Limit, SymbolicNumber
from .polynomial import ZERO, Polynomial, TooHigh

THRESHOLD = 256
"""The largest threshold at which a size is cut."""

DEPTH = 4
"""How often a polynomial in several sizes is shifted to see that it is never negative."""


class Undecided(Exception):
    """A proof for all sizes was not found. The message says why."""


@contextmanager
def at_line(line: int) -> Iterator[None]:
    """In a `with` statement: add the number of a line to the message of an `Undecided` that is raised inside, unless
    the message names one."""
    try:
        yield
    except Undecided as why:
        if str(why).startswith("line"):
            raise
        raise Undecided(f"line {line}: {why}") from None


class SplitSizes(Exception):
    """A question has different answers for different sizes; it must be asked for each part of the domain. parts: for
    each part, the forms that take the places of sizes; together they cover the domain."""

    def __init__(self, parts: Sequence[Mapping[str, Polynomial]]) -> None:
        super().__init__("the sizes must be cut")
        self.parts = parts


class SplitIndex(Exception):
    """A question has one answer where an index is below a limit, and another one from there on. name: of the index. at:
    the limit."""

    def __init__(self, name: str, at: Polynomial) -> None:
        super().__init__(f"an index must be cut at {at}")
        self.name, self.at = name, at


class SplitRests(Exception):
    """The answer to a question depends on the remainder of an index. name: of the index. divisor: by which it is
    divided."""

    def __init__(self, name: str, divisor: int) -> None:
        super().__init__(f"an index must be taken {divisor} at a time")
        self.name, self.divisor = name, divisor


class Domain:
    """The variables of a proof: sizes, each any whole number from 0 on, and the indices of the loops that are open at
    present. A *form* is a polynomial in them, and a point is a value for each.

    sizes: their names. written: for messages, the forms in the sizes of the program that variables stand for; None for
    none."""

    def __init__(self, sizes: Sequence[str], written: Mapping[str, Polynomial] | None = None) -> None:
        self.sizes = tuple(sizes)
        self.written = written or {}
        self.indices: list[tuple[str, Polynomial]] = []
        self._names = 0

    def fresh(self) -> str:
        """Return a name that no variable has."""
        self._names += 1
        return f"%{self._names}"

    @contextmanager
    def bound(self, name: str, times: Polynomial) -> Iterator[Polynomial]:
        """In a `with` statement: add an index, which goes from 0 to `times` - 1, and yield it as a form. name: of the
        index. times: at least 1 at all points."""
        with self.within([(name, times)]):
            yield Polynomial.variable(name)

    @contextmanager
    def within(self, bound: Sequence[tuple[str, Polynomial]]) -> Iterator[None]:
        """In a `with` statement: add several indices. bound: the name and the count of each, the outer ones first; each
        index goes from 0 to its count - 1."""
        before = len(self.indices)
        self.indices += bound
        try:
            yield
        finally:
            del self.indices[before:]

    # -- proofs -------------------------------------------------------------------------------------------------------

    def proves(self, p: Polynomial) -> bool:
        """Return whether p >= 0 can be proved for all points. False means that there is no proof, not that p is
        negative somewhere. If p is linear in an index, the proof tests both ends of the index.
        """
        for name, times in reversed(self.indices):
            degree = p.degree(name)
            if degree == 0:
                continue
            if degree == 1:
                return self.proves(p.put({name: 0})) and self.proves(p.put({name: times - 1}))
            parts = p.coefficients(name)
            if all(self.proves(part) for part in parts[1:]):
                return self.proves(parts[0])
            if all(self.proves(-part) for part in parts[1:]):
                return self.proves(p.put({name: times - 1}))
            return False
        return never_negative(p, DEPTH)

    def at_least(self, p: Polynomial, least: Polynomial | int = 0) -> bool:
        """Return whether p >= least. Both must be whole numbers at all points.

        Raises `SplitSizes`, `SplitIndex` or `SplitRests`, which say where to cut the domain, if the answer differs
        between points, or is not found without a cut; `Undecided` if no cut is known."""
        p = _without_content(p - least)
        value = p.constant
        if value is not None:
            return value >= 0
        if self.proves(p):
            return True
        if self.proves(-p - 1):
            return False
        self._split(p)
        raise AssertionError  # pragma: no cover

    def equal(self, a: Polynomial, b: Polynomial | int) -> bool:
        """Return whether a == b at all points. Raises as `at_least`."""
        p = a - b
        if p.constant is not None:
            return p.constant == 0
        return self.at_least(p) and self.at_least(-p)

    def floor(self, p: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
        """Return quotient and remainder of the division of p by a form that is at least 1. If the divisor is a number,
        the remainder is one number for all points.

        Raises `SplitSizes`, `SplitIndex` or `SplitRests`, which say where to cut the domain, if quotient or remainder
        is not one form at all points; `Undecided` if no cut is known, or if the division takes too many parts."""
        number = divisor.number
        if number is None:
            return self._floor_of_forms(p, divisor)
        for rest in range(number):
            quotient = (p - rest) * Fraction(1, number)
            if quotient.integral():
                return quotient, Polynomial.of(rest)
        uneven = {name for m, c in p.terms.items() if c.denominator > 1 or c % number for name, _ in m}
        for name, _ in reversed(self.indices):
            if name in uneven:
                raise SplitRests(name, self._rests(p, name, number))
        name = next(name for name in self.sizes if name in uneven)
        many = self._rests(p, name, number)
        v = Polynomial.variable(name)
        raise SplitSizes([{name: v * many + rest} for rest in range(many)])

    def _floor_of_forms(self, p: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
        quotient, rest = p.divided(divisor)
        for more in (0, -1, 1):
            left = rest - divisor * more
            if self.proves(left) and self.proves(divisor - left - 1):
                return quotient + more, left
        self._split_quotient(p, divisor)
        if not self.at_least(rest):
            if self.at_least(rest + divisor):
                return quotient - 1, rest + divisor
        elif self.at_least(divisor - rest, 1):
            return quotient, rest
        elif self.at_least(divisor * 2 - rest, 1):
            return quotient + 1, rest - divisor
        raise Undecided(f"the quotient of {self.shown(p)} by {self.shown(divisor)}")

    def _split_quotient(self, p: Polynomial, divisor: Polynomial) -> None:
        """If one size is divided by another one, write both by quotient and rest, or cut off where it is less."""
        (name, low), (by, least) = (self._size_of(form) for form in (p, divisor))
        if not name or not by or name == by:
            return
        size, divisor_left = Polynomial.variable(name), Polynomial.variable(by)
        fresh = next(name + "'" * k for k in count(1) if name + "'" * k not in self.sizes)
        rest = Polynomial.variable(fresh)
        whole = divisor_left + rest + 1
        parts = [{name: whole * (size + 1) + rest - low, by: whole - least}]
        raise SplitSizes([*parts, {by: divisor_left + size + low + 1 - least}])

    def _size_of(self, p: Polynomial) -> tuple[str, int]:
        """The size of which a form is the sum with a number, and that number; "" for other forms."""
        constant = p.terms.get((), Fraction(0))
        name = next((name for name in self.sizes if Polynomial.variable(name) == p - int(constant)), "")
        return name, int(constant)

    def _rests(self, p: Polynomial, name: str, divisor: int) -> int:
        """How many rests of a variable make every quotient by `divisor` alike."""
        many = divisor
        for c in p.terms.values():
            many *= c.denominator if many % (divisor * c.denominator) else 1
        if many > THRESHOLD:
            raise Undecided(f"the rest of {self.shown(p)} when divided by {divisor} has too many cases")
        return many

    # -- splits -------------------------------------------------------------------------------------------------------

    def _split(self, p: Polynomial) -> None:
        """Raise the exception that says where p changes its sign."""
        for name, _ in reversed(self.indices):
            if p.degree(name) == 0:
                continue
            parts = p.coefficients(name)
            if len(parts) > 2:
                raise Undecided(f"it is not decided whether {self.shown(p)} is negative")
            if self.at_least(parts[1], 1):
                raise SplitIndex(name, -self.floor(parts[0], parts[1])[0])
            if self.at_least(-parts[1], 1):
                raise SplitIndex(name, self.floor(parts[0], -parts[1])[0] + 1)
        self._split_sizes(p)

    def _split_sizes(self, p: Polynomial) -> None:
        names = sorted(p.variables())
        for name in names:
            for at in range(1, THRESHOLD + 1 if len(names) == 1 else 9):
                v = Polynomial.variable(name)
                shifted = p.put({name: v + at})
                if never_negative(shifted, DEPTH) or never_negative(-shifted - 1, DEPTH):
                    raise SplitSizes([*({name: Polynomial.of(k)} for k in range(at)), {name: v + at}])
        rest = p.terms.get((), Fraction(0))
        straight = {n: p.terms.get(((n, 1),), Fraction(0)) for n in names if p.degree(n) == 1}
        more = [n for n in names if straight.get(n) == 1]
        less = [n for n in names if straight.get(n) == -1]
        if more and less and len(p.terms) <= len(names) + 1:
            x, y = more[0], less[0]
            if abs(rest) > THRESHOLD:
                raise Undecided(f"it is not decided whether {self.shown(p)} is negative")
            if rest:
                name = y if rest > 0 else x
                v = Polynomial.variable(name)
                many = abs(int(rest))
                raise SplitSizes([*({name: Polynomial.of(k)} for k in range(many)), {name: v + many}])
            if len(names) == 2:
                a, b = Polynomial.variable(x), Polynomial.variable(y)
                raise SplitSizes([{x: a + b}, {y: a + b + 1}])
        if len(names) == 2 and len(straight) == 2 and len(p.terms) <= 3:
            (x, up), (y, down) = sorted(straight.items(), key=lambda one: -one[1])
            if up > 0 > down and max(up, -down) <= 16 and up.denominator == down.denominator == 1:
                name, many = (x, int(-down)) if down < -1 else (y, int(up))
                v = Polynomial.variable(name)
                raise SplitSizes([{name: v * many + rest} for rest in range(many)])
        if len(names) > 1:
            v = Polynomial.variable(names[0])
            raise SplitSizes([{names[0]: ZERO}, {names[0]: v + 1}])
        raise Undecided(f"it is not decided whether {self.shown(p)} is negative")

    def shown(self, p: Polynomial) -> str:
        """Return p as text, with a letter for each index."""
        letters = {name: Polynomial.variable("ijklpq"[k]) for k, (name, _) in enumerate(self.indices[:6])}
        return str(p.put(letters).put(self.written))


def _without_content(p: Polynomial) -> Polynomial:
    """Return a form that is negative where p is: with whole coefficients, p is divided by what divides all of them but
    the constant one, which is rounded down."""
    whole = [int(c) for monomial, c in p.terms.items() if monomial and c.denominator == 1]
    content = gcd(*whole)
    if len(whole) < len(p.terms) - (() in p.terms) or content <= 1 or p.terms.get((), Fraction(0)).denominator != 1:
        return p
    constant = int(p.terms.get((), Fraction(0)))
    rest = {m: c / content for m, c in p.terms.items() if m}
    return Polynomial({**rest, (): Fraction(constant // content)})


def never_negative(p: Polynomial, depth: int) -> bool:
    """Return whether p >= 0 can be seen for all sizes from 0 on: no coefficient is negative, or the same can be seen
    where one size is 0, for each size, and where all sizes are 1 more. depth: how often sizes may be made 1 more."""
    if all(c >= 0 for c in p.terms.values()):
        return True
    if p.terms.get((), 0) < 0 or depth == 0:
        return False
    names = sorted(p.variables())
    if len(names) == 1:
        return _from_zero(p, names[0])
    if not all(never_negative(p.put({name: 0}), depth) for name in names):
        return False
    return never_negative(p.put({name: Polynomial.variable(name) + 1 for name in names}), depth - 1)


def _from_zero(p: Polynomial, name: str) -> bool:
    """Whether a polynomial in one size is at least 0 at every whole number from 0 on: it is tried up to where its
    leading term outweighs the others."""
    lead = p.coefficients(name)[-1].constant
    assert lead is not None
    if lead < 0:
        return False
    limit = 1 + max(abs(c) for c in p.terms.values()) / lead
    if limit > 1 << 12:
        return False
    return all(p.at({name: x}) >= 0 for x in range(int(limit) + 2))


class Number(SymbolicNumber):
    """A whole number of the program that depends on sizes or indices. form: its value. domain: decides comparisons,
    which hold for all points or raise as `Domain.at_least`."""

    __slots__ = ("domain", "form")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, form: Polynomial, domain: Domain) -> None:
        self.form, self.domain = form, domain

    def _made(self, form: Polynomial) -> Any:
        return number(form, self.domain)

    def _other(self, other: Any) -> Polynomial:
        if isinstance(other, Number):
            return other.form
        if isinstance(other, int):
            return Polynomial.of(int(other))
        raise Undecided(f"a size is used together with {str(other)[:20]}, which is no whole number")

    def __add__(self, other: Any) -> Any:
        if isinstance(other, float | RealNumber):
            return RealNumber()
        return self._made(self.form + self._other(other))

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, float | RealNumber):
            return RealNumber()
        return self._made(self.form - self._other(other))

    def __rsub__(self, other: Any) -> Any:
        return RealNumber() if isinstance(other, float) else self._made(self._other(other) - self.form)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, float | RealNumber):
            return RealNumber(_positive(self) and _positive(other))
        try:
            return self._made(self.form * self._other(other))
        except TooHigh as error:
            raise Undecided(str(error)) from None

    def __neg__(self) -> Any:
        return self._made(-self.form)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self if self.domain.at_least(self.form) else -self

    def __bool__(self) -> bool:
        return not self.domain.equal(self.form, 0)

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, float) or (isinstance(other, int) and other < 0):
            if not self.domain.at_least(self.form, 1):
                raise Undecided("a power of a number that may be below 1, with this exponent")
            return RealNumber(True)
        if not isinstance(other, int) or not 0 <= other <= 8:
            raise Undecided("a power of a size with this exponent")
        out: Any = 1
        for _ in range(other):
            out = self * out
        return out

    def __truediv__(self, other: Any) -> Any:
        return _quotient(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _quotient(other, self)

    __radd__ = __add__
    __rmul__ = __mul__

    def __divmod__(self, other: Any) -> Any:
        return _divided(self.form, self._other(other), self.domain)

    def __rdivmod__(self, other: Any) -> Any:
        return _divided(self._other(other), self.form, self.domain)

    def __floordiv__(self, other: Any) -> Any:
        return divmod(self, other)[0]

    def __mod__(self, other: Any) -> Any:
        return divmod(self, other)[1]

    def __rfloordiv__(self, other: Any) -> Any:
        return self.__rdivmod__(other)[0]

    def __rmod__(self, other: Any) -> Any:
        return self.__rdivmod__(other)[1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | Number) and self.domain.equal(self.form, self._other(other))

    def __ge__(self, other: Any) -> bool:
        return self.domain.at_least(self.form, self._other(other))

    def __gt__(self, other: Any) -> bool:
        if isinstance(other, Limit):
            return False
        return self.domain.at_least(self.form, self._other(other) + 1)

    def __le__(self, other: Any) -> bool:
        return self.domain.at_least(self._other(other), self.form)

    def __lt__(self, other: Any) -> bool:
        return self.domain.at_least(self._other(other), self.form + 1)

    def __str__(self) -> str:
        return self.domain.shown(self.form)

    __repr__ = __str__


class RealNumber(SymbolicNumber):
    """A number of the program that depends on sizes or indices and need not be whole, such as `D ** -0.5`. It can be
    computed with; a comparison with it raises `Undecided`. positive: whether it is known to be above 0."""

    __slots__ = ("positive",)
    __hash__ = None  # type: ignore[assignment]
    element = FLOAT

    def __init__(self, positive: bool = False) -> None:
        self.positive = positive

    def _sum(self, other: Any) -> Any:
        return RealNumber()

    def __neg__(self) -> Any:
        return RealNumber()

    def __mul__(self, other: Any) -> Any:
        return RealNumber(_positive(self) and _positive(other))

    def __truediv__(self, other: Any) -> Any:
        return _quotient(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _quotient(other, self)

    def _decides(self, *others: Any) -> Any:
        raise Undecided("a number of sizes that need not be whole decides something")

    __add__ = __radd__ = __sub__ = __rsub__ = _sum
    __rmul__ = __mul__
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __int__ = __float__ = __abs__ = _decides
    __pow__ = __rpow__ = __divmod__ = __rdivmod__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _decides


def _positive(value: Any) -> bool:
    """Whether a number is known to be above 0."""
    if isinstance(value, Number):
        return value.domain.proves(value.form - 1)
    return value.positive if isinstance(value, RealNumber) else bool(value > 0)


def _quotient(a: Any, b: Any) -> RealNumber:
    """The quotient of two numbers, one of which is symbolic. Raises `ZeroDivisionError`, splits, and `Undecided`."""
    if isinstance(b, RealNumber) and not b.positive:
        raise Undecided("a quotient by a number of sizes that may be 0")
    if not isinstance(b, RealNumber) and b == 0:
        raise ZeroDivisionError("division by zero")
    return RealNumber(_positive(a) and _positive(b))


def number(form: Polynomial, domain: Domain) -> Number | int:
    """Return a form as a number of the program; without variables, a plain integer. domain: decides comparisons."""
    value = form.number
    return Number(form, domain) if value is None else value


def form_of(value: Number | int) -> Polynomial:
    """Return the form of a number of the program; that of a plain integer is a constant."""
    return value.form if isinstance(value, Number) else Polynomial.of(int(value))


def _divided(a: Polynomial, b: Polynomial, domain: Domain) -> tuple[Number | int, Number | int]:
    """Quotient and rest as Python has them. Raises `ZeroDivisionError`, splits, and `Undecided`."""
    if b.number == 0:
        raise ZeroDivisionError("division by zero")
    if domain.at_least(b, 1):
        quotient, rest = domain.floor(a, b)
        return number(quotient, domain), number(rest, domain)
    if not domain.at_least(-b, 1):
        raise ZeroDivisionError("division by zero")
    quotient, rest = domain.floor(-a, -b)
    return number(quotient, domain), number(-rest, domain)
