"""The units of the machine for experts, but for Seq. Streams count elements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ....base.errors import ProgramError
from ....machine.description import UnitSpec
from ....machine.steps import Step, Steps
from ....machine.unit import Unit, Wiring
from ...versal.functions import activation
from .formats import Add, Choose, Fill, Finish, Hold, Move, Product, RowPort, Tiles
from .sequence import ExpertRows, parts_of

Array = npt.NDArray[np.float32]
ACTIVATIONS = ("gelu_tanh", "gelu_erf", "relu", "silu")
"""By number; those of XNN's unit MemC."""
WORD = 32
"""Elements that an on-chip stream carries in a cycle."""


def _read(unit: Unit, at: int, size: int) -> tuple[Any]:
    """What a step that loads puts."""
    return (unit.read(at, size),)


class Sized(Unit):
    """A unit that knows the sizes of tiles in its machine. tile_rows: the most rows that Mac multiplies at a time.
    tile: K and columns of a tile of weights, in elements. Raises `ProgramError` for a machine whose Mac has no
    capability `matmul`."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        limits = net.machine.capability_of("Mac", "matmul").limits
        self.tile_rows, self.tile = int(limits["tile_rows"][1]), int(limits["tile_columns"][1])


class ActsUnit(Unit):
    """Acts, the memory of activations: each uOP sends one row to a unit, or stores one row that a unit sends."""

    def kernel(self, uop: Move) -> Steps:
        port = RowPort(uop.port)
        yield Step("offchip_uop")
        if port.stores:
            source = self.source("Sum" if port is RowPort.TOTAL else "Post")
            write = partial(self._write_flat, uop.addr)
            yield Step("ddr_write_gbs", 4 * uop.size, gets=(source,), words=uop.size, do=write)
            return
        peer = {RowPort.X: "X", RowPort.ROUTE: "Route", RowPort.SUM: "Sum", RowPort.SHARES: "Post"}[port]
        read = partial(_read, self, uop.addr, uop.size)
        yield Step("ddr_read_gbs", 4 * uop.size, puts=(self.sink(peer),), words=uop.size, do=read)

    def _write_flat(self, at: int, x: Any) -> None:
        self.write(at, x.reshape(-1))

    def effect_key(self, uop: Move) -> Any:
        return uop.size, uop.port


class WeightsUnit(Sized):
    """Weights, the memory of weights: sends Mac the tiles that lie one after the other from an address on."""

    read_only = True

    def kernel(self, uop: Tiles) -> Steps:
        sink, size = self.sink("Mac"), self.tile * self.tile
        yield Step("offchip_uop")
        for at in range(uop.addr, uop.addr + uop.tiles * size, size):
            read = partial(_read, self, at, size)
            yield Step("weights_read_gbs", 4 * size, puts=(sink,), words=size, do=read)

    def effect_key(self, uop: Tiles) -> Any:
        return uop.tiles


class RowsUnit(Sized):
    """A unit that keeps rows, and sends them to Mac in tiles, each some columns of all rows. held: the rows, float32
    (rows, K); empty in a run without data."""

    held: Array

    def sent(self, rows: int, depth: int, times: int) -> Steps:
        """Yield the steps that send `rows` rows of `depth` tiles of K to Mac, tile by tile, and all of that `times`
        times. Each puts one tile, (rows, tile). rows: those of `held`."""
        sink, tile = self.sink("Mac"), self.tile
        words = rows * tile
        for _ in range(times):
            for d in range(depth):
                yield Step("word", words / WORD, puts=(sink,), words=words, do=partial(self._columns, d))

    def _columns(self, number: int) -> tuple[Array]:
        """A tile of columns of what it holds."""
        return (self.held[:, number * self.tile : (number + 1) * self.tile].copy(),)


class XUnit(RowsUnit):
    """X: takes the rows of one part from Acts, and sends them to Mac as left operands."""

    def kernel(self, uop: Fill) -> Steps:
        width = uop.depth * self.tile
        self.held = np.zeros((uop.rows, width) if self._net.data else 0, np.float32)
        for i in range(uop.rows):

            def keep(x: Any, i: int = i) -> None:
                self.held[i] = x.reshape(-1)

            yield Step("word", width / WORD, gets=(self.source("Acts"),), words=width, do=keep)
        yield from self.sent(uop.rows, uop.depth, uop.times)

    def effect_key(self, uop: Fill) -> Any:
        return uop


class HiddenUnit(RowsUnit):
    """Hidden: takes the results of the gate for one part from Post, and sends them to Mac as left operands."""

    def kernel(self, uop: Hold) -> Steps:
        words, tile = uop.rows * self.tile, self.tile
        self.held = np.zeros((uop.rows, uop.blocks * tile) if self._net.data else 0, np.float32)
        for b in range(uop.blocks):

            def keep(x: Any, b: int = b) -> None:
                self.held[:, b * tile : (b + 1) * tile] = x.reshape(-1, tile)

            yield Step("word", words / WORD, gets=(self.source("Post"),), words=words, do=keep)
        yield from self.sent(uop.rows, uop.blocks, uop.times)

    def effect_key(self, uop: Hold) -> Any:
        return uop


class MacUnit(Sized):
    """Mac: multiplies tiles of rows, from X or Hidden, by tiles of weights, adds up over K, and sends Post the sums."""

    def kernel(self, uop: Product) -> Steps:
        rows, weights = self.source("Hidden" if uop.hidden else "X"), self.source("Weights")
        words = uop.rows * self.tile
        for _ in range(uop.results):
            total = np.zeros((uop.rows, self.tile) if self._net.data else 0, np.float32)
            for _ in range(uop.depth):
                taken: list[Any] = []
                yield Step(gets=(rows,), words=words, do=taken.append)
                yield Step(gets=(weights,), words=self.tile**2, do=taken.append)

                def add(taken: list[Any] = taken, total: Any = total) -> None:
                    left, right = taken
                    np.add(total, left.reshape(-1, self.tile) @ right.reshape(self.tile, self.tile), out=total)

                yield Step("multiply", uop.rows * self.tile**2, do=add)
            yield Step(puts=(self.sink("Post"),), words=words, do=lambda total=total: (total,))

    def effect_key(self, uop: Product) -> Any:
        return uop


class GateUnit(Sized):
    """Post: takes blocks of columns from Mac. With `gate` it sends Hidden activation(first) * second of each two
    blocks. Otherwise it sends Acts whole rows, each multiplied by its share if there are shares."""

    def kernel(self, uop: Finish) -> Steps:
        source, words = self.source("Mac"), uop.rows * self.tile
        if uop.gate:
            for _ in range(uop.blocks):
                pair: list[Any] = []
                for _ in range(2):
                    yield Step("word", words / WORD, gets=(source,), words=words, do=pair.append)

                def gated(pair: list[Any] = pair) -> tuple[Array]:
                    return (activation(pair[0], uop.activation) * pair[1],)

                yield Step("post", words, puts=(self.sink("Hidden"),), words=words, do=gated)
            return
        width = uop.blocks * self.tile
        strip = np.zeros((uop.rows, width) if self._net.data else 0, np.float32)
        share: list[Any] = []
        if uop.shares:
            peer = "Route" if uop.shares == 2 else "Acts"
            yield Step(gets=(self.source(peer),), words=self.tile_rows, do=share.append)
        for b in range(uop.blocks):

            def keep(x: Any, b: int = b) -> None:
                strip[:, b * self.tile : (b + 1) * self.tile] = x.reshape(-1, self.tile)

            yield Step("word", words / WORD, gets=(source,), words=words, do=keep)
        for i in range(uop.rows):

            def row(i: int = i) -> tuple[Array]:
                return (strip[i] * share[0].reshape(-1)[i] if share else strip[i],)

            yield Step("word", width / WORD, puts=(self.sink("Acts"),), words=width, do=row)

    def effect_key(self, uop: Finish) -> Any:
        return uop


class SumUnit(Unit):
    """Sum: adds up groups of rows from Acts, and sends the sums back."""

    def kernel(self, uop: Add) -> Steps:
        for _ in range(uop.results):
            total = np.zeros(uop.size if self._net.data else 0, np.float32)
            for _ in range(uop.each):

                def add(x: Any, total: Any = total) -> None:
                    np.add(total, x.reshape(-1), out=total)

                yield Step("word", uop.size / WORD, gets=(self.source("Acts"),), words=uop.size, do=add)
            yield Step(puts=(self.sink("Acts"),), words=uop.size, do=lambda total=total: (total,))

    def effect_key(self, uop: Add) -> Any:
        return uop


class RouteUnit(Sized):
    """Route: chooses the experts of each token by its logits, tells Seq the parts that follow from this, and sends Post
    the shares of their rows.

    parts: what it chooses in a run without data, in which it raises `ProgramError` if they are None; ignored in a run
    with data. most: rows that one expert may have, None for any number; a run with data raises `TensorError` for more.
    """

    parts: Sequence[ExpertRows] | None = None
    most: int | None = None

    def kernel(self, uop: Choose) -> Steps:
        rows: list[Any] = []
        for _ in range(uop.tokens):
            yield Step("word", uop.size / WORD, gets=(self.source("Acts"),), words=uop.size, do=rows.append)
            yield Step("choose", uop.experts)
        # In a run without data, shares are not needed, and parts only if they steer Seq.
        chosen: Any = None
        share: Any = None
        if self._net.data:
            chosen, share = chosen_of(np.stack(rows), uop)
        if uop.dense:
            yield from self._dense(uop, chosen, share)
            return
        parts = self.parts
        if chosen is not None:
            parts = parts_of(chosen.tolist(), uop.experts, self.tile_rows, self.most)
        if parts is None:
            raise ProgramError("Route: without data, what it chooses must be given")
        for part in parts:
            yield Step("dispatch", puts=(self.sink("Seq"),), send=(part,))

            def of_part(part: ExpertRows = part) -> tuple[Array]:
                out = np.zeros(self.tile_rows, np.float32)
                out[: len(part.pairs)] = share.reshape(-1)[list(part.pairs)]
                return (out,)

            yield Step("word", self.tile_rows / WORD, puts=(self.sink("Post"),), words=self.tile_rows, do=of_part)
        yield Step("dispatch", puts=(self.sink("Seq"),), send=(None,))

    def _dense(self, uop: Choose, chosen: Any, share: Any) -> Steps:
        for expert in range(uop.experts):
            for first in range(0, uop.tokens, self.tile_rows):

                def column(expert: int = expert, first: int = first) -> tuple[Array]:
                    out = np.zeros(self.tile_rows, np.float32)
                    some = np.where(chosen == expert, share, 0).sum(1)[first : first + self.tile_rows]
                    out[: len(some)] = some
                    return (out,)

                yield Step("word", self.tile_rows / WORD, puts=(self.sink("Post"),), words=self.tile_rows, do=column)

    def effect_key(self, uop: Choose) -> Any:
        return uop if uop.dense else None


def chosen_of(logits: Array, uop: Choose) -> tuple[npt.NDArray[np.int64], Array]:
    """Return the experts of each token, int64, and their shares, float32, both (tokens, each). An expert with a larger
    logit comes first; of equal logits the lower number.

    uop: gives `tokens`, `size`, `experts` and `each`. With `over_chosen` the shares are a softmax over the chosen
    experts, so that they sum to 1; otherwise one over all experts. logits: tokens * size elements, of any shape; of
    each row of `size` the first `experts` count. Raises `ValueError` for another number of elements.
    """
    x = logits.reshape(uop.tokens, uop.size)[:, : uop.experts]
    chosen = np.argsort(-x, axis=1, kind="stable")[:, : uop.each]
    e = np.exp(x - x.max(axis=1, keepdims=True))
    share = np.take_along_axis(e, chosen, 1)
    share /= (share if uop.over_chosen else e).sum(axis=1, keepdims=True)
    return chosen, share.astype(np.float32)
