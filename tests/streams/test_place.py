"""Placement on a mesh, and the files that describe one."""

from __future__ import annotations

from itertools import permutations, product
from pathlib import Path
from random import Random

import pytest

from rsn.streams.mapping.errors import MappingError
from rsn.streams.mapping.machine import MeshDescription, MeshError, mesh
from rsn.streams.mapping.place import best_placement, place
from rsn.streams.mapping.primitives import bundle
from rsn.tests.effort import cases, in_full

from .graphs import HEAD, gemm, products, start


def shortest(weights: list[dict[int, int]], rows: int, columns: int) -> int:
    """The least length of all placements, one by one."""
    tiles = list(product(range(rows), range(columns)))
    edges = [(a, b, w) for a, near in enumerate(weights) for b, w in near.items() if a < b]
    return min(
        sum(w * (abs(at[a][0] - at[b][0]) + abs(at[a][1] - at[b][1])) for a, b, w in edges)
        for at in permutations(tiles, len(weights))
    )


@in_full
def test_placements_are_the_shortest() -> None:
    for seed in range(cases(200, 30)):
        random = Random(seed)
        rows, columns = random.choice([(2, 2), (2, 3), (1, 5)])
        nodes = random.randint(2, min(5, rows * columns))
        weights: list[dict[int, int]] = [{} for _ in range(nodes)]
        for a in range(nodes):
            for b in range(a + 1, nodes):
                if random.random() < 0.6:
                    weights[a][b] = weights[b][a] = random.randint(1, 3)
        found = best_placement(weights, rows, columns)
        assert found.length == shortest(weights, rows, columns)
        assert found.optimal
        assert len(set(found.tiles)) == nodes


def test_without_a_proof_the_bound_says_so() -> None:
    random = Random(1)
    weights: list[dict[int, int]] = [{} for _ in range(16)]
    for a in range(16):
        for b in random.sample([n for n in range(16) if n != a], 4):
            weights[a][b] = weights[b][a] = 1
    found = best_placement(weights, 4, 4, tried=100)
    assert found.bound < found.length
    assert not found.optimal
    with pytest.raises(MappingError, match="16 nodes onto 3 x 5 tiles"):
        best_placement(weights, 3, 5)


def test_a_pipeline_lies_along_neighbours() -> None:
    text = HEAD + "s: Stream[i32, 2][7]\n@task(mapping=[8])\ndef t():\n    i = get_tid()\n    x = use()\n"
    text += "    with meta_if(i > 0):\n        x = s[i - 1].get()\n"
    text += "    with meta_if(i < 7):\n        s[i].put(x)\n    with meta_else():\n        use(x)\n"
    found = place(start(text), MeshDescription(rows=2, columns=4))
    assert (found.length, found.optimal) == (7, True)


def test_more_nodes_than_tiles_are_refused() -> None:
    with pytest.raises(MappingError, match="64 nodes onto 16 tiles of mesh4x4") as caught:
        place(start(gemm(4, 4, 4)), MeshDescription())
    assert caught.value.code == "tiles"
    assert "32 nodes are equal and could share tiles (bundle)" in caught.value.notes


def test_a_node_beyond_a_tile_is_refused() -> None:
    made = bundle(start(products(1)), ["product[0,0]", "product[0,1]"])
    with pytest.raises(MappingError, match="add needs 65536 bytes, a tile has 50000") as caught:
        place(made, MeshDescription(memory=50000))
    assert caught.value.notes[-1].startswith("depth 1 of product[0,0]+1->add (p[0,0], p[0,1] in turn), now 2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows = 0", "rows = 0; it must be a whole number, at least 1"),
        ("rows = true", "rows = True; it must be"),
        ("memory = 1.5", "memory = 1.5; it must be"),
        ("tiles = 3", "no field tiles; fields: name, rows, columns, in_ports, out_ports, memory"),
        ("rows = [", "this is not TOML"),
        pytest.param("rows = " + "[" * 5000 + "]" * 5000, "this is not TOML", id="deep"),
        ("name = 3", "name must be a text"),
    ],
)
def test_wrong_descriptions(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "m.toml"
    path.write_text(text)
    with pytest.raises(MeshError, match=r"m\.toml: ") as caught:
        mesh(str(path))
    assert message in str(caught.value)


def test_descriptions(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text("rows = 2\ncolumns = 3\nmemory = 1024\n")
    assert mesh(str(path)) == MeshDescription("small", 2, 3, 2, 2, 1024)
    assert mesh("mesh4x4").tiles == 16
    with pytest.raises(MeshError, match="no machine mesh9"):
        mesh("mesh9")
    with pytest.raises(MeshError, match="No such file"):
        mesh(str(tmp_path / "none.toml"))
