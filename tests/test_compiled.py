"""What `rsn.compile` gives back."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.isa.errors import ProgramError  # noqa: E402


def test_a_compiled_model_is_timed_at_other_rates() -> None:
    model = torch.nn.Linear(256, 512).eval()
    with rsn.compile(model, (torch.randn(1000, 256),)) as compiled:
        assert compiled.latency_at() == compiled.modelled.latency_s
        assert compiled.latency_at(ddr_read_gbs=5) > compiled.latency_at() > compiled.latency_at(ddr_read_gbs=100)
        with pytest.raises(ProgramError, match="no parameter 'ddr'"):
            compiled.latency_at(ddr=1)
