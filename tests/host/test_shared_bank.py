"""Programs of one model, whose weights a board holds once: results, and what the bank of weights takes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import rsn
from rsn.base.errors import BoardError
from rsn.host.model.shared_bank import SharedBank
from rsn.host.runner import Runner
from rsn.rsnlib.pipeline import Pipeline
from rsn.scheduler.shared_weights import WeightLibrary
from rsn.tests.effort import examples, long
from rsn.tests.test_generate import assert_same, fresh, generated, made, on_machine

C = 128


def difference(got: Any, wanted: Any) -> float:
    """The largest deviation over the largest magnitude."""
    return float((got - wanted).abs().max() / wanted.abs().max())


class Layers(nn.Module):
    """Some of the layers of a model, in an order of their own."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = x + nn.functional.gelu(layer(x))
        return x


def layers(seed: int, count: int = 4) -> list[nn.Linear]:
    """Layers of one size; the last two are equal."""
    torch.manual_seed(seed)
    made = [nn.Linear(C, C).eval() for _ in range(count)]
    made[-1].load_state_dict(made[-2].state_dict())
    return made


def bank(member: Any) -> Any:
    """The memory of a simulated board that has a model's weights."""
    (board,) = member.runner._boards._boards.values()
    return board._memories.banks["lpddr"]


@pytest.mark.parametrize("overlay", ["xnn", long("xnn2")])
@examples(60, quick=6)
@given(
    chosen=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=2, max_size=4),
    seed=st.integers(0, 99),
)
def test_linked_programs_compute_the_same(overlay: str, chosen: list[list[int]], seed: int) -> None:
    """Any programs with some weights in common, in any order, with contents that are equal."""
    parts, x = layers(seed), torch.randn(1, 6, C)
    pipeline = Pipeline.named(overlay)
    models = [Layers([parts[i] for i in of]).eval() for of in chosen]
    traces = [pipeline.trace(model, (x,)) for model in models]
    built = [pipeline.build(traced.network) for traced in traces]
    library = WeightLibrary(built[0])
    for _ in built:  # a program with the layout of the first one is read only when another has come
        for other in built:
            library.add(other)
    linked = [library.linked(x) for x in built]
    banks = {tuple(b for b in x.program.buffers if b.bank == "lpddr") for x in linked}
    assert banks == {library.buffers}
    for model, traced, one in zip(models, traces, linked, strict=True):
        inputs, _, state = traced.host.prologue(x)
        with Runner(one.program, weights=one.weights) as runner, torch.no_grad():
            outputs = runner.run(inputs).outputs
            got = traced.host.epilogue({name: y.reshape(1, 6, -1) for name, y in outputs.items()}, state)
            assert difference(got, model(x)) < 1e-5
    sizes = [sum(b.size for b in x.kernels.buffers if b.bank == "lpddr") for x in built]
    assert sum(b.size for b in library.buffers) <= sum(sizes)


def test_a_bank_without_room_does_not_grow() -> None:
    parts, x, pipeline = layers(1), torch.randn(1, 6, C), Pipeline.named("xnn")
    built = [pipeline.build(pipeline.trace(Layers(parts[i : i + 1]).eval(), (x,)).network) for i in (0, 1)]
    overlay = built[0].kernels.overlay
    small = replace(overlay, banks=dict(overlay.banks) | {"lpddr": 4 * C * C})
    library = WeightLibrary(replace(built[0], kernels=replace(built[0].kernels, overlay=small)))
    before = library.buffers
    assert not library.add(built[1])
    assert library.buffers == before
    assert library.linked(built[1]) is built[1]


@pytest.mark.long
@pytest.mark.usefixtures(fresh.__name__)
def test_graphs_of_torch_compile_share_their_weights() -> None:
    """A prompt and a step; also when weights change, once or often, and the bank does not grow by that."""
    model = made("Llama")
    eager = model.forward
    wanted = generated(model, 2, 11, 3)
    on_machine(model)
    for _ in range(2):
        assert_same(wanted, generated(model, 2, 11, 3))
    shared = SharedBank.of(model.parameters(), "sim", "xnn")
    members = list(shared._members)
    assert len(members) == 2
    assert bank(members[0]) is bank(members[1])
    assert members[0].runner.program.packets != members[1].runner.program.packets
    size = bank(members[0]).size
    del members
    compiled = model.forward
    for n in range(3):
        with torch.no_grad():
            model.model.layers[n % 2].mlp.up_proj.weight.mul_(1.5)
        model.forward = eager
        wanted = generated(model, 2, 11, 3)
        model.forward = compiled
        assert_same(wanted, generated(model, 2, 11, 3))
        assert_same(wanted, generated(model, 2, 11, 3))
        assert {id(bank(x)) for x in shared._members} == {id(bank(next(iter(shared._members))))}
        assert len(shared._members) == 2
        assert bank(next(iter(shared._members))).size == size


def test_modules_of_one_model() -> None:
    """`rsn.compile` of a model and of a part: each program is as if it were alone, also in a file, but not its bank."""
    parts = layers(2)
    whole, part = Layers(parts).eval(), Layers(parts[1:3]).eval()
    x = torch.randn(1, 6, C)
    alone = rsn.compile(Layers(layers(2)[1:3]).eval(), (x,))
    with rsn.compile(whole, (x,)) as one, rsn.compile(part, (x,)) as other, torch.no_grad():
        for _ in range(2):
            assert difference(one(x), whole(x)) < 1e-5
            assert difference(other(x), part(x)) < 1e-5
            assert bank(one._on_board) is bank(other._on_board)
            parts[1].weight.mul_(2)
        assert other.program.buffers == alone.program.buffers
        assert other.program.packets == alone.program.packets
        assert list(other.weights) == list(alone.weights)
        other.close()
        with pytest.raises(BoardError, match="closed"):
            other(x)
        assert difference(one(x), whole(x)) < 1e-5


def test_weights_that_are_exchanged() -> None:
    """What was read of a program before is not what its model has now."""
    parts, x = layers(6), torch.randn(1, 6, C)
    whole, part = Layers(parts[:3]).eval(), Layers(parts[:2]).eval()
    with rsn.compile(whole, (x,)) as one, rsn.compile(part, (x,)) as other, torch.no_grad():
        assert difference(one(x), whole(x)) < 1e-5
        first, second = ({name: y.clone() for name, y in parts[i].state_dict().items()} for i in (0, 1))
        parts[0].load_state_dict(second)
        parts[1].load_state_dict(first)
        last = Layers(parts[1:3]).eval()
        with rsn.compile(last, (x,)) as third:
            assert difference(third(x), last(x)) < 1e-5
            assert difference(other(x), part(x)) < 1e-5
            assert difference(one(x), whole(x)) < 1e-5
            assert difference(third(x), last(x)) < 1e-5


def test_a_member_with_another_program() -> None:
    """Its new program is placed, even if `changed` was not called."""

    class Nobody:
        def release(self) -> None:
            pass

    x, pipeline, bank, member = torch.randn(1, 6, C), Pipeline.named("xnn"), SharedBank(), Nobody()
    built = [pipeline.build(pipeline.trace(Layers(layers(n)[:1]).eval(), (x,)).network) for n in (1, 2)]
    assert [bank.place(member, x) is x for x in built] == [True, True]


def test_models_that_share_little_stay_apart() -> None:
    """One layer of four is no reason to load both models' weights together."""
    parts, others, x = layers(3, 6), layers(4, 6), torch.randn(1, 6, C)
    one, other = Layers(parts[:4]).eval(), Layers([parts[0], *others[:3]]).eval()
    with rsn.compile(one, (x,)) as a, rsn.compile(other, (x,)) as b, torch.no_grad():
        assert difference(a(x), one(x)) < 1e-5
        assert difference(b(x), other(x)) < 1e-5
        assert bank(a._on_board).size == bank(b._on_board).size


@pytest.mark.long
def test_threads_while_programs_join_and_weights_change() -> None:
    parts, x = layers(5), torch.randn(1, 6, C)
    orders = [[0, 1, 2], [2, 1], [1, 0], [3, 0, 2]]
    models = [Layers([parts[i] for i in order]).eval() for order in orders]
    wrong: list[object] = []

    def run(model: Layers) -> None:
        try:
            for _ in range(3):
                with rsn.compile(model, (x,)) as compiled, torch.no_grad():
                    for _ in range(4):
                        found = difference(compiled(x), model(x))
                        if found > 1e-5:
                            wrong.append(found)
        except Exception as error:  # in a thread, where pytest does not see it
            wrong.append(error)

    for _ in range(2):
        threads = [threading.Thread(target=run, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with torch.no_grad():
            parts[0].weight.mul_(np.sqrt(2.0))
    assert not wrong
