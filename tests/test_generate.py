"""Generation with a static cache: prompt and steps on the machine, tokens and caches as in PyTorch."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.cache_utils import StaticCache

import rsn
from rsn.base.errors import CacheFull, TensorError, UnsupportedError
from rsn.host.model.compiled import Compiled
from rsn.host.runner import Runner
from rsn.rsnlib.fallback import Fallback
from rsn.tests.effort import examples, full, long, sampled

TOKENS, END = 96, 95
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": TOKENS,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": END,
    "pad_token_id": END,
}
OF_GPT2: dict[str, Any] = {
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 2,
    "vocab_size": TOKENS,
    "n_positions": 256,
    "bos_token_id": 0,
    "eos_token_id": END,
    "pad_token_id": END,
}
OF_GEMMA: dict[str, Any] = SIZES | {
    "head_dim": 32,
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"],
}
MODELS: dict[str, Callable[[], Any]] = {
    "GPT-2": lambda: GPT2LMHeadModel(GPT2Config(**OF_GPT2)),
    "Llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "Qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32)),
    "OLMo 2": lambda: Olmo2ForCausalLM(Olmo2Config(**SIZES)),
    "Gemma 3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**OF_GEMMA)),
}


@pytest.fixture(autouse=True)
def fresh() -> Any:
    """torch.compile forgets the models of other tests."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def made(name: str) -> Any:
    """A model whose weights are large enough that its tokens differ."""
    torch.manual_seed(1)
    model = MODELS[name]().eval()
    for path, weight in model.named_parameters():
        if weight.ndim > 1 and (".layers." in path or ".h." in path):
            weight.data.mul_(10)
    return model


def prompts(batch: int, rows: int) -> dict[str, torch.Tensor]:
    """Prompts of different lengths, padded on the left."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, END, (batch, rows), generator=generator)
    mask = torch.ones_like(ids)
    for b in range(batch):
        mask[b, : b % rows] = 0
    return {"input_ids": ids, "attention_mask": mask}


def generated(model: Any, batch: int, rows: int, tokens: int) -> Any:
    return model.generate(
        **prompts(batch, rows),
        max_new_tokens=tokens,
        do_sample=False,
        cache_implementation="static",
        output_logits=True,
        return_dict_in_generate=True,
    )


def assert_same(wanted: Any, got: Any) -> None:
    assert torch.equal(wanted.sequences, got.sequences)
    for one, other in zip(wanted.logits, got.logits, strict=True):
        assert (one - other).abs().max() < 1e-5 * one.abs().max()


def on_machine(model: Any, **options: Any) -> None:
    model.forward = torch.compile(model.forward, backend="rsn", options={"fallback": "error"} | options)


@pytest.mark.parametrize(
    ("name", "batch"), [("GPT-2", 5), full("Llama", 1), full("Qwen3", 3), long("OLMo 2", 2), full("Gemma 3", 2)]
)
def test_greedy_tokens_equal_those_of_pytorch(name: str, batch: int) -> None:
    model = made(name)
    wanted = generated(model, batch, 11, 8)
    assert len(set(wanted.sequences[:, 11:].flatten().tolist())) > 2, "the test needs different tokens"
    on_machine(model)
    assert_same(wanted, generated(model, batch, 11, 8))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "batch"),
    [full(x, n) for x in MODELS for n in (1, 5)],
)
def test_greedy_tokens_of_64_steps(name: str, batch: int) -> None:
    model = made(name)
    wanted = generated(model, batch, 9, 64)
    on_machine(model)
    assert_same(wanted, generated(model, batch, 9, 64))


@pytest.mark.long
@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
def test_the_cpp_machine(name: str) -> None:
    model = made(name)
    wanted = generated(model, 3, 7, 4)
    on_machine(model, board="csim")
    assert_same(wanted, generated(model, 3, 7, 4))


@pytest.mark.long
def test_more_rows_than_a_block() -> None:
    """Caches of several blocks of 128 rows, and steps whose rows are on both sides of a border."""
    model = made("Llama")
    wanted = generated(model, 2, 124, 12)
    on_machine(model)
    assert_same(wanted, generated(model, 2, 124, 12))


@pytest.mark.long
@pytest.mark.parametrize("kinds", [full(["sliding_attention"] * 2), ["sliding_attention", "full_attention"]])
def test_caches_whose_rows_move_up(kinds: list[str]) -> None:
    """A window that is shorter than the text, from a step on whose rows are all of the text."""
    torch.manual_seed(1)
    model: Any = Gemma3ForCausalLM(Gemma3TextConfig(**OF_GEMMA | {"sliding_window": 8, "layer_types": kinds})).eval()
    for path, weight in model.named_parameters():
        if weight.ndim > 1 and ".layers." in path:
            weight.data.mul_(10)
    wanted = generated(model, 3, 6, 8)
    on_machine(model)
    assert_same(wanted, generated(model, 3, 6, 8))


class Step(torch.nn.Module):
    """A step with a cache: one row of queries, keys and values."""

    def __init__(self, columns: int = 64, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (torch.nn.Linear(columns, columns) for _ in range(4))

    def forward(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, at: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        keys.index_copy_(2, at, k)
        values.index_copy_(2, at, v)
        y = torch.nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        result: torch.Tensor = self.o(y.transpose(1, 2).flatten(2))
        return result


CAPACITY = 10


def arguments(batch: int, row: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, 1, 64, generator=generator)
    mask = (torch.arange(CAPACITY) <= row).expand(batch, 1, 1, CAPACITY).clone()
    return [x, torch.tensor([row]), mask]


def caches(batch: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, 2, CAPACITY, 32, generator=generator) for _ in range(2)]


def compiled_step(model: Step, batch: int) -> Compiled:
    x, at, mask = arguments(batch, 3, 0)
    return rsn.compile(model, (x, *caches(batch, 0), at, mask))


def assert_step(model: Step, compiled: Compiled, kept: list[torch.Tensor], row: int, seed: int) -> None:
    """The result is PyTorch's, and so are the caches, which both write to."""
    x, at, mask = arguments(len(kept[0]), row, seed)
    own = [cache.clone() for cache in kept]
    with torch.no_grad():
        wanted = model(x, *own, at, mask)
    got = compiled(x, *kept, at, mask)
    assert (wanted - got).abs().max() < 1e-5 * wanted.abs().max()
    for one, other in zip(own, kept, strict=True):
        assert (one - other).abs().max() < 1e-5 * one.abs().max()


@pytest.mark.parametrize("batch", [1, 3])
def test_a_module_with_a_cache(batch: int) -> None:
    """Rows in any order, two caches in turn, and a cache that somebody else wrote to."""
    torch.manual_seed(0)
    model = Step().eval()
    with compiled_step(model, batch) as compiled:
        one, other = caches(batch, 1), caches(batch, 2)
        for seed, row in enumerate((3, 4, 0, 9)):
            assert_step(model, compiled, one, row, seed)
        assert_step(model, compiled, other, 5, 10)
        assert_step(model, compiled, one, 6, 11)
        one[0][:, :, 2] += 1
        assert_step(model, compiled, one, 7, 12)


@examples(100, 2)
@given(st.integers(0, 2**32))
def test_chunks_of_several_rows(seed: int) -> None:
    """Several new rows behind others, anywhere in the cache, with masks that show each row other keys, or all rows the
    same: one call behind the other, and in a cache that the board does not have."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    model, batch = Step().eval(), draw.randint(1, 3)
    rows = draw.choice([draw.randint(2, 9), draw.randint(100, 140)])
    capacity = rows + draw.randint(1, 150)
    shows, is_float = draw.choice(["causal", "window", "used"]), draw.random() < 0.5

    def mask(first: int) -> torch.Tensor:
        own, key = torch.arange(first, first + rows)[:, None], torch.arange(capacity)
        shown = (key <= own) & (key > own - rows) if shows == "window" else key <= own
        shown = (key < first + rows).expand(rows, capacity) if shows == "used" else shown
        whole = shown.expand(batch, 1, rows, capacity).clone()
        return torch.where(whole, 0.0, -torch.inf) if is_float else whole

    def given_at(first: int, kept: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.randn(batch, rows, 64), *kept, torch.arange(first, first + rows), mask(first)]

    def assert_chunk(first: int, kept: list[torch.Tensor]) -> None:
        x, *_, at, shown = given_at(first, kept)
        own = [cache.clone() for cache in kept]
        with torch.no_grad():
            wanted = model(x, *own, at, shown)
        assert difference(compiled(x, *kept, at, shown), wanted) < 1e-5
        for one, other in zip(kept, own, strict=True):
            assert difference(one, other) < 1e-5

    def fresh_caches() -> list[torch.Tensor]:
        return [torch.randn(batch, 2, capacity, 32) for _ in range(2)]

    with rsn.compile(
        model, tuple(given_at(draw.randint(1, capacity - rows), fresh_caches())), verify="never"
    ) as compiled:
        kept = fresh_caches()
        first = draw.randint(0, capacity - rows)
        while first + rows <= capacity:
            assert_chunk(first, kept)
            first += rows
        assert_chunk(draw.randint(0, capacity - rows), fresh_caches())
        x, *_, shown = given_at(0, kept)
        with pytest.raises(CacheFull, match=f"row {capacity} of a cache of {capacity} rows"):
            compiled(x, *kept, torch.arange(capacity + 1 - rows, capacity + 1), shown)
        with pytest.raises(TensorError, match="do not follow each other"):
            compiled(x, *kept, torch.arange(rows).flip(0), shown)


def difference(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest deviation, over the largest magnitude."""
    return float((got - wanted).abs().max() / wanted.abs().max())


def test_caches_stay_on_the_board(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step brings no cache that the board has."""
    torch.manual_seed(0)
    model = Step().eval()
    with compiled_step(model, 1) as compiled:
        brought: list[list[str]] = []
        run = Runner.run

        def watched(runner: Runner, inputs: Any, parameters: Any) -> Any:
            brought.append(sorted(set(inputs) & {b.name for b in compiled.program.buffers if b.role.value == "state"}))
            return run(runner, inputs, parameters)

        monkeypatch.setattr(Runner, "run", watched)
        kept = caches(1, 1)
        for row in range(3):
            assert_step(model, compiled, kept, row, row)
    assert [len(names) for names in brought] == [2, 0, 0]


def test_a_row_beyond_the_cache() -> None:
    model = Step().eval()
    with compiled_step(model, 1) as compiled:
        x, _, mask = arguments(1, 3, 0)
        kept = caches(1, 0)
        before = [cache.clone() for cache in kept]
        with pytest.raises(CacheFull, match="row 10 of a cache of 10 rows"):
            compiled(x, *kept, torch.tensor([10]), mask)
        assert all(torch.equal(a, b) for a, b in zip(before, kept, strict=True))


class Elsewhere(Step):
    """A step whose cache does not become what the attention saw."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def forward(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, at: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        new = keys.index_copy(2, at, k), values.index_copy(2, at, v)
        y = torch.nn.functional.scaled_dot_product_attention(q, *new, attn_mask=mask)
        if self.what == "changed":
            keys.copy_(new[0] * 2)
            values.copy_(new[1])
        elif self.what == "exchanged":
            keys.copy_(new[1])
            values.copy_(new[0])
        result: torch.Tensor = self.o(y.transpose(1, 2).flatten(2))
        return result


@pytest.mark.parametrize("what", sampled(["kept as they were", "changed", "exchanged"], ["changed"]))
def test_caches_that_become_something_else_stay_on_the_host(what: str) -> None:
    torch.manual_seed(0)
    model = Elsewhere(what).eval()
    with pytest.raises(UnsupportedError):
        compiled_step(model, 2)
    compiled: Any = torch.compile(model, backend="rsn")
    kept = caches(2, 1)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", Fallback)
        for row in (3, 4, 5):
            assert_step(model, compiled, kept, row, row)


def test_caches_that_share_memory_are_refused() -> None:
    with compiled_step(Step().eval(), 1) as compiled:
        x, at, mask = arguments(1, 3, 0)
        one = caches(1, 0)[0]
        with pytest.raises(TensorError, match="share their memory"):
            compiled(x, one, one, at, mask)


def test_what_would_write_to_a_copy_is_refused() -> None:
    x, at, mask = arguments(1, 3, 0)
    given = (x, *caches(1, 0), at, mask)
    family = rsn.compile(Step().eval(), given, dynamic_shapes={"x": {0: rsn.Batch(1)}})
    with family, pytest.raises(UnsupportedError, match="dynamic_shapes would pad"):
        family(*given)


def test_a_mask_with_a_gap_is_refused() -> None:
    model = Step().eval()
    with compiled_step(model, 1) as compiled:
        x, at, mask = arguments(1, 5, 0)
        mask[..., 2] = False
        with pytest.raises(TensorError, match="hides a key between others"):
            compiled(x, *caches(1, 0), at, mask)


def test_a_model_that_writes_to_its_arguments_is_not_saved(tmp_path: Path) -> None:
    with compiled_step(Step().eval(), 1) as compiled, pytest.raises(UnsupportedError, match="writes to its arguments"):
        compiled.save(tmp_path / "step.rsnmodel")


@pytest.mark.long
def test_a_static_cache_of_transformers() -> None:
    """Of a call with `rsn.compile`; the result has the cache that was given."""
    model = made("Llama")

    def cache() -> StaticCache:
        made = StaticCache(model.config, max_cache_len=20)
        made.early_initialization(2, 2, 16, torch.float32, torch.device("cpu"))
        return made

    def step(t: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([[3 + t], [9 - t]]), "position_ids": torch.full((2, 1), t)}

    with rsn.compile(model, step(0) | {"past_key_values": cache()}) as compiled, torch.no_grad():
        own, mine = cache(), cache()
        for t in range(4):
            wanted, got = model(**step(t), past_key_values=own), compiled(**step(t), past_key_values=mine)
            assert (wanted.logits - got.logits).abs().max() < 1e-5 * wanted.logits.abs().max()
            assert got.past_key_values.layers[0].keys is mine.layers[0].keys
            assert int(mine.layers[0].cumulative_length) == t + 1
        with pytest.raises(TensorError, match="early_initialization"):
            compiled(**step(4), past_key_values=StaticCache(model.config, max_cache_len=20))


@pytest.mark.long
@pytest.mark.parametrize(("capacity", "window"), [(20, 4), (4, 16)])
def test_sliding_layers_until_they_are_full(capacity: int, window: int) -> None:
    """PyTorch goes on with the cache as it is; the machine says that it cannot."""
    model = Gemma3ForCausalLM(Gemma3TextConfig(**OF_GEMMA | {"sliding_window": window})).eval()

    def cache() -> StaticCache:
        made = StaticCache(model.config, max_cache_len=capacity)
        made.early_initialization(2, 2, 32, torch.float32, torch.device("cpu"))
        return made

    def step(t: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([[3 + t], [9 - t]])}

    own, mine = cache(), cache()
    with rsn.compile(model, step(0) | {"past_key_values": cache()}) as compiled, torch.no_grad():
        for t in range(4):
            wanted, got = model(**step(t), past_key_values=own), compiled(**step(t), past_key_values=mine)
            assert (wanted.logits - got.logits).abs().max() < 1e-5 * wanted.logits.abs().max()
            assert [x.get_seq_length() for x in mine.layers] == [t + 1, t + 1]
        with pytest.raises(CacheFull, match="a sliding layer whose 4 rows are in use"):
            compiled(**step(4), past_key_values=mine)
        if capacity > 4:
            wanted, got = model(**step(4), past_key_values=own), model(**step(4), past_key_values=mine)
            assert (wanted.logits - got.logits).abs().max() < 1e-5 * wanted.logits.abs().max()
        with pytest.raises(CacheFull, match="a sliding layer whose 4 rows are in use"):
            rsn.compile(model, step(0) | {"past_key_values": mine})
    with pytest.raises(UnsupportedError, match="5 new rows for a cache of 4"):
        rsn.compile(model, {"input_ids": torch.arange(10).reshape(2, 5), "past_key_values": cache()})


def test_machines_without_caches_refuse_them() -> None:
    x, at, mask = arguments(1, 3, 0)
    with pytest.raises(UnsupportedError):
        rsn.compile(Step().eval(), (x, *caches(1, 0), at, mask), overlay="xnn2")


class Unmasked(Step):
    """Its attention sees all rows of the cache. mask: constant, or none."""

    def __init__(self, mask: torch.Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, at: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        mask: Any = self.mask
        return super().forward(x, keys, values, at, mask)


@pytest.mark.parametrize("shown", [None, slice(0, CAPACITY), slice(0, 6), slice(3, CAPACITY)])
@pytest.mark.parametrize("batch", [1, long(3)])
def test_a_step_without_a_mask_argument(batch: int, shown: slice | None) -> None:
    torch.manual_seed(0)
    mask = None
    if shown is not None:
        mask = torch.zeros(batch, 1, 1, CAPACITY, dtype=torch.bool)
        mask[..., shown] = True
    model = Unmasked(mask).eval()
    kept = caches(batch, 1)
    with rsn.compile(model, (torch.randn(batch, 1, 64), *caches(batch, 0), torch.tensor([3]))) as compiled:
        for row in (4, 0, 9):
            x, at, own = torch.randn(batch, 1, 64), torch.tensor([row]), [cache.clone() for cache in kept]
            with torch.no_grad():
                wanted = model(x, *own, at)
            assert (wanted - compiled(x, *kept, at)).abs().max() < 1e-5 * wanted.abs().max()
            for one, other in zip(own, kept, strict=True):
                assert (one - other).abs().max() < 1e-5 * one.abs().max()


@pytest.mark.long
def test_more_sequences_than_the_table_of_rows_has_entries() -> None:
    with pytest.raises(UnsupportedError, match="129 sequences with caches of 1 sizes: the table of rows has 128"):
        compiled_step(Step().eval(), 129)


def test_caches_of_inference_mode() -> None:
    """Their writes are not counted, so each call brings them; so is memory that was replaced."""
    torch.manual_seed(0)
    model = Step().eval()
    with compiled_step(model, 1) as compiled:
        with torch.inference_mode():
            kept = caches(1, 1)
            for row in range(2):
                assert_step(model, compiled, kept, row, row)
                kept[0][:, :, 5] += 1
        kept = caches(1, 2)
        assert_step(model, compiled, kept, 0, 0)
        kept[0].data = caches(1, 3)[0]
        assert_step(model, compiled, kept, 1, 1)


def test_rows_that_are_no_integers() -> None:
    model = Step().eval()
    with compiled_step(model, 2) as compiled:
        x, at, mask = arguments(2, 3, 0)
        for rows in ([0.7, 2.9], [True, True]):
            with pytest.raises(TensorError, match="rows are integers"):
                compiled.step(rows, x, *caches(2, 0), at, mask)  # type: ignore[arg-type]
        with pytest.raises(
            TensorError, match=rf"new rows for caches of \[3\] rows; the model has caches of {CAPACITY}"
        ):
            compiled.step({3: [0, 1]}, x, *caches(2, 0), at, mask)
