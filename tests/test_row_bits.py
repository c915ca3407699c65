"""Products that get rows of 16 bits by data, on xnn8."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import rsn
from rsn.cli.main import main
from rsn.rsnlib.graph_split import Examples


def encoder_with_outliers() -> torch.nn.Module:
    """In layer 1, a block of hidden columns is larger than the other one, whose rows of 8 bits then lose."""
    torch.manual_seed(0)
    model = rsn.nn.Encoder(layers=2, hidden=64, heads=1, inner=128).eval()
    with torch.no_grad():
        model.layers[1].ffn.up.weight[:64] *= 16
        model.layers[1].ffn.up.bias[:64] *= 16
        model.layers[1].ffn.down.weight[:, :64] /= 16
    return model


def calls() -> list[Examples]:
    torch.manual_seed(1)
    return [(torch.randn(2, 16, 64),) for _ in range(2)]


def test_what_loses_most_is_chosen_first() -> None:
    model, data = encoder_with_outliers(), calls()
    (first,) = rsn.choose_rows16(model, data, until=1)
    assert first == "layers.1.ffn.down"
    qualities = [rsn.quality(rsn.in_integers(model, data[0], rows16=rows), model, data) for rows in ([], [first])]
    lost = [1 - found.mean for found in qualities]
    assert lost[1] < lost[0] / 4
    cosine = qualities[0].worst + 0.9 * (qualities[1].worst - qualities[0].worst)
    assert rsn.choose_rows16(model, data, until=cosine) == [first]
    assert rsn.choose_rows16(model, data, until=qualities[0].worst) == []
    compiled = rsn.compile(model, data[0], overlay="xnn8", rows16=[first])
    assert torch.equal(compiled(*data[0]), rsn.in_integers(model, data[0], rows16=[first])(*data[0]))


def test_each_product_once() -> None:
    model, data = encoder_with_outliers(), calls()[:1]
    found = rsn.choose_rows16(model, data, until=100)
    parts = "attn.query", "attn.key", "attn.value", "attn.out", "ffn.up", "ffn.down"
    assert sorted(found) == sorted(f"layers.{i}.{part}" for i in range(2) for part in parts)


def test_refused() -> None:
    model, data = encoder_with_outliers(), calls()[:1]
    with pytest.raises(rsn.errors.ScheduleError, match=r"with all products that fit, not 0\.9999999; they are 12 of"):
        rsn.choose_rows16(model, data, until=0.9999999)
    for given, until in (([], 1.0), (data, 0.0), (data, float("nan"))):
        with pytest.raises(rsn.errors.ScheduleError, match="calls, and a number of products or a cosine"):
            rsn.choose_rows16(model, given, until=until)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--overlay", "xnn8", "--rows16", "auto"], "takes --rows16-calls and --rows16-until"),
        (["--overlay", "xnn8", "--rows16-until", "2"], "go with --rows16 auto"),
        (["--rows16-until", "2"], "--rows16-until: only with --overlay xnn8"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], said: str, tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["compile", "gemm:16x64x64", "-o", str(tmp_path / "a.rsn"), *options])
    assert told.exit_code == 2
    assert said in told.output
