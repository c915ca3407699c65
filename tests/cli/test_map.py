"""`rsn map` as people meet it: what is put together, what is proved, where it lies, and refusals at their lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rsn.cli.main import main
from rsn.tests.streams.graphs import HEAD, gemm, products


def rsn(*args: object) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # would be a traceback
    return result


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "gemm.py"
    path.write_text(gemm(2, 2, 2))
    return path


def test_a_mapping_as_text(small: Path) -> None:
    (small.parent / "two.toml").write_text("rows = 1\ncolumns = 4\nmemory = 100000\n")
    result = rsn("map", small, "--onto", small.parent / "two.toml")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[:3] == [
        f"{small}: 8 nodes, 4 edges",
        "  chain(gemm[0,0,0], gemm[1,0,0]), and alike: 4 in all (line 12)",
        "cost: 2 cycles (modelled), 327680 bytes off the chip, 0 on it, 12 ports",
    ]
    assert "proved after mapping: 4 nodes, 0 physical streams, 4 local" in lines
    assert "placed on two: 0 steps of streams (the least)" in lines
    assert "gemm[0,0,0]+1, 2 shots, 2 in, 1 out" in result.output


def test_a_mapping_as_json(small: Path) -> None:
    facts = json.loads(rsn("map", small, "--at-most", 4, "--json").stdout)
    assert (facts["ok"], facts["nodes"], facts["edges"], facts["machine"]) == (True, 8, 4, "mesh4x4")
    assert facts["primitives"][0]["lines"] == [12]
    assert facts["groups"][0]["instances"] == ["gemm[0,0,0]", "gemm[1,0,0]"]
    assert len({tuple(group["tile"]) for group in facts["groups"]}) == 4


def test_primitives_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(products(1))
    result = rsn("map", path, "--bundle", "product[0,0],product[0,1]", "--no-search")
    assert result.exit_code == 0, result.output
    assert "  bundle(product[0,0], product[0,1]) (line 5)" in result.output
    assert "proved after mapping: 2 nodes, 1 physical stream, 0 local" in result.output
    both = rsn("map", path, "--chain", "product[0,0],add", "--chain", "product[0,1],add", "--no-search", "--json")
    assert [len(group["instances"]) for group in json.loads(both.stdout)["groups"]] == [3]


def test_a_refusal_stands_at_the_users_line(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    text = products(1).replace("a = p[i, 0].get()\n    b = p[i, 1].get()", "b = p[i, 1].get()\n    a = p[i, 0].get()")
    path.write_text(text)
    result = rsn("map", path, "--bundle", "product[0,0],product[0,1]", "--no-search")
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        f"{path}:3:1: error: bundle(product[0,0], product[0,1]): add reads p[0,0] and p[0,1] in another order than the "
        "shots [order]",
        "p: Stream[f32[64, 64], 2][1, 2]",
        "^" * 31,
        "note: bundle(product[0,1], product[0,0]) is in its order",
        "note: kept apart (separate), they are two streams, each with slots of its own",
    ]
    facts = json.loads(rsn("map", path, "--bundle", "product[0,0],product[0,1]", "--no-search", "--json").stdout)
    assert (facts["ok"], facts["findings"][0]["code"], facts["findings"][0]["line"]) == (False, "order", 3)


def test_an_ill_typed_program_is_not_mapped(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(HEAD + "s: Stream[i32, 2]\n@task(mapping=[1])\ndef a():\n    s.put(1)\n")
    result = rsn("map", path)
    assert result.exit_code == 1
    assert "[leak]" in result.output


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--onto", "nowhere"), 1, "no machine nowhere"),
        (("--chain", "gemm[0,0,0]"), 2, "two instances"),
        (("--chain", "a,b"), 1, "no task instance has the name a [name]"),
        (("--at-most", 1, "--onto", "mesh4x4"), 0, "1 node"),
    ],
)
def test_options(small: Path, options: tuple[object, ...], code: int, message: str) -> None:
    result = rsn("map", small, *options)
    assert (result.exit_code, message in result.output) == (code, True), result.output


def test_a_program_without_tasks(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(HEAD)
    result = rsn("map", path)
    assert (result.exit_code, result.output.splitlines()[0]) == (0, f"{path}: 0 nodes, 0 edges")


def test_other_files_are_refused(tmp_path: Path) -> None:
    assert rsn("map", tmp_path / "p.bin").exit_code == 2
    assert rsn("map", tmp_path / "none.py").exit_code == 1
