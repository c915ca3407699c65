"""Processes that take requests for boards of other processes or threads."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import PIPE, Popen
from tempfile import TemporaryFile
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from rsn.tests.warm_python import WarmPython

from .soak_http import Client


class Front:
    """The process that is asked, which lives all the time. address: where."""

    def __init__(self, address: str) -> None:
        self.address: str | None = address

    def get(self, path: str) -> tuple[int, Any]:
        status, _, text = Client([self]).ask(0, "GET", path)
        return status, json.loads(text)

    def figures(self) -> Counter[str]:
        """Of the replicas that live, sums by the names of the samples."""
        status, _, text = Client([self]).ask(0, "GET", "/metrics")
        assert status == 200
        found: Counter[str] = Counter()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name] += int(sample.value)
        return found

    def processes(self) -> list[int]:
        """Of the replicas."""
        _, found = self.get("/replicas")
        return [status["process"] for status in found.values()]


@contextmanager
def started(*command: str, warm: WarmPython | None = None) -> Iterator[tuple[Popen[str], str]]:
    """A process of a module that serves, when it does, and its address. warm: who has its imports done."""
    python = sys.executable if warm is None else warm.bin / "python"
    with TemporaryFile("w+") as said, Popen([python, "-m", *command], stdout=PIPE, stderr=said, text=True) as process:
        try:
            assert process.stdout is not None
            # Ray writes to standard output too
            line = next((line for line in process.stdout if " at http://" in line), "")
            if not line:
                code = process.wait()
                said.seek(0)
                raise AssertionError(f"it ended with {code}: {''.join(said.readlines()[-20:])}")
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield process, line.split(" at http://")[1].split()[0]
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(60)
                except BaseException:
                    process.kill()
                    raise
