"""Blocks for sequences of any length: one machine for a prompt and for steps, with the results of PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rsn.base.errors import ProgramError, TensorError, UnsupportedError
from rsn.host.native_tasks import run_native
from rsn.hw.sim.tasks import run_on_tensors
from rsn.isa.overlays.tasks.overlay import program_of, with_sizes
from rsn.rsnlib.streamed import Knobs, Streamed, streamed
from rsn.rsnlib.streamed.generate import generate
from rsn.streams.placing.devices import device_named
from rsn.streams.symbolic import forall
from rsn.streams.symbolic.forall import prove
from rsn.tests.effort import full, long
from rsn.tests.rsnlib.streamed_blocks import Fixed, block
from rsn.tests.rsnlib.test_streamed import BLOCKS, TOLERANCE, Function
from rsn.tests.streams.test_hls import built

CAPACITY = 12
CARRIED = {"keys": 1, "values": 2}
KNOBS = Knobs(rows=4, columns=8, depth=16)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def caches(name: str, batch: int = 1) -> dict[str, list[torch.Tensor]]:
    """Caches with numbers in rows that no step has written, too: they must not count."""
    heads, columns = BLOCKS[name].get("num_key_value_heads", 4), BLOCKS[name].get("head_dim", 8)
    return {key: [torch.randn(batch, heads, CAPACITY, columns)] for key in CARRIED}


def made_for(name: str, longest: int, knobs: Knobs = KNOBS) -> tuple[nn.Module, dict[str, Any], Streamed]:
    module, state = Fixed([block(name, **BLOCKS[name])]).eval(), caches(name)
    example = {"x": torch.randn(1, longest, 32), "position": torch.tensor(0), **state}
    made = streamed(module, example, knobs, any_length=True)
    assert not made.report.findings, made.report
    return module, state, made


def close(mine: Any, theirs: Any) -> None:
    torch.testing.assert_close(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("gpt2", 0),
        *((long if name in ("gemma3", "qwen3") else full)(name, 0) for name in BLOCKS if name != "gpt2"),
        *((long if name == "gpt2" else full)(name, 1) for name in BLOCKS),
    ],
)
def test_one_machine_reads_a_prompt_and_decodes(name: str, packed: int) -> None:
    module, state, made = made_for(name, 6, Knobs(rows=4, columns=8, depth=16, packed=packed))
    x = torch.randn(1, CAPACITY, 32)
    with torch.no_grad():
        y, keys, values = module(x, torch.tensor(0), **state)
    latencies: dict[int, set[float]] = {}
    for split in ((6, 1, 1, 4), (1, 5, 3, 2)):
        steps, at = made.carrying(CARRIED, **state), 0
        for rows in split:
            part = x[:, at : at + rows]
            before = steps.state
            found, run = steps.timed_step(part, torch.tensor(at))
            close(found, y[:, at : at + rows])
            latencies.setdefault(-(-rows // 3), set()).add(run.latency_s)
            at += rows
            for key, whole in (("keys", keys), ("values", values)):
                close(steps.state[key][0][:, :, :at], whole[0][:, :, :at])
                # Rows that only cover the last tile are stored nowhere.
                assert torch.equal(steps.state[key][0][:, :, at:], before[key][0][:, :, at:])
    assert made.written.row_tile == 3  # 6 rows are two tiles of 3
    for found in latencies.values():  # pipelines that a position begins, or leaves empty, are some cycles
        assert max(found) == pytest.approx(min(found), rel=0.01)
    assert max(latencies[1]) < min(latencies[2])
    with pytest.raises(TensorError, match="position 12 is beyond the capacity of 12 rows of keys"):
        steps.step(x[:, :2], torch.tensor(11))
    close(steps.step(x[:, 11:], torch.tensor(11)), y[:, 11:])


def test_all_lengths_are_well_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forall, "SECONDS", 600.0)  # on a computer with much else to do
    _, _, made = made_for("gpt2", 6)
    proof = prove(made.text, "p.py", "1 <= length <= 6")
    assert proof.ok, str(proof)
    assert "length: Size[6] = 6\nrow_tiles = (length + 2) // 3\n" in made.text


@pytest.mark.long
def test_kernels_without_attention() -> None:
    module = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).eval()
    example = torch.randn(1, 20, 16)
    plain = streamed(module, (example,), Knobs(rows=8, columns=8, depth=8))
    made = streamed(module, (example,), Knobs(rows=8, columns=8, depth=8), any_length=True)
    grouped = made.changed(groups={node.name: k for k, node in enumerate(made.dataflow.nodes)})
    outward = made.changed(Knobs(rows=8, columns=8, depth=8, outward=1, packed=1, ping_pong=1))
    for rows in (20, 1, 7, 8, 9):
        x = torch.randn(1, rows, 16)
        with torch.no_grad():
            expected = module(x)
        for one in (made, grouped, outward, made.with_normal_depths()):
            assert one.sizes(x) == {"length": rows}
            close(one.run(x), expected)
    assert made.timed_run(example)[1].latency_s == plain.timed_run(example)[1].latency_s
    np.testing.assert_array_equal(made.run(example), plain.run(example))
    assert plain.sizes(example) == {}


@pytest.mark.long
def test_hls_gives_the_same_bits(tmp_path: Path) -> None:
    _, state, made = made_for("llama", 5, Knobs(rows=2, columns=8, depth=16, packed=1))
    regions = built(tmp_path, {"block": program_of(made.machine.overlay)})
    assert regions["block"].sizes == ["length"]
    for rows, position in ((5, 0), (1, 5), (4, 7)):
        arguments = {"x": torch.randn(1, rows, 32), "position": torch.tensor(position), **state}
        tensors, sizes = made.tensors(**arguments), made.sizes(**arguments)
        expected, _ = run_on_tensors(with_sizes(made.machine, sizes), tensors)
        got = run_native(regions["block"], tensors, sizes=sizes)
        assert {key: value.tobytes() for key, value in got.items()} == {
            key: value.tobytes() for key, value in expected.items()
        }


@pytest.mark.long
def test_a_generated_machine_is_for_all_lengths() -> None:
    module, state = Fixed([block("gpt2", **BLOCKS["gpt2"])]).eval(), caches("gpt2")
    example = {"x": torch.randn(1, 8, 32), "position": torch.tensor(0), **state}
    device = device_named("u55c")
    made = generate(module, example, device, Knobs(rows=4, columns=16, depth=16, packed=1), any_length=True)
    x = torch.randn(1, CAPACITY, 32)
    with torch.no_grad():
        y, _, _ = module(x, torch.tensor(0), **state)
    arguments = {"x": x[:, :3], "position": torch.tensor(0), **state}
    program = with_sizes(made.machine, made.streamed.sizes(**arguments))
    outputs, run = run_on_tensors(program, made.streamed.tensors(**arguments))
    (name,) = (tensor for tensor in made.streamed.written.outputs.values() if not tensor.startswith(("keys", "values")))
    found = made.streamed.written.elements(name, outputs[name], 3)
    np.testing.assert_allclose(found.reshape(1, 3, 32), y[:, :3], rtol=TOLERANCE, atol=TOLERANCE)
    assert run.latency_s < made.latency_s
    assert program.overlay is made.machine.overlay


def attention(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.softmax(nn.functional.silu(q) @ nn.functional.silu(k).transpose(1, 2), -1) @ nn.functional.silu(k)


def test_refused() -> None:
    x = torch.randn(1, 4, 8)
    with pytest.raises(UnsupportedError, match=r"as many as the rows of the sequence.*fixed capacity"):
        streamed(Function(lambda x: attention(x, x)).eval(), (x,), any_length=True)
    module, state = Fixed([block("gpt2", **BLOCKS["gpt2"])]).eval(), caches("gpt2", batch=2)
    with pytest.raises(UnsupportedError, match="for one sequence"):
        streamed(module, {"x": torch.randn(2, 4, 32), "position": torch.tensor(0), **state}, any_length=True)
    perceptron = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).eval()
    with pytest.raises(ProgramError, match="all kernels have tiles of 4 rows"):
        streamed(perceptron, (x,), Knobs(rows=4, of={"gelu_1": {"rows": 2}}), any_length=True)
    made = streamed(perceptron, (x,), Knobs(rows=4), any_length=True)
    with pytest.raises(TensorError, match="a sequence of 5 rows; the program is for 1 to 4"):
        made.run(torch.randn(1, 5, 8))
    with pytest.raises(TensorError, match=r"\(1, 3, 9\); the module was traced with"):
        made.run(torch.randn(1, 3, 9))
    by_rows = Function(lambda x: nn.functional.silu(x) / x.shape[1]).eval()
    with pytest.raises(TensorError, match=r"computes .* otherwise"):
        streamed(by_rows, (x,), any_length=True).run(torch.randn(1, 2, 8))


def test_other_rows_keep_their_number() -> None:
    """Keys of another tensor, as in attention across two sequences: each run has all of them."""
    keys = torch.randn(1, 6, 8)
    function = Function(attention).eval()
    made = streamed(function, (torch.randn(1, 5, 8), keys), Knobs(rows=2, columns=4, depth=4), any_length=True)
    for rows in (5, 1, 2):
        x = torch.randn(1, rows, 8)
        close(made.run(x, keys), function(x, keys))
