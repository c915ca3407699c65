"""Which compiler builds the C++ that many tests make."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def quick_compiler() -> Iterator[None]:
    """Without optimization clang takes half as long as g++; so it builds here where it is installed, unless CXX names
    another. The commands of the pages build such programs by g++."""
    with pytest.MonkeyPatch.context() as patch:
        if "CXX" not in os.environ and shutil.which("clang++"):
            patch.setenv("CXX", "clang++")
        yield
