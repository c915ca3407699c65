"""Sequences of different lengths in one batch: computed each for itself, and paid for as such."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rsn.base.errors import ScheduleError, TensorError
from rsn.cli.main import main
from rsn.isa.overlays import XNN
from rsn.scheduler.build import build
from rsn.scheduler.schedule import PAPER, Interleave, Schedule

from .networks import Maker, error, execute

LENGTHS = [300, 1, 128, 257]


@pytest.mark.parametrize("schedule", [PAPER, Schedule(interleave=Interleave.LISTED)], ids=["paper", "listed"])
def test_each_sequence_is_computed_as_if_it_were_alone(schedule: Schedule) -> None:
    network = Maker().encoder(4, 300, 64, 2, 96).with_lengths(LENGTHS)
    x = np.random.default_rng(1).standard_normal((4, 300, 64)).astype(np.float32)
    y, _, _ = execute(network, x, XNN, schedule)
    for b, n in enumerate(LENGTHS):
        alone, _, _ = execute(Maker().encoder(1, n, 64, 2, 96), x[b : b + 1, :n], XNN, schedule)
        assert error(y[b, :n], alone[0]) < 1e-6


def test_a_batch_costs_what_its_sequences_need() -> None:
    """1024 rows in all, of 2048 if each were as long as the longest: about half the time, and less for attention, which
    grows with the square of the rows."""
    full = Maker().encoder(4, 512, 1024, 16, 4096)
    ragged, equal = full.with_lengths([512, 256, 128, 128]), Maker().encoder(2, 512, 1024, 16, 4096)
    times = [execute_time(n) for n in (full, ragged, equal)]
    assert times[1] < 0.6 * times[0]
    assert times[1] < 1.1 * times[2]


def execute_time(network: object) -> float:
    from rsn.hw.sim.machine import Machine

    program = build(network, XNN, PAPER).program
    return Machine(program, program.image).timing.latency


def test_rows_beyond_a_length_take_no_part_and_come_back_as_0(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import rsn

    torch.manual_seed(0)
    one = torch.nn.TransformerEncoderLayer(72, 3, 200, activation="gelu", batch_first=True)
    model = torch.nn.Sequential(torch.nn.TransformerEncoder(one, 2, enable_nested_tensor=False)).eval()
    x = torch.randn(3, 200, 72)
    x[1, 50:] = torch.nan  # not looked at
    lengths = [200, 50, 129]
    with rsn.compile(model, (x,), lengths=lengths) as compiled:
        y = compiled(x)
        assert [c for c in compiled.compare(x) if c.difference > 1e-4] == []
        assert "3 sequences of 200, 50, 129 rows" in compiled.explain()
    with torch.no_grad():
        for b, n in enumerate(lengths):
            assert error(y[b, :n].numpy(), model(x[b : b + 1, :n])[0].numpy()) < 1e-4
    assert not y[1, 50:].any()


def test_a_mask_cannot_be_longer_than_the_program(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import rsn

    one = torch.nn.TransformerEncoderLayer(64, 1, 64, activation="gelu", batch_first=True)
    model = torch.nn.TransformerEncoder(one, 1, enable_nested_tensor=False).eval()
    x, padding = torch.randn(2, 20, 64), torch.arange(20)[None] >= torch.tensor([[20], [7]])
    with rsn.compile(model, {"src": x, "src_key_padding_mask": padding}, lengths=[20, 7]) as compiled:
        got = compiled(src=x, src_key_padding_mask=padding)
        with torch.no_grad():
            assert error(got[1, :7].numpy(), model(x, src_key_padding_mask=padding)[1, :7].numpy()) < 1e-4
        padding[1, 7] = False
        with pytest.raises(TensorError, match="sequence 1 has 8 rows; compiled for at most 7"):
            compiled(src=x, src_key_padding_mask=padding)


@pytest.mark.parametrize(
    ("lengths", "complaint"),
    [
        ([5], "lengths: 1 given for a batch of 2 sequences"),
        ([5, 0], "lengths: 0 for sequence 1; a length must be from 1 to 20 rows"),
        ([21, 5], "lengths: 21 for sequence 0; a length must be from 1 to 20 rows"),
    ],
)
def test_lengths_that_do_not_fit(lengths: list[int], complaint: str) -> None:
    with pytest.raises(ScheduleError, match=complaint):
        Maker().encoder(2, 20, 64, 1, 64).with_lengths(lengths)


@pytest.mark.long
def test_the_command_line(tmp_path: Path) -> None:
    """The program carries the lengths through text and container, and `--compare` knows them."""
    rsn = CliRunner()
    text, binary, weights = (str(tmp_path / name) for name in ("m.rsn", "m.bin", "m.safetensors"))
    made = [
        "compile",
        "minilm",
        "--batch",
        "2",
        "--seq",
        "140",
        "--lengths",
        "140,31",
        "-o",
        text,
        "--weights",
        weights,
    ]
    for command in (made, ["asm", text, "-o", binary], ["check", binary]):
        assert rsn.invoke(main, command).exit_code == 0, command
    compared = rsn.invoke(main, ["run", binary, "--weights", weights, "--compare", "minilm"])
    assert compared.exit_code == 0, compared.output
    assert "results within 0.0001 of PyTorch" in compared.output
    wrong = rsn.invoke(main, [*made[:6], "--lengths", "140;31", "-o", text])
    assert wrong.exit_code == 2
    assert "--lengths 140;31: whole numbers and commas" in wrong.output
