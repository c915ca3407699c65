"""What an instance holds, when it loads and stores, and what a mesh moves in each epoch."""

from __future__ import annotations

import re
from random import Random

import numpy as np
import pytest

from rsn.streams.build import task_program
from rsn.streams.check import report_on
from rsn.streams.hls.emit import cpp_program
from rsn.streams.hls.native import native_text
from rsn.streams.mapping.footprint import footprint
from rsn.streams.mapping.machine import MeshDescription
from rsn.streams.mapping.primitives import chain
from rsn.streams.mapping.transfers import boxes, epochs, off_chip
from rsn.streams.reader import read
from rsn.tests.effort import cases, in_full

from .graphs import HEAD, gemm, start

TILE = 16 * 16 * 4  # bytes of f32[16, 16]


def task(body: str, streams: str = "", peer: str = "") -> str:
    """A program with a task that loads x and y, and stores z."""
    head = f"{HEAD}X: f32[64, 16]\nY: f32[64, 16]\nZ: f32[64, 16]\n{streams}\n"
    head += "@task(mapping=[1], args=[X, Y, Z])\ndef t(x: f32[64, 16], y: f32[64, 16], z: f32[64, 16]):\n"
    return head + "".join(f"    {line}\n" for line in body.split("\n")) + peer


BLOCK = "16 * i : 16 * i + 16"
HELD = {
    "a tile that a variable keeps": ("a = x[0:16]\nz[0:16] = a + a", TILE),
    "two variables": ("a = x[0:16]\nb = y[0:16]\nz[0:16] = a + b", 2 * TILE),
    "a variable that is not read again": ("a = x[0:16]\nz[0:16] = a + 1\nb = x[0:16]\nz[16:32] = b + 1", TILE),
    "a load whose value nothing reads": ("a = x[:, :]\na = y[0:16]\nz[0:16] = a + 1", TILE),
    "operands and the result of a product": ("z[0:16] = x[0:16] @ y[0:16]", 3 * TILE),
    "from tensor to tensor": ("z[:, :] = x[:, :]", 0),
    "blocks of a loop": (f"for i in range(4):\n    z[{BLOCK}] = exp(x[{BLOCK}])", TILE),
    "a sum over a loop": (f"s = zeros(f32, 16, 16)\nfor i in range(4):\n    s = s + x[{BLOCK}]\nz[0:16] = s", 2 * TILE),
    "what a later iteration reads": (
        f"a = x[0:16]\nfor i in range(3):\n    z[{BLOCK}] = a + 1\n    a = y[{BLOCK}]\nz[48:64] = a + 1",
        TILE,
    ),
    "the larger arm of a branch": (
        "a = x[0:16]\nif data():\n    b = a @ a\n    z[0:16] = b + 1\nz[16:32] = a + 1",
        2 * TILE,
    ),
}


@pytest.mark.parametrize("name", HELD)
def test_bytes_that_an_instance_holds(name: str) -> None:
    body, held = HELD[name]
    assert start(task(body)).graph.nodes[0].footprint.held == held


def test_tokens_are_held_unless_a_buffer_of_the_node_has_them() -> None:
    peer = "@task(mapping=[1])\ndef u():\n    a = s.get()\n    b = s.get()\n    use(a @ b)\n"
    first = start(task("s.put(x[0:16])\ns.put(y[0:16])", "s: Stream[f32[16, 16], 2]", peer))
    assert [node.footprint.held for node in first.graph.nodes] == [0, 3 * TILE]
    assert sum(h.count for h in first.memory(1)) == (3 + 2) * TILE
    made = chain(first, "t", "u")
    assert sorted((h.what, h.count) for h in made.memory(0)) == [
        ("buffer of s, 2 x 1024 bytes", 2 * TILE),
        ("tiles of u", TILE),
    ]


PORTS = {
    "one after the other": ("a = x[0:16]\nb = y[0:16]\nz[0:16] = a + b", ["loads of X, then Y"]),
    "x lives beyond y": ("a = x[0:16]\nb = y[0:16]\nz[0:16] = a + b + x[16:32]", ["loads of X", "loads of Y"]),
    "a loop has both": (f"for i in range(4):\n    z[{BLOCK}] = x[{BLOCK}] + y[{BLOCK}]", ["loads of X", "loads of Y"]),
    "iterations before the run": (
        "for i in meta_for(2):\n    a = x[0:16]\n    with meta_if(i == 1):\n        a = y[0:16]\n    z[0:16] = a + 1",
        ["loads of X, then Y"],
    ),
}


@pytest.mark.parametrize("name", PORTS)
def test_loads_that_do_not_meet_share_a_port(name: str) -> None:
    body, ports = PORTS[name]
    ins, outs = start(task(body)).ports(0)
    assert ([holder.what for holder in ins], [holder.what for holder in outs]) == (ports, ["stores of Z"])


def test_shots_of_a_node_take_turns_on_its_ports() -> None:
    text = HEAD + "".join(f"{name}: f32[16, 16]\n" for name in "ABCD")
    for name, source, target in (("u", "A", "B"), ("v", "C", "D")):
        text += f"@task(mapping=[1], args=[{source}, {target}])\ndef {name}(x: f32[16, 16], z: f32[16, 16]):\n"
        text += "    z[:, :] = exp(x[:, :])\n"
    made = chain(start(text), "u", "v")
    assert [[h.what for h in side] for side in made.ports(0)] == [["loads of A, then C"], ["stores of B, then D"]]
    assert [(h.what, h.count) for h in made.memory(0)] == [("tiles of u", TILE)]


# -- what a mesh moves -------------------------------------------------------------------------------------------------


def test_a_tile_for_several_nodes_is_loaded_once() -> None:
    found = epochs(start(gemm(1, 2, 2)), MeshDescription())
    assert [(epoch.tiles, epoch.distinct) for epoch in found] == [(12, 8)]
    loads = {str(t): t.nodes for port in found[0].loads for t in port}
    assert loads == {"A[0, 0]": (0, 1), "A[1, 0]": (2, 3), "B[0, 0]": (0, 2), "B[0, 1]": (1, 3)}
    assert off_chip(start(gemm(1, 2, 2))) == 8 * 64 * 64 * 4


def test_tiles_that_wait_for_each_other_are_loaded_apart() -> None:
    """Both load all of X, but the second one can begin to only when the first one has given it a token."""
    text = f"{HEAD}X: f32[16, 16]\ns: Stream[f32[16, 16], 1]\n"
    text += "@task(mapping=[1], args=[X])\ndef a(x: f32[16, 16]):\n    s.put(x[:, :])\n"
    text += "@task(mapping=[1], args=[X])\ndef b(x: f32[16, 16]):\n    use(s.get() @ x[:, :])\n"
    assert [(epoch.tiles, epoch.distinct) for epoch in epochs(start(text), MeshDescription())] == [(1, 1), (1, 1)]
    assert off_chip(start(text)) == 2 * TILE


@pytest.mark.parametrize("ports", [1, 2, 3, 8, 16])
def test_transfers_fill_the_ports(ports: int) -> None:
    mesh = MeshDescription(rows=4, columns=4, load_ports=ports, store_ports=ports)
    found = epochs(start(gemm(1, 4, 4)), mesh)
    assert len(found) == 1
    for sides, tiles in ((found[0].loads, 8), (found[0].stores, 16)):
        assert len(sides) == min(ports, tiles)
        moved = [transfer for port in sides for transfer in port]
        assert sum(transfer.size for transfer in moved) == tiles * 64 * 64 * 4
        loads = [sum(t.size for t in port) for port in sides]
        assert max(loads) <= 2 * min(loads) or min(ports, tiles) < 2


def test_a_block_of_tiles_is_one_transfer() -> None:
    found = epochs(start(gemm(1, 4, 4)), MeshDescription(load_ports=1, store_ports=1))[0]
    assert [[str(t) for t in port] for port in (*found.loads, *found.stores)] == [
        ["A[0:4, 0]", "B[0, 0:4]"],
        ["C[0:4, 0:4]"],
    ]


@in_full
def test_boxes_cover_each_tile_once() -> None:
    for seed in range(cases(500, 50)):
        random = Random(seed)
        rank = random.randint(1, 3)
        shape = [random.randint(1, 4) for _ in range(rank)]
        wanted = np.random.default_rng(seed).random(shape) < random.choice([0.3, 0.7, 1])
        points = [tuple(map(int, at)) for at in np.argwhere(wanted)]
        if not points:
            continue
        covered = np.zeros(shape, int)
        found = boxes(points)
        for low, high in found:
            covered[tuple(slice(a, b) for a, b in zip(low, high, strict=True))] += 1
        assert (covered == wanted).all()
        assert not wanted.all() or len(found) == 1


PRODUCT = "t = x[:, :] @ w[:, :]\n    y[:, :] = {r}(t)"
CONVERTED = "t = {r}(x[:, :] @ w[:, :])\n    y[:, :] = t + t"
WIDTHS = {"float": 4, "std::int8_t": 1, "std::uint8_t": 1, "std::int32_t": 4, "std::int64_t": 8}


@pytest.mark.parametrize(
    ("dtype", "result", "lines"),
    [
        *((d, r, PRODUCT) for d, r in (("i4", "i32"), ("u4", "i8"), ("i8", "i32"), ("f16", "f32"), ("bf16", "bf16"))),
        *((d, r, CONVERTED) for d, r in (("i4", "i32"), ("u4", "i8"), ("i8", "i32"))),
    ],
)
def test_tiles_take_the_bytes_of_the_cpp(dtype: str, result: str, lines: str) -> None:
    """Numbers of 4 bits are kept in 8 there, those of 16 in floats, and integers that a kernel computes in 64."""
    text = f"""from rsn.streams import *
X: {dtype}[8, 8]
W: {dtype}[8, 8]
Y: {result}[8, 8]
@task(mapping=[1], args=[X, W, Y])
def f(x: {dtype}[8, 8], w: {dtype}[8, 8], y: {result}[8, 8]):
    {lines.format(r=result)}
"""
    report = report_on(read(text, timed=True, rates={"matmul": 1, "elements": 1}))
    assert not report.code, f"{report}"
    found = footprint(report.region, report.region.instances[0])
    cpp = native_text([cpp_program(task_program(report.region))])
    declared = re.findall(r"^ *rsn::Tile<([\w:]+), 8, 8> \w+;", cpp, re.MULTILINE)
    assert found is not None
    assert found.held == sum(64 * WIDTHS[name] for name in declared)
