"""Calls in a process of their own: what they raise, and when the process ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from rsn.base.errors import BoardError, ResourceError, RsnError
from rsn.host.own_process import call_apart
from rsn.tests.host.acts import act

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("then", "kind", "message"),
    [
        ("budget", ResourceError, "too much"),  # the nearest class that has a message only
        ("image", RsnError, "word 3: no packet"),
        ("other", LookupError, "no"),
        ("end", BoardError, "the process of act has ended, as it does where memory is short"),
    ],
)
def test_errors_are_those_of_the_call(then: str, kind: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}$") as raised:
        call_apart(act, tmp_path / "pid", then=then)
    assert type(raised.value) is kind
    assert is_over(tmp_path / "pid")


def test_a_call_is_in_another_process(tmp_path: Path) -> None:
    call_apart(act, tmp_path / "pid")
    assert int((tmp_path / "pid").read_text()) != os.getpid()
    assert is_over(tmp_path / "pid")


def test_the_process_ends_with_the_one_that_waits_for_it(tmp_path: Path) -> None:
    command = (
        "from pathlib import Path; from rsn.host.own_process import call_apart;"
        "from rsn.tests.host.acts import act;"
        f"call_apart(act, Path({str(tmp_path / 'pid')!r}), 'wait')"
    )
    with subprocess.Popen([sys.executable, "-c", command]) as waiting:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert waiting.poll() is None
            time.sleep(0.05)
        waiting.kill()
    assert is_over(tmp_path / "pid")


def is_over(path: Path) -> bool:
    """Whether the process whose number is in the file ends within some seconds."""
    for _ in range(600):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(int(path.read_text()), 0)
            time.sleep(0.05)
            continue
        return True
    return False
