"""Programs to look at: those that ship, and small encoders with weights and inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

import rsn
from rsn.assembler.parser import parse
from rsn.host import tensors
from rsn.hw.sim.machine import Machine
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.program import Program, Role, UnpackedProgram
from rsn.scheduler.build import build
from rsn.scheduler.graph import ActivationFunction, AttentionLayer, Gemm, LayerGraph, Norm, Output
from rsn.scheduler.pack import pack
from rsn.scheduler.schedule import PAPER

FOLDER = Path(str(rsn.__file__)).parent / "programs"
SHIPPED = sorted(file.stem for file in FOLDER.glob("*.rsn"))
Array = np.ndarray


@dataclass(frozen=True)
class Example:
    """A program and what its weight and input buffers hold, as it lies in memory."""

    program: Program
    given: dict[str, Array]

    def banks(self) -> dict[str, Array]:
        """The memories as they are before a run; NaN where nothing was written."""
        p = self.program
        banks = {bank: np.full(p.bank_size(bank), np.nan, np.float32) for bank in p.overlay.banks}
        for name, flat in self.given.items():
            b = p.buffer(name)
            at = b.offset * p.overlay.address_unit
            banks[b.bank][at : at + b.size] = flat
        return banks


def encoder(
    layers: int, batch: int, seq: int, hidden: int = 128, heads: int = 2, ffn: int = 256, masked: bool = False
) -> LayerGraph:
    """A stack of post-norm encoders with random weights; segments are l0.q, l0.k, ..."""
    rng = np.random.default_rng([layers, batch, seq, hidden, heads, ffn])

    def gemm(
        x: str, y: str, k: int, n: int, residual: str | None = None, act: ActivationFunction | None = None
    ) -> Gemm:
        weight = (rng.standard_normal((k, n)) / k**0.5).astype(np.float32)
        bias, scale = (rng.standard_normal((2, n)) / 10).astype(np.float32)
        if residual is None:
            return Gemm(f"{y}.path", x, y, weight, bias, act)
        return Gemm(f"{y}.path", x, y, weight, bias, act, residual, 1 + scale, Norm(1e-6))

    out: list[Gemm | AttentionLayer] = []
    x = "x"
    for i in range(layers):
        q, k, v, c, d, h, y = (f"l{i}.{n}" for n in "qkvcdhy")
        out += [gemm(x, n, hidden, hidden) for n in (q, k, v)]
        out.append(AttentionLayer(f"{c}.path", q, k, v, c, heads, hidden // heads, masked))
        out += [gemm(c, d, hidden, hidden, x), gemm(d, h, hidden, ffn, act=ActivationFunction.GELU_TANH)]
        out.append(gemm(h, y, ffn, hidden, d))
        x = y
    return LayerGraph(batch, seq, {"x": hidden}, (Output(x),), tuple(out))


def built(network: LayerGraph, base: bool = False) -> Example:
    """A network compiled, with random inputs."""
    done = build(network, XNN_BASE if base else XNN, PAPER)
    rng = np.random.default_rng(0)
    inputs = {
        b.name: tensors.pack(b, rng.standard_normal(b.view or b.shape).astype(np.float32))
        for b in done.program.with_role(Role.INPUT)
    }
    return Example(done.program, {**done.weights, **inputs})


def assembled(text: str, file: str = "t.rsn") -> Program:
    source = parse(text, file)
    return pack(source) if isinstance(source, UnpackedProgram) else source


@cache
def example(name: str) -> Example:
    """A shipped program, or "encoder" (masked, two layers, two sequences)."""
    if name == "encoder":
        return built(encoder(2, 2, 100, masked=True))
    file = FOLDER / f"{name}.rsn"
    p = assembled(file.read_text(encoding="utf-8"), file.name)
    rng = np.random.default_rng(1)
    given = [*p.with_role(Role.INPUT), *p.with_role(Role.WEIGHT)]
    return Example(p, {b.name: tensors.pack(b, rng.standard_normal(b.shape).astype(np.float32)) for b in given})


@cache
def machine(name: str) -> Machine:
    return Machine(example(name).program)


def with_lengths(program: Program, lengths: Sequence[int]) -> Machine:
    return Machine(program, program.bind({f"len[{i}]": n for i, n in enumerate(lengths)}))


NAMES = [*SHIPPED, "encoder"]
