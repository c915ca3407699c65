"""Layers of experts whose programs the host makes for each call, from templates (`scheduler.expert_programs`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...base.deferred import deferred
from ...base.errors import TensorError, UnsupportedError
from ...hw.sim.machine import Machine, Run
from ...isa.overlay import Overlay
from ...isa.program import Array, Buffer
from ...rsnlib.experts.choice import Experts
from ...scheduler.best import Best
from ...scheduler.expert_programs import ExpertPrograms, ExpertSizes, Launch, counted
from ...scheduler.graph import ActivationFunction
from ...scheduler.schedule import PAPER, Schedule
from ..tensors import pack, unpack

if TYPE_CHECKING:
    import torch

    from ...rsnlib.experts import replace as replacing
    from ...rsnlib.experts.replace import ExpertLayerSizes
else:
    replacing = deferred("rsn.rsnlib.experts.replace")


@dataclass(frozen=True)
class ExpertsRun:
    """What a layer of experts did in a call.

    how: how experts were chosen. "static": every expert computed all rows; "patched": the host made programs of the
    chosen experts; "sequenced": the unit Seq issued their instructions. rows: number of rows of each active expert, by
    its number. runs: the runs of its programs. host_bytes: bytes of off-chip memory that the host reads and writes
    between these runs: logits or selectors and shares, gathered rows, results that are scattered and added up, and
    instructions. host_s: the seconds that these bytes take at the bandwidth of the memory of activations."""

    how: str
    rows: dict[int, int]
    runs: tuple[Run, ...]
    host_bytes: int
    host_s: float

    @property
    def latency_s(self) -> float:
        """Seconds of all programs, launches included, and of what the host moves between them."""
        return sum(run.latency_s for run in self.runs) + self.host_s

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes that all programs moved off chip, by direction, such as "ddr_read", and as "instructions"; empty if no
        program ran."""
        return {name: sum(run.bytes[name] for run in self.runs) for name in (self.runs[0].bytes if self.runs else ())}


def plan(
    experts: Experts, overlay: Overlay, schedule: Schedule | Best, board: str, *, is_required: bool
) -> replacing.ExpertsPlan:
    """Return how a compiler pass replaces experts.

    experts: what the user asked for. schedule: of the templates. They have the schedule "paper" if it is a search
    (`Best`), which is not made for them. board: its name. is_required: refuse a module without experts. Raises
    `UnsupportedError` for a board that cannot run programs which change from call to call.
    """
    if experts.kind == "static":
        return replacing.ExpertsPlan(None, is_required)
    if board != "sim":
        raise UnsupportedError(f"experts='patched' runs on board sim only, not {board}: use experts='static'")
    chosen = schedule if isinstance(schedule, Schedule) else PAPER
    known: dict[ExpertLayerSizes, ExpertPrograms] = {}

    def executor(sizes: ExpertLayerSizes) -> PatchedExperts:
        key = replace(sizes, path="")
        if key not in known:
            most = min(experts.rows or sizes.tokens * sizes.each, sizes.tokens * sizes.each)
            own = ExpertSizes(
                sizes.path, sizes.experts, sizes.width, sizes.inner, ActivationFunction(sizes.activation), most
            )
            known[key] = ExpertPrograms(own, overlay, chosen)
        return PatchedExperts(sizes, known[key])

    return replacing.ExpertsPlan(executor, is_required)


class PatchedExperts:
    """Computes a layer of experts on the simulator: gathers the rows of each active expert, runs the programs of these
    experts, and adds up the results by token.

    sizes: of the layer, and its path for messages. programs: the templates, which layers of equal sizes share.
    """

    def __init__(self, sizes: ExpertLayerSizes, programs: ExpertPrograms) -> None:
        self.sizes = sizes
        self.programs = programs
        self.last_run: ExpertsRun | None = None
        """Of the latest call; None before the first one."""
        self._weights: Array | None = None
        self._of: tuple[Any, ...] = ()

    def __call__(
        self,
        x: torch.Tensor,
        index: torch.Tensor,
        weights: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
    ) -> torch.Tensor:
        """Compute the layer; arguments as for `rsnlib.experts.operators.Executor`. Raises `TensorError` as `run`."""
        import torch

        self._keep(gate_up, down)
        return torch.from_numpy(self.run(*(t.detach().numpy() for t in (x, index, weights))))

    def run(self, x: Array, index: npt.NDArray[np.int64], shares: Array) -> Array:
        """Compute the layer with the weights of the latest call. Returns (tokens, width).

        x: (tokens, width). index: (tokens, k), the experts that each token selects. shares: (tokens, k), the factors of
        their results. Raises `TensorError` for an expert that the layer does not have, and for one that more rows
        select than it may take.
        """
        chosen = self._chosen(index)
        each = index.shape[1]
        out = np.zeros_like(x)
        flat = shares.reshape(-1, 1)
        runs: list[Run] = []
        moved = 4 * (index.size + shares.size)
        for launch in self.programs.launches({expert: len(pairs) for expert, pairs in chosen.items()}):
            made, run = self._launched(launch, x, {e: pairs // each for e, pairs in chosen.items()})
            runs.append(run)
            moved += run.bytes["instructions"]
            for part, y in zip(launch.parts, made, strict=True):
                pairs = chosen[part.expert][part.begin : part.begin + part.rows]
                np.add.at(out, pairs // each, y * flat[pairs])
                moved += 4 * x.shape[1] * part.rows * 3  # rows read and written; results read
        moved += out.nbytes
        rows = {expert: len(pairs) for expert, pairs in chosen.items()}
        self.last_run = ExpertsRun("patched", rows, tuple(runs), moved, moved * self._seconds_per_byte)
        return out

    def _chosen(self, index: npt.NDArray[np.int64]) -> dict[int, npt.NDArray[np.int64]]:
        most = self.programs.sizes.rows
        chosen = counted(index)
        for expert, pairs in chosen.items():
            if not 0 <= expert < self.sizes.experts:
                raise TensorError(
                    f"{self.sizes.path}: token {pairs[0] // index.shape[1]} selects expert {expert}; the layer has "
                    f"experts 0 to {self.sizes.experts - 1}"
                )
            if len(pairs) > most:
                raise TensorError(
                    f"{self.sizes.path}: {len(pairs)} rows select expert {expert}; its programs are made for at most "
                    f"{most}"
                )
        return chosen

    def _launched(self, launch: Launch, x: Array, tokens: dict[int, npt.NDArray[np.int64]]) -> tuple[list[Array], Run]:
        """Run a program. Returns the results of each part, (rows, width)."""
        program = launch.program
        assert self._weights is not None
        banks = {self.programs.weights_bank: self._weights}
        banks[self.programs.bank] = memory = np.zeros(program.bank_size(self.programs.bank), np.float32)

        def of(name: str, rows: int) -> tuple[Buffer, Array]:
            """A buffer of `rows` rows, and its memory."""
            b = replace(program.buffer(name), view=(rows, x.shape[1]))
            return b, memory[program.place(b)]

        for part in launch.parts:
            b, place = of(part.x, part.rows)
            place[:] = pack(b, x[tokens[part.expert][part.begin : part.begin + part.rows]])
        run = Machine(program).run(banks)
        return [unpack(*of(part.y, part.rows)) for part in launch.parts], run

    @property
    def _seconds_per_byte(self) -> float:
        """Seconds for each byte that the host moves: the memory of activations is the limit."""
        overlay, bank = self.programs.overlay, self.programs.bank
        loads = (u.capability("load") for u in overlay.units if u.bank == bank)
        rates = [c.rate for c in loads if c is not None and c.rate is not None]
        return overlay.seconds[rates[0]] if rates else 0.0

    def _keep(self, gate_up: torch.Tensor, down: torch.Tensor) -> None:
        """Pack the weights of all experts, unless they are those of the call before."""
        now = gate_up, down
        if self._of and all(a is b for a, b in zip(now, self._of, strict=True)):  # a changed model has other tensors
            return
        packed = np.zeros(self.programs.weight_elements, np.float32)
        for expert in range(self.sizes.experts):
            for at, elements in self.programs.weights(
                expert, gate_up[expert].detach().numpy(), down[expert].detach().numpy()
            ):
                packed[at : at + len(elements)] = elements
        self._weights, self._of = packed, now
