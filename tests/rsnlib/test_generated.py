"""Machines that are generated for PyTorch blocks: right, on a device that has room for them, with the time they say."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from rsn.base.errors import ProgramError, ResourceError
from rsn.cli.main import main
from rsn.hw.sim.machine import Machine
from rsn.rsnlib.streamed import Knobs, Streamed, streamed
from rsn.rsnlib.streamed.balance import _shared, _Steps, balanced
from rsn.rsnlib.streamed.figures import warnings
from rsn.rsnlib.streamed.generate import DEFAULT, Generated, _cycles, _sized, generate, place
from rsn.rsnlib.streamed.resources import area
from rsn.rsnlib.streamed.search import fastest, tile_candidates
from rsn.streams.placing.devices import DEVICES, U55C
from rsn.streams.placing.dies import DieError
from rsn.streams.timing.timed import BeatTiming, TimedProgram
from rsn.tests.effort import full, sampled
from rsn.tests.rsnlib.streamed_blocks import block

X = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))


@cache
def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).eval()


@cache
def made() -> Generated:
    return generate(perceptron(), (X,), U55C, replace(DEFAULT, rows=16, columns=16, depth=16))


def right(generated: Generated, module: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(generated.streamed.run(x), module(x), rtol=1e-4, atol=1e-4)


def test_a_machine_computes_what_its_block_does() -> None:
    right(made(), perceptron(), X)


def test_its_time_is_that_of_the_machine_at_the_clock_of_the_device() -> None:
    assert made().machine.overlay.clock_hz == 250e6
    assert Machine(made().machine).timing.latency == pytest.approx(made().latency_s, rel=1e-9)
    assert max(made().bounds_s.values()) <= made().latency_s


def units(generated: Generated) -> dict[str, int]:
    return dict(generated.streamed.units)


@pytest.mark.long
def test_the_published_rule_unrolls_products_as_far_as_their_streams_are_wide() -> None:
    # A tile of 16 x 16 f32 takes 16 cycles of 64 bytes; its 16^3 multiply-adds take as many with 256 in a cycle. But an
    # addition takes 6 cycles on this device, so that each of 256 sums is added to every 8 cycles at most.
    printed = place(captured(), U55C, Knobs(), rule="printed")
    assert units(printed) == {"layernorm_0": 16, "linear_1": 32, "gelu_2": 16, "linear_3": 32}
    right(printed, perceptron(), X)


@cache
def captured() -> Streamed:
    return streamed(perceptron(), (X,), Knobs(rows=16, columns=16, depth=16, unroll=4096, lanes=64, port=256))


@pytest.mark.parametrize("dsps", sampled([300, 1000, 4000], [1000]))
def test_a_balanced_machine_gains_nothing_by_another_share(dsps: int) -> None:
    balance = balanced(captured(), U55C, dsps, 1 << 20)
    names = [x.name for x in balance.plans]
    assert sum(area(n, balance.knobs.lanes_of(n.name, n.op), U55C)["DSP"] for n in balance.dataflow.nodes) <= dsps
    latency = together(balance)
    each = {n.name: area(n, 1, U55C)["DSP"] for n in balance.dataflow.nodes}
    knob = {x.name: "unroll" if x.op == "linear" else "lanes" for x in balance.plans}
    for giver in names:
        for taker in names:
            moved = {name: dict(values) for name, values in balance.knobs.of.items()}
            given = moved[giver][knob[giver]] // 4
            more = given * each[giver] // each[taker]
            if giver == taker or not given or not more:
                continue
            moved[giver][knob[giver]] -= given
            moved[taker][knob[taker]] += more
            other = balance.changed(replace(balance.knobs, of=moved), ports=balance.ports)
            assert together(other) > 0.97 * latency, (giver, taker)


def test_kernels_behind_each_other_get_units_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One alone saves no time, because the next one takes as long; all together get what others lose least with."""
    module = block("gpt2", hidden_size=64, intermediate_size=128, num_attention_heads=4)
    layer = streamed(module, (torch.randn(1, 64, 64),), replace(DEFAULT, rows=8))
    traded = _shared(layer, U55C, 2500, 1 << 20, 0.0)[0]
    monkeypatch.setattr(_Steps, "trade", lambda steps, resources: None)
    alone = _shared(layer, U55C, 2500, 1 << 20, 0.0)[0]
    assert together(traded) < 0.95 * together(alone)
    for made in (traded, alone):
        assert sum(area(n, made.knobs.lanes_of(n.name, n.op), U55C)["DSP"] for n in made.dataflow.nodes) <= 2500


def together(block: Streamed) -> int:
    times = block.sized().together({})
    assert times is not None
    return times.latency


def test_kernels_that_are_sped_up_take_nearly_the_time_that_their_program_says() -> None:
    single = captured().changed(Knobs(rows=16, columns=16, depth=16, unroll=1, lanes=1, port=1, packed=1))
    sized = single.sized()
    model = TimedProgram(sized.outcomes.bodies[0], sized.packing)
    names = [instance.task.name for instance in single.report.region.instances]
    faster = {"linear_1": 128, "gelu_2": 4, "load_linear_3_weight": 7}
    run = model.sped_up([faster.get(name, 1) for name in names]).run({})
    assert isinstance(run, BeatTiming)
    of = {"linear_1": {"unroll": 128}, "gelu_2": {"lanes": 4}, "linear_3": {"port": 7}}
    with_units = together(single.changed(replace(single.knobs, of=of)))
    assert run.latency == pytest.approx(with_units, rel=1e-3)  # the depths of loops stay
    assert with_units < together(single)


def test_knobs_that_are_given_stay() -> None:
    given = Knobs(of={"linear_1": {"unroll": 7}, "gelu_2": {"lanes": 2, "rows": 8}, "linear_3": {"outward": 0}})
    chosen = place(captured(), U55C, replace(DEFAULT, of=given.of))
    for name, values in given.of.items():
        assert chosen.streamed.knobs.of[name].items() >= values.items()
    right(chosen, perceptron(), X)


@pytest.mark.long
def test_a_little_less_memory_costs_a_little_time() -> None:
    """Depths with which the machine takes a little longer come before others, of which no time is known."""
    whole = place(captured(), U55C)
    sized, held, _, _ = _sized(whole.streamed, U55C, whole.on_chip_bytes * 19 // 20)
    assert sum(held.values()) < whole.on_chip_bytes
    assert whole.cycles < _cycles(sized.sized()) <= 1.01 * whole.cycles


def test_what_is_held_is_counted() -> None:
    # Sums, rows of the norm and vectors; a buffer of a row of tiles for each converter; streams.
    held = made().held
    assert held["linear_1"] == 4 * (16 * 16 + 128)
    assert {name: size for name, size in held.items() if "reorder" in name} == {"reorder_layernorm_0": 4 * 16 * 64}
    twice = place(made().streamed, U55C, replace(made().streamed.knobs, ping_pong=1)).held
    # Two buffers, and a third one on the stream between its two tasks.
    assert twice["reorder_layernorm_0"] == 2 * 4 * 16 * 64
    assert twice["reorder_layernorm_0_buffers"] == 4 * 16 * 64
    used = made().used()
    assert all(used[name] <= most for name, most in U55C.total.items())
    assert made().off_chip_bytes == 4 * (16 * 64 + 64 * 128 + 128 * 64 + 16 * 64)


@pytest.mark.long
def test_less_memory_gives_groups_or_a_refusal() -> None:
    # The loop over columns outside needs a converter that holds whole rows: groups save it.
    inward = replace(captured().knobs, of={"linear_3": {"outward": 0}})
    limit = place(captured(), U55C, inward).on_chip_bytes * 2 // 3
    parted = place(captured(), U55C, inward, on_chip_bytes=limit)
    assert len(parted.fusion.groups) > 1
    assert parted.on_chip_bytes <= limit
    right(parted, perceptron(), X)
    with pytest.raises(ResourceError, match=r"1,?000"):
        place(captured(), U55C, on_chip_bytes=1000)
    with pytest.raises(ResourceError, match="the budget is 0 bytes"):
        place(captured(), U55C, on_chip_bytes=0)
    with pytest.raises(ProgramError, match="no rule is named 'even'; there are balanced, printed"):
        place(captured(), U55C, rule="even")  # type: ignore[arg-type]


class Shared(nn.Module):
    """Two products, both results; the first one is read by the second one too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.first(x)
        return y, self.second(y)


def test_a_result_that_another_group_reads_is_stored_once() -> None:
    torch.manual_seed(0)
    x = torch.randn(24, 32)
    of = {"second": {"outward": 0}}
    whole = place(streamed(Shared().eval(), (x,), Knobs(rows=8, columns=16, depth=16, packed=1, of=of)), U55C)
    # Rows for each of four columns of tiles, weights for each of three rows of tiles; two results.
    moved = 4 * 24 * 32 + 3 * (32 * 64 + 64 * 32) + 24 * 64 + 24 * 32
    assert (len(whole.fusion.groups), whole.off_chip_bytes) == (1, 4 * moved)
    parted = place(whole.streamed, U55C, on_chip_bytes=whole.on_chip_bytes // 2)
    assert (len(parted.fusion.groups), parted.off_chip_bytes) == (2, 4 * (moved + 2 * 24 * 64))


def test_a_device_with_few_luts_gets_a_smaller_machine() -> None:
    few = replace(U55C, dies=({"LUT": 60_000, "DSP": 9_000, "BRAM": 200, "URAM": 40},))
    smaller = place(captured(), few)
    assert smaller.used()["LUT"] <= 45_000
    assert smaller.cycles > place(captured(), U55C).cycles


@pytest.mark.long
def test_a_die_that_is_too_small_is_an_error_with_the_numbers() -> None:
    tiny = replace(U55C, dies=({"LUT": 9_000, "DSP": 9_000, "BRAM": 200, "URAM": 4},))
    with pytest.raises(DieError, match="LUT, the largest die has room for 6,750"):
        place(captured(), tiny)
    with pytest.raises(ResourceError, match="choose a larger device, or cut the block"):
        place(captured(), replace(tiny, dies=({"LUT": 90_000, "DSP": 9, "BRAM": 200, "URAM": 4},)))


@pytest.mark.long
@pytest.mark.parametrize("device", [full("u280") if name == "u280" else name for name in DEVICES])
def test_a_decoder_layer_fits_on_every_device(device: str) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    layer = block("llama", **sizes)
    x = torch.randn(1, 16, 64)
    right(generate(layer, (x,), DEVICES[device], Knobs(rows=8, columns=16)), layer, x)


MODEL = """
import torch
from torch import nn

def block():
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).eval(), (torch.randn(8, 32),)
"""


@pytest.mark.long
def test_the_machine_travels_in_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)

    def rsn(*arguments: str) -> str:
        result = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    files = ("-o", "block.rsn", "--inputs-out", "in.npz", "--stream-program", "block.py")
    facts = json.loads(rsn("compile", "model.py:block", "--machine", "generated", "--onto", "u280", *files, "--json"))
    assert facts["device"] == "U280"
    rsn("asm", "block.rsn", "-o", "block.bin")
    run = json.loads(rsn("run", "block.bin", "--inputs", "in.npz", "--outputs", "out.npz", "--json"))
    assert run["latency_s"] == pytest.approx(facts["latency_s"], rel=1e-9)
    assert rsn("check", "block.py").startswith("block.py: ok")
    given, got = np.load("in.npz"), np.load("out.npz")
    weights = [given[name] for name in given.files]
    assert any(w.size == 32 * 64 for w in weights)
    (y,) = (got[name] for name in got.files)
    assert y.size == 8 * 32
    assert np.abs(y).max() > 0


@pytest.mark.long
def test_a_short_search_is_no_worse_than_the_tiles_that_are_tried_first() -> None:
    torch.manual_seed(0)
    x = torch.randn(70, 64)
    block = streamed(perceptron(), (x,), DEFAULT)
    tried = tile_candidates(block, DEFAULT, ())
    assert tried[0] == DEFAULT
    assert len({(k.rows, k.columns, k.depth) for k in tried}) == len(tried) > 2
    assert {k.rows for k in tile_candidates(block, DEFAULT, ("rows",))} == {DEFAULT.rows}
    assert tile_candidates(block, DEFAULT, ("rows", "columns", "depth")) == (DEFAULT,)
    found = fastest(block, U55C, tried[:3])
    first = place(block, U55C)
    assert found.cycles <= first.cycles
    right(found, perceptron(), x)
    with pytest.raises(ResourceError, match="the budget is 0 bytes"):
        fastest(block, U55C, tried[:2], on_chip_bytes=0)


def test_a_machine_that_loads_weights_again_and_again_has_a_warning() -> None:
    few = place(captured(), U55C, replace(DEFAULT, rows=2))
    assert few.needed_bytes == 4 * (16 * 64 + 64 * 128 + 128 * 64 + 16 * 64)
    assert {(x.operator, x.times, x.knob) for x in few.repeated} == {("linear_1", 8, "rows"), ("linear_3", 8, "rows")}
    (warning,) = warnings(few)
    assert f"{few.off_chip_bytes:,} bytes" in warning
    assert "linear_1_weight 8 times" in warning
    assert "--set rows=4" in warning
    assert not [*warnings(made())]


@pytest.mark.long
@pytest.mark.usefixtures("warm_processes")
def test_a_search_finds_no_worse_machine_and_says_the_same_again(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)

    def tuned(*more: str) -> dict[str, object]:
        spec = f"{tmp_path / 'model.py'}:block"
        asked = ["tune", spec, "--onto", "u55c", "--trials", "3", "--json", *more]
        result = CliRunner().invoke(main, asked, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        found: dict[str, object] = json.loads(result.stdout)
        return found

    first = tuned("--page", str(tmp_path / "page.html"), "--study", str(tmp_path / "study.log"))
    costs = [trial["latency ms"] for trial in first["trials"] if "latency ms" in trial]  # type: ignore[attr-defined]
    assert first["best"][0]["latency ms"] == min(costs) <= costs[0]  # type: ignore[index]
    assert tuned("--workers", "2") == first
    assert "plotly" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [("row=3", "KNOB=NUMBER"), ("rows", "KNOB=NUMBER"), ("rows=many", "KNOB=NUMBER"), ("rows=0", "is 0")],
)
def test_knobs_that_do_not_exist_are_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    spec, output = f"{tmp_path / 'model.py'}:block", str(tmp_path / "x.rsn")
    result = CliRunner().invoke(main, ["compile", spec, "--machine", "generated", "--set", text, "-o", output])
    assert result.exit_code in (1, 2)
    assert told in result.output
