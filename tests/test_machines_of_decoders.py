"""A decoder of today on machines with other memories, by other schedules: right, or refused by name."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from rsn.base.errors import UnsupportedError  # noqa: E402 - torch first: it may be missing
from rsn.host.model.compiled import Compiled  # noqa: E402
from rsn.isa.overlay import Overlay  # noqa: E402
from rsn.rsnlib.pipeline import Pipeline  # noqa: E402
from rsn.scheduler.build import build  # noqa: E402
from rsn.scheduler.schedule import Schedule  # noqa: E402
from rsn.tests.effort import examples  # noqa: E402
from rsn.tests.scheduler.test_memories import overlays, schedules  # noqa: E402
from rsn.tests.test_families_text import FAMILIES, assert_close, first, model  # noqa: E402

REASONS = (
    "overlay drawn lacks capability",  # a MemC of few columns turns no pairs of them
    "overlay drawn takes",  # too few rows for the keys
    "masks that are inputs and caches of several sequences; types D and E run all",
)


@cache
def traced(family: str, mask: str, rows: int) -> tuple[Any, dict[str, Any], Any]:
    """A decoder layer, its network, an example, and PyTorch's result."""
    name, config = FAMILIES[family]
    module = model(name, config | {"num_hidden_layers": 1}, "sdpa")
    generator = torch.Generator().manual_seed(1)
    keys = (torch.arange(rows) < torch.tensor([rows, rows * 2 // 3])[:, None]).long()
    arguments = {
        "input_ids": torch.randint(5, 90, (2, rows), generator=generator),
        "attention_mask": keys.flip(1) if mask == "left" else keys,
    }
    with torch.no_grad():
        return Pipeline.named("xnn").trace(module, arguments), arguments, first(module(**arguments))


@pytest.mark.long
@examples(20, quick=1)
@given(
    overlays(),
    schedules(),
    st.sampled_from(["llama", "llama, groups", "qwen3", "gemma 3"]),
    st.sampled_from(["right", "left"]),
    st.sampled_from([20, 140]),
)
def test_any_machine_and_schedule(overlay: Overlay, schedule: Schedule, family: str, mask: str, rows: int) -> None:
    found, arguments, wanted = traced(family, mask, rows)
    reason = ""
    try:
        built = build(found.network, overlay, schedule)
    except UnsupportedError as refused:
        reason = str(refused)
    if reason:
        assert reason.startswith("model.layers.0.self_attn")
        assert any(known in reason for known in REASONS), reason
        return
    with Compiled(found, built, "sim") as compiled, torch.no_grad():
        assert_close(first(compiled(**arguments)), wanted, arguments)
