"""Experts that data choose: found in all spellings, computed as one static program and as programs of each call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.base.errors import TensorError, UnsupportedError  # noqa: E402
from rsn.host.model.experts import PatchedExperts  # noqa: E402
from rsn.isa.overlays import find  # noqa: E402
from rsn.isa.verify import check  # noqa: E402
from rsn.rsnlib.experts.library import SWITCH  # noqa: E402
from rsn.rsnlib.experts.operators import run_in_pytorch  # noqa: E402
from rsn.rsnlib.experts.replace import ExpertLayerSizes, ExpertsPlan, replace_experts  # noqa: E402
from rsn.rsnlib.trace import captured  # noqa: E402
from rsn.scheduler.expert_programs import ExpertPrograms, ExpertSizes, counted  # noqa: E402
from rsn.scheduler.graph import ActivationFunction  # noqa: E402
from rsn.tests.effort import full, long, sampled  # noqa: E402
from rsn.tests.rsnlib.expert_layers import Changed, Given, Loop, assert_equal, block  # noqa: E402

KINDS = ("static", "patched")


SPELLED = [(f, s, k) for f in ("mixtral", "qwen3") for s in (None, "eager", "batched_mm", "grouped_mm") for k in KINDS]


@pytest.mark.parametrize(
    ("family", "spelling", "kind"),
    # Each spelling as programs of one family, and as patched ones of the other.
    [
        c if c == ("mixtral", None, "patched") else (long if (c[0] == "mixtral") == (c[2] == "patched") else full)(*c)
        for c in SPELLED
    ],
)
def test_layers_of_transformers(family: str, spelling: str | None, kind: str) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    layer = block(family, spelling)
    x = torch.randn(2, 20, 64)
    with torch.no_grad(), rsn.compile(layer, (x,), experts=kind) as compiled:
        assert_equal(compiled(x), layer(x))
        other = torch.randn(2, 20, 64)  # other rows choose other experts
        assert_equal(compiled(other), layer(other))
    if hasattr(layer.experts, "config"):
        assert getattr(layer.experts.config, SWITCH) == spelling


@pytest.mark.parametrize("kind", sampled(KINDS, ["static"]))
@pytest.mark.parametrize("hot", sampled([False, True], [True]))
def test_a_loop_over_experts(hot: bool, kind: str) -> None:
    torch.manual_seed(0)
    layer, x = Loop(hot=hot).eval(), torch.randn(40, 64)
    with torch.no_grad(), rsn.compile(layer, (x,), experts=kind) as compiled:
        assert_equal(compiled(x), layer(x))


def test_patched_programs_hold_the_active_experts_alone() -> None:
    """Weights are moved once for each active expert, for as many row tiles as it has; all have them in the static
    program. A launch is counted for each program."""
    torch.manual_seed(0)
    layer, x = Given(experts=8).eval(), torch.randn(6, 64)
    index, shares = torch.tensor([[1, 6]] * 5 + [[6, 1]]), torch.rand(6, 2)
    with torch.no_grad(), rsn.compile(layer, (x, index, shares), experts="patched") as compiled:
        assert_equal(compiled(x, index, shares), layer(x, index, shares))
        (experts,) = compiled.experts
        assert experts.last_run is not None
        assert experts.last_run.rows == {1: 6, 6: 6}
        one = experts.last_run.bytes["lpddr_read"] / 2
        index[:, 1] = torch.tensor([0, 2, 3, 4, 5, 7])
        assert_equal(compiled(x, index, shares), layer(x, index, shares))
        assert experts.last_run.bytes["lpddr_read"] == 8 * one
        (run,) = experts.last_run.runs
        assert experts.last_run.latency_s > run.latency_s > 40e-6
    with torch.no_grad(), rsn.compile(layer, (x, index, shares), experts="static") as static:
        assert_equal(static(x, index, shares), layer(x, index, shares))
        assert static.experts == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [4, -1])
def test_a_selector_out_of_range(kind: str, wrong: int) -> None:
    layer, x = Given().eval(), torch.randn(6, 64)
    index, shares = torch.arange(12).reshape(6, 2) % 4, torch.rand(6, 2)
    with torch.no_grad(), rsn.compile(layer, (x, index, shares), experts=kind) as compiled:
        assert_equal(compiled(x, index, shares), layer(x, index, shares))
        index[4, 1] = wrong
        with pytest.raises(TensorError, match=rf"token 4 selects expert {wrong} \(its selector 1\); .* 0 to 3"):
            compiled(x, index, shares)


def test_more_rows_than_declared() -> None:
    layer, x = Given().eval(), torch.randn(6, 64)
    index, shares = torch.arange(12).reshape(6, 2) % 4, torch.rand(6, 2)
    bounded = rsn.Experts("patched", rows=3)
    with torch.no_grad(), rsn.compile(layer, (x, index, shares), experts=bounded) as compiled:
        assert_equal(compiled(x, index, shares), layer(x, index, shares))
        index[0] = torch.tensor([2, 3])  # four rows each
        with pytest.raises(TensorError, match="4 rows select expert 2; its programs are made for at most 3"):
            compiled(x, index, shares)


@pytest.mark.parametrize("kind", sampled(KINDS, ["patched"]))
def test_a_token_selects_an_expert_twice(kind: str) -> None:
    layer, x = Given().eval(), torch.randn(6, 64)
    index, shares = torch.full((6, 2), 3), torch.rand(6, 2)
    with torch.no_grad(), rsn.compile(layer, (x, index, shares), experts=kind) as compiled:
        assert_equal(compiled(x, index, shares), layer(x, index, shares))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_changed_weights_are_followed(kind: str) -> None:
    layer, x = Loop().eval(), torch.randn(40, 64)
    with torch.no_grad(), rsn.compile(layer, (x,), experts=kind) as compiled:
        assert_equal(compiled(x), layer(x))
        layer.down[1].weight.mul_(3.0)
        assert_equal(compiled(x), layer(x))


@pytest.mark.parametrize("change", Changed.CHANGES)
def test_what_is_no_layer_of_experts(change: str) -> None:
    """Each change makes another function of it, which no rule may take for experts."""
    arguments = torch.randn(6, 64), torch.zeros(6, 2, dtype=torch.int64), torch.rand(6, 2)
    program, _, _ = captured(Changed(change).eval(), arguments)
    assert replace_experts(program, ExpertsPlan()) == (change == "nothing")


def test_a_module_without_experts() -> None:
    with pytest.raises(UnsupportedError, match="no layer of experts that is known"):
        rsn.compile(torch.nn.Linear(4, 4).eval(), (torch.randn(4, 4),), experts="static")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("dynamic", "experts='dynamic': must be 'static' or 'patched'"),
        (3, "experts=3: must be"),
        (("static", 3), "rows are of patched programs"),
        (("patched", 0), "rows=0: must be a whole number from 1 on"),
    ],
)
def test_wrong_choices(given: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        rsn.compile(
            Loop().eval(),
            (torch.randn(40, 64),),
            experts=rsn.Experts(*given) if isinstance(given, tuple) else given,
        )


def test_boards_that_run_no_patched_programs() -> None:
    with pytest.raises(UnsupportedError, match="runs on board sim only, not csim"):
        rsn.compile(Loop().eval(), (torch.randn(40, 64),), experts="patched", board="csim")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["patched", full("static")])
def test_a_whole_model_in_pieces(kind: str) -> None:
    """All FLOPs are on the machine; without experts= most of them are not."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        num_local_experts=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        use_cache=False,
    )
    model, words = transformers.MixtralForCausalLM(config).eval(), {"input_ids": torch.randint(0, 100, (2, 10))}
    torch._dynamo.reset()
    fast = torch.compile(model, backend="rsn", options={"experts": kind})
    with torch.no_grad(), pytest.warns(UserWarning, match="a part of this graph runs in PyTorch"):
        assert_equal(fast(**words).logits, model(**words).logits)
    assert "on the machine: 100.0 %" in rsn.explain(fast, words)
    with pytest.raises(UnsupportedError, match=rf"options=\{{'experts': '{kind}'\}}\), runs the rest"):
        rsn.compile(model, words, experts=kind)


# -- programs of active experts


SIZES = ExpertSizes("experts", 5, 192, 320, ActivationFunction.SILU, 300)


def test_every_template_and_count_passes_the_checks() -> None:
    """`rsn check` finds nothing in programs of all numbers of row tiles up to the bound."""
    programs = ExpertPrograms(SIZES, find("xnn"))
    assert programs.tile == 128
    for counts in ({0: 1}, {4: 129}, {2: 300}, {0: 300, 1: 1, 3: 200}, dict.fromkeys(range(5), 300)):
        (launch,) = programs.launches(counts)
        assert list(check(launch.program)) == []
        assert [(p.expert, p.rows, p.tiles) for p in launch.parts] == [(e, n, -(-n // 128)) for e, n in counts.items()]


def test_lists_of_instructions_that_are_too_long_make_more_launches() -> None:
    overlay = find("xnn")
    programs = ExpertPrograms(SIZES, overlay)
    (launch,) = programs.launches(dict.fromkeys(range(5), 130))
    small = ExpertPrograms(SIZES, replace(overlay, image_bytes=4 * len(launch.program.image) // 2))
    parts = [part for x in small.launches(dict.fromkeys(range(5), 130)) for part in x.parts]
    assert len(small.launches(dict.fromkeys(range(5), 130))) > 1
    assert [p.expert for p in parts] == list(range(5))
    tiny = replace(overlay, image_bytes=64)
    with pytest.raises(UnsupportedError, match="the program of one expert exceeds what xnn takes"):
        ExpertPrograms(SIZES, tiny)


def test_weights_that_do_not_fit() -> None:
    with pytest.raises(UnsupportedError, match=r"the weights of 100000 experts need \d+ bytes of lpddr"):
        ExpertPrograms(replace(SIZES, experts=100000), find("xnn"))


def test_counted() -> None:
    index = torch.tensor([[3, 1], [1, 0], [3, 3]]).numpy()
    assert {e: pairs.tolist() for e, pairs in counted(index).items()} == {0: [3], 1: [1, 2], 3: [0, 4, 5]}
    assert counted(index[:0]) == {}


@pytest.mark.long
def test_files(tmp_path: Any) -> None:
    """A static program can be saved, and loaded elsewhere; patched programs are the host's."""
    layer, x = Loop().eval(), torch.randn(40, 64)
    with torch.no_grad(), rsn.compile(layer, (x,), experts="static") as compiled:
        compiled.save(tmp_path / "layer.rsnmodel")
        with rsn.load(tmp_path / "layer.rsnmodel") as loaded:
            assert_equal(loaded(x), layer(x))
    with (
        rsn.compile(layer, (x,), experts="patched") as compiled,
        pytest.raises(UnsupportedError, match=r"rsn\.experts"),
    ):
        compiled.save(tmp_path / "layer.rsnmodel")


@pytest.mark.long
def test_selectors_in_another_order() -> None:
    """A loop over transposed selectors gathers rows by their second dimension: another function."""

    class Transposed(Loop):
        def forward(self, x: Any) -> Any:
            shares, index = self.router(x).softmax(-1).topk(self.each)
            out = torch.zeros_like(x)
            for e, down in enumerate(self.down):
                place, token = torch.where(e == index.T)
                y = down(torch.relu(self.gate[e](x[token])) * self.up[e](x[token]))
                out.index_add_(0, token, y * shares[token, place, None])
            return out

    program, _, _ = captured(Transposed().eval(), (torch.randn(2, 64),))
    assert replace_experts(program, ExpertsPlan()) == 0


def test_packets_that_reach_several_buffers() -> None:
    """The packer joins accesses of two buffers where the step fits, here the last load of one with the first of the
    next. They must move together."""
    programs = ExpertPrograms(replace(SIZES, experts=3, width=225, inner=160, rows=1422), find("xnn"))
    (launch,) = programs.launches({1: 1422, 2: 1422})
    assert list(check(launch.program)) == []
    sizes = ExpertLayerSizes("experts", 474, 3, 3, 225, 160, "silu")
    torch.manual_seed(0)
    x, shares, index = torch.randn(474, 225), torch.rand(474, 3), torch.full((474, 3), 2)
    weights = torch.randn(3, 320, 225) / 15, torch.randn(3, 225, 160) / 12
    found = PatchedExperts(sizes, programs)(x, index, shares, *weights)
    assert_equal(found, run_in_pytorch(x, index, shares, *weights, "silu"))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_programs_of_several_sizes(kind: str) -> None:
    """Sizes are exact: rows of padding would choose experts."""
    pytest.importorskip("transformers")
    layer, x = block("mixtral", "grouped_mm"), torch.randn(1, 20, 64)
    exact = {"hidden_states": {0: rsn.Batch(1, 2, exact=True)}}
    with torch.no_grad(), rsn.compile(layer, (x,), experts=kind, dynamic_shapes=exact) as family:
        for batch in (1, 2):
            rows = torch.randn(batch, 20, 64)
            assert_equal(family(rows), layer(rows))
    padded = {"hidden_states": {0: rsn.Batch(1, 2)}}
    with torch.no_grad(), pytest.raises(UnsupportedError, match="padding the batch changes output 0"):
        rsn.compile(layer, (x,), experts=kind, dynamic_shapes=padded)
