"""What a program is checked for when it is made, and when it is called first."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
import transformers
from torch import nn

import rsn
from rsn.base.errors import CompilerError, UnsupportedError, WrongResultError
from rsn.host.generation.decoder import Decoder as Slots
from rsn.rsnlib.verification import ReferenceKind, differences
from rsn.tests.effort import spread

from .mutants import MUTANTS, Mutant

Inputs = tuple[Any, ...]
Run = Callable[[], None]


class Body(nn.Module):
    """Products and norms by name, with random numbers; `body` says how they are connected."""

    def __init__(self, body: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.body = body
        torch.manual_seed(0)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim == 1:
                    parameter.uniform_(0.5, 1.5) if "weight" in name else parameter.uniform_(-1, 1)
        self.eval()

    def forward(self, *args: torch.Tensor) -> Any:
        return self.body(self, *args)


def products(names: str, width: int = 64) -> dict[str, nn.Module]:
    return {name: nn.Linear(width, width) for name in names}


def heads(x: torch.Tensor) -> torch.Tensor:
    """(batch, seq, columns) in heads of 16 columns."""
    return x.unflatten(-1, (-1, 16)).transpose(1, 2)


def together(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(2)


def encoder(s: Any, x: torch.Tensor) -> torch.Tensor:
    y = together(F.scaled_dot_product_attention(heads(s.q(x)), heads(s.k(x)), heads(s.v(x))))
    y = s.n1(s.o(y) + x)
    y = s.n2(s.d(F.gelu(s.u(y))) + y)
    out: torch.Tensor = s.n3(s.e(y) + y)
    return out


def scaled(s: Any, x: torch.Tensor) -> torch.Tensor:
    y = s.a(x) + s.n1.bias
    y = y + y
    z = s.b(x).relu() * 0.5 * 4
    gate = F.silu(s.c(x) * 2) * (s.d(x) * 3)
    out: torch.Tensor = s.o(y) + s.u(z) + s.q(gate)
    return out


def sums(s: Any, x: torch.Tensor, other: torch.Tensor) -> Any:
    a, b = s.a(x), s.b(other)
    y = s.n1(a + x)
    z = s.n2(b + other)
    y, z, w = y + z + a, s.c(y).relu() + s.d(z).relu(), a + b + other
    return s.u(y) + z, s.o(w) + a, s.q(y + x)


def lanes(s: Any, x: torch.Tensor) -> torch.Tensor:
    y = together(F.scaled_dot_product_attention(heads(s.q(x)), heads(s.k(x)), heads(s.v(x))))
    out: torch.Tensor = s.n1(s.o(y) + s.d(s.u(x).relu()) + s.c(s.a(x) + x))
    return out


def written(s: Any, x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = s.a(x)
    x += 1
    return y


def called(module: nn.Module, inputs: Inputs | dict[str, Any], overlay: str = "xnn", **options: Any) -> Run:
    def run() -> None:
        compiled = rsn.compile(module, inputs, overlay=overlay, **options)
        args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
        compiled(*args, **kwargs)

    return run


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def norms(names: str) -> dict[str, nn.Module]:
    return {name: nn.LayerNorm(64) for name in names.split()}


def qwen(kv_heads: int) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 50}
    config = transformers.Qwen3Config(
        **sizes, num_attention_heads=4, num_key_value_heads=kv_heads, head_dim=16, use_cache=False
    )
    model: nn.Module = transformers.Qwen3Model(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model


class Decoder(nn.Module):
    """A norm without an eps, rotated heads on shared keys, a causal attention, a gate."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.o = nn.Linear(64, 64), nn.Linear(64, 32), nn.Linear(64, 32), nn.Linear(64, 64)
        self.g, self.u, self.d, self.n = nn.Linear(64, 96), nn.Linear(64, 96), nn.Linear(96, 64), nn.RMSNorm(64)
        self.a = nn.Linear(64, 64)
        with torch.no_grad():
            self.n.weight.uniform_(0.5, 1.5)
        angles = torch.arange(20)[:, None] * 10.0 ** -torch.arange(0, 1, 2 / 16)
        self.register_buffer("angles", torch.cat([angles, angles], -1))

    def rotated(self, y: torch.Tensor) -> torch.Tensor:
        one, other = y.chunk(2, -1)
        return y * self.angles.cos() + torch.cat([-other, one], -1) * self.angles.sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.n(self.a(x))
        q, k, v = (heads(product(y)) for product in (self.q, self.k, self.v))
        k, v = self.rotated(k).repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        x = x + self.o(together(F.scaled_dot_product_attention(self.rotated(q), k, v, is_causal=True)))
        out: torch.Tensor = x + self.d(F.silu(self.g(x)) * self.u(x))
        return out


class Masked(nn.Module):
    """Attention over the keys that an argument shows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.o = (nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(product(x)) for product in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None] != 0)
        out: torch.Tensor = self.o(together(y))
        return out


def shared() -> None:
    """Two programs of one model, on one board: the second moves the weights of the first."""
    module = Body(lambda s, x: s.b(s.a(x).relu()), **products("ab"))
    other = Body(lambda s, x: s.a(s.c(x)) + s.b(x), a=module.a, b=module.b, c=nn.Linear(64, 64))
    first, second = rsn.compile(module, (x(1, 8, 64),)), rsn.compile(other, (x(1, 9, 64),))
    for _ in range(2):
        first(x(1, 8, 64))
        second(x(1, 9, 64))


def family() -> None:
    """A call that is padded, and its result cut."""
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    shapes = {"input": {1: rsn.Length(8, 16)}}
    rsn.compile(module, (x(1, 8, 64),), dynamic_shapes=shapes)(x(1, 5, 64))


MASK = torch.tensor([[1] * 20, [1] * 11 + [0] * 9])
MODELS: dict[str, Run] = {
    "encoder": called(Body(encoder, **products("qkvoude"), **norms("n1 n2 n3")), (x(2, 20, 64),)),
    "scaled": called(Body(scaled, **products("abcdouq"), **norms("n1")), (x(1, 20, 64),)),
    "sums": called(Body(sums, **products("abcdouq"), **norms("n1 n2")), (x(1, 20, 64), 2 * x(1, 20, 64) + 1)),
    "decoder": called(Decoder().eval(), (x(2, 20, 64),)),
    "heads": called(qwen(2), {"input_ids": torch.arange(24).reshape(2, 12)}),
    "positions": called(
        qwen(4), {"input_ids": torch.arange(24).reshape(2, 12), "position_ids": torch.arange(12)[None]}
    ),
    "masked": called(Masked().eval(), (x(2, 20, 64), MASK)),
    "lanes": called(Body(lanes, **products("qkvoudac"), **norms("n1")), (x(1, 20, 64),), "xnn2"),
    "written": called(Body(written, **products("a")), (x(1, 20, 64),)),
    "shared": shared,
    "family": family,
}


@pytest.mark.parametrize("name", MODELS)
def test_models_pass(name: str) -> None:
    MODELS[name]()


@pytest.mark.parametrize("mutant", spread(MUTANTS, 2, MUTANTS[::10]), ids=str)
def test_mutants_are_noticed(mutant: Mutant) -> None:
    with mutant.injected(), pytest.raises((CompilerError, WrongResultError)):
        MODELS[mutant.model]()


# -- the first call ----------------------------------------------------------------------------------------------------

WRONG = Mutant("rsnlib.fold:_product", "layer.bias * factor", "layer.bias * 0")


def chain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()


def test_a_wrong_result_is_never_returned() -> None:
    model, given = chain(), x(1, 8, 64)
    with WRONG.injected():
        compiled = rsn.compile(model, (given,))
    for _ in range(2):
        with pytest.raises(WrongResultError, match=r"^result: the largest difference from PyTorch is .*\n.*layers"):
            compiled(given)
    with WRONG.injected(), pytest.raises(WrongResultError, match=r"^result: "):
        rsn.compile(model, (given,), dynamic_shapes={"input": {1: rsn.Length(8, 16)}})(x(1, 5, 64))
    torch._dynamo.reset()
    captured = torch.compile(model, backend="rsn")
    with WRONG.injected(), torch.no_grad(), pytest.raises(WrongResultError, match=r"^result\[0\]"):
        captured(given)


def test_which_calls_are_verified() -> None:
    model, given = chain(), x(1, 8, 64)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(UnsupportedError, match=r"""verify 'often': "first", "always", "never\""""):
        rsn.compile(model, (given,), verify="often")
    for verify, counts in (("first", [1, 0, 1, 0]), ("always", [1, 1, 1, 1]), ("never", [0, 0, 0, 0])):
        compiled = rsn.compile(model, (given,), verify=verify)
        for number, count in enumerate(counts):
            if number == 2:  # a change of the model
                with torch.no_grad():
                    model[0].weight.mul_(1.5)
                compiled.program  # noqa: B018 - takes over the change, for which it calls the model
            calls.clear()
            compiled(given)
            assert len(calls) == count, (verify, number)


@pytest.mark.long
def test_the_model_is_kept_until_a_call_has_passed() -> None:
    compiled = rsn.compile(chain(), (x(1, 8, 64),))
    gone = weakref.ref(compiled._recipe.followed.original)  # type: ignore[union-attr]
    gc.collect()
    assert gone() is not None
    compiled(x(1, 8, 64))
    gc.collect()
    assert gone() is None
    compiled(x(1, 8, 64))


class Shifted(Masked):
    """Adds 1 to rows of one kind when PyTorch calls it, and not when it is captured. kind: 0 or 1, of the mask."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = super().forward(x, mask)
        return y if torch.compiler.is_exporting() else y + (mask == self.kind)[..., None]


def test_rows_that_a_mask_hides_are_not_compared() -> None:
    given = x(2, 20, 64), MASK
    rsn.compile(Shifted(0).eval(), given)(*given)
    with pytest.raises(WrongResultError):
        rsn.compile(Shifted(1).eval(), given)(*given)


@pytest.mark.parametrize(
    ("got", "wanted"), [(1, 1.0), (True, 1), (2.0, 1.0), (float("nan"), 1.0), (torch.ones(()), 1.0)]
)
def test_a_number_in_place_of_another_is_noticed(got: Any, wanted: Any) -> None:
    (found,) = differences(({"n": got},), ({"n": wanted},))
    assert found.size == float("inf")
    assert "result['n'] = " in found.what
    assert not list(differences(({"n": wanted},), ({"n": wanted},)))
    assert not list(differences((float("nan"),), (float("nan"),)))


def test_a_model_that_amplifies_rounding_passes() -> None:
    """Rows of nearly equal numbers, whose differences a norm makes large."""
    model = Body(lambda s, x: F.layer_norm(s.a(x * 1e-5), (64,), eps=1e-12), **products("a"))
    with torch.no_grad():
        model.get_submodule("a").bias.fill_(1)  # type: ignore[union-attr, operator]
    compiled = rsn.compile(model, (x(1, 8, 64),))
    with torch.no_grad():
        expected, out = model(x(1, 8, 64)), compiled(x(1, 8, 64))
    assert (out - expected).abs().max() > 1e-4 * expected.abs().max()


@pytest.mark.long
def test_a_decoder_is_verified() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 50}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)
    model = transformers.LlamaForCausalLM(config).eval()
    decoder = Slots(model, slots=2, capacity=16)
    calls: list[int] = []
    compute = decoder._verification._reference

    def counted(args: Any, kwargs: Any, kind: ReferenceKind) -> Any:
        calls.extend(map(len, args[0]))
        return compute(args, kwargs, kind)

    decoder._verification._reference = counted
    decoder.prefill(0, [3, 4, 5])
    decoder.prefill(1, [7, 8])
    decoder.step({0: 6, 1: 9})
    decoder.step({0: 1, 1: 2})
    assert calls == [3, 4, 3]  # a prompt, and each sequence of a step
    decoder.close()
    for wrong in (
        Mutant("host.generation.slots:Slots._keep", "cache[:, kept % count]", "cache[:, kept % count + 1]"),
        Mutant("host.generation.slots:Slots._step_arguments", "min(n, self.capacity - 1)", "0"),
    ):
        with wrong.injected():
            decoder = Slots(model, slots=2, capacity=16)
            decoder.prefill(0, [3, 4, 5])
            with pytest.raises(WrongResultError, match=r"^result\[0\]"):
                decoder.step({0: 6})


# -- the program ----------------------------------------------------------------------------------------------------


def test_a_program_that_check_refuses_is_not_returned() -> None:
    early = Mutant("scheduler.dram:order_accesses", "first < high and low < end", "False")
    with early.injected(), pytest.raises(CompilerError, match=r"(?s)error of rsn.*H01") as found:
        MODELS["encoder"]()
    assert any(line.startswith(("o", "d", "e", "n", "q", "k", "v", "u")) for line in str(found.value).splitlines()[1:])


def test_a_file_says_when_its_programs_were_verified(tmp_path: Path) -> None:
    compiled, file = rsn.compile(chain(), (x(1, 8, 64),)), tmp_path / "chain.rsnmodel"
    compiled.save(file)
    assert rsn.load(file).verified == {(): None}
    before = datetime.now(UTC)
    compiled(x(1, 8, 64))
    compiled.save(file)
    (when,) = rsn.load(file).verified.values()
    assert when is not None
    assert before <= when <= datetime.now(UTC)
    model = chain()
    family = rsn.compile(model, (x(1, 8, 64),), dynamic_shapes={"input": {1: rsn.Length(8, 16)}})
    family(x(1, 5, 64))
    family.save(file)
    assert [when is None for when in rsn.load(file).verified.values()] == [False, True]
