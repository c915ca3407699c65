"""A mixture of experts as dynamic streams: rows in tiles of one size or of all rows of an expert, each expert alone or
several in turn on one region (STeP v2, sections 5.2 and 5.3; Figs. 6, 7, 9, 10, 12, 13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import StepError
from ..expansions import Addresses, RetileStreamify
from ..functions import Add, Matmul, Mul, SiLU
from ..graph import Program, Stream
from ..memory import Tensor
from ..operators.higher_order import Accum, FlatMap, Map
from ..operators.off_chip import LinearOffChipLoad, LinearOffChipStore, RandomOffChipLoad
from ..operators.routing import EagerMerge, Partition, Reassemble
from ..operators.shape import Expand, Flatten, Promote, Reshape, Zip
from ..operators.sources import SelectGen
from ..tokens import Array
from ..updates import MatmulAdd, RetileCol, RetileRow
from . import METADATA, SUMS


@dataclass(frozen=True)
class ExpertLayerShape:
    """A layer of experts of gated form: down(SiLU(gate(x)) * up(x)). model, hidden: columns of x, and of gate(x).
    chosen: experts of each row. columns: of a tile of gate and up, rows of a tile of down. Raises `StepError` for sizes
    less than 1, for more chosen experts than there are, and for hidden columns that are not whole tiles."""

    name: str
    model: int
    hidden: int
    experts: int
    chosen: int
    columns: int

    def __post_init__(self) -> None:
        if min(self.model, self.hidden, self.experts, self.columns) < 1 or not 1 <= self.chosen <= self.experts:
            raise StepError("Layer", f"{self}: sizes are 1 or more, and a row has 1 to {self.experts} experts")
        if self.hidden % self.columns:
            raise StepError(
                "Layer", f"{self.name}: {self.hidden} hidden columns are not whole in tiles of {self.columns}"
            )

    @property
    def tiles(self) -> int:
        """The number of tiles of each of the three weight matrices of an expert."""
        return self.hidden // self.columns


@dataclass(frozen=True)
class ExpertTensors:
    """The tensors of a layer of experts: rows [B, model]; gate, up [experts, model, hidden]; down [experts, hidden,
    model]; routing [B, chosen], the weight of each chosen expert of a row, in rising order of the experts."""

    rows: Array
    gate: Array
    up: Array
    down: Array
    routing: Array


@dataclass(frozen=True)
class ExpertProgram:
    """A program of a layer of experts. result: the tensor [B, model] that it stores. rows_of: for each expert, the name
    of the symbol that is its number of rows. depths: of its streams, in tokens, for `timed`."""

    program: Program
    result: Tensor
    rows_of: tuple[str, ...]
    depths: Mapping[Stream, int]

    def counts(self, rows: Sequence[int]) -> dict[str, int]:
        """Return the values of the program's symbols by name. rows: the number of rows that each expert gets. Raises
        `ValueError` for another number of experts.
        """
        return dict(zip(self.rows_of, rows, strict=True))


@dataclass
class _ExpertBuilder:
    layer: ExpertLayerShape
    compute: int | None
    values: ExpertTensors | None
    dtype: str
    slow: list[Stream] = field(default_factory=list)

    def tensor(self, name: str, shape: tuple[int, ...], expert: int | None = None) -> Tensor:
        """One of the layer's tensors, or an expert's part of it."""
        if self.values is None:
            return Tensor(shape, self.dtype, name=name)
        data = np.asarray(getattr(self.values, name))
        return Tensor(shape, self.dtype, (data if expert is None else data[expert]).reshape(shape), name=name)

    def expert(self, packed: Stream, gate: Stream, up: Stream, down: Stream) -> Stream:
        """Tiles of rows [n] and each one's tiles of weights [n, tiles]: the results [n]."""
        rows = Expand(1)(Reshape(0, 1)(packed)[0], gate)
        opened = Map(SiLU, compute=self.compute)(Map(Matmul(dtype=SUMS), compute=self.compute)(rows, gate))
        hidden = Map(Mul, compute=self.compute)(opened, Map(Matmul(dtype=SUMS), compute=self.compute)(rows, up))
        made: Stream = Accum(1, MatmulAdd(Matmul(dtype=SUMS)), compute=self.compute)(Zip()(hidden, down))
        return made

    def pack(self, rows: Stream, size: int | None) -> tuple[Stream, Stream | None]:
        """The rows of an expert [n] as tiles, and flags of padding. size: of a tile; None for one tile of all."""
        if size is None:
            return Accum(1, RetileRow)(Promote()(rows)), None
        data, padding = Reshape(0, size, pad=0)(rows)
        flags = Accum(1, RetileCol)(padding)
        self.slow.append(flags)
        return Accum(1, RetileRow)(data), flags

    def unpack(self, tiles: Stream, flags: Stream | None, routing: Stream, rows: Stream) -> Stream:
        """Tiles of an expert's results as rows, each times its routing weight."""
        if flags is None:
            one_by_one = FlatMap(RetileStreamify(1))(tiles)
        else:
            one_by_one = FlatMap(RetileStreamify(1, drop_padding=True))(Zip()(tiles, flags))
        count = rows.type.shape[0].size
        self.slow.append(routing)
        made: Stream = Map(Mul)(one_by_one.assume([count]), routing.assume([count]))
        return made


def mixture(
    layer: ExpertLayerShape,
    chosen: Sequence[Sequence[int]],
    tile_rows: int | None,
    *,
    regions: int | None = None,
    compute: int | None = None,
    values: ExpertTensors | None = None,
    dtype: str = "bf16",
) -> ExpertProgram:
    """Return the program of a layer of experts (STeP v2, sections 5.2 and 5.3).

    chosen: the numbers of the experts of each row, `layer.chosen` of them. tile_rows: rows of a tile; the last tile of
    an expert is filled up. None for one tile of all rows of an expert. regions: how many sets of units there are;
    neighbouring experts share one, in the order in which their tiles come; None for a set for each expert. compute:
    operations a cycle of each unit; None for no bound. values: tensors; None for a program without data. dtype: of rows
    and all weights off the chip.

    Raises `StepError` for no rows, experts that do not exist, rows with another number of experts, tiles of less than
    one row, regions that do not divide the experts, or values of other shapes."""
    for row, experts in enumerate(chosen):
        if not len(experts) == len(set(experts)) == layer.chosen or not all(
            0 <= one < layer.experts for one in experts
        ):
            raise StepError(
                "mixture", f"row {row} has the experts {sorted(experts)}; it needs {layer.chosen} below {layer.experts}"
            )
    if not chosen:
        raise StepError("mixture", "a layer without rows")
    if tile_rows is not None and tile_rows < 1:
        raise StepError("mixture", f"tiles of {tile_rows} rows")
    if regions is not None and (regions < 1 or layer.experts % regions):
        raise StepError("mixture", f"{layer.experts} experts do not divide among {regions} regions")
    batch = len(chosen)
    if values is not None:
        _check(values, layer, batch)
    rising = [tuple(sorted(experts)) for experts in chosen]
    build = _ExpertBuilder(layer, compute, values, dtype)
    result = Tensor((batch, layer.model), SUMS, name="result")
    with Program() as program:
        rows = build.tensor("rows", (batch, layer.model))
        routing = build.tensor("routing", (batch * layer.chosen, 1))
        loaded = Flatten(0, 1)(LinearOffChipLoad(rows, (1, layer.model), (1,), (batch,))())
        selectors = SelectGen(rising, layer.experts)
        parts = Partition(layer.experts, rank=1)(Reshape(0, 1)(loaded)[0], selectors())
        mine = [Flatten(0, 1)(one) for one in parts]
        one_hot = SelectGen([(expert,) for experts in rising for expert in experts], layer.experts)()
        factors = Partition(layer.experts, rank=0)(
            Flatten(0, 1)(LinearOffChipLoad(routing, (1, 1), (1,), (batch * layer.chosen,))()), one_hot
        )
        packed = [build.pack(one, tile_rows) for one in mine]
        if regions is None:
            tiles = _side_by_side(build, [one for one, _ in packed])
        else:
            tiles = _in_turn(build, [one for one, _ in packed], regions)
        unpacked = [
            build.unpack(one, flags, factor, part)
            for one, (_, flags), factor, part in zip(tiles, packed, factors, mine, strict=True)
        ]
        together = Reassemble()(*unpacked, selectors())
        summed = Accum(1, Add)(together)
        LinearOffChipStore(result)(summed)
    names = tuple(str(one.type.shape[0].size) for one in mine)
    depths = dict.fromkeys(program.streams, 2) | dict.fromkeys(build.slow, METADATA)
    return ExpertProgram(program, result, names, depths)


def _check(values: ExpertTensors, layer: ExpertLayerShape, rows: int) -> None:
    wide, high = (layer.experts, layer.model, layer.hidden), (layer.experts, layer.hidden, layer.model)
    for name, shape in (
        ("rows", (rows, layer.model)),
        ("gate", wide),
        ("up", wide),
        ("down", high),
        ("routing", (rows, layer.chosen)),
    ):
        found = np.shape(getattr(values, name))
        if found != shape:
            raise StepError("mixture", f"{name} has shape {list(found)}; the layer needs {list(shape)}")


def _side_by_side(build: _ExpertBuilder, packed: Sequence[Stream]) -> list[Stream]:
    """A set of units for each expert; its weights are loaded once for each tile of rows."""
    layer, made = build.layer, []
    for expert, rows in enumerate(packed):
        loads = [
            LinearOffChipLoad(build.tensor(name, shape, expert), size, (1,), (layer.tiles,))(rows)
            for name, shape, size in (
                ("gate", (layer.model, layer.hidden), (layer.model, layer.columns)),
                ("up", (layer.model, layer.hidden), (layer.model, layer.columns)),
                ("down", (layer.hidden, layer.model), (layer.columns, layer.model)),
            )
        ]
        made.append(build.expert(rows, *loads))
    return made


def _in_turn(build: _ExpertBuilder, packed: Sequence[Stream], regions: int) -> list[Stream]:
    """A set of units for several experts; addresses say whose weights are loaded."""
    layer = build.layer
    share = layer.experts // regions
    wide, high = (layer.experts, layer.model, layer.hidden), (layer.experts, layer.hidden, layer.model)
    gate, up, down = build.tensor("gate", wide), build.tensor("up", wide), build.tensor("down", high)
    made: list[Stream] = []
    for region in range(regions):
        mine = packed[region * share : (region + 1) * share]
        together, turns = EagerMerge()(*mine)
        addresses = FlatMap(Addresses(layer.tiles, region * share * layer.tiles))(turns)
        results = build.expert(
            together,
            RandomOffChipLoad(gate, (layer.model, layer.columns))(addresses),
            RandomOffChipLoad(up, (layer.model, layer.columns))(addresses),
            RandomOffChipLoad(down, (layer.columns, layer.model))(addresses),
        )
        build.slow.append(turns)
        back = Partition(share, rank=0)(results, turns)
        made += [one.assume([tiles.type.shape[0].size]) for one, tiles in zip(back, mine, strict=True)]
    return made
