"""The threads of the C++ machine run on one core."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _one_core(request: pytest.FixtureRequest) -> Iterator[None]:
    """Its threads hand each other few elements at a time. On two cores each wakes the other one for them, which takes
    twice the CPU time. The runs with random pauses stay on all cores: there the threads meet as on any computer."""
    if not hasattr(os, "sched_setaffinity") or request.path.stem == "test_csim_stalls":
        yield
        return
    cores = os.sched_getaffinity(0)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {sorted(cores)[worker % len(cores)]})
    yield
    os.sched_setaffinity(0, cores)
