"""Each rewrite: the graph before and after it in PyTorch, what it leaves alone, and what the machine then takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import nn

from rsn.base.errors import UnsupportedError
from rsn.rsnlib.capture import lifted, module_path, packet, run
from rsn.rsnlib.normal_form.passes import capture, check_form
from rsn.rsnlib.rewriter import Rewrite
from rsn.rsnlib.rewrites import (
    REWRITES,
    columns,
    heads,
    host_sums,
    likes,
    norms,
    patches,
    rewrite,
    rows,
)
from rsn.rsnlib.trace import trace
from rsn.tests.effort import full, long, sampled, thinned

aten = torch.ops.aten
Call = Callable[..., Any]
Function = Callable[..., torch.Tensor]
B, L, C = 2, 10, 24


class Model(nn.Module):
    """A function of the module and its arguments, over these layers."""

    def __init__(self, function: Function, **layers: nn.Module | torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            if isinstance(layer, nn.Module):
                self.add_module(name, layer)
            else:
                self.register_parameter(name, nn.Parameter(layer))

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.function(self, *args)


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.shape == expected.shape
    assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()


def operators(model: nn.Module, inputs: tuple[torch.Tensor, ...], *rules: Rewrite) -> list[Any]:
    """The operators of the module's graph after these rewrites; it is checked to compute what the module does, and to
    say of each tensor what it is."""
    model.eval()
    program = capture(model, inputs, {})
    assert bool(rewrite(program, rules)) == bool(rules)
    program.graph.lint()
    check_form(program.graph)
    arguments = [n for n in program.graph.find_nodes(op="placeholder") if n not in lifted(program)]
    environment = lifted(program) | dict(zip(arguments, inputs, strict=True))
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    run(nodes, environment)
    for node in nodes:
        if isinstance(environment[node], torch.Tensor):
            assert (environment[node].shape, environment[node].dtype) == (
                node.meta["val"].shape,
                node.meta["val"].dtype,
            )
    (result,) = program.graph.output_node().all_input_nodes
    assert_close(environment[result], model(*inputs))
    return [packet(node) for node in nodes]


def is_left_alone(model: nn.Module, inputs: tuple[torch.Tensor, ...], *rules: Rewrite) -> bool:
    program = capture(model.eval(), inputs, {})
    return not rewrite(program, rules)


def hidden() -> torch.Tensor:
    return torch.randn(B, L, C)


# -- likes


def in_its_type(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.dense(x)
    return m.up(y + m.table.type_as(y) + m.numbers.type_as(y))


def in_its_shape(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.dense(x)
    return m.up(y + m.token.expand_as(y).sin() * torch.ones_like(y))


@pytest.mark.parametrize("function", [in_its_type, in_its_shape])
def test_the_type_and_the_shape_of_what_the_machine_computes(call: Call, function: Function) -> None:
    more = {"table": torch.randn(L, C), "numbers": torch.randn(L, C).double(), "token": torch.randn(1, 1, C)}
    model, x = Model(function, dense=nn.Linear(C, C), up=nn.Linear(C, 7), **more), hidden()
    rules = () if function is in_its_type else (likes,)  # the type is one without a rewrite
    assert not {aten.type_as, aten.expand_as, aten.full_like} & set(operators(model, (x,), *rules))
    traced = trace(model, (x,))
    assert len(traced.network.layers) == 2
    assert_close(call(traced, x), model(x))


def test_shapes_that_depend_on_data_are_left_alone() -> None:
    def found(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.token * torch.ones_like(x[x > 0])

    assert is_left_alone(Model(found, token=torch.randn(1)), (hidden(),), likes)


# -- norms


def rms(x: torch.Tensor, square: Callable[[Any], torch.Tensor], dim: int = -1) -> torch.Tensor:
    return torch.rsqrt(square(x).mean(dim, keepdim=True) + 1e-5)


ROOTS: dict[str, Function] = {
    "pow": lambda m, x: m.up(m.scale * (m.dense(x) * rms(m.dense(x), lambda y: y.pow(2)))),
    "as in T5": lambda m, x: m.up(m.scale * (lambda y: y * rms(y.float(), lambda z: z.pow(2)))(m.dense(x) + x)),
    "product": lambda m, x: m.up((lambda y: rms(y, lambda z: z * z) * y)(m.dense(x)) * m.scale),
    "square, last of three": lambda m, x: m.up((lambda y: y * rms(y, torch.square, 2))(m.dense(x)) * m.scale),
    "without scale": lambda m, x: m.up((lambda y: y * rms(y, lambda z: z.pow(2)))(m.dense(x))),
}


def root_model(function: Function) -> Model:
    return Model(function, dense=nn.Linear(C, C), up=nn.Linear(C, 7), scale=torch.rand(C) + 0.5)


@pytest.mark.parametrize("what", [x for x in ROOTS if x != "pow"])
def test_a_root_mean_square_that_is_spelled_out(call: Call, what: str) -> None:
    model, x = root_model(ROOTS[what]), hidden()
    found = operators(model, (x,), norms)
    assert (found.count(aten.rms_norm), found.count(aten.rsqrt)) == (1, 0)
    traced = trace(model, (x,))
    assert [layer.norm is not None and layer.norm.rms for layer in traced.network.layers] == [True, False]  # type: ignore[union-attr]
    assert_close(call(traced, x), model(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.up((lambda y: y * rms(y, lambda z: z.pow(2), 1))(m.dense(x))),
        lambda m, x: m.up((lambda y: y * rms(y, lambda z: z.pow(4)))(m.dense(x))),
        lambda m, x: m.up((lambda y: y * rms(y, lambda z: z * m.scale))(m.dense(x).abs())),
        lambda m, x: m.up((lambda y: y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True)))(m.dense(x))),
        lambda m, x: m.up((lambda y: y * torch.rsqrt(y.pow(2).sum(-1, keepdim=True) + 1e-5))(m.dense(x))),
    ],
)
def test_other_roots_are_left_alone(function: Function) -> None:
    assert is_left_alone(root_model(function), (hidden(),), norms)


# -- heads


class Attending(nn.Module):
    """As nn.MultiheadAttention is used most."""

    def __init__(self, batch_first: bool, keys: torch.Tensor | None = None, mask: torch.Tensor | None = None) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(C, 3, batch_first=batch_first)
        self.norm = nn.LayerNorm(C)
        self.keys, self.mask = keys, mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.attention(x, x, x, key_padding_mask=self.keys, attn_mask=self.mask)
        return self.norm(x + hidden)


HIDDEN_KEYS = torch.arange(L) >= torch.tensor([L, 6])[:, None]
AHEAD = torch.ones(L, L, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("batch_first", sampled([True, False], quick=[True]))
@pytest.mark.parametrize(
    ("keys", "mask"),
    [
        full(None, None),
        long(None, AHEAD),
        full(HIDDEN_KEYS, None),
        (HIDDEN_KEYS, AHEAD),
        (None, torch.randn(B * 3, L, L)),
    ],
    ids=["plain", "causal", "padding", "causal and padding", "positions of each head"],
)
def test_attention_over_batches_of_heads(
    call: Call, batch_first: bool, keys: torch.Tensor | None, mask: torch.Tensor | None
) -> None:
    model = Attending(batch_first, keys, mask)
    x = hidden() if batch_first else hidden().transpose(0, 1).contiguous()
    assert aten.bmm not in operators(model, (x,), heads)
    traced = trace(model, (x,))
    assert {p.op for p in traced.placements if p.where == "machine"} >= {"matmul", "softmax", "layer_norm"}
    assert_close(call(traced, x), model(x))


def batches_of_heads(between: Callable[[torch.Tensor], torch.Tensor]) -> Function:
    def function(m: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.view(B, L, 3, 8).transpose(1, 2).reshape(B * 3, L, 8) for y in (m.dense(x), m.up(x), m.down(x)))
        y = torch.bmm(between(torch.bmm(q, k.transpose(1, 2))), v)
        return y.view(B, 3, L, 8).transpose(1, 2).reshape(B, L, C)

    return function


@pytest.mark.parametrize(
    "between",
    [
        lambda s: s,
        lambda s: s.tanh().softmax(-1),
        lambda s: s.softmax(1),
        lambda s: (s * s).softmax(-1),
        lambda s: s.softmax(-1, dtype=torch.float64).float(),
    ],
)
def test_other_products_of_batches_are_left_alone(between: Callable[[torch.Tensor], torch.Tensor]) -> None:
    layers = {name: nn.Linear(C, C) for name in ("dense", "up", "down")}
    assert is_left_alone(Model(batches_of_heads(between), **layers), (hidden(),), heads)


@pytest.mark.parametrize("between", [lambda s: s.softmax(-1), lambda s: (s / 3.0 + 0.5 * torch.eye(L)).softmax(2)])
def test_products_of_batches_that_are_an_attention(call: Call, between: Callable[[torch.Tensor], torch.Tensor]) -> None:
    layers = {name: nn.Linear(C, C) for name in ("dense", "up", "down")}
    model, x = Model(batches_of_heads(between), **layers).eval(), hidden()
    assert_close(call(trace(model, (x,)), x), model(x))


# -- patches


def embedded(m: Any, x: torch.Tensor) -> torch.Tensor:
    """Patches as rows, then a block of the machine's."""
    h = m.conv(x).flatten(2).transpose(1, 2)
    return m.up(m.norm(h))


def patch_model(conv: nn.Module, function: Function = embedded, **more: Any) -> Model:
    return Model(function, conv=conv, norm=nn.LayerNorm(C), up=nn.Linear(C, 7), **more)


PATCHES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "square": (nn.Conv2d(3, C, 4, 4), (B, 3, 8, 12)),
    "oblong": (nn.Conv2d(3, C, (2, 4), (2, 4)), (B, 3, 8, 12)),
    "remainders": (nn.Conv2d(3, C, 4, 4), (B, 3, 11, 14)),
    "without bias": (nn.Conv2d(3, C, 4, 4, bias=False), (B, 3, 8, 8)),
    "valid": (nn.Conv2d(3, C, 4, 4, padding="valid"), (B, 3, 8, 8)),
    "frames": (nn.Conv1d(5, C, 3, 3), (B, 5, 20)),
    "tubes": (nn.Conv3d(3, C, (2, 4, 4), (2, 4, 4)), (B, 3, 5, 8, 12)),
    "positions": (nn.Conv2d(3, C, 1), (B, 3, 2, 5)),
    "overlap": (nn.Conv2d(3, C, 4, 2), (B, 3, 8, 12)),
    "padding": (nn.Conv2d(3, C, 4, 4, padding=2), (B, 3, 8, 8)),
    "same": (nn.Conv2d(3, C, (2, 3), padding="same"), (B, 3, 4, 5)),
    "dilation": (nn.Conv2d(3, C, 2, 2, dilation=2), (B, 3, 8, 8)),
    "overlapping frames": (nn.Conv1d(5, C, 3, 2, padding=1), (B, 5, 20)),
}


@pytest.mark.parametrize("kind", thinned(PATCHES, 2))
def test_patches_become_rows_of_a_product(call: Call, kind: str) -> None:
    conv, shape = PATCHES[kind]
    model, x = patch_model(conv), torch.randn(shape)
    ops = operators(model, (x,), patches)
    assert ops.count(aten.linear) == 2
    assert not {aten.conv1d, aten.conv2d, aten.conv3d} & set(ops)
    traced = trace(model, (x,))
    assert next((p.path, p.op) for p in traced.placements if p.where == "machine") == ("conv", "linear")
    assert_close(call(traced, x), model(x))


def test_patches_of_an_image_without_a_batch() -> None:
    model = Model(lambda m, x: m.conv(x), conv=nn.Conv2d(3, C, 4, 4))
    assert aten.linear in operators(model, (torch.randn(3, 9, 8),), patches)


def test_patches_say_where_they_come_from() -> None:
    program = capture(patch_model(nn.Conv2d(3, C, 4, 4)).eval(), (torch.randn(B, 3, 8, 8),), {})
    assert rewrite(program)
    linear = program.graph.find_nodes(op="call_function", target=aten.linear.default)[0]
    assert module_path(linear) == "conv"


def test_positions_of_what_the_machine_computes(call: Call) -> None:
    """As where the layers between attentions are convolutions of one row each."""

    def convolved(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.norm(m.conv(F.relu(m.up(x)).transpose(1, 2)).transpose(1, 2) + x)

    model, x = Model(convolved, up=nn.Linear(C, 40), conv=nn.Conv1d(40, C, 1), norm=nn.LayerNorm(C)), hidden()
    assert aten.conv1d not in operators(model, (x,), patches)
    traced = trace(model, (x,))
    assert not [p for p in traced.placements if p.where == "host"]
    assert_close(call(traced, x), model(x))


def by_the_example(m: Any, x: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, x[:, :, :4, :4], stride=4).flatten(2)


def in_image(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.more(F.batch_norm(m.conv(x), m.mean, m.variance))


def with_and_without(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = m.conv(x).flatten(2).transpose(1, 2)
    return m.up(h) + m.up(h + m.table)


def pooled(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(m.norm(m.conv(x).flatten(2).transpose(1, 2)).mean(1))


def merged(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.conv(m.first(x.flatten(2)).view(B, 3, 8, 8)).flatten(2)


@pytest.mark.parametrize(
    "model",
    [
        patch_model(nn.Conv2d(3, C, 4, 4, groups=3)),
        patch_model(
            nn.Conv2d(3, C, 4, 4),
            in_image,
            more=nn.Conv2d(C, 4, 2, groups=4),
            mean=torch.zeros(C),
            variance=torch.ones(C),
        ),
        patch_model(nn.Conv2d(3, C, 4, 4), with_and_without, table=torch.randn(4, C)),
        patch_model(nn.Conv2d(3, C, 4, 4), pooled),
        patch_model(nn.Conv2d(3, C, 4, 4), merged, first=nn.Linear(64, 64)),
        Model(by_the_example),
    ],
    ids=[
        "groups",
        "in image",
        "with and without",
        "pooled",
        "merged",
        "weight",
    ],
)
def test_other_convolutions_are_left_alone(model: Model) -> None:
    assert is_left_alone(model, (torch.randn(B, 3, 8, 8),), patches)


def test_double_precision_is_left_alone() -> None:
    model = patch_model(nn.Conv2d(3, C, 4, 4)).double()
    assert is_left_alone(model, (torch.randn(B, 3, 8, 8).double(),), *REWRITES)


# -- rows


def token_model(function: Function, bias: bool = True, **more: Any) -> Model:
    token, other = torch.randn(1, 1, C), torch.randn(1, 2, C)
    parts = {"token": token, "other": other, "norm": nn.LayerNorm(C), "up": nn.Linear(C, 7)}
    return Model(function, dense=nn.Linear(C, C, bias=bias), **parts, **more)


def one(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(m.norm(torch.cat([m.token.expand(B, -1, -1), m.dense(x)], 1)))


def two(m: Any, x: torch.Tensor) -> torch.Tensor:
    tokens = [m.token.expand(B, -1, -1), m.other.expand(B, -1, -1)]
    return m.up(m.norm(torch.cat([*tokens, m.dense(x)], 1)))


def around(m: Any, x: torch.Tensor) -> torch.Tensor:
    tokens = [m.token.expand(B, -1, -1), m.other.expand(B, -1, -1)]
    return m.up(torch.concat([tokens[0], m.dense(x), tokens[1]], -2))


def from_arguments(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(torch.cat([x.mean(1, keepdim=True), m.dense(x)], 1))


def through_views(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = m.dense(x.flatten(0, 1)).unflatten(0, (B, L)).transpose(1, 2).reshape(B, C, 2, 5).flatten(2).transpose(1, 2)
    return m.up(m.norm(torch.cat([m.token.expand(B, -1, -1), F.dropout(h, 0.5, False)], 1)))


def multiplied(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(torch.cat([m.token.expand(B, -1, -1), x @ m.matrix], 1))


def flat(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(torch.cat([m.token[0], torch.addmm(m.shift, x[0], m.matrix)], 0))


@pytest.mark.parametrize("bias", [True, long(False)])
@pytest.mark.parametrize("function", [one, two, around, from_arguments, through_views, multiplied, flat])
def test_rows_of_the_host_become_rows_of_the_product(call: Call, function: Function, bias: bool) -> None:
    model, x = token_model(function, bias, matrix=torch.randn(C, C), shift=torch.randn(C)), hidden()
    ops = operators(model, (x,), rows)
    assert aten.constant_pad_nd in ops
    assert aten.addmm not in ops
    traced = trace(model, (x,))
    assert len(traced.network.layers) == 2
    assert_close(call(traced, x), model(x))


def used_elsewhere(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = m.dense(x)
    return m.up(torch.cat([m.token.expand(B, -1, -1), h], 1)).sum() + h


def two_products(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(torch.cat([m.dense(x), m.dense(x + 1)], 1))


def normalised(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(torch.cat([m.token.expand(B, -1, -1), m.norm(m.dense(x))], 1))


def on_the_machine(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(torch.cat([m.token.expand(B, -1, -1), m.dense(F.relu(m.dense(x)))], 1))


def in_columns(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([m.token.expand(B, L, -1), m.dense(x)], 2)


def in_batch(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(torch.cat([m.token.expand(1, L, -1), m.dense(x)], 0))


def transposed(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([m.token.expand(L, -1, -1), m.dense(x).transpose(0, 1)], 1)


def in_part(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(torch.cat([m.token.expand(B, -1, -1), m.dense(x)[:, 1:]], 1))


def refused_later(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(torch.cat([m.token.expand(B, -1, -1), m.dense(x)], 1).sin())


LEFT_ALONE = [
    used_elsewhere,
    two_products,
    normalised,
    on_the_machine,
    in_columns,
    in_batch,
    transposed,
    in_part,
    refused_later,
]


@pytest.mark.parametrize("function", LEFT_ALONE)
def test_other_rows_are_left_alone(function: Function) -> None:
    assert is_left_alone(token_model(function), (hidden(),), rows)


# -- host_sums


def sum_model(function: Function) -> Model:
    return Model(
        function,
        dense=nn.Linear(C, C),
        up=nn.Linear(C, 7),
        g=torch.randn(L, C),
        h=torch.randn(1, L, C),
        v=torch.randn(C),
    )


def left(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up((m.dense(x) + m.g) + m.h)


def right(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(m.h + (m.g + m.dense(x)))


def many(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(F.dropout(F.dropout(m.dense(x), 0.1, False) + m.g, 0.1, False) + m.h + x.sin() + m.g)


def of_views(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(m.dense(x.flatten(0, 1)).view(B, L, C) + m.g + m.h)


@pytest.mark.parametrize("function", [left, right, many, of_views])
def test_sums_of_the_host_are_joined(call: Call, function: Function) -> None:
    model, x = sum_model(function), hidden()
    operators(model, (x,), host_sums)
    traced = trace(model, (x,))
    assert len(traced.network.layers) == 2
    assert_close(call(traced, x), model(x))


def sum_used_elsewhere(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.dense(x) + m.g
    return m.up(y + m.h) + m.up(y)


def vectors(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(m.dense(x) + m.v + m.h) + m.up(m.dense(x) + m.h + m.v)


def computed(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(m.dense(x) + m.dense(x + 1) + m.h)


def wider(m: Any, x: torch.Tensor) -> torch.Tensor:
    return (m.dense(x) + m.g) + torch.ones(3, B, L, C)


def multiple(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.add(m.dense(x) + m.g, m.h, alpha=2)


def number(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.dense(x) + m.g + 1


def activated(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(F.relu(m.dense(x)) + m.g + m.h)


@pytest.mark.parametrize("function", [sum_used_elsewhere, vectors, computed, wider, multiple, number, activated])
def test_other_sums_are_left_alone(function: Function) -> None:
    assert is_left_alone(sum_model(function), (hidden(),), host_sums)


# -- columns


def column_model(function: Function, bias: bool = True) -> Model:
    layers = {"dense": nn.Linear(C, 8), "more": nn.Linear(C, 8), "same": nn.Linear(C, C)}
    return Model(function, up=nn.Linear(C + 8, 5, bias=bias), **layers, matrix=torch.randn(C + 8, 5))


def beside_the_host(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(torch.cat([x * x, F.relu(m.dense(x))], -1))


def before_the_host(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([m.dense(x), x.sin()], 2) @ m.matrix


def between_the_hosts(m: Any, x: torch.Tensor) -> torch.Tensor:
    return F.relu(m.up(F.dropout(torch.cat([x[..., :7], m.dense(x), x[..., 7:]], -1), 0.2, False)))


def several(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.dense(x)
    return m.up(torch.cat([F.gelu(y), F.relu(m.more(x)), x[..., :8], m.more(x)], -1))


def beside_an_attention(m: Any, x: torch.Tensor) -> torch.Tensor:
    q, k, v = (m.same(x + i).view(B, L, 3, 8).transpose(1, 2) for i in range(3))
    attended = (q @ k.transpose(2, 3) * 0.3).softmax(-1) @ v
    return m.up(torch.cat([attended.transpose(1, 2).flatten(2), x[..., :8]], -1))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "function", [beside_the_host, before_the_host, between_the_hosts, several, beside_an_attention]
)
def test_columns_of_several_places(call: Call, function: Function, bias: bool) -> None:
    model, x = column_model(function, bias), hidden()
    ops = operators(model, (x,), columns)
    assert ops.count(aten.add) == {several: 3, beside_an_attention: 4}.get(function, 1)
    traced = trace(model, (x,))
    assert not any(p.where == "host" and p.op == "linear" for p in traced.placements)
    assert_close(call(traced, x), model(x))


def all_of_the_host(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(torch.cat([x, x[..., :8].sin()], -1))


def one_row_each(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(torch.cat([m.same(x)[:, 0], x[:, 0, :8]], -1))


def two_activations(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(torch.cat([x, m.dense(x) * m.more(x)], -1))


def no_operator(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.up(torch.cat([x, m.dense(x).sin()], -1))


def in_rows(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.same(torch.cat([m.same(x), x], 1))


@pytest.mark.parametrize("function", [all_of_the_host, one_row_each, two_activations, no_operator, in_rows])
def test_other_columns_are_left_alone(function: Function) -> None:
    assert is_left_alone(column_model(function), (hidden(),), columns)


# -- all of them


def test_together(call: Call) -> None:
    """Patches, two tokens, positions: one product with one residual, normalised twice."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = m.conv(x).flatten(2).transpose(1, 2)
        h = torch.cat([m.token.expand(B, -1, -1), m.other.expand(B, -1, -1), h], 1)
        return m.up(m.norm(m.norm(F.dropout(h + m.positions, 0.1, False))))

    model = token_model(forward, conv=nn.Conv2d(3, C, 4, 4), positions=torch.randn(1, 7, C))
    x = torch.randn(B, 3, 8, 8)
    operators(model, (x,), *REWRITES)
    traced = trace(model, (x,))
    assert len(traced.network.layers) == 3
    assert_close(call(traced, x), model(x))


def test_operators_in_place(call: Call) -> None:
    """torch decomposes the graph then."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.up(m.conv(x).flatten(2).transpose(1, 2).relu_())

    model = patch_model(nn.Conv2d(3, C, 4, 4), forward)
    x = torch.randn(B, 3, 8, 8)
    assert aten.conv2d not in operators(model, (x,), *REWRITES)
    assert_close(call(trace(model, (x,)), x), model(x))


def test_a_convolution_that_is_needed_with_and_without_a_sum(call: Call) -> None:

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = m.conv(x)
        with_positions = h.flatten(2).transpose(1, 2) + m.positions
        return m.up(m.norm(with_positions)) + m.up(h.flatten(2).transpose(1, 2))

    model = patch_model(nn.Conv2d(3, C, 4, 4), forward, positions=torch.randn(1, 4, C))
    x = torch.randn(B, 3, 8, 8)
    assert not is_left_alone(model, (x,), patches)
    traced = trace(model, (x,))
    assert [p.where for p in traced.placements if p.path == "conv"] == ["machine"]
    assert_close(call(traced, x), model(x))


def test_a_refusal_is_that_of_the_graph_that_gets_further() -> None:
    """The rewritten one, in which the joined columns are no reason."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.up(m.up(torch.cat([x[..., :3], m.dense(x)], -1)).sin())

    model = Model(forward, dense=nn.Linear(C, C - 3), up=nn.Linear(C, C))
    assert not is_left_alone(model, (hidden(),), columns)
    with pytest.raises(UnsupportedError, match=r"aten\.linear\.default at up: it depends on aten\.sin\.default"):
        trace(model, (hidden(),))
