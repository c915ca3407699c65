"""What `rsn.compile` gives back."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.base.errors import ProgramError, TensorError, UnsupportedError  # noqa: E402
from rsn.isa.instruction_path import InstructionPath  # noqa: E402
from rsn.machine import traces  # noqa: E402


def test_a_compiled_model_is_timed_at_other_rates() -> None:
    model = torch.nn.Linear(256, 512).eval()
    with rsn.compile(model, (torch.randn(1000, 256),)) as compiled:
        assert compiled.latency_at() == compiled.modelled.latency_s
        assert compiled.latency_at(ddr_read_gbs=5) > compiled.latency_at() > compiled.latency_at(ddr_read_gbs=100)
        with pytest.raises(ProgramError, match="no parameter 'ddr'"):
            compiled.latency_at(ddr=1)


@pytest.mark.parametrize("overlay", ["xnn", "xnn2"])
def test_an_image_is_traced_once(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From `rsn.compile`, which looks for a deadlock, to calls and questions about time."""
    traced = []
    attach = traces.TraceTable.__init__

    def counted(table: traces.TraceTable, net: traces.ProcessNetwork) -> None:
        traced.append(net.workload)
        attach(table, net)

    monkeypatch.setattr(traces.TraceTable, "__init__", counted)
    x = torch.randn(1, 128, 128)
    model = rsn.nn.Encoder(1, 128, 2, 256).eval()
    with rsn.compile(model, (x,), overlay=overlay) as compiled:
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
        assert compiled.explain()
        assert compiled.modelled.latency_s == compiled.last_run.latency_s
        assert compiled.latency_at() == compiled.last_run.latency_s
    assert sum(isinstance(one, InstructionPath) for one in traced) == 1


def test_explain_knows_the_limits_of_an_overlay() -> None:
    """What it says of the machine is true of `compile`."""
    wide = rsn.nn.Encoder(1, 320, 1, 128).eval()
    with pytest.raises(UnsupportedError, match=r"layers\.0\.attn: heads of 320 columns"):
        rsn.explain(wide, (torch.randn(1, 20, 320),))
    masked, x = rsn.nn.Encoder(1, 128, 2, 128).eval(), torch.randn(1, 256, 128)
    assert "attention, 2 heads of 64, masked" in rsn.explain(masked, (x, torch.ones(1, 256, dtype=torch.int64)))
    with pytest.raises(UnsupportedError, match="overlay xnn-base"):
        rsn.explain(masked, (x, torch.ones(1, 256, dtype=torch.int64)), overlay="xnn-base")


@pytest.mark.parametrize("inputs", [[torch.randn(2, 8)], torch.randn(2, 8)])
def test_inputs_that_are_neither_a_tuple_nor_a_mapping(inputs: object) -> None:
    with pytest.raises(TensorError, match=r"write \(x,\)"):
        rsn.compile(torch.nn.Linear(8, 8).eval(), inputs)  # type: ignore[call-overload]


@pytest.mark.parametrize("schedule", [None, {}, rsn.Schedule, 3])
def test_what_is_no_schedule(schedule: object) -> None:
    with pytest.raises(rsn.errors.ScheduleError):
        rsn.compile(torch.nn.Linear(8, 8).eval(), (torch.randn(2, 8),), schedule=schedule)  # type: ignore[call-overload]
