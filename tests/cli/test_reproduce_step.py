"""rsn reproduce step: the figures of STeP beside the programs of dynamic streams."""

from __future__ import annotations

import json
from collections import Counter
from fnmatch import fnmatch
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rsn.cli import reproduce
from rsn.cli.main import main
from rsn.cli.published.step import (
    NOTES,
    claims,
    findings,
    measure,
    published,
    step_rows,
    step_summary,
    whole_memory,
)
from rsn.streams.dynamic.errors import StepError
from rsn.streams.dynamic.programs.figures import (
    ExpertPoint,
    FigurePoint,
    GatedPoint,
    PointResult,
    cache_lengths,
    deal,
    expert_counts,
    pareto_improvement,
    points,
)
from rsn.tests.effort import examples


def some(*patterns: str) -> list[FigurePoint]:
    return [point for point in points() if any(fnmatch(point.key, pattern) for pattern in patterns)]


@pytest.fixture(scope="module")
def few() -> dict[str, PointResult]:
    """Points that take a second or two."""
    return measure(some("fig8.*", "fig9.mixtral.tile_16", "fig9.mixtral.dynamic", "fig18.*"), workers=1)


def within(rows: list[Any], quantity: str, percent: float) -> int:
    """Check the rows of a quantity, and count them."""
    mine = [row for row in rows if row.quantity == quantity]
    far = {row.row: row.error_pct for row in mine if abs(row.error_pct) > percent}
    assert not far
    return len(mine)


@pytest.mark.long
def test_of_gated_layers_and_of_mixtral(few: dict[str, PointResult]) -> None:
    rows = step_rows(few)
    assert within(rows, "traffic", 0.1) == 15 + 2
    assert within(rows, "memory", 0.1) == 2
    assert within(rows, "cycles", 6) == 15 + 2
    assert within(rows, "tiles", 0) == 6
    (tiling,) = (one for one in findings(few) if one.name == "Fig. 18: hierarchical tiling")
    # Loads bound both; tiles of a unit need buffers, and the time to fill the last ones.
    assert 1 < tiling.numbers["cycles"] / tiling.numbers["large_cycles"] < 1.1
    assert tiling.numbers["kb"] > 2 * tiling.numbers["large_kb"]
    assert all(one.traffic == one.moved for one in few.values())  # as expressions, and as the run counts
    # What was chosen with rows in view is not called a prediction.
    assert {row.kind for row in rows if row.key.startswith("fig8") and row.quantity == "cycles"} == {"calibrated"}
    assert {row.kind for row in rows if row.key.startswith("fig9")} == {"predicted"}
    summary = step_summary(rows)
    assert (summary["cycles, predicted"]["rows"], summary["cycles, calibrated"]["rows"]) == (2, 15)


@pytest.mark.long
@pytest.mark.usefixtures("warm_processes")
def test_of_all_figures() -> None:
    """One or two points of each but figures 8, 9 and 18, which the test above has; test-full has all."""
    of_experts = some("fig10.mixtral.*_512", "fig12.*_4")
    measured = measure([*of_experts, *some("fig15.*_64.*", "b64.high.rows_961.*")])
    rows = step_rows(measured)
    assert within(rows, "traffic", 0.1) == 1
    assert within(rows, "memory", 0.1) == 1 + 1
    assert within(rows, "cycles", 10) == 1 + 2 + 2
    assert all(one.traffic == one.moved for one in measured.values())  # as expressions, and as the run counts
    depends = {key: one.depends_on_time for key, one in measured.items()}
    assert depends["fig12.dynamic.regions_4"]
    assert [depends[f"fig15.requests_64.{one}"] for one in ("coarse", "interleaved", "dynamic")] == [False, False, True]
    (queues,) = (one for one in findings(measured) if one.name.startswith("Fig. 14"))
    assert queues.numbers["held_1"] > queues.numbers["held_2"] > queues.numbers["held_4"] > 1


@pytest.mark.long
@pytest.mark.full
def test_the_whole_table() -> None:
    result = CliRunner().invoke(main, ["reproduce", "step", "--json"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    summary = said["summary"]
    assert (summary["traffic"]["rows"], summary["memory"]["rows"], summary["cycles"]["rows"]) == (41, 26 + 6, 91)
    assert max(abs(summary[name]["worst_error_pct"]) for name in ("traffic", "memory")) < 0.1
    assert summary["cycles"]["mean_abs_error_pct"] < 8
    assert len(said["findings"]) >= 5
    unexplained = [row["row"] for row in said["rows"] if "explanation" in row and not row["explanation"]]
    assert not unexplained


@pytest.mark.parametrize("key", ["fig18.large", "fig9.none"])
def test_only_points_of_experts_have_experts_that_idle(key: str) -> None:
    with pytest.raises(StepError, match=f"{key} is no point of experts"):
        whole_memory(key)


def test_every_published_point_has_a_row_or_a_reason_to_have_none() -> None:
    everything = {point.key: PointResult(1, 1, 1, 1, 1, False) for point in points()}
    rows = step_rows(everything)
    keys = [row.key for row in rows]
    assert len(keys) == len(set(keys))
    others = {key for key in published() if key not in keys}
    assert others == {
        key for key in published() if key.startswith("claims") or any(fnmatch(key, one) for one in NOTES.not_reproduced)
    }
    counted = Counter(row.quantity for row in rows)
    assert (counted["traffic"], counted["memory"], counted["cycles"], counted["tiles"]) == (41, 26 + 6, 91, 6)


@pytest.mark.long
def test_no_explanation_is_left_over() -> None:
    everything = {point.key: PointResult(1, 1, 1, 1, 1, False) for point in points()}
    names = [row.key for row in (*step_rows(everything), *claims(everything))]
    patterns = [*NOTES.fits, *(pattern for pattern in NOTES.explained if not pattern.startswith("claims.*"))]
    assert all(any(fnmatch(name, pattern) for name in names) for pattern in patterns)


def test_the_command(few: dict[str, PointResult], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "measure", lambda progress: few)
    monkeypatch.setattr(reproduce, "claims", lambda measured: [])
    result = CliRunner().invoke(main, ["reproduce", "step"])
    assert result.exit_code == 0, result.output
    assert "fig9 mixtral dynamic cycles" in result.output
    assert "traffic                   17 rows, mean 0.0" in result.output
    assert "Memory on chip: 4 bytes, one tile, no products." in result.output
    for wrong in (["--set", "launch_us=1"], ["--schedule", "best"]):
        refused = CliRunner().invoke(main, ["reproduce", "step", *wrong])
        assert refused.exit_code == 2
        assert "--schedule and --set are of the overlay; the figures of step have none" in refused.output


@examples(200, 20)
@given(st.integers(1, 40), st.data())
def test_rows_are_dealt_out(rows: int, data: st.DataObject) -> None:
    chosen = data.draw(st.integers(1, 4))
    which = [
        tuple(sorted(data.draw(st.permutations(range(6)))[:chosen])) for _ in range(rows)
    ]  # so that there is a way
    counts = [sum(expert in one for one in which) for expert in range(6)]
    dealt = deal(counts, rows, chosen)
    assert [sum(expert in one for one in dealt) for expert in range(6)] == counts
    assert all(len(set(one)) == chosen for one in dealt)


def test_rows_that_cannot_be_dealt_out() -> None:
    for counts in ([3, 0], [2, 2, 1], [5, -1]):
        with pytest.raises(StepError, match="deal: "):
            deal(counts, 2, 2)


def test_traces() -> None:
    assert {name: (sum(counts), sum(map(bool, counts))) for name, counts in expert_counts().items()} == {
        "mixtral_b64": (128, 8),
        "mixtral_b1024": (2048, 8),
        "qwen_b64": (512, 60),
        "qwen_b1024": (8192, 83),
    }
    assert Counter(name.split(".")[0] for name in cache_lengths()) == {"b16": 9, "b64": 9, "b80": 9}
    assert all(len(lengths) == int(name[1:3]) for name, lengths in cache_lengths().items())


def test_the_distance_from_a_frontier() -> None:
    frontier = [(10.0, 1.0), (5.0, 2.0), (2.0, 8.0), (6.0, 9.0)]  # the last is worse than another one
    assert pareto_improvement((5.0, 1.0), frontier) == 2  # from either of the first two
    assert pareto_improvement((5.0, 2.0), frontier) == 1
    assert pareto_improvement((12.0, 10.0), frontier) < 1


def test_points_are_of_known_kinds() -> None:
    assert len({point.key for point in points()}) == len(points())
    names = {"GatedPoint", "ExpertPoint", "TiledPoint", "AttentionPoint"}
    assert {type(point).__name__ for point in points()} == names
    assert sum(isinstance(point, GatedPoint) for point in points()) == 15
    assert sum(isinstance(point, ExpertPoint) for point in points()) == 26 + 1 + 12
