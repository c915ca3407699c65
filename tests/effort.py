"""How much a test tries: what is enough for a change in `make test`, everything in `make test-long`.

A test, or a case of one, that is marked `long` is left to `make test-long`. A property with many cases runs in both: it
says how many cases it has in full, and how many a quick run tries. `make test-long` sets RSN_TESTS=long.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

Test = TypeVar("Test", bound=Callable[..., Any])

LONG = os.environ.get("RSN_TESTS") == "long"
"""Whether properties try all of their cases."""


def cases(full: int, quick: int) -> int:
    """How many cases a test decorated with `in_both` tries in this run."""
    return full if LONG else quick


def in_both(test: Test) -> Test:
    """Run a test in both targets, with as many cases as `cases` says."""
    marked: Test = pytest.mark.long(test) if LONG else test
    return marked


def examples(full: int, quick: int, **options: Any) -> Callable[[Test], Test]:
    """Settings of a Hypothesis test that runs in both targets, with so many examples; `options` as for `settings`."""

    def decorate(test: Test) -> Test:
        decorated: Test = settings(max_examples=cases(full, quick), **options)(test)
        return in_both(decorated)

    return decorate


def sampled(values: Iterable[Any], quick: Container[Any]) -> list[Any]:
    """Cases for `parametrize`: those in `quick` run in `make test`, the others are marked `long`."""
    return [value if value in quick else long(value) for value in values]


def long(*values: Any) -> Any:
    """A case for `parametrize` that is left to `make test-long`."""
    return pytest.param(*values, marks=pytest.mark.long)
