"""The wire formats of all units (contract sections 1.2, 2 and 7; paper Table 2), under one name: `formats.MemA`.

Fields that name a stream carry its peer: `to="MemA0"` on a DDR flag reads as `-> MemA0` in an `.rsn` text.
"""

from .mem_a import MemA, MemANorm
from .mem_b import MemB, MemBConfig
from .mem_c import MemC, MemCConfig, MemCScores, MemCStore, MemCTable
from .mesh import MeshA, MeshB
from .mme import Mme
from .off_chip import Ddr, DdrRows, Lpddr, RowTransfer, Transfer

__all__ = [
    "Ddr",
    "DdrRows",
    "Lpddr",
    "MemA",
    "MemANorm",
    "MemB",
    "MemBConfig",
    "MemC",
    "MemCConfig",
    "MemCScores",
    "MemCStore",
    "MemCTable",
    "MeshA",
    "MeshB",
    "Mme",
    "RowTransfer",
    "Transfer",
]
