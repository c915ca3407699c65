"""Memory that a process keeps for its next arrays."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import resource
import numpy as np
from rsn.base.freed_memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        arrays = [np.ones(1 << 20) for _ in range(6)]
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

usual = faults()
keep_freed_memory()
faults()
print(usual, faults())
"""


def test_arrays_that_are_freed_and_taken_again_are_given_no_new_pages() -> None:
    if sys.platform != "linux":
        return
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    usual, kept = map(int, done.stdout.split())
    assert kept < 100 < usual
