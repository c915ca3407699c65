"""Dynamic streams: programs of Streaming Tensor Programs (STeP), whose shapes and routes depend on data.

`from rsn.streams.dynamic import *` brings the operators by their names in the paper, what they apply, and what builds,
runs and measures a program. `tokens` are data and stops, `shapes` the dimensions of streams, `graph` programs,
`metrics` what they move and hold. `operators/` has a file for each table of the paper, and `functions`, `updates` and
`expansions` what higher-order operators apply.
"""

from __future__ import annotations

from .errors import StepError, StreamFault, StuckError, TokenError
from .expansions import Addresses, DefinedExpansion, Expansion, RetileStreamify, WhereTrue
from .functions import (
    Add,
    Affine,
    AppendRow,
    Defined,
    Div,
    Exp,
    Function,
    Matmul,
    Mul,
    RowSum,
    SetOffset,
    SiLU,
    Sub,
)
from .graph import Program, Stream
from .memory import Tensor
from .metrics import Metrics, metrics
from .operators.base import Limits
from .operators.higher_order import Accum, FlatMap, Map, Scan
from .operators.off_chip import LinearOffChipLoad, LinearOffChipStore, RandomOffChipLoad, RandomOffChipStore
from .operators.on_chip import Bufferize, Streamify
from .operators.routing import EagerMerge, Iterate, Parallelize, Partition, Reassemble, SortedMerge
from .operators.shape import Broadcast, Discard, Expand, First, Flatten, Promote, Repeat, Reshape, TakeWhile, Zip
from .operators.sources import MetadataGen, SelectGen
from .run import Arrivals, Rates, Run, TimedRun, run, timed
from .shapes import SelectorType, StreamType, TileType, TupleType, dimension, ragged, symbol, tile
from .tokens import DONE, BufferReference, Selector, Stop, Tile, decode, encode, parse, show
from .updates import AllRead, DefinedUpdate, Fold, Last, MatmulAdd, RetileCol, RetileRow, Update

__all__ = [
    "DONE",
    "Accum",
    "Add",
    "Addresses",
    "Affine",
    "AllRead",
    "AppendRow",
    "Arrivals",
    "Broadcast",
    "BufferReference",
    "Bufferize",
    "Defined",
    "DefinedExpansion",
    "DefinedUpdate",
    "Discard",
    "Div",
    "EagerMerge",
    "Exp",
    "Expand",
    "Expansion",
    "First",
    "FlatMap",
    "Flatten",
    "Fold",
    "Function",
    "Iterate",
    "Last",
    "Limits",
    "LinearOffChipLoad",
    "LinearOffChipStore",
    "Map",
    "Matmul",
    "MatmulAdd",
    "MetadataGen",
    "Metrics",
    "Mul",
    "Parallelize",
    "Partition",
    "Program",
    "Promote",
    "RandomOffChipLoad",
    "RandomOffChipStore",
    "Rates",
    "Reassemble",
    "Repeat",
    "Reshape",
    "RetileCol",
    "RetileRow",
    "RetileStreamify",
    "RowSum",
    "Run",
    "Scan",
    "SelectGen",
    "Selector",
    "SelectorType",
    "SetOffset",
    "SiLU",
    "SortedMerge",
    "StepError",
    "Stop",
    "Stream",
    "StreamFault",
    "StreamType",
    "Streamify",
    "StuckError",
    "Sub",
    "TakeWhile",
    "Tensor",
    "Tile",
    "TileType",
    "TimedRun",
    "TokenError",
    "TupleType",
    "Update",
    "WhereTrue",
    "Zip",
    "decode",
    "dimension",
    "encode",
    "metrics",
    "parse",
    "ragged",
    "run",
    "show",
    "symbol",
    "tile",
    "timed",
]
