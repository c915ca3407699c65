"""What `explain` says of the best possible time."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
import torch

import rsn
from rsn.cli.main import main
from rsn.host.model.compiled import modelled_layers
from rsn.isa.overlays import XNN
from rsn.rsnlib.bound_table import NAME, bound_table
from rsn.rsnlib.trace import trace
from rsn.scheduler.bounds import ProgramBound, SegmentBound, bounds
from rsn.scheduler.schedule import Loops, Schedule


def bound(*rows: tuple[str, dict[str, float]], calibrated: tuple[str, ...] = ()) -> ProgramBound:
    whole: Counter[str] = Counter()
    for _, seconds in rows:
        whole.update(seconds)  # type: ignore[arg-type]
    return ProgramBound(whole, tuple(SegmentBound(seconds, name, "", ()) for name, seconds in rows), (), calibrated)


def cells(line: str) -> list[str]:
    return line.split()


def test_a_row_for_each_segment_and_a_total() -> None:
    made = bound(("a", {"ddr": 1e-3, "6 MME": 4e-3}), ("b", {"ddr": 5e-3}), calibrated=("norm_us",))
    lines = bound_table(made, {"a": 6e-3, "b": 4e-3}, 10.5e-3)
    assert lines[0] == "how far from the best possible: 1.75 times 6.000 ms, the bound by ddr"
    assert cells(lines[1]) == ["segment", "modelled", "ms", "x", "bound", "ddr", "6", "MME"]
    assert cells(lines[2]) == ["a", "6.000", "1.50", "1.000", "*4.000"]
    assert cells(lines[3]) == ["b", "4.000", "0.80", "*5.000", "-"]
    assert cells(lines[4]) == ["total", "10.500", "1.75", "*6.000", "4.000"]
    assert len({len(line) for line in lines[1:5]}) == 1  # aligned
    assert lines[-1] == "calibrated rates in them: norm_us"


def test_short_programs_are_in_microseconds() -> None:
    lines = bound_table(bound(("a", {"ddr": 1e-6})), {"a": 2e-6}, 4e-5)
    assert lines[0] == "how far from the best possible: 40.00 times 1.000 us, the bound by ddr"
    assert cells(lines[2]) == ["a", "2.000", "2.00", "*1.000"]
    assert not any("calibrated" in line for line in lines)


def test_many_segments_share_rows() -> None:
    rows = [(f"layer_{i}_{part}", {"ddr": 1e-3}) for i in range(12) for part in ("up", "down")]
    lines = bound_table(bound(*rows), {name: 2e-3 for name, _ in rows}, 50e-3)
    assert [cells(line) for line in lines[2:5]] == [
        ["layer_*_up", "x12", "24.000", "2.00", "*12.000"],
        ["layer_*_down", "x12", "24.000", "2.00", "*12.000"],
        ["total", "50.000", "2.08", "*24.000"],
    ]


def test_long_names_are_cut_and_a_machine_without_bounds_says_nothing() -> None:
    (_, _, line, *_) = bound_table(bound(("n" * 90, {"ddr": 1.0})), {"n" * 90: 1.0}, 1.0)
    assert line.startswith(f"{'n' * (NAME - 3)}...  ")
    assert bound_table(bound(("a", {})), {"a": 1.0}, 1.0) == []


def test_explain_shows_it() -> None:
    model, x = rsn.nn.Encoder(2, 128, 2, 256).eval(), torch.randn(2, 100, 128)
    with rsn.compile(model, (x,), schedule=Schedule(loops=Loops.ROWS)) as compiled:
        network = trace(model, (x,)).network
        modelled = modelled_layers(compiled.program, network)
        text = compiled.explain()
    assert modelled.bound == bounds(network, XNN, compiled.program.segments)
    assert modelled.bound is not None
    assert "\n".join(bound_table(modelled.bound, modelled.segments, modelled.latency_s)) in text
    assert "layers_0_attn_query,key,value " in text
    assert modelled.latency_s > modelled.bound.bound_s > 0


@pytest.mark.long
def test_the_command_shows_it(tmp_path: Path) -> None:
    command = ["compile", "mlp", "--batch", "1", "--seq", "16", "-o", str(tmp_path / "x.rsn")]
    shown = CliRunner().invoke(main, [*command, "--explain"], catch_exceptions=False).stdout
    plain = CliRunner().invoke(main, command, catch_exceptions=False).stdout
    assert shown.startswith(plain)
    assert "how far from the best possible: " in shown
    facts = json.loads(CliRunner().invoke(main, [*command, "--explain", "--json"], catch_exceptions=False).stdout)
    assert facts["bound"]["binding"] == "lpddr"
    assert facts["modelled"]["latency_s"] > facts["bound"]["bound_s"] > 0
    assert [s["name"] for s in facts["bound"]["segments"]] == [*facts["modelled"]["segments"]]
    assert "modelled" not in json.loads(CliRunner().invoke(main, [*command, "--json"], catch_exceptions=False).stdout)
