"""A layer of experts with its router on the machine with Seq: as a static program, patched by the host, sequenced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...base.deferred import deferred
from ...base.errors import TensorError, UnsupportedError
from ...hw.sim.machine import Machine, Run, one_blas_thread, summary
from ...isa.image import decode_image
from ...isa.overlay import Overlay
from ...isa.overlays.moe import MACHINE
from ...isa.overlays.moe.formats import Choose
from ...isa.overlays.moe.sequence import ExpertRows, SequencedPath, parts_of
from ...isa.overlays.moe.units import chosen_of
from ...isa.program import Array, Program
from ...machine.executor import ProcessNetwork
from ...machine.timing import RunTiming
from ...scheduler.expert_machine import MoePrograms, MoeSizes
from ..tensors import pack, unpack
from .experts import ExpertsRun

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ...rsnlib.experts import router as routers
else:
    routers = deferred("rsn.rsnlib.experts.router")

HOWS = ("static", "patched", "sequenced")


class ExpertLayer:
    """A layer of experts with its router on the machine with Seq. A call computes it with data; `time` gives the time
    for given selectors alone.

    sizes: of the layer. how: one of `HOWS`. machine: the overlay. rows: the most rows that one expert takes in a call,
    None for no bound. Raises `UnsupportedError` for another `how`, for `rows` below 1, and for sizes beyond the
    machine's.
    """

    def __init__(
        self, sizes: MoeSizes, *, how: str = "sequenced", machine: Overlay = MACHINE, rows: int | None = None
    ) -> None:
        if how not in HOWS:
            raise UnsupportedError(f"how={how!r}: must be one of {', '.join(map(repr, HOWS))}")
        if rows is not None and rows < 1:
            raise UnsupportedError(f"rows={rows}: an expert takes at least 1 row")
        self.how, self.rows = how, rows
        self.programs = MoePrograms(sizes, machine)
        self.last_run: ExpertsRun | None = None
        """Of the latest call; None before the first one."""
        self._weights: Array | None = None
        self._layer: Any = None

    @property
    def sizes(self) -> MoeSizes:
        """The layer's sizes, without padding."""
        return self.programs.sizes

    @classmethod
    def of(
        cls,
        module: nn.Module,
        example: tuple[Any, ...] | dict[str, Any],
        *,
        how: str = "sequenced",
        machine: Overlay = MACHINE,
        rows: int | None = None,
    ) -> ExpertLayer:
        """Make a layer from a module: a router and its experts. example: its arguments, by position or by name. how,
        machine, rows: as for the class. Its weights are copied. Raises `UnsupportedError` for a module that is no such
        layer, and as the class does."""
        found = routers.routed_layer(module, example)
        experts, wide, width = found.gate_up.shape
        sizes = MoeSizes(
            found.path, found.tokens, found.each, experts, width, wide // 2, found.activation, found.over_chosen
        )
        layer = cls(sizes, how=how, machine=machine, rows=rows)
        layer.load(found.router, found.gate_up, found.down)
        layer._layer = found
        return layer

    def load(self, router: Array, gate_up: Array, down: Array) -> None:
        """Take these weights for `run`. router: (experts, width). gate_up: (experts, 2 inner, width), the gate first.
        down: (experts, width, inner). All float32. Raises `TensorError` for others."""
        self._weights = self.programs.packed(router, gate_up, down)

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Compute the layer, as the module does. Raises `TensorError` for an argument of another shape or type, and for
        more rows of one expert than `rows`."""
        import torch

        if self._layer is None:
            raise TensorError("the layer was made from sizes, not from a module: use run")
        (x,) = self._layer.interface.bind(args, kwargs).values()
        y = self.run(x.detach().reshape(-1, self.sizes.width).numpy())
        return torch.from_numpy(y).reshape(x.shape)

    def run(self, x: Array) -> Array:
        """Compute the layer with the weights of `load`. x: (tokens, width), float32. Returns the same shape. Raises
        `TensorError` for another x, without weights, and for more rows of one expert than `rows`."""
        program = {
            "static": self.programs.static,
            "sequenced": self.programs.sequenced,
            "patched": self.programs.router,
        }
        first = program[self.how]()
        banks = self._banks(first, x)
        if self.how == "sequenced":
            run = self._sequenced(first, banks)
        else:
            run = Machine(first).run(banks)
        chosen, share = self._chosen(self._read(first, banks, "logits"))
        parts = self._parts(chosen.tolist())
        runs, last, moved = [run], first, 0
        if self.how == "patched":
            last = self.programs.patched(parts)
            banks = self._banks(last, x)
            self._write(last, banks, "shares", self._shares_of(parts, share))
            runs.append(Machine(last).run(banks))
            moved = self._host_bytes(last, len(parts))
        self._note(parts, runs, moved)
        return self._read(last, banks, "y")

    def time(self, chosen: Sequence[Sequence[int]]) -> ExpertsRun:
        """Return the run in which tokens choose these experts, without data: traffic in bytes and modelled time in
        seconds. chosen: for each token the numbers of its `each` experts. Raises `TensorError` for selectors that do
        not fit the layer, and for more rows than `rows`."""
        s = self.sizes
        if len(chosen) != s.tokens or any(len(row) != s.each for row in chosen):
            raise TensorError(f"{s.path}: selectors are {s.tokens} rows of {s.each} experts")
        parts = self._parts(chosen)
        moved = 0
        if self.how == "sequenced":
            runs = [self._sequenced(self.programs.sequenced(), None, parts)]
        elif self.how == "static":
            runs = [Machine(self.programs.static()).run()]
        else:
            program = self.programs.patched(parts)
            runs = [Machine(p).run() for p in (self.programs.router(), program)]
            moved = self._host_bytes(program, len(parts))
        return self._note(parts, runs, moved)

    # -- parts of a run

    def _parts(self, chosen: Sequence[Sequence[int]]) -> list[ExpertRows]:
        return parts_of(chosen, self.sizes.experts, self.programs.tile_rows, self.rows)

    def _note(self, parts: Sequence[ExpertRows], runs: Sequence[Run], moved: int) -> ExpertsRun:
        rows: dict[int, int] = {}
        for part in parts:
            rows[part.expert] = rows.get(part.expert, 0) + len(part.pairs)
        host_s = moved * self.programs.overlay.seconds["ddr_read_gbs"]
        self.last_run = ExpertsRun(self.how, rows, tuple(runs), moved, host_s)
        return self.last_run

    def _host_bytes(self, program: Program, parts: int) -> int:
        """What the host moves between the two programs: it reads logits, and writes shares and instructions."""
        logits = 4 * self.sizes.tokens * self.programs.logits
        return logits + 4 * parts * self.programs.tile_rows + 4 * len(program.image)

    def _sequenced(
        self, program: Program, banks: dict[str, Array] | None, parts: Sequence[ExpertRows] | None = None
    ) -> Run:
        """Run a program with Seq. Its time depends on what Route chooses, so that data and time are one run."""
        overlay = program.overlay
        path = SequencedPath(program, decode_image(program.image, overlay), parts, self.rows)
        net = ProcessNetwork(overlay, path, banks=banks, data=banks is not None, record=True)
        with one_blas_thread():
            timing = RunTiming.of(net, net.run())
        return summary(timing, overlay, 4 * len(program.image))

    def _chosen(self, logits: Array) -> tuple[npt.NDArray[np.int64], Array]:
        s = self.sizes
        fields = {"tokens": s.tokens, "experts": s.experts, "size": s.experts, "each": s.each}
        return chosen_of(np.ascontiguousarray(logits), Choose(**fields, over_chosen=int(s.over_chosen)))

    def _shares_of(self, parts: Sequence[ExpertRows], share: Array) -> Array:
        out = np.zeros((len(parts), self.programs.tile_rows), np.float32)
        for row, part in zip(out, parts, strict=True):
            row[: len(part.pairs)] = share.reshape(-1)[list(part.pairs)]
        return out

    def _banks(self, program: Program, x: Array) -> dict[str, Array]:
        if self._weights is None:
            raise TensorError("the layer has sizes and no weights: make it with ExpertLayer.of, or load weights")
        banks = {"ddr": np.zeros(program.bank_size("ddr"), np.float32), "weights": self._weights}
        self._write(program, banks, "x", x)
        return banks

    def _write(self, program: Program, banks: dict[str, Array], name: str, value: Array) -> None:
        b = program.buffer(name)
        banks[b.bank][program.place(b)] = pack(replace(b, rows=()), value)

    def _read(self, program: Program, banks: dict[str, Array], name: str) -> Array:
        b = program.buffer(name)
        return unpack(b, banks[b.bank][program.place(b)])
