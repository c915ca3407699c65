"""`rsn map` as people meet it: what is put together, what is proved, where it lies, and refusals at their lines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
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
        "cost: 2 cycles (modelled), 196608 bytes off the chip, 0 on it, 12 ports",
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


def test_options_are_applied_in_order_and_may_name_nodes(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(products(1))
    bundle, chain = ("--bundle", "product[0,0],product[0,1]"), ("--chain", "product[0,0]+1, add")
    result = rsn("map", path, *bundle, *chain, "--no-search", "--json")
    assert result.exit_code == 0, result.output
    assert [step["primitive"] for step in json.loads(result.stdout)["primitives"]] == ["bundle", "chain"]
    result = rsn("map", path, *chain, *bundle, "--no-search")
    assert (result.exit_code, result.output.splitlines()) == (
        1,
        [
            f"{path}: error: no node has the name product[0,0]+1 [name]",
            "note: product[0,0] is on product[0,0]",
        ],
    )


def test_the_facts_say_how_good_a_mapping_is_and_what_it_moves(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(gemm(1, 2, 2))
    assert json.loads(rsn("map", path, "--json").stdout)["all_mappings"]
    facts = json.loads(rsn("map", path, "--json", "--no-search").stdout)
    assert (facts["least_cycles"], facts["all_mappings"]) == (None, False)
    (epoch,) = facts["transfers"]
    assert (epoch["tiles"], epoch["distinct"], len(epoch["loads"]), len(epoch["stores"])) == (12, 8, 4, 4)
    assert epoch["loads"][0] == [{"tiles": "A[0, 0]", "bytes": 16384, "nodes": ["gemm[0,0,0]", "gemm[0,0,1]"]}]


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


LAYERS = """from rsn.streams import *
X: f32[32, 64]
W: f32[64, 32]
Y: f32[32, 32]
s: Stream[f32[32, 32], 2][2]
@task(mapping=[2], args=[X, W])
def part(x, w):
    k = get_tid()
    s[k].put(x[:, k * 32 : (k + 1) * 32] @ w[k * 32 : (k + 1) * 32, :])
@task(mapping=[1], args=[Y])
def total(y):
    y[:, :] = {end}(s[0].get() + s[1].get())
"""


def test_onto_xnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.py").write_text(LAYERS.format(end="gelu"))
    random = np.random.default_rng(0)
    x, w = random.normal(size=(32, 64)).astype(np.float32), random.normal(size=(64, 32)).astype(np.float32)
    np.savez("x.npz", X=x, W=w)
    result = CliRunner().invoke(main, ["map", "p.py", "--onto", "xnn", "--inputs", "x.npz", "--outputs", "y.npz"])
    assert result.exit_code == 0, result.output
    assert "Y = gelu_erf(X @ weight 64x32 + bias)" in result.output
    assert np.load("y.npz")["Y"].shape == (32, 32)
    Path("q.py").write_text(LAYERS.format(end="exp"))
    result = CliRunner().invoke(main, ["map", "q.py", "--onto", "xnn"])
    assert (result.exit_code, result.output) == (1, "error: exp is no part of the machine's layers\n")


def test_the_mapped_machine_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.py").write_text(LAYERS.format(end="gelu"))
    for arguments in (["map", "p.py", "--at-most", "2", "-o", "m.rsn"], ["asm", "m.rsn"], ["check", "m.bin"]):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
    result = CliRunner().invoke(main, ["run", "m.bin", "--timing-only"])
    assert "cycles at 300 MHz, modelled" in result.output
