"""rsn reproduce: the paper's rows, each with what the model says."""

from __future__ import annotations

import json
import math
import re
from fnmatch import fnmatch
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rsn.cli import reproduce
from rsn.cli.main import main
from rsn.cli.published import networks, rows
from rsn.cli.reproduce import TABLES
from rsn.isa.overlays import XNN_BASE
from rsn.scheduler.lower import lower
from rsn.scheduler.schedule import PAPER, PUBLISHED


def rsn(*args: object) -> Result:
    result = CliRunner().invoke(main, ["reproduce", *map(str, args)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # would be a traceback
    return result


@pytest.fixture(scope="module")
def made() -> list[rows.PublishedRow]:
    """Every row of every table, as the command has it."""
    return rows.rows_of(list(TABLES), PUBLISHED)


def facts(*args: object) -> dict[str, Any]:
    result = rsn(*args, "--json")
    assert result.exit_code == 0, result.output
    out: dict[str, Any] = json.loads(result.stdout)
    return out


def test_tables_of_the_command_are_those_that_exist() -> None:
    assert list(rows.TABLES) == list(TABLES) == list(rows.SHARES)


@pytest.mark.long
def test_every_published_number_has_a_row_or_a_reason_to_have_none(made: list[rows.PublishedRow]) -> None:
    keys = [row.key for row in made]
    assert len(keys) == len(set(keys))
    left_out = {key for key in rows.published() if any(fnmatch(key, p) for p in rows.NOTES.not_reproduced)}
    assert set(keys) | left_out == set(rows.published())
    assert not set(keys) & left_out


@pytest.mark.long
def test_no_pattern_is_left_over(made: list[rows.PublishedRow]) -> None:
    """Of what calibrated the model, of what is explained, of what is not reproduced."""
    keys = [row.key for row in made]
    for pattern in (*rows.NOTES.fits, *rows.NOTES.explained, *rows.NOTES.known, *rows.NOTES.untimed):
        assert any(fnmatch(key, pattern) for key in keys), pattern
    for pattern in rows.NOTES.not_reproduced:
        assert any(fnmatch(key, pattern) for key in rows.published()), pattern


@pytest.mark.long
def test_rows_are_numbers_and_their_errors_follow(made: list[rows.PublishedRow]) -> None:
    for row in made:
        said = row.as_json()
        assert {"table", "row", "paper", "model", "error_pct", "kind"} <= set(said)
        assert said["table"] == row.table
        assert said["kind"] in ("calibrated", "predicted")
        assert all(math.isfinite(said[n]) for n in ("paper", "model"))
        assert said["paper"] == rows.published()[row.key]
        assert said["error_pct"] == pytest.approx(100 * (said["model"] - said["paper"]) / said["paper"])
        assert ("explanation" in said) == (abs(said["error_pct"]) > 6)
        assert "{" not in row.explanation + row.known
        assert said["timed"] == row.timed == ("untimed" not in said)
        assert said.get("fitted", []) == (list(row.fit.constants) if row.fit else [])
    names = [(row.table, row.row) for row in made]
    assert len(names) == len(set(names))


@pytest.mark.long
def test_what_calibrated_the_model(made: list[rows.PublishedRow]) -> None:
    """Constants named as fitted on a row are those that the overlay marks, and each was fitted on some row."""
    fitted = rows.calibrated_parameters()
    assert fitted == [name for name, rate in XNN_BASE.rates.items() if rate.calibrated]
    assert len(fitted) <= 12
    assert {name for fit in rows.NOTES.fits.values() for name in fit.constants} == set(fitted)
    kinds = {row.key: row.kind for row in made}
    assert kinds["table6.rsn_xnn.1024"] == "predicted"
    assert kinds["table6.rsn_xnn.6144"] == "calibrated"
    times = {row.kind for row in made if row.table == "table3" and row.unit == "ms"}
    assert times == {"calibrated"}, "its units were told from its own numbers"


@pytest.mark.long
def test_a_row_that_may_have_been_fitted_on_is_no_prediction(made: list[rows.PublishedRow]) -> None:
    for row in made:
        if row.key in ("table10.vck190.1", "table10.vck190.8", "table9.qkv.together"):
            assert row.kind == "calibrated"
            assert rows.PERHAPS_NOTE in row.as_json()["note"]


@pytest.mark.long
def test_what_leaves_out_an_upload_is_never_fitted_on(made: list[rows.PublishedRow]) -> None:
    for row in made:
        if row.key in ("table10.vck190.2", "table10.vck190.4"):
            assert row.fit is None
            assert "leaves out about 5 ms: an upload" in row.as_json()["note"]
            assert row.model > row.paper, "what is modelled leaves nothing out"


@pytest.mark.long
def test_only_rows_with_what_a_constant_is_of_were_fitted_on(made: list[rows.PublishedRow]) -> None:
    """A product without LayerNorm says nothing of its time."""
    without = [r for r in made if r.key.startswith(("table9.key", "table9.query", "table9.value", "table9.ff1"))]
    assert len(without) == 8
    assert {row.kind for row in without} == {"predicted"}


@pytest.mark.long
def test_timed_rows_are_near(made: list[rows.PublishedRow]) -> None:
    """What the model of time is held to."""
    timed = [row for row in made if row.timed]
    assert len(timed) == 34
    assert sum(abs(row.error_pct) for row in timed) / len(timed) < 3
    assert max(abs(row.error_pct) for row in timed) < 6
    (alone,) = (row for row in timed if row.key == "table10.vck190.1")
    assert abs(alone.error_pct) < 3


@pytest.mark.long
def test_timed_rows_are_all_but_these(made: list[rows.PublishedRow]) -> None:
    others = [row for row in made if not row.timed]
    assert [row.key for row in others if row.table not in ("table3", "fig9")] == [
        "table7.rsn_xnn.NCF",
        "table9.attention_mm1.no_optimize",
        "table9.attention_mm2.no_optimize",
        "table10.dram_gb_b8",
        "table11.factor.0.5",
        "table11.inf_bw_no_setup",
        "table11.inf_compute",
    ]
    assert not any(row.timed for row in made if row.table in ("table3", "fig9"))


def test_less_data_is_moved_on_chip_too() -> None:
    """As the paper had its bandwidths (paper section 5.7)."""
    rates = XNN_BASE.rates
    swept = XNN_BASE.with_rates(**rows._sweep(rates, 4)).seconds
    changed = {name: swept[name] / XNN_BASE.seconds[name] for name in rates}
    assert {name for name, ratio in changed.items() if ratio != 1} == {*rows.BANDWIDTHS, "mem_word"}
    assert all(changed[name] == pytest.approx(1 / 4) for name in (*rows.BANDWIDTHS, "mem_word"))
    endless = XNN_BASE.with_rates(**rows._sweep(rates, math.inf)).seconds
    assert all(endless[name] == 0 for name in (*rows.BANDWIDTHS, "mem_word"))


@pytest.mark.long
def test_the_same_measurement_is_modelled_alike(made: list[rows.PublishedRow]) -> None:
    model = {row.key: row.model for row in made}
    assert model["table7.rsn_xnn.BERT"] == model["table9.encoder.final"]
    assert model["fig18.tasks_per_s_b6"] == pytest.approx(6e3 / model["table9.encoder.final"])
    assert model["table11.factor.1"] == model["table10.vck190.8"]


@pytest.mark.long
def test_fitted_rows_stay_fitted(made: list[rows.PublishedRow]) -> None:
    """Table 3 is arithmetic; what was certainly fitted on is within 6 %."""
    assert max(abs(r.error_pct) for r in made if r.table == "table3") < 0.5
    assert max(abs(r.error_pct) for r in made if r.fit is not None and r.fit.certain) < 6


def test_networks_hold_no_weights() -> None:
    """24 layers of BERT-Large would be 1.2 GB."""
    assert all(
        layer.weight.base.nbytes == 4 for layer in networks.encoder(8, 384, 24).layers if hasattr(layer, "weight")
    )


def test_segments_are_parts_of_the_encoder() -> None:
    """Of the same layers: their products take as many engine ops together."""
    whole = lower(networks.encoder(6, 512), XNN_BASE, PAPER).kernels
    parts = [lower(networks.segment(name), XNN_BASE, PAPER).kernels for name in ("qkv", "attention", "dense_ff")]
    assert len(whole.preloaded["MME0"]) == sum(len(part.preloaded["MME0"]) for part in parts)


def test_json() -> None:
    found = facts("table6")
    assert {row["table"] for row in found["rows"]} == {"table6"}
    summary = found["summary"]
    assert summary["rows"]["all"] == len(found["rows"]) == 3
    errors = [abs(row["error_pct"]) for row in found["rows"] if row["kind"] == "predicted"]
    assert summary["mean_abs_error_pct"]["predicted"] == pytest.approx(sum(errors) / len(errors))
    assert summary["mean_abs_error_pct"]["perhaps calibrated"] is None
    all_errors = [abs(row["error_pct"]) for row in found["rows"]]
    assert summary["mean_abs_error_pct"]["timed"] == pytest.approx(sum(all_errors) / 3)
    worst = max(found["rows"], key=lambda row: abs(row["error_pct"]))
    assert summary["worst_timed"] == {name: worst[name] for name in ("table", "row", "error_pct")}
    assert facts("table3")["summary"]["worst_timed"] is None


def test_text_says_what_is_far_off_and_why() -> None:
    text = rsn("table6", "--schedule", "paper").stdout
    assert "square 3072" in text
    assert "1 row beyond 6 %" in text
    assert "4 calibrated parameters: offchip_uop, " in text
    assert "fitted on it: mme_setup_us, launch_us" in text
    assert re.search(r"timed +\d+\.\d %  \(3 rows\)\n  timed, the worst +\+26\.\d %  \(table6, square 1024\)", text)


@pytest.mark.long
def test_text_says_which_rows_are_not_timed(made: list[rows.PublishedRow], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "rows_of", lambda tables, *_: [row for row in made if row.table in tables])
    text = rsn("table7").stdout
    assert "not among the timed rows:\n  table7   NCF " in text
    assert "not among the timed rows" not in rsn("table6").stdout


@pytest.mark.long
def test_rates_and_schedule_reach_the_model() -> None:
    usual, slow, strict = (
        [row["model"] for row in facts("table6", "--schedule", *options)["rows"]]
        for options in (("paper",), ("paper", "--set", "ddr_read_gbs=10.5"), ("strict",))
    )
    assert all(a > b for a, b in zip(usual, slow, strict=True))
    assert all(a > b for a, b in zip(usual, strict, strict=True))


def test_rates_reach_the_roofline_too() -> None:
    (one, two) = (facts("table3", "--set", f"ddr_read_gbs={x}")["rows"][0]["model"] for x in (21, 42))
    assert one > two


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["table8"], 2, "'table8' is not one of"),
        (["--set", "ddr_read_gbs"], 2, "expected NAME=NUMBER"),
        (["table3", "--set", "speed=2"], 1, "no parameter 'speed'"),
        (["table3", "--schedule", "fast"], 1, "no schedule 'fast'"),
    ],
)
def test_wrong_usage(args: list[str], code: int, message: str) -> None:
    result = rsn(*args)
    assert (result.exit_code, message in result.stderr) == (code, True), result.output


def test_progress_ends_at_all() -> None:
    told: list[float] = []
    rows.rows_of(["table3", "table6"], PAPER, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1
