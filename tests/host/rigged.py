"""Small networks with their answers, and boards that fail, or wait, when told to."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from rsn.base.errors import BoardError
from rsn.host.boards.device import BoardLost, BoardTimeout
from rsn.host.boards.sim import SimBoard
from rsn.hw.sim.machine import Run
from rsn.isa.overlays import XNN
from rsn.isa.packet import Words
from rsn.isa.program import Program
from rsn.scheduler.build import Built, build
from rsn.scheduler.graph import AttentionLayer, Gemm, LayerGraph, Output
from rsn.scheduler.schedule import PAPER

Array = np.ndarray
_rng = np.random.default_rng(11)
COLUMNS = 64
WEIGHTS = {name: _rng.standard_normal((COLUMNS, COLUMNS)).astype(np.float32) / 8 for name in "qkv"}
BIASES = {name: _rng.standard_normal(COLUMNS).astype(np.float32) for name in "qkv"}


@cache
def attention(batch: int, seq: int, lengths: tuple[int, ...] = ()) -> Built:
    """One head over sequences with masks; `attended` says what it gives."""
    projections = [Gemm(n, "x", n, WEIGHTS[n], BIASES[n]) for n in "qkv"]
    layers = (*projections, AttentionLayer("a", "q", "k", "v", "y", 1, COLUMNS, True))
    network = LayerGraph(batch, seq, {"x": COLUMNS}, (Output("y"),), layers)
    return build(network.with_lengths(lengths) if lengths else network, XNN, PAPER)


@cache
def linear(batch: int, seq: int) -> Built:
    """x @ WEIGHTS["q"] + BIASES["q"], without masks."""
    gemm = Gemm("g", "x", "y", WEIGHTS["q"], BIASES["q"])
    return build(LayerGraph(batch, seq, {"x": COLUMNS}, (Output("y"),), (gemm,)), XNN, PAPER)


def attended(x: Array, lengths: Sequence[int] | None = None) -> Array:
    """What `attention` gives for sequences (sequence, row, column), by numpy."""
    q, k, v = (x @ WEIGHTS[n] + BIASES[n] for n in "qkv")
    scores = q @ k.swapaxes(1, 2)
    for scored, n in zip(scores, lengths or [x.shape[1]] * len(x), strict=True):
        scored[:, n:] = -np.inf
    e = np.exp(scores - scores.max(2, keepdims=True))
    result: Array = (e / e.sum(2, keepdims=True)) @ v
    return result


def weights_of(built: Built) -> dict[str, Array]:
    return {name: built.weights[name] for name in built.weights}


class Rig:
    """A device whose boards do as the simulator does. before: called with the number of each run, counted from 1 over
    all boards, may raise or wait; opening: likewise, of each board that loads. only_one: raised where a board is opened
    while another is open."""

    def __init__(
        self,
        before: Callable[[int], None] = lambda n: None,
        opening: Callable[[int], None] = lambda n: None,
        only_one: BoardError | None = None,
    ) -> None:
        self.before, self.opening, self.only_one = before, opening, only_one
        self.runs: list[Program] = []
        """Of each run that was begun."""
        self.opened = self.closed = 0

    def __call__(self) -> RiggedBoard:
        return RiggedBoard(self)


class RiggedBoard(SimBoard):
    def __init__(self, rig: Rig) -> None:
        super().__init__()
        self._rig = rig

    def load(self, program: Program, weights: Mapping[str, Array]) -> None:
        self._rig.opened += 1
        self._rig.opening(self._rig.opened)
        if self._rig.only_one and self._rig.opened - self._rig.closed > 1:
            raise self._rig.only_one
        super().load(program, weights)
        self._program = program

    def run(self, words: Words, inputs: Mapping[str, Array], **more: Any) -> tuple[dict[str, Array], Run]:
        self._rig.runs.append(self._program)
        self._rig.before(len(self._rig.runs))
        return super().run(words, inputs, **more)

    def close(self) -> None:
        self._rig.closed += 1
        super().close()


class Gate:
    """Holds runs until it is opened. entered: a run waits, or has waited."""

    def __init__(self) -> None:
        self.entered, self._open = threading.Event(), threading.Event()

    def __call__(self, number: int) -> None:
        self.entered.set()
        assert self._open.wait(30)

    def open(self) -> None:
        self._open.set()


class Flaky(Rig):
    """Fails at random, by its seed: before a run, in the middle of it (so that the memories are in disorder), after a
    time-out; and stays down for some attempts to open it. share: of the runs."""

    def __init__(self, seed: int, share: float) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self.share = share
        self._down = 0
        self.failures = 0

    def __call__(self) -> FlakyBoard:
        return FlakyBoard(self)

    def fault(self) -> str | None:
        """What goes wrong with the next run, if anything does."""
        if self._random.random() >= self.share:
            return None
        self.failures += 1
        self._down = self._random.choice([0, 0, 1, 3])
        return self._random.choice(["lost", "torn", "late"])

    def refused(self) -> bool:
        self._down = max(self._down - 1, -1)
        return self._down >= 0


class FlakyBoard(RiggedBoard):
    _rig: Flaky

    def load(self, program: Program, weights: Mapping[str, Array]) -> None:
        if self._rig.refused():
            raise BoardLost("the device does not answer")
        super().load(program, weights)

    def run(self, words: Words, inputs: Mapping[str, Array], **more: Any) -> tuple[dict[str, Array], Run]:
        match self._rig.fault():
            case "lost":
                raise BoardLost("the device is gone")
            case "late":
                time.sleep(0.01)
                raise BoardTimeout("the kernel did not end")
            case "torn":
                super().run(words, {name: np.full_like(t, np.nan) for name, t in inputs.items()}, **more)
                raise BoardError("y: 4 bytes came back")
        return super().run(words, inputs, **more)
