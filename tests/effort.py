"""How much a test tries: what is enough for a change in `make test`, more in `make test-long`, all in `make test-full`.

A test, or a case of one, that is marked `long` is left to `make test-long`, which sets RSN_TESTS=long. A property with
many cases runs in both: it says how many cases it has in full, and how many a quick run tries. `make test-long` tries a
twentieth of them, or less of a property whose cases are dear, but no fewer than `make test`; a property of which it
would try no more is left out there. `make test-full` (RSN_TESTS=full) tries all, and the cases that are marked `full`.
With RSN_TESTS=long, `make test` runs what `make test-long` does, too, as .ci/run has it: a property then runs once,
with the cases of that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

Test = TypeVar("Test", bound=Callable[..., Any])

FULL = os.environ.get("RSN_TESTS") == "full"
"""Whether properties try all of their cases."""
LONG = FULL or os.environ.get("RSN_TESTS") == "long"
"""Whether properties try more of their cases than in `make test`."""


def cases(full: int, quick: int, share: int = 20) -> int:
    """How many cases a test decorated with `in_both` or `in_full` tries in this run. full: in `make test-full`. quick:
    in `make test`. share: `make test-long` tries `full` divided by it."""
    return full if FULL else max(quick, full // share) if LONG else quick


def in_both(test: Test) -> Test:
    """Run a test in all targets, with as many cases as `cases` says."""
    marked: Test = pytest.mark.long(test) if LONG else test
    return in_full(marked)


def in_full(test: Test) -> Test:
    """Run a test in `make test-full`, too, with all its cases; else in `make test`, or in `make test-long` if it is
    marked so."""
    marked: Test = pytest.mark.long(pytest.mark.full(test)) if FULL else test
    return marked


def examples(full: int, quick: int, share: int = 20, **options: Any) -> Callable[[Test], Test]:
    """Settings of a Hypothesis test that runs in all targets. full, quick, share: numbers of examples, as for `cases`.
    options: as for `settings`."""
    count = cases(full, quick, share)

    def decorate(test: Test) -> Test:
        decorated: Test = settings(max_examples=count, **options)(test)
        return in_both(decorated) if count > quick else in_full(decorated)

    return decorate


def sampled(values: Iterable[Any], quick: Container[Any], rest: Callable[..., Any] | None = None) -> list[Any]:
    """Cases for `parametrize`: those in `quick` run in `make test`, the others are marked `long`, or as `rest` marks
    them."""
    return [value if value in quick else (rest or long)(value) for value in values]


def thinned(values: Iterable[Any], every: int) -> list[Any]:
    """Cases for `parametrize`, of one argument: the first of each `every` runs in `make test`, the others are marked
    `long`."""
    return [long(value) if i % every else value for i, value in enumerate(values)]


def spread(values: Iterable[Any], every: int, quick: Container[Any] = ()) -> list[Any]:
    """Cases for `parametrize`, of one argument, whose values are much the same: those in `quick` run in `make test`,
    the first of each `every` in `make test-long`, and the others in `make test-full`."""
    return [value if value in quick else (full if i % every else long)(value) for i, value in enumerate(values)]


def full(*values: Any) -> Any:
    """A case for `parametrize` that is left to `make test-full`."""
    return pytest.param(*values, marks=[pytest.mark.long, pytest.mark.full])


def long(*values: Any) -> Any:
    """A case for `parametrize` that is left to `make test-long`."""
    return pytest.param(*values, marks=pytest.mark.long)
