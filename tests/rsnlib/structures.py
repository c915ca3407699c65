"""Random structures of networks, compiled in every way and compared with PyTorch.

    python -m rsn.tests.rsnlib.structures --count 5000 --seed 0 [--way xnn2] [--processes 2]
    python -m rsn.tests.rsnlib.structures --seed 17 --count 1 --show

A structure is a list of statements over values (batch, rows, columns): parts of networks, and operators of the normal
form, all that its table has. It follows from its seed alone; `shrunk` leaves
out statements as long as the result stays wrong. The sizes are small, and the values of order 1, so that no branch
hides another.
"""

from __future__ import annotations

import argparse
import copy
import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import nn

import rsn
from rsn.base.errors import TensorError, UnsupportedError
from rsn.host.model.compiled import Compiled
from rsn.rsnlib.normal_form.operators import OPERATORS
from rsn.rsnlib.pipeline import Pipeline
from rsn.rsnlib.trace import NoProductError
from rsn.tests.rsnlib.drawers import drawer
from rsn.tests.scheduler.toy_machines import Toy, toy

HEAD = 16
"""Columns of a head."""
WIDTHS = (32, 64)
BOUND = 1e-5
KINDS = ("right", "refused", "without a product", "wrong")
"""What may become of a structure."""
PROGRESS = 50
"""Structures between two lines of progress."""
AMPLIFIED = 4.0
"""How many times PyTorch's own rounding passes, where the network amplifies it."""
TOY = "toy"
WAYS = ("xnn-base", "xnn", "xnn2", TOY, "torch.compile", "torch.compile xnn2")
"""An overlay by its name, for `rsn.compile`; or the backend of torch.compile, with an overlay. `TOY` is a machine
without patterns."""
FORM: dict[str, Any] = {op.__name__: op for op in OPERATORS}
"""The operators of the normal form by their names."""
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


@dataclass(frozen=True)
class Statement:
    """`target` = `op`(operands), with the numbers and names in `settings`."""

    target: str
    op: str
    operands: tuple[str, ...]
    settings: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        settings = (f"{name}={value!r}" for name, value in self.settings)
        return f"{self.target} = {self.op}({', '.join((*self.operands, *settings))})"


@dataclass(frozen=True)
class Structure:
    """A drawn network. inputs: the columns of each. outputs: values that it returns."""

    seed: int
    batch: int
    rows: int
    inputs: tuple[tuple[str, int], ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        first = f"# seed {self.seed}: {self.batch} x {self.rows} rows"
        inputs = (f"{name} = input({width})" for name, width in self.inputs)
        return "\n".join((first, *inputs, *map(str, self.statements), f"return {', '.join(self.outputs)}"))

    @property
    def is_masked(self) -> bool:
        """Whether it takes a mask of padding."""
        return any(dict(s.settings).get("masked") for s in self.statements)

    def arguments(self, number: int) -> tuple[torch.Tensor, ...]:
        """Arguments of a call."""
        generator = torch.Generator().manual_seed(1000 * self.seed + number)
        values = [torch.randn(self.batch, self.rows, width, generator=generator) for _, width in self.inputs]
        if self.is_masked:
            lengths = torch.randint(1, self.rows + 1, (self.batch, 1), generator=generator)
            values.append((torch.arange(self.rows) < lengths).long())
        return tuple(values)


class Drawn:
    """Draws one structure."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.seed = seed
        self.widths: dict[str, int] = {}
        self.statements: list[Statement] = []

    def structure(self) -> Structure:
        r = self.r
        batch, rows = r.choice([(1, 8), (2, 5), (1, 20), (3, 3), (2, 24)])
        inputs = [("x", r.choice(WIDTHS))] + [("y", r.choice(WIDTHS))] * (r.random() < 0.3)
        self.widths = dict(inputs)
        self.masked = r.random() < 0.3
        self.linear(r.choice(list(self.widths)))
        for _ in range(r.randint(2, 9)):
            r.choice(self.choices())()
        values = [s.target for s in self.statements]
        outputs = [max(r.choices(values[-6:], k=3), key=lambda name: len(needed(self.statements, [name])))]
        if r.random() < 0.5:
            outputs += r.choices([*values, *self.widths][-6:], k=r.randint(1, 2))
        used = self.used(outputs)
        return Structure(self.seed, batch, rows, tuple(inputs), used, tuple(outputs))

    def used(self, outputs: Sequence[str]) -> tuple[Statement, ...]:
        """The statements that outputs need; now and then the others as well."""
        if self.r.random() < 0.1:
            return tuple(self.statements)
        return needed(self.statements, outputs)

    def choices(self) -> list[Callable[[], object]]:
        each = [self.linear, self.linear, self.tied, self.activation, self.norm, self.norm, self.total, self.total]
        each += [self.total, self.twice, self.three, self.moved, self.gate, self.square, self.halves, self.joined]
        each += [self.attention, self.attention, self.parallel, self.block, self.copied, self.two_products]
        return [*each, self.of_form, self.of_form, self.of_form, self.of_form]

    def value(self, width: int | None = None) -> str:
        """A value, mostly one of the last ones."""
        names = [name for name, of in self.widths.items() if width is None or of == width]
        if not names:
            return self.linear(self.value(), width)
        return self.r.choice(names[-4:] if self.r.random() < 0.7 else names)

    def add(self, op: str, operands: Sequence[str], width: int, **settings: Any) -> str:
        name = f"v{len(self.statements)}"
        self.statements.append(Statement(name, op, tuple(operands), tuple(settings.items())))
        self.widths[name] = width
        return name

    # -- statements

    def linear(self, x: str | None = None, width: int | None = None) -> str:
        x, width = x or self.value(), width or self.r.choice(WIDTHS)
        return self.add("linear", [x], width, out=width, bias=self.r.random() < 0.8)

    def tied(self) -> str:
        """A product with the weights of another one."""
        linears = [s for s in self.statements if s.op == "linear"]
        other = self.r.choice(linears)
        x = self.value(self.widths[other.operands[0]])
        return self.add("tied", [x], self.widths[other.target], to=other.target)

    def activation(self, x: str | None = None) -> str:
        x = x or self.value()
        return self.add(self.r.choice(list(ACTIVATIONS)), [x], self.widths[x])

    def norm(self, x: str | None = None) -> str:
        x = x or self.value()
        return self.add(self.r.choice(["layer_norm", "rms_norm"]), [x], self.widths[x])

    def total(self) -> str:
        x = self.value()
        return self.add(
            "add", [x, self.value(self.widths[x])], self.widths[x], alpha=self.r.choice([1, 1, 1, -1, 3, 0.5])
        )

    def twice(self) -> str:
        x = self.value()
        return self.add("add", [x, x], self.widths[x], alpha=self.r.choice([1, 1, 3, 0.5]))

    def two_products(self) -> str:
        """A product whose residual is another one, of the same value or of another."""
        x, width = self.value(), self.r.choice(WIDTHS)
        terms = [self.linear(x, width), self.linear(x if self.r.random() < 0.5 else self.value(), width)]
        return self.add("add", self.r.sample(terms, 2), width, alpha=self.r.choice([1, 1, -1, 0.5]))

    def of_form(self) -> str:
        """An operator of the normal form, of one value twice or of two. What has steps is taken from an argument."""
        x = self.value()
        y = x if self.r.random() < 0.3 else self.value(self.widths[x])
        return self.add("form", [x, y, "x"], self.widths[x], name=self.r.choice(list(FORM)))

    def three(self) -> str:
        x = self.value()
        width = self.widths[x]
        y = self.add("add", [x, self.value(width)], width, alpha=1)
        return self.add("add", self.r.sample([y, self.value(width)], 2), width, alpha=1)

    def moved(self) -> str:
        x = self.value()
        return self.add(
            self.r.choice(["times", "divided", "plus_vector", "times_vector", "negated"]), [x], self.widths[x]
        )

    def gate(self) -> str:
        x = self.value()
        width = self.r.choice(WIDTHS)
        act = self.activation(self.linear(x, width))
        other = self.linear(x, width) if self.r.random() < 0.8 else self.value(width)
        return self.add("mul", self.r.sample([act, other], 2), width)

    def square(self) -> str:
        x = self.value()
        return self.add("mul", [x, x if self.r.random() < 0.5 else self.value(self.widths[x])], self.widths[x])

    def halves(self) -> str:
        x = self.linear(width=64)
        return self.add("columns", [x], 32, first=self.r.choice([0, 32]))

    def joined(self) -> str:
        return self.add("cat", [self.value(32), self.value(32)], 64)

    def copied(self) -> str:
        """The same values, by way of views or a dropout."""
        x = self.value()
        return self.add(self.r.choice(["reshape", "transposed", "dropout", "contiguous"]), [x], self.widths[x])

    def attention(self, x: str | None = None) -> str:
        r = self.r
        q = x or self.value()
        source = q if x or r.random() < 0.7 else self.value()
        heads, width = r.choice([1, 2, 4]), r.choice(WIDTHS)
        settings = {
            "heads": heads,
            "kv_heads": r.choice([n for n in (1, 2, 4) if heads % n == 0]),
            "out": width,
            "causal": r.random() < 0.3,
            "masked": self.masked and r.random() < 0.7,
            "rotated": r.random() < 0.3,
            "normed": r.random() < 0.2,
            "spelled": r.random() < 0.3,
            "projected": r.random() < 0.8,
        }
        out = width if settings["projected"] else heads * HEAD
        return self.add("attention", [q, source], out, **settings)

    def parallel(self) -> str:
        """x + attention(norm(x)) + feed_forward(norm(x)), as in GPT-J."""
        x = self.value()
        width = self.widths[x]
        y = self.norm(x)
        a = self.linear(self.attention(y), width)
        f = self.linear(self.activation(self.linear(y if self.r.random() < 0.5 else self.norm(x))), width)
        terms = self.r.sample([x, a, f], 3)
        return self.add("add", [self.add("add", terms[:2], width, alpha=1), terms[2]], width, alpha=1)

    def block(self) -> str:
        """One half of a layer, with the norm in front of it or behind it."""
        x = self.value()
        width, is_first = self.widths[x], self.r.random() < 0.5
        y = self.norm(x) if is_first else x
        made = self.attention(y) if self.r.random() < 0.5 else self.activation(self.linear(y))
        out = self.add("add", self.r.sample([x, self.linear(made, width)], 2), width, alpha=1)
        return out if is_first else self.norm(out)


def needed(statements: Sequence[Statement], outputs: Sequence[str]) -> tuple[Statement, ...]:
    """The statements that outputs need, also by way of tied weights."""
    found, out = set(outputs), []
    for s in reversed(statements):
        if s.target in found:
            found |= {*s.operands, *(str(value) for name, value in s.settings if name == "to")}
            out.append(s)
    return tuple(reversed(out))


class Network(nn.Module):
    """A structure as a module, with weights that follow from its seed."""

    def __init__(self, structure: Structure) -> None:
        super().__init__()
        self.structure = structure
        self.parts = nn.ModuleDict()
        widths = dict(structure.inputs)
        self.drawers: dict[str, Any] = {}
        for s in structure.statements:
            if s.op == "form":
                self.drawers[s.target] = drawer(FORM[str(dict(s.settings)["name"])])
            settings, width = dict(s.settings), widths.get(s.operands[0], 0)
            torch.manual_seed(structure.seed * 1000 + int(s.target[1:]))  # whichever other statements there are
            part = self._part(s.op, width, settings, [widths[x] for x in s.operands])
            if part is not None:
                self.parts[s.target] = part
            widths[s.target] = self._width(s, widths)
        angles = torch.arange(structure.rows)[:, None] * 10.0 ** -torch.arange(0, 1, 2 / HEAD)
        self.register_buffer("angles", torch.cat([angles, angles], -1))
        self.eval()

    @staticmethod
    def _width(s: Statement, widths: dict[str, int]) -> int:
        settings = dict(s.settings)
        if s.op == "attention" and not settings["projected"]:
            return HEAD * int(settings["heads"])
        if s.op == "cat":
            return sum(widths[x] for x in s.operands)
        if s.op == "columns":
            return 32
        return (
            int(settings["out"])
            if "out" in settings
            else widths[s.target]
            if s.target in widths
            else (widths[str(settings["to"])] if "to" in settings else widths[s.operands[0]])
        )

    @staticmethod
    def _part(op: str, width: int, settings: dict[str, Any], widths: Sequence[int]) -> nn.Module | None:
        if op == "linear":
            return _linear(width, settings["out"], settings["bias"])
        if op in ("layer_norm", "rms_norm"):
            made = nn.LayerNorm(width) if op == "layer_norm" else nn.RMSNorm(width, eps=1e-6)
            for parameter in made.parameters():
                nn.init.uniform_(parameter, 0.5, 1.5)
            return made
        if op in ("plus_vector", "times_vector"):
            return nn.ParameterList([torch.empty(width).uniform_(0.5, 1.5)])
        if op != "attention":
            return None
        columns, keys = settings["heads"] * HEAD, settings["kv_heads"] * HEAD
        parts = {"q": _linear(width, columns), "k": _linear(widths[1], keys), "v": _linear(widths[1], keys)}
        if settings["normed"]:
            parts |= {"qn": nn.RMSNorm(HEAD, eps=1e-6), "kn": nn.RMSNorm(HEAD, eps=1e-6)}
            for name in ("qn", "kn"):
                nn.init.uniform_(parts[name].weight, 0.5, 1.5)  # type: ignore[arg-type]
        if settings["projected"]:
            parts["o"] = _linear(columns, settings["out"])
        return nn.ModuleDict(parts)

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> Any:
        values = dict(zip((name for name, _ in self.structure.inputs), (x, *others), strict=False))
        mask = others[-1] if self.structure.is_masked else None
        for s in self.structure.statements:
            values[s.target] = self._computed(s, [values[name] for name in s.operands], mask)
        out = tuple(values[name] for name in self.structure.outputs)
        return out if len(out) > 1 else out[0]

    def _computed(self, s: Statement, operands: list[torch.Tensor], mask: torch.Tensor | None) -> torch.Tensor:
        x, settings = operands[0], dict(s.settings)
        part: Any = self.parts[s.target] if s.target in self.parts else None  # noqa: SIM401 - a ModuleDict has no get
        if s.op in ACTIVATIONS:
            return ACTIVATIONS[s.op](x)
        match s.op:
            case "linear" | "layer_norm" | "rms_norm":
                y = part(x)
            case "tied":
                y = self.parts[str(settings["to"])](x)
            case "add":
                alpha = settings["alpha"]
                y = x - operands[1] if alpha == -1 else torch.add(x, operands[1], alpha=alpha)
            case "mul":
                y = x * operands[1]
            case "times":
                y = x * 0.75
            case "divided":
                y = x / 1.5
            case "negated":
                y = -x
            case "plus_vector":
                y = x + part[0]
            case "times_vector":
                y = x * part[0]
            case "columns":
                y = x[..., settings["first"] : settings["first"] + 32]
            case "cat":
                y = torch.cat(operands, -1)
            case "reshape":
                y = x.reshape(-1, x.shape[-1]).reshape(x.shape)
            case "transposed":
                y = x.transpose(0, 1).transpose(0, 1)
            case "dropout":
                y = F.dropout(x, 0.1, training=self.training)
            case "contiguous":
                y = x.contiguous()
            case "form":
                y = self.drawers[s.target](x, operands[1], operands[2].repeat(1, 1, 2)[..., : x.shape[-1]])
            case "attention":
                y = self._attention(part, x, operands[1], mask if settings["masked"] else None, settings)
            case _:
                raise ValueError(s.op)
        return y

    def _attention(
        self, part: Any, x: torch.Tensor, source: torch.Tensor, mask: torch.Tensor | None, settings: dict[str, Any]
    ) -> torch.Tensor:
        q, k, v = (
            p(t).unflatten(-1, (-1, HEAD)) for p, t in ((part["q"], x), (part["k"], source), (part["v"], source))
        )
        if settings["normed"]:
            q, k = part["qn"](q), part["kn"](k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if settings["rotated"]:
            q, k = self._rotated(q), self._rotated(k)
        groups = settings["heads"] // settings["kv_heads"]
        if groups > 1:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        shown = None if mask is None else mask[:, None, None] != 0
        if settings["causal"]:
            behind = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            shown = behind if shown is None else shown & behind
        if settings["spelled"]:
            scores = q @ k.transpose(-1, -2) / HEAD**0.5
            if shown is not None:
                scores = scores.masked_fill(~shown, -1e9)
            y = scores.softmax(-1) @ v
        elif mask is None and settings["causal"]:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=shown)
        y = y.transpose(1, 2).flatten(2)
        out: torch.Tensor = part["o"](y) if settings["projected"] else y
        return out

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        one, other = x.chunk(2, -1)
        return x * self.angles.cos() + torch.cat([-other, one], -1) * self.angles.sin()  # type: ignore[operator]


def _linear(k: int, n: int, bias: bool = True) -> nn.Linear:
    made = nn.Linear(k, n, bias=bias)
    nn.init.normal_(made.weight, std=1.3 * k**-0.5)
    return made


def drawn(seed: int) -> Structure:
    """The structure of a seed."""
    return Drawn(seed).structure()


def outcome(structure: Structure, way: str) -> str:
    """What becomes of a structure: "right", "refused: " with the reason, "without a product" if the machine would run
    nothing, or "wrong: " with the difference or the error. Each is called twice, with other arguments."""
    model, example = Network(structure), structure.arguments(0)
    torch._dynamo.reset()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = _compiled(model, example, way)
            worst = max(_difference(structure, model, compiled, structure.arguments(i)) for i in range(2))
    except NoProductError:
        return "without a product"
    except (UnsupportedError, TensorError) as error:
        return f"refused: {_reason(str(error))}"
    except Exception as error:
        return f"wrong: {type(error).__name__} {_reason(str(error))}"
    return "right" if worst <= BOUND else f"wrong: {worst:.1e}"


def _compiled(model: nn.Module, example: tuple[torch.Tensor, ...], way: str) -> Callable[..., Any]:
    if way.startswith("torch.compile"):
        overlay = way.removeprefix("torch.compile").strip() or "xnn"
        return torch.compile(model, backend="rsn", options={"verify": "never", "overlay": overlay})
    if way != TOY:
        return rsn.compile(model, example, overlay=way, verify="never")
    pipeline = Pipeline(overlay=toy(Toy("toy", ((16, 16, 16),), sums=True)))
    traced = pipeline.trace(model, example)
    return Compiled(traced, pipeline.build(traced.network), "sim")


def _difference(structure: Structure, model: nn.Module, compiled: Callable[..., Any], given: Any) -> float:
    """The largest difference from PyTorch. A network may amplify any rounding: where PyTorch's float32 result is
    far from its float64 one, the difference counts as `BOUND` if it is `AMPLIFIED` times that."""
    got, expected = compiled(*given), model(*given)
    exact = copy.deepcopy(model).double()(*(x.double() if x.is_floating_point() else x for x in given))
    if len(structure.outputs) == 1:
        got, expected, exact = (got,), (expected,), (exact,)
    worst = 0.0
    for x, y, z in zip(got, expected, exact, strict=True):
        if structure.is_masked:  # rows of padding are nobody's
            x, y, z = (t * given[-1][..., None] for t in (x, y, z))
        largest = float(y.abs().max()) or 1.0  # a value minus itself is 0 in PyTorch, here it may be rounding
        own = float((y - z).abs().max() / largest)
        worst = max(worst, float((x - y).abs().max() / largest) / max(1.0, AMPLIFIED * own / BOUND))
    return worst if worst == worst else float("inf")


def _reason(message: str) -> str:
    """A refusal without names and numbers."""
    text = re.sub(r"^(parts?[\w.]*|the top level): ", "", message.partition("; torch.compile")[0].partition("\n")[0])
    text = re.sub(r"\bparts\.[\w.]+|\bv\d+[\w.]*", "NAME", text)
    return re.sub(r"\d+", "#", text)[:110]


def shrunk(structure: Structure, way: str) -> Structure:
    """The same with fewer statements and outputs, as long as its outcome is wrong."""
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(structure):
            if outcome(smaller, way).startswith("wrong"):
                structure, changed = smaller, True
                break
    return structure


def _smaller(structure: Structure) -> list[Structure]:
    out = []
    widths = dict(structure.inputs)
    model = Network(structure)
    for s in structure.statements:
        widths[s.target] = model._width(s, widths)
    for i in range(len(structure.outputs)) if len(structure.outputs) > 1 else ():
        outputs = structure.outputs[:i] + structure.outputs[i + 1 :]
        out.append(replace(structure, outputs=outputs, statements=needed(structure.statements, outputs)))
    for i, s in enumerate(structure.statements):
        for operand in dict.fromkeys(s.operands):
            if widths[operand] != widths[s.target]:
                continue

            def swap(name: str, old: str = s.target, new: str = operand) -> str:
                return new if name == old else name

            rest = [replace(x, operands=tuple(map(swap, x.operands))) for x in structure.statements if x is not s]
            if any(value == s.target for x in rest for _, value in x.settings):
                continue
            outputs = tuple(map(swap, structure.outputs))
            if all(name in dict(structure.inputs) for name in outputs):
                continue
            out.append(replace(structure, outputs=outputs, statements=needed(rest, outputs)))
        if i + 1 < len(structure.statements):
            out.append(replace(structure, outputs=(s.target,), statements=needed(structure.statements, [s.target])))
    return [x for x in out if len(str(x)) < len(str(structure))]


def _tried(seed: int, ways: Sequence[str]) -> list[tuple[int, str, str]]:
    structure = drawn(seed)
    return [(seed, way, outcome(structure, way)) for way in ways]


def chosen(seed: int, way: str | None = None) -> tuple[str, ...]:
    """The ways that a seed is tried in: two of all."""
    return (way,) if way else tuple(random.Random(f"ways {seed}").sample(WAYS, 2))


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--way", choices=WAYS, help="default: two of them for each structure")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print the structures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.seed, options.seed + options.count)
    if options.show:
        print(*map(drawn, seeds), sep="\n\n")
    ways = [chosen(seed, options.way) for seed in seeds]
    found: list[tuple[int, str, str]] = []
    table: dict[str, Counter[str]] = {}
    with ProcessPoolExecutor(options.processes, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for number, results in enumerate(pool.map(_tried, seeds, ways, chunksize=10), 1):
            found += results
            for seed, way, result in results:
                table.setdefault(way, Counter())[result.partition(":")[0]] += 1
                if result.startswith("wrong"):
                    print(f"seed {seed}, {way}: {result}", shrunk(drawn(seed), way), sep="\n", flush=True)
            if number % PROGRESS == 0:
                counts = sum(table.values(), Counter[str]())
                print(f"{number} structures: " + _counted(counts), file=sys.stderr, flush=True)
    print(f"{len(seeds)} structures, each in {len(ways[0])} ways")
    for way, counts in sorted(table.items()):
        print(f"{way:20} {_counted(counts)}")
    reasons = Counter(result for _, _, result in found if result.startswith("refused"))
    for reason, count in reasons.most_common():
        print(f"{count:6} {reason.removeprefix('refused: ')}")


if __name__ == "__main__":
    main()
