"""A model that changes after it was compiled: taken over at the next call, by all programs, or refused."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.base.errors import UnsupportedError  # noqa: E402
from rsn.rsnlib.captured_graph import CompiledWeights  # noqa: E402
from rsn.rsnlib.changes import Change, Numbers, Snapshot  # noqa: E402
from rsn.tests.effort import spread, thinned  # noqa: E402

nn = torch.nn
C = 64


class Block(nn.Module):
    """Products, norms, a residual, a table of positions, a mask and a factor: weights become all of these."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.out = nn.Linear(C, C), nn.Linear(C, C), nn.Linear(C, C)
        self.norm, self.last = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv = nn.Linear(C, 3 * C)
        self.register_buffer("positions", torch.randn(32, C))
        self.register_buffer("hidden", torch.zeros(32, 32), persistent=False)
        self.factor = 1.5
        self.loose = torch.ones(C)

    def forward(self, x: Any) -> Any:
        n = x.shape[1]
        y = self.norm(self.second(self.first(x + self.positions[:n]).relu()) + x)
        q, k, v = (z.unflatten(-1, (2, 32)).transpose(1, 2) for z in self.qkv(y).chunk(3, -1))
        y = (q @ k.transpose(2, 3) * self.factor + self.hidden[:n, :n]).softmax(-1) @ v
        return self.last(self.out(y.transpose(1, 2).flatten(2)) + x) * self.loose


def load(model: Block) -> None:
    other = {name: x + 0.1 * torch.randn_like(x) for name, x in model.state_dict().items()}
    model.load_state_dict(other)


def assign(model: Block) -> None:
    model.load_state_dict({name: 1.1 * x for name, x in model.state_dict().items()}, assign=True)


def step(model: Block) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with torch.enable_grad():
        model(torch.randn(2, 5, C)).square().sum().backward()
    optimizer.step()


@torch.no_grad()
def in_place(model: Block) -> None:
    model.second.weight.mul_(1.2)


def data(model: Block) -> None:
    model.first.weight.data = model.first.weight.data * 0.5


def parameter(model: Block) -> None:
    model.first.bias = nn.Parameter(torch.randn(C))


def submodule(model: Block) -> None:
    model.second = nn.Linear(C, C).eval()


def buffer(model: Block) -> None:
    model.positions.add_(1)


def a_mask(model: Block) -> None:
    """It had no effect, so that nothing was made of it."""
    model.hidden.copy_(torch.full((32, 32), -1e9).triu(1))


def epsilon(model: Block) -> None:
    model.norm.eps = 0.3


def attribute(model: Block) -> None:
    model.factor = 0.2


def loose(model: Block) -> None:
    model.loose.mul_(2)


def hook(model: Block) -> None:
    model.first.register_forward_hook(lambda module, given, result: result * 2)


def forward(model: Block) -> None:
    model.first.forward = lambda x: nn.functional.linear(x, model.first.weight)  # type: ignore[method-assign]


CHANGES = (load, assign, step, in_place, data, parameter, submodule, buffer, a_mask)
CHANGES += (epsilon, attribute, loose, hook, forward)


def close(got: Any, wanted: Any) -> None:
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-5


@pytest.mark.parametrize("change", thinned(CHANGES, 3))
def test_a_program_takes_over(change: Callable[[Block], None]) -> None:
    model, x = Block().eval(), torch.randn(2, 5, C)
    with rsn.compile(model, (x,)) as compiled, torch.no_grad():
        close(compiled(x), model(x))
        before = model(x)
        change(model)
        assert float((model(x) - before).abs().max()) > 1e-2  # or the test would say nothing
        close(compiled(x), model(x))
        runner, program = compiled._on_board.runner, compiled.program
        close(compiled(x), model(x))
        assert compiled._on_board.runner is runner
        assert compiled.program is program


class Turned(nn.Module):
    """An attention with rotary positions from frequencies, and a spelled-out norm whose eps is a buffer: rewrites read
    the values of both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(C, 3 * C)
        self.register_buffer("frequencies", 0.3 ** torch.arange(16), persistent=False)
        self.register_buffer("eps", torch.tensor(0.1))

    def forward(self, x: Any) -> Any:
        x = x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt()
        q, k, v = (z.unflatten(-1, (2, 32)).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        q, k = self.turned(q), self.turned(k)
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return y * (y.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt()

    def turned(self, x: Any) -> Any:
        angles = torch.arange(x.shape[2])[:, None] * self.frequencies
        cos, sin = (torch.cat((y, y), -1) for y in (angles.cos(), angles.sin()))
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin


@pytest.mark.parametrize("name", ["frequencies", "eps"])
def test_values_that_rewrites_read(name: str) -> None:
    model, x = Turned().eval(), torch.randn(2, 5, C)
    with rsn.compile(model, (x,)) as compiled, torch.no_grad():
        before = model(x)
        close(compiled(x), before)
        getattr(model, name).mul_(3)
        assert float((model(x) - before).abs().max()) > 1e-3
        close(compiled(x), model(x))
        model.qkv.weight.mul_(1.1)
        close(compiled(x), model(x))


def test_new_weights_are_no_new_program() -> None:
    model, x = Block().eval(), torch.randn(2, 5, C)
    with rsn.compile(model, (x,)) as compiled:
        packets, old = compiled.program.packets, dict(compiled.weights)
        load(model)
        assert compiled.program.packets is packets
        new = dict(compiled.weights)
        assert new.keys() == old.keys()
        assert any((new[name] != old[name]).any() for name in new)
        epsilon(model)
        assert compiled.program.packets is not packets


@pytest.mark.parametrize("change", spread([load, in_place, a_mask, epsilon, submodule], 3, [submodule]))
def test_a_family_is_never_mixed(change: Callable[[Block], None]) -> None:
    model = Block().eval()
    shapes = {"x": {0: rsn.Batch(1, 4)}}
    with rsn.compile(model, (torch.randn(2, 5, C),), dynamic_shapes=shapes) as family, torch.no_grad():
        for batch in (1, 4):
            family(torch.randn(batch, 5, C))
        change(model)
        x = torch.randn(1, 5, C)
        four = torch.cat([x, torch.randn(3, 5, C)])
        close(family(x), model(x))
        close(family(four), model(four))
        close(family(four)[:1], family(x))


def test_a_family_is_checked_again() -> None:
    """A table that is the same at all positions hides that it is read backwards."""

    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(C, C)
            self.register_buffer("table", torch.zeros(32, C))

        def forward(self, x: Any) -> Any:
            return self.layer(x) + self.table[: x.shape[1]].flip(0)

    model = Backwards().eval()
    with rsn.compile(model, (torch.randn(1, 5, C),), dynamic_shapes={"x": {1: rsn.Length(8, 16)}}) as family:
        family(torch.randn(1, 7, C))
        model.table.normal_()
        with pytest.raises(UnsupportedError, match=r"padding the length changes output 0.*its values depend"):
            family(torch.randn(1, 7, C))


@pytest.mark.parametrize("change", spread([*CHANGES[:9], loose], 3, [submodule, loose]))
def test_torch_compile_takes_over(change: Callable[[Block], None]) -> None:
    torch._dynamo.reset()
    model, x = Block().eval(), torch.randn(2, 5, C)
    fast = torch.compile(model, backend="rsn", options={"fallback": "error"})
    with torch.no_grad():
        close(fast(x), model(x))
        change(model)
        close(fast(x), model(x))


@pytest.mark.long
def test_examples_are_kept_as_they_were() -> None:
    """A caller who writes other numbers into the same tensors, as loops do."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = rsn.nn.Encoder(1, C, 2, 128)

        def forward(self, x: Any, mask: Any) -> Any:
            return self.encoder(x, mask)

    model, x, mask = Masked().eval(), torch.randn(1, 5, C), torch.ones(1, 5, dtype=torch.int64)
    with rsn.compile(model, (x, mask)) as compiled, torch.no_grad():
        mask[:, 0] = 0  # no mask that the machine has
        x.fill_(torch.nan)
        model.encoder.layers[0].ffn.up.weight.mul_(2)
        given = torch.randn(1, 5, C), torch.ones(1, 5, dtype=torch.int64)
        close(compiled(*given), model(*given))


def test_training_mode_is_refused() -> None:
    model, x = Block().eval(), torch.randn(2, 5, C)
    with rsn.compile(model, (x,)) as compiled, torch.no_grad():
        model.train()
        with pytest.raises(UnsupportedError, match=r"Block is in training mode: call model\.eval\(\) first"):
            compiled(x)
        model.eval()
        close(compiled(x), model(x))


def test_what_cannot_be_seen() -> None:
    """But with checksums, or when it is said."""
    model, x = Block().eval(), torch.randn(2, 5, C)
    with (
        rsn.compile(model, (x,)) as compiled,
        rsn.compile(model, (x,), checksums=True) as checked,
        torch.no_grad(),
    ):
        before = compiled(x)
        model.second.weight.numpy()[1] *= 2  # not the first number, one in the middle, or the last one
        close(checked(x), model(x))
        assert float((compiled(x) - before).abs().max()) == 0  # nothing of it, rather than a part
        compiled.refresh()
        close(compiled(x), model(x))
        model.second.weight.data.mul_(2)
        close(compiled(x), model(x))


def test_a_failure_is_not_the_end() -> None:
    """A model that cannot be compiled any more, and then can."""
    model, x = Block().eval(), torch.randn(2, 5, C)
    with rsn.compile(model, (x,)) as compiled, torch.no_grad():
        kept, model.second = model.second, nn.Identity().eval()
        model.second.register_forward_hook(lambda module, given, result: result @ result.transpose(1, 2) @ result)
        for _ in range(2):
            with pytest.raises(UnsupportedError, match=r"bmm|matmul"):
                compiled(x)
        model.second = kept
        close(compiled(x), model(x))


@pytest.mark.long
def test_a_model_is_not_kept_alive() -> None:
    """Its weights have become the program's. What is gone changes no more."""
    model, x = Block().eval(), torch.randn(2, 5, C)
    weight = weakref.ref(model.qkv.weight)
    with rsn.compile(model, (x,)) as compiled, torch.no_grad():
        wanted = model(x)
        load(model)
        model.load_state_dict(Block().state_dict())
        close(compiled(x), wanted)
        del model
        gc.collect()
        assert weight() is None
        close(compiled(x), wanted)
        with pytest.raises(UnsupportedError, match="the model that this was compiled from no longer exists"):
            compiled.refresh()


def test_snapshots() -> None:
    model = Block().eval()
    snapshot = Snapshot(model)
    assert snapshot.change() is Change.NONE
    nn.Linear(3, 3).register_forward_hook(lambda *_: None)  # of another module
    handle = model.last.register_forward_hook(lambda *_: None)
    assert snapshot.change() is Change.STRUCTURE
    handle.remove()
    assert snapshot.change() is Change.NONE
    model.factor = 1.5
    assert snapshot.change() is Change.NONE
    in_place(model)
    assert snapshot.change() is Change.NUMBERS
    del model.loose
    assert snapshot.change() is Change.STRUCTURE


class Held(nn.Module):
    """A product whose factors lie inside of attributes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(C, C)
        self.config = SimpleNamespace(scale=2.0, more=SimpleNamespace(scales={"a": [1.5]}))
        self.factors, self.on, self.last = [torch.ones(C), torch.ones(1)], {"residual"}, deque([0.5])
        self.pair = (torch.ones(C), [2.0])
        self.parts = [nn.Linear(C, C).eval()]  # which PyTorch does not register
        self.lock = SimpleNamespace(lock=threading.Lock(), calls=0)  # it works: its state may change by itself

    def forward(self, x: Any) -> Any:
        y = self.first(x) * self.config.scale * self.config.more.scales["a"][0] * self.factors[0] * self.factors[1]
        y = y * self.last[0] * self.pair[0] * self.pair[1][0] + self.parts[0](x)
        return y + x if "residual" in self.on else y


@pytest.mark.parametrize("place", [(0, 0, 0), (1, 2, 2), (3, 4, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64])
def test_writes_that_pytorch_does_not_count(dtype: Any, place: tuple[int, ...]) -> None:
    whole = torch.zeros(6, 5, 8, dtype=dtype)
    state = Numbers([whole.transpose(0, 2)[1:5, :, :], torch.zeros(0)])
    assert not state.have_changed()
    part = whole.transpose(0, 2)[1:5, :, :]
    part.data[place] = 1
    assert state.have_changed()
    part.data[place] = 0
    whole.data[0, 0, 0] = 1  # in front of it
    assert not state.have_changed()


def write(tensor: Any) -> None:
    with torch.no_grad():
        tensor.mul_(3)


INSIDE: dict[str, Callable[[Held], object]] = {
    "attribute of an object": lambda m: setattr(m.config, "scale", 4.0),
    "list in a dictionary of an object in it": lambda m: m.config.more.scales["a"].__setitem__(0, 7.0),
    "key": lambda m: m.config.more.scales.update(b=m.config.more.scales.pop("a")),
    "tensor of a list": lambda m: write(m.factors[0]),
    "other tensor of the same number": lambda m: m.factors.__setitem__(1, torch.ones(1)),
    "set": lambda m: m.on.clear(),
    "queue": lambda m: m.last.append(m.last.popleft() + 1),
    "tensor of a tuple": lambda m: write(m.pair[0]),
    "other tuple": lambda m: setattr(m, "pair", (torch.full((C,), 2.0), [2.0])),
    "list of a tuple": lambda m: m.pair[1].append(1.0),
    "weight of a part in a list": lambda m: write(m.parts[0].weight),
    "hook of a part in a list": lambda m: m.parts[0].register_forward_hook(lambda _module, _given, out: 2 * out),
}


@pytest.mark.parametrize("change", INSIDE)
def test_changes_inside_of_attributes(change: str) -> None:
    model = Held().eval()
    snapshot = Snapshot(model)
    model.lock.calls += 1
    assert snapshot.change() is Change.NONE
    INSIDE[change](model)
    assert snapshot.change() is Change.STRUCTURE
    assert Snapshot(model).change() is Change.NONE


def test_changes_inside_of_attributes_are_taken_over() -> None:
    model, x = Held().eval(), torch.randn(2, C)
    with rsn.compile(model, (x,)) as compiled, torch.no_grad():
        for name, change in INSIDE.items():
            if name != "key":
                change(model)
                close(compiled(x), model(x))


def test_copies() -> None:
    model, x = Block().eval(), torch.randn(2, 5, C)
    family = rsn.compile(model, (x,), dynamic_shapes={"x": {0: rsn.Batch(2)}})
    with rsn.compile(model, (x,)) as compiled, family:
        for made in (compiled, family):
            for copied in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(UnsupportedError, match=r"holds a board and cannot be copied .*rsn\.Runner"):
                    copied(made)


@pytest.mark.long
def test_other_threads_run_the_module_meanwhile() -> None:
    """Capturing leaves the module alone: they never see it without values."""
    model = Block().eval()
    x, stop, wrong = torch.randn(2, 5, C), threading.Event(), []
    with torch.no_grad():
        wanted = model(x)

    def run() -> None:
        with torch.no_grad():
            while not stop.is_set():
                try:
                    if not torch.equal(model(x), wanted):
                        wrong.append("other numbers")
                except Exception as error:  # whatever a module raises that is changed under it
                    wrong.append(repr(error))

    threads = [threading.Thread(target=run) for _ in range(2)]
    family = rsn.compile(model, (x,), dynamic_shapes={"x": {0: rsn.Batch(1, 2, 3, 4)}})
    for thread in threads:
        thread.start()
    try:
        with family, torch.no_grad():
            for batch in (1, 2, 3, 4):
                given = torch.randn(batch, 5, C)
                close(family(given), model(given))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong


@pytest.mark.long
def test_torch_stops_compiling() -> None:
    """After so many shapes, without a word to the backend."""
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 8)).eval()
    limit = torch._dynamo.config.recompile_limit
    with torch.no_grad():
        strict = torch.compile(model, backend="rsn", dynamic=False, options={"fallback": "error"})
        for n in range(1, limit + 1):
            strict(torch.randn(n + 1, 8))
        for n in (limit + 1, limit + 2):
            with pytest.raises(UnsupportedError, match="torch compiles no more variants of this function"):
                strict(torch.randn(n + 1, 8))
        strict(torch.randn(2, 8))
        torch._dynamo.reset()
        lenient = torch.compile(model, backend="rsn", dynamic=False)
        for n in range(1, limit + 1):
            lenient(torch.randn(n + 1, 8))
        x = torch.randn(limit + 2, 8)
        with pytest.warns(
            rsn.host.model.torch_backend.Fallback, match="torch compiles no more variants of this function"
        ):
            close(lenient(x), model(x))


def test_more_or_fewer_weights_are_not_the_same() -> None:
    a, b = torch.ones(2), torch.zeros(2)
    kept = CompiledWeights([a, b], checksums=False)
    assert kept.are([a, b])
    assert not any(kept.are(others) for others in ([a], [a, b, a], [b, a]))
