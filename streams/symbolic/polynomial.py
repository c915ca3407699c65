"""Polynomials with rational coefficients in named variables: how often something happens, for every size at once."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from itertools import product
from math import comb, lcm

Monomial = tuple[tuple[str, int], ...]
"""(variable, exponent of at least 1), sorted by variable; empty for the constant term."""

LARGEST_DEGREE = 12
"""Limit of the degree of a product: higher ones are no token counts."""

GRID = 4096
"""Limit of the points at which `Polynomial.integral` evaluates."""


class TooHigh(ArithmeticError):
    """The degree of a polynomial would be above `LARGEST_DEGREE`."""


class Polynomial:
    """A polynomial with rational coefficients. It is never changed, and equal polynomials are equal functions. terms:
    the coefficient of each monomial. A product of a degree above `LARGEST_DEGREE` raises `TooHigh`."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, Fraction]) -> None:
        self.terms = {m: c for m, c in terms.items() if c}
        self._hash = hash(frozenset(self.terms.items()))

    @staticmethod
    def of(value: Polynomial | Fraction | int) -> Polynomial:
        """Return a number as a constant polynomial, and a polynomial as it is."""
        return value if isinstance(value, Polynomial) else Polynomial({(): Fraction(value)})

    @staticmethod
    def variable(name: str) -> Polynomial:
        """Return the polynomial that is the variable `name`."""
        return Polynomial({((name, 1),): Fraction(1)})

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int | Fraction):
            other = Polynomial.of(other)
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Polynomial | int) -> Polynomial:
        terms = dict(self.terms)
        for monomial, c in Polynomial.of(other).terms.items():
            terms[monomial] = terms.get(monomial, Fraction(0)) + c
        return Polynomial(terms)

    def __neg__(self) -> Polynomial:
        return Polynomial({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Polynomial | int) -> Polynomial:
        return self + -Polynomial.of(other)

    def __mul__(self, other: Polynomial | Fraction | int) -> Polynomial:
        terms: dict[Monomial, Fraction] = {}
        for a, x in self.terms.items():
            for b, y in Polynomial.of(other).terms.items():
                powers = dict(a)
                for name, power in b:
                    powers[name] = powers.get(name, 0) + power
                if sum(powers.values()) > LARGEST_DEGREE:
                    raise TooHigh(f"a polynomial of a degree above {LARGEST_DEGREE}")
                monomial = tuple(sorted(powers.items()))
                terms[monomial] = terms.get(monomial, Fraction(0)) + x * y
        return Polynomial(terms)

    __radd__ = __add__
    __rmul__ = __mul__

    @property
    def constant(self) -> Fraction | None:
        """The value if there are no variables, otherwise None."""
        if not self.terms:
            return Fraction(0)
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def number(self) -> int | None:
        """The value if it is a whole number without variables, otherwise None."""
        value = self.constant
        return int(value) if value is not None and value.denominator == 1 else None

    def variables(self) -> set[str]:
        """Return the names of its variables."""
        return {name for monomial in self.terms for name, _ in monomial}

    def degree(self, name: str) -> int:
        """Return the highest exponent of the variable `name`, 0 if it does not occur."""
        return max((power for monomial in self.terms for other, power in monomial if other == name), default=0)

    def coefficients(self, name: str) -> list[Polynomial]:
        """Return the coefficients of the powers of a variable, from power 0 to its degree; they are polynomials in the
        other variables. name: of the variable."""
        parts: list[dict[Monomial, Fraction]] = [{} for _ in range(self.degree(name) + 1)]
        for monomial, c in self.terms.items():
            powers = dict(monomial)
            power = powers.pop(name, 0)
            parts[power][tuple(sorted(powers.items()))] = c
        return [Polynomial(part) for part in parts]

    def put(self, values: Mapping[str, Polynomial | int]) -> Polynomial:
        """Return the polynomial with variables replaced, all at once. values: the polynomial or number for each
        variable, by its name. Raises `TooHigh` for a degree above `LARGEST_DEGREE`."""
        if not self.variables() & values.keys():
            return self
        out = Polynomial({})
        for monomial, c in self.terms.items():
            term = Polynomial.of(c)
            kept: list[tuple[str, int]] = []
            for name, power in monomial:
                if name in values:
                    for _ in range(power):
                        term = term * Polynomial.of(values[name])
                else:
                    kept.append((name, power))
            out = out + term * Polynomial({tuple(kept): Fraction(1)})
        return out

    def at(self, values: Mapping[str, int]) -> Fraction:
        """Return the value at a point. values: of all variables; `KeyError` if one is missing."""
        total = Fraction(0)
        for monomial, c in self.terms.items():
            for name, power in monomial:
                c = c * values[name] ** power
            total += c
        return total

    def integral(self) -> bool:
        """Return whether its value is a whole number wherever all variables are whole. This holds if it is whole at all
        points at which each variable is from 0 to its degree; for more than `GRID` such points the answer is False."""
        if all(c.denominator == 1 for c in self.terms.values()):
            return True
        names = sorted(self.variables())
        sizes = [self.degree(name) + 1 for name in names]
        count = 1
        for size in sizes:
            count *= size
        if count > GRID:
            return False
        points = product(*map(range, sizes))
        return all(self.at(dict(zip(names, point, strict=True))).denominator == 1 for point in points)

    def sum_below(self, name: str, count: Polynomial) -> Polynomial:
        """Return the sum of the polynomial over the variable `name` from 0 to count - 1, for a count of at least 0.
        Raises `TooHigh` as `put`.
        """
        out = Polynomial({})
        for power, c in enumerate(self.coefficients(name)):
            out = out + c * power_sum(power).put({"": count})
        return out

    def divided(self, other: Polynomial) -> tuple[Polynomial, Polynomial]:
        """Return quotient and remainder of the division by a polynomial that is not 0; their coefficients are whole if
        those of the operands are. No term of the remainder is a whole multiple of the leading term of `other`;
        variables are compared by their names to find leading terms."""
        lead, factor = _lead(other)
        quotient, rest, left = ZERO, ZERO, self
        for _ in range(GRID):
            if not left.terms:
                break
            monomial, c = _lead(left)
            powers = dict(monomial)
            for name, power in lead:
                powers[name] = powers.get(name, 0) - power
            if min(powers.values(), default=0) < 0 or (c / factor).denominator != 1:
                term = Polynomial({monomial: c})
                rest, left = rest + term, left - term
                continue
            step = Polynomial({tuple(sorted((n, p) for n, p in powers.items() if p)): c / factor})
            quotient, left = quotient + step, left - step * other
        return quotient, rest + left

    def over(self, other: Polynomial) -> Polynomial | None:
        """Return the quotient with whole coefficients of the division by `other`; None if there is a remainder."""
        quotient, rest = self.divided(other) if other.terms else (ZERO, ONE)
        return None if rest.terms else quotient

    def __str__(self) -> str:
        scale = lcm(*(c.denominator for c in self.terms.values())) if self.terms else 1
        parts: list[str] = []
        for monomial, c in sorted(self.terms.items(), key=lambda term: (-sum(p for _, p in term[0]), term[0])):
            number = int(c * scale)
            name = "*".join(n if p == 1 else f"{n}^{p}" for n, p in monomial)
            size = name if abs(number) == 1 and name else f"{abs(number)}{'*' if name else ''}{name}"
            sign = "-" if number < 0 else "+"
            parts += [sign, size] if parts else [f"{'-' if number < 0 else ''}{size}"]
        text = " ".join(parts) or "0"
        return text if scale == 1 else f"{text}/{scale}" if len(parts) == 1 else f"({text})/{scale}"

    __repr__ = __str__


ZERO = Polynomial({})
ONE = Polynomial.of(1)


def _lead(p: Polynomial) -> tuple[Monomial, Fraction]:
    """The term that comes first when variables are compared in turn, by their names."""
    names = sorted(p.variables())
    return max(p.terms.items(), key=lambda term: [dict(term[0]).get(name, 0) for name in names])


@cache
def power_sum(power: int) -> Polynomial:
    """Return the sum of x^power for x from 0 to T - 1, as a polynomial in T; the name of the variable T is "". power:
    at least 0."""
    t = Polynomial.variable("")
    top = Polynomial.of(1)
    for _ in range(power + 1):
        top = top * t
    # T^(p+1) is the sum of (x+1)^(p+1) - x^(p+1), each of which is a sum of lower powers.
    rest = ZERO
    for lower in range(power):
        rest = rest + power_sum(lower) * comb(power + 1, lower)
    return (top - rest) * Fraction(1, power + 1)
