"""What a machine's description says of the ways of data."""

from __future__ import annotations

import pytest

from rsn.base.errors import ProgramError
from rsn.isa.overlays import XNN
from rsn.machine.description import Capability, Memory


@pytest.mark.parametrize(
    ("source", "sink", "way"),
    [
        ("DDR", "MME5", ("DDR", "MemA2", "MeshA", "MME5")),
        ("LPDDR", "MME3", ("LPDDR", "MemB1", "MeshB", "MME3")),
        ("MME0", "DDR", ("MME0", "MemC0", "DDR")),
        ("MemC0", "MME4", ("MemC0", "MeshA", "MME4")),
        ("MemC0", "MME5", None),  # no route, and off-chip memory passes on nothing
        ("DDR", "LPDDR", None),
    ],
)
def test_data_go_along_streams_and_routes(source: str, sink: str, way: tuple[str, ...] | None) -> None:
    assert XNN.path(source, sink) == way


def test_limits_of_a_capability_include_their_ends() -> None:
    able = Capability("softmax", limits={"columns": (1, 512)})
    assert [able.exceeded(columns=n) for n in (0, 1, 512, 513)] == ["columns", None, None, "columns"]
    assert able.exceeded(rows=10**6) is None


@pytest.mark.parametrize("sizes", [{"rows": 0}, {"columns": -1}, {"slots": 1}, {"slots": 2.0}, {"banks": 0}])
def test_a_memory_has_whole_sizes(sizes: dict[str, int]) -> None:
    with pytest.raises(ProgramError, match=f"^{next(iter(sizes))}="):
        Memory(**({"rows": 128, "columns": 64} | sizes))
