"""The layers of the machine: a graph of matrix products and attention over named activations.

An activation is a float32 matrix of `batch * seq` rows with a name. Every matrix product is one pass over the datapath,
fused with its neighbours that are no matrix products (paper section 4.3 and Fig. 11).

In a matched graph, the result of each layer equals PyTorch's. In a folded one, which the scheduler takes, the constants
that the machine does not apply (factor, scale, shift) have gone into weights and biases.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.errors import ScheduleError

Array = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Vector = npt.NDArray[np.floating[Any]]
"""float64 before folding, which rounds once; float32 after it."""
TOP = "the top level"
"""How messages name the root module, whose path is empty."""


class ActivationFunction(Enum):
    """Activation function that MemC applies at its store. The base machine has GELU_TANH only; the others need opcode
    8."""

    GELU_TANH = "gelu_tanh"
    GELU_ERF = "gelu_erf"
    RELU = "relu"
    SILU = "silu"


@dataclass(frozen=True)
class Norm:
    """LayerNorm over the columns with biased variance, or RMSNorm with `rms`.

    Without scale and shift, which a layer has beside it. eps: added to the variance or the mean square.
    """

    eps: float
    rms: bool = False


@dataclass(frozen=True, eq=False)
class Rotary:
    """Positions as rotations: column c of each head becomes x[c] * own[row, c] + x[partners[c]] * partner[row, c].

    own, partner: (rows of a sequence, or 1 for all, head_dim), float32: cosines, and sines with their signs; columns
    that are not rotated have 1 and 0. partners: of each column of a head, its own inverse. In a folded graph the
    partner of column c is c ^ 1, and the last one of an odd number is its own.

    source: name of an input with further factors for each row, in the form of the machine's table; own and partner have
    one row then, and multiply them. None without such factors. order: in a folded graph, the column of a head that each
    of own and partner is.
    """

    own: Array
    partner: Array
    partners: tuple[int, ...]
    source: str | None = None
    order: tuple[int, ...] = ()

    @property
    def head_dim(self) -> int:
        """Columns of a head, rotated or not."""
        return int(self.own.shape[1])

    @cached_property
    def key(self) -> str:
        """SHA-256 of both tables and the name of their source, in hexadecimal: equal tables have equal keys."""
        numbers = np.ascontiguousarray(self.own).tobytes() + b";" + self.partner.tobytes()
        return sha256(numbers + (self.source or "").encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Gemm:
    """y = norm(activation(factor * (x @ weight + bias) + residual * residual_scale)) * scale + shift; all but the
    product are optional.

    weight is (K, N), float32; bias, residual_scale, scale and shift are (N,). `activation` and `norm` exclude each
    other. x, y, residual: names of activations. path: the module path. K = 0 means no product and no bias: such a layer
    is a pass. If `x` is the same activation as the residual, the pass is over the residual: for activations that a
    pre-norm model both normalises and keeps. If `x` is another activation, the pass is over the sum x + residual *
    residual_scale. In a folded graph the factor is 1, and there are no scale and shift. fused: module paths of the
    activation or norm, where they are modules of their own.

    gated: the weight and the bias have 2 N columns; y = activation(first N) * (last N), without activation the plain
    product of both; nothing else is fused. heads: how many heads of equal width the N columns are; `norm` goes over
    each head, and `rotary` is applied to each head last, behind scale, which is then equal in all heads. 0: no heads.
    x_norm, residual_norm: applied to x, and to the residual, before anything else.

    into: name of an input that keeps its contents between runs. The rows of the result replace rows of that input, in
    sequence b from the run-time parameter row[b] on, and y is the whole input behind that. copies: the weight is the
    identity matrix, but for the order of columns in each head: y is x in another layout.
    """

    path: str
    x: str
    y: str
    weight: Array
    bias: Vector
    activation: ActivationFunction | None = None
    residual: str | None = None
    residual_scale: Array | None = None
    norm: Norm | None = None
    factor: float = 1.0
    scale: Float64 | None = None
    shift: Float64 | None = None
    fused: tuple[str, ...] = ()
    gated: bool = False
    heads: int = 0
    rotary: Rotary | None = None
    x_norm: Norm | None = None
    residual_norm: Norm | None = None
    into: str | None = None
    copies: bool = False

    @property
    def place(self) -> str:
        """The module path for messages; TOP for the root module."""
        return self.path or TOP

    @property
    def multiplies(self) -> bool:
        """Whether the layer has a matrix product, i.e. K > 0."""
        return len(self.weight) > 0

    @property
    def is_sum(self) -> bool:
        """Whether it adds two different activations, `x` and `residual`, without a product."""
        return not self.multiplies and self.x != self.residual

    @property
    def in_heads(self) -> bool:
        """Whether its norm or its rotation goes over each head of the result by itself. Such a result is stored head by
        head, each padded to its pitch."""
        return self.heads > 0 and (self.norm is not None or self.rotary is not None)

    @property
    def is_plain_store(self) -> bool:
        """Whether nothing is applied to its result behind the product and the sums: no activation function, norm,
        rotation or gate."""
        return self.activation is None and self.norm is None and self.rotary is None and not self.gated

    @property
    def width(self) -> int:
        """Number of columns N of its result; half the columns of the weight if it is gated."""
        return int(self.weight.shape[1]) // (2 if self.gated else 1)

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the activations that it reads, each once: x, residual, `into`, and the source of a rotation."""
        names = (self.x, self.residual, self.into, None if self.rotary is None else self.rotary.source)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def target(self) -> str:
        """The name of the activation whose memory its result goes to: `into` if that is given, else y."""
        return self.into or self.y

    @property
    def is_open(self) -> bool:
        """Whether it is a product with which a bias, a residual, a factor, an activation or a norm can be fused."""
        return self.multiplies and self.is_plain_store and self.into is None

    @property
    def is_folded(self) -> bool:
        """Whether it has no constants that the machine does not apply: the factor is 1, and there are no scale and
        shift."""
        return self.factor == 1 and self.scale is None and self.shift is None


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """y = softmax(q @ k^T + bias) @ v for each sequence and head. The scale of the scores is a factor of the product
    that computes the keys.

    path: the module path. q, k, v, y: names of activations of heads * head_dim columns; head h starts at column h *
    head_dim. masked: keys at and beyond the length of the sequence (the run-time parameter len[b]) are masked out.
    causal: for each row, the keys behind it are masked out. bias: finite constants of shape (batch or 1, heads or 1,
    seq, seq), such as relative positions or another mask.

    kv_heads: of k and v, which have kv_heads * head_dim columns; query head h takes kv head h // (heads / kv_heads). 0:
    as many as heads. left: rows before the run-time parameter start[b] are padding, and masked out as keys. window:
    keys that are `window` rows or more before the row are masked out, and, unless causal, those behind it as far.
    softcap: scores become softcap * tanh(score / softcap), before any mask. mask: name of an input of (batch,
    mask_heads * seq, keys) that is added to the scores: rows of head 0, then of head 1; mask_heads is 1 or heads.
    counted: its keys have run-time parameters of their own, `len16[b]` for 16 keys; 0: those of the program.
    """

    path: str
    q: str
    k: str
    v: str
    y: str
    heads: int
    head_dim: int
    masked: bool = False
    causal: bool = False
    bias: Array | None = None
    kv_heads: int = 0
    left: bool = False
    window: int | None = None
    softcap: float | None = None
    mask: str | None = None
    mask_heads: int = 1
    counted: int = 0

    @property
    def groups(self) -> int:
        """Query heads that share a head of keys and values; 1 if each has its own."""
        return self.heads // (self.kv_heads or self.heads)

    @property
    def is_biased(self) -> bool:
        """Whether a constant bias or a mask that is an input is added to its scores."""
        return self.bias is not None or self.mask is not None

    @property
    def fused(self) -> tuple[str, ...]:
        """Module paths of operators that are fused into it: always empty for an attention."""
        return ()

    @property
    def place(self) -> str:
        """The module path for messages; TOP for the root module."""
        return self.path or TOP

    @property
    def width(self) -> int:
        """Number of columns of its result, heads * head_dim."""
        return self.heads * self.head_dim

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the activations that it reads, each once: q, k, v, and the mask if it is an input."""
        return tuple(dict.fromkeys((self.q, self.k, self.v) + ((self.mask,) if self.mask else ())))

    @property
    def target(self) -> str:
        """The name of the activation whose memory its result goes to, which is y."""
        return self.y

    @property
    def is_folded(self) -> bool:
        """True: an attention has no constants to fold."""
        return True


Layer = Gemm | AttentionLayer


@dataclass(frozen=True, eq=False)
class Output:
    """An activation that is returned to the host as activation * scale + shift. name: of the activation, of N columns.
    scale, shift: (N,), the affine part of a last LayerNorm; None for none."""

    name: str
    scale: Array | None = None
    shift: Array | None = None


@dataclass(frozen=True, eq=False)
class LayerGraph:
    """Layers in execution order over `batch` sequences of `seq` rows. inputs: the number of columns of each input, by
    its name. outputs: in the order in which the host gets them. layers: in execution order.

    lengths: rows of each sequence, where they differ; rows beyond are neither stored nor computed. Empty: all have
    `seq`. seqs: by the name of an input, the rows of its sequences, for inputs with another number than `seq`, such as
    the text that a decoder attends to. A result has as many rows as what it is computed from, an attention as many as
    its queries; a graph with `lengths` has no `seqs`. stored_columns: of a folded graph, where each column is stored of
    an input that keeps its contents, and of an output that is not stored as it is.

    smooth: for an overlay that computes in integers: by activation, positive factors (columns,) by which the columns of
    rows are divided before they become integers, and by which rows of weights are multiplied; an activation without an
    entry has none. rows16: for the same, results of the products whose rows have up to 16 bits, not 8. cache_rows:
    number of rows of those inputs that keep their contents whose run-time parameter is called `row[b]`; 0 for the
    number that the first such input has. of_step: the graph is a stage of a step of a decoder (`is_step`), with caches
    or without.
    """

    batch: int
    seq: int
    inputs: dict[str, int]
    outputs: tuple[Output, ...]
    layers: tuple[Layer, ...] = field(default=())
    lengths: tuple[int, ...] = ()
    seqs: Mapping[str, int] = field(default_factory=dict)
    stored_columns: Mapping[str, npt.NDArray[np.intp]] = field(default_factory=dict)
    smooth: Mapping[str, Float64] = field(default_factory=dict)
    rows16: frozenset[str] = frozenset()
    cache_rows: int = 0
    of_step: bool = False

    @property
    def depth(self) -> int:
        """About how many transformer layers the graph has: the larger of its attentions and a sixth of its products."""
        attentions = sum(isinstance(x, AttentionLayer) for x in self.layers)
        return max(attentions, (len(self.layers) - attentions) // 6)

    @property
    def rows(self) -> tuple[int, ...]:
        """Number of rows of each sequence, `batch` numbers, for activations with `seq` rows."""
        return self.lengths or (self.seq,) * self.batch

    @cached_property
    def _seq_of(self) -> dict[str, int]:
        found = {name: self.seqs.get(name, self.seq) for name in self.inputs}
        for layer in self.layers:
            x = layer.q if isinstance(layer, AttentionLayer) else layer.into or layer.x
            found[layer.y] = found.get(x, self.seq)
        return found

    @cached_property
    def readers(self) -> dict[str, list[Layer]]:
        """The layers that read each activation, by its name, in execution order. An activation that no layer reads has
        no entry."""
        found: dict[str, list[Layer]] = {}
        for layer in self.layers:
            for name in layer.operands:
                found.setdefault(name, []).append(layer)
        return found

    @property
    def states(self) -> dict[str, str]:
        """The inputs that keep their contents between runs, by name, each with the name of the activation that it
        becomes."""
        return {x.into: x.y for x in self.layers if isinstance(x, Gemm) and x.into is not None}

    def seq_of(self, name: str) -> int:
        """Number of rows of the longest sequence of an activation; `seq` for a name that the graph does not have."""
        return self._seq_of.get(name, self.seq)

    def rows_of(self, name: str) -> tuple[int, ...]:
        """Number of rows of each sequence of the activation `name`: `batch` numbers."""
        return self.lengths or (self.seq_of(name),) * self.batch

    @property
    def counted_seq(self) -> int:
        """Number of keys of a sequence that the run-time lengths and starts count: the keys of the first attention that
        is masked by them and whose keys have no parameters of their own (`AttentionLayer.counted`); `seq` if there is
        none."""
        attentions = (x for x in self.layers if isinstance(x, AttentionLayer) and not x.counted)
        keys = (x.k for x in attentions if x.masked or x.left)
        name = next(keys, None)
        return self.seq if name is None else self.seq_of(name)

    @property
    def size(self) -> str:
        """Batch and rows as text, for messages, such as `2 x 128 rows`."""
        if not self.lengths:
            others = sorted({n for n in self._seq_of.values() if n != self.seq})
            return f"{self.batch} x {' and '.join(map(str, (self.seq, *others)))} rows"
        return f"{self.batch} sequences of {', '.join(map(str, self.lengths))} rows"

    @property
    def state_rows(self) -> tuple[int, ...]:
        """The different numbers of rows of a sequence that inputs which keep their contents have."""
        return tuple(dict.fromkeys(self.seq_of(name) for name in self.states))

    def row_parameter(self, rows: int) -> str:
        """The name of the run-time parameter of inputs that keep their contents and have `rows` rows, without its
        index: `row`, or for another number than `cache_rows` a name such as `row16`."""
        return "row" if rows == (self.cache_rows or self.state_rows[0]) else f"row{rows}"

    @property
    def rotated_by(self) -> dict[str, Rotary]:
        """The rotations whose factors are an input (`Rotary.source`), by the name of the result of their layer."""
        found = ((x.y, x.rotary) for x in self.layers if isinstance(x, Gemm))
        return {y: rotary for y, rotary in found if rotary is not None and rotary.source is not None}

    @property
    def is_step(self) -> bool:
        """Whether the graph is a step of a decoder: each sequence has one row, besides the inputs that keep their
        contents. The rows of all sequences can then lie side by side, because only attentions over these inputs tell
        sequences apart, and nothing else reads their queries."""
        if self.of_step:
            return True
        states, queries = set(self.states), {x.q for x in self.layers if isinstance(x, AttentionLayer)}
        made = {x.y for x in self.layers if isinstance(x, Gemm) and x.into is None}
        apart = all(
            {x.k, x.v} <= states and x.q in made and x.mask is None and x.bias is None
            for x in self.in_place().layers
            if isinstance(x, AttentionLayer)
        )
        others = {name for x in self.layers if isinstance(x, Gemm) for name in x.operands} | {
            x.name for x in self.outputs
        }
        alone = self.seq == 1 and all(name in states for name in self.seqs)
        return bool(states) and alone and not self.lengths and apart and not queries & others

    def in_place(self) -> LayerGraph:
        """The same graph, in which attentions read caches by the names of the inputs that keep their contents, not by
        the names of the activations that these inputs become."""
        changed = {y: name for name, y in self.states.items()}
        layers = (
            with_operands(layer, lambda name: changed.get(name, name)) if isinstance(layer, AttentionLayer) else layer
            for layer in self.layers
        )
        return replace(self, layers=tuple(layers))

    def columns(self, name: str) -> int:
        """Number of columns of an activation that a layer of this graph computes. If `stored_columns` says where they
        are stored, the number of stored columns up to the last of them. Raises `ScheduleError` for an input or an
        unknown name."""
        found = next((layer for layer in self.layers if layer.y == name), None)
        if found is None:
            raise ScheduleError(f"no layer computes {name}")
        return int(self.stored_columns[name].max()) + 1 if name in self.stored_columns else found.width

    def show(self) -> str:
        """The graph as text: a line for the inputs, for each layer, and for the outputs."""
        inputs = ", ".join(f"{name} ({columns} columns)" for name, columns in self.inputs.items())
        outputs = ", ".join(out.name + _affine(out.scale, out.shift) for out in self.outputs)
        lines = [f"  {layer.y} = {_formula(layer)}" for layer in self.layers]
        return "\n".join([f"{self.size}: {inputs}", *lines, f"  -> {outputs}"]) + "\n"

    def check_rows(self) -> None:
        """Raise `ScheduleError` for operands with different numbers of rows, for a causal mask with more or fewer keys
        than rows, for run-time lengths that would count the keys of two numbers of rows, and for `lengths` beside
        inputs with other rows (`seqs`)."""
        for name in self.seqs:
            if self.lengths:
                raise ScheduleError(
                    f"lengths: {name} has other rows than the rest; lengths need the same in all inputs"
                )
        counted = self.counted_seq
        for layer in self.layers:
            if isinstance(layer, AttentionLayer):
                alike: tuple[str, ...] = (layer.k, layer.v)
                if (layer.masked or layer.left) and self.seq_of(layer.k) != (layer.counted or counted):
                    raise ScheduleError(
                        f"{layer.place}: its mask counts {self.seq_of(layer.k)} keys, that of another attention "
                        f"{counted}; a program has one length for each sequence"
                    )
                if layer.causal and self.seq_of(layer.q) != self.seq_of(layer.k):
                    raise ScheduleError(f"{layer.place}: a causal mask needs as many keys as rows")
            else:
                alike = tuple(name for name in (layer.x, layer.residual) if name is not None)
            if len({self.seq_of(name) for name in alike}) > 1:
                rows = ", ".join(f"{name} {self.seq_of(name)}" for name in alike)
                raise ScheduleError(f"{layer.place}: its operands have different numbers of rows: {rows}")

    def check_order(self) -> None:
        """Raise `ScheduleError` for an operand or an output that no input provides and no layer before computes."""
        known = set(self.inputs)
        for layer in self.layers:
            for name in layer.operands:
                if name not in known:
                    raise ScheduleError(f"{layer.place}: {name} is not computed before {layer.y}")
            known.add(layer.y)
        for out in self.outputs:
            if out.name not in known:
                raise ScheduleError(f"output {out.name}: no layer computes it")

    def check_folded(self) -> None:
        """Raise `ScheduleError` for a layer that is not folded, because the machine would leave out its constants."""
        for layer in self.layers:
            if not layer.is_folded:
                raise ScheduleError(f"{layer.place}: its factor, scale or shift is not folded into weights")

    def renamed(self, names: Mapping[str, str]) -> LayerGraph:
        """The same graph with other names of activations. names: the new names by the old ones; activations that are
        not in it keep their names."""

        def new(name: str) -> str:
            return names.get(name, name)

        return replace(
            self,
            inputs={new(name): columns for name, columns in self.inputs.items()},
            seqs={new(name): rows for name, rows in self.seqs.items()},
            outputs=tuple(replace(out, name=new(out.name)) for out in self.outputs),
            layers=tuple(with_operands(replace(layer, y=new(layer.y)), new) for layer in self.layers),
        )

    def with_lengths(self, lengths: Sequence[int]) -> LayerGraph:
        """The same layers over sequences of `lengths` rows, one number for each sequence. Raises `ScheduleError` unless
        there are `batch` whole numbers from 1 to `seq`, and for a graph whose inputs have other rows (`seqs`)."""
        given: object = lengths
        if isinstance(given, str) or not hasattr(given, "__len__"):
            raise ScheduleError(f"lengths = {lengths!r}: must be a list of whole numbers, one for each sequence")
        for n in lengths:
            if isinstance(n, bool) or not hasattr(n, "__index__"):
                raise ScheduleError(f"lengths: {n!r} is not a whole number")
        if self.seqs:
            name, rows = next(iter(self.seqs.items()))
            raise ScheduleError(
                f"lengths: {name} has sequences of {rows} rows, the rest of {self.seq}; lengths need the same in all"
            )
        if len(lengths) != self.batch:
            raise ScheduleError(f"lengths: {len(lengths)} given for a batch of {self.batch} sequences")
        for i, n in enumerate(lengths):
            if not 1 <= n <= self.seq:
                raise ScheduleError(f"lengths: {n} for sequence {i}; a length must be from 1 to {self.seq} rows")
        same = all(n == self.seq for n in lengths)
        return replace(self, lengths=() if same else tuple(int(n) for n in lengths))


def with_operands(layer: Layer, new: Callable[[str], str]) -> Layer:
    """The layer with other activations as operands. new: returns the new name of an operand for the old one. The name
    of the result stays."""
    if isinstance(layer, AttentionLayer):
        mask = None if layer.mask is None else new(layer.mask)
        return replace(layer, q=new(layer.q), k=new(layer.k), v=new(layer.v), mask=mask)
    residual, into = (None if x is None else new(x) for x in (layer.residual, layer.into))
    rotary = layer.rotary
    if rotary is not None and rotary.source is not None:
        rotary = replace(rotary, source=new(rotary.source))
    return replace(layer, x=new(layer.x), residual=residual, rotary=rotary, into=into)


def unique_name(stem: str, taken: set[str]) -> str:
    """The first of `stem`, `stem_2`, `stem_3`, ... that is not in `taken`, to which it is added."""
    name = free_name(stem, taken, "_")
    taken.add(name)
    return name


def free_name(stem: str, taken: Container[str], sign: str = ".") -> str:
    """The first of `stem`, then `stem`, `sign` and a number from 2 on, that is not in `taken`, which is not changed."""
    name, n = stem, 1
    while name in taken:
        n += 1
        name = f"{stem}{sign}{n}"
    return name


def behind(outputs: Iterable[str], layers: Mapping[str, Layer]) -> dict[str, None]:
    """The names of the activations `outputs`, and of all activations from which they are computed: operands come before
    the results that need them. A name without a layer is an input. layers: by the name of their results; they must have
    no cycle. The result is an ordered set: the keys of a dict whose values are None."""
    found: dict[str, None] = {}
    stack = list(reversed(list(outputs)))
    while stack:
        operands = layers[stack[-1]].operands if stack[-1] in layers else ()
        missing = next((x for x in operands if x not in found), None)
        if missing is not None:
            stack.append(missing)
        else:
            found[stack.pop()] = None
    return found


def _formula(layer: Layer) -> str:
    """What a layer computes, in words."""
    if isinstance(layer, AttentionLayer):
        bias = "" if layer.bias is None else " + bias " + "x".join(map(str, layer.bias.shape))
        bias += "" if layer.mask is None else f" + {layer.mask}"
        scores = f"{layer.q} @ {layer.k}^T"
        scores = scores if layer.softcap is None else f"softcap {layer.softcap:g} ({scores})"
        words = f"softmax({scores}{bias}) @ {layer.v}, {layer.heads} heads of {layer.head_dim}"
        words += f" on {layer.kv_heads}" * (layer.groups > 1) + ", masked" * layer.masked + ", causal" * layer.causal
        return words + ", left" * layer.left + ("" if layer.window is None else f", window {layer.window}")
    terms = []
    if layer.multiplies:
        k, n = layer.weight.shape
        product = f"{_normed(layer.x, layer.x_norm)} @ weight {k}x{n} + bias"
        terms.append(product if layer.factor == 1 else f"{layer.factor:g} * ({product})")
    elif layer.is_sum:
        terms.append(_normed(layer.x, layer.x_norm))
    if layer.residual is not None:
        residual = _normed(layer.residual, layer.residual_norm)
        terms.append(residual + " * scale" * (layer.residual_scale is not None))
    words = " + ".join(terms)
    if layer.activation is not None:
        words = f"{layer.activation.value}({words})"
    words = f"gate({words})" if layer.gated else words
    words = _normed(words, layer.norm, layer.heads) + _affine(layer.scale, layer.shift)
    words += "" if layer.into is None else f", as rows of {layer.into}"
    return words if layer.rotary is None else f"rotate({words}, {layer.heads} heads)"


def _normed(words: str, norm: Norm | None, heads: int = 0) -> str:
    """The norm of a value, in words. heads: it goes over each of so many heads; 0: over all columns."""
    if norm is None:
        return words
    return f"{'rms' if norm.rms else 'layer'}_norm({words}, eps {norm.eps:g}{f', {heads} heads' * (heads > 0)})"


def _affine(scale: Vector | None, shift: Vector | None) -> str:
    """The scale and shift of a result, in words."""
    return " * scale" * (scale is not None) + " + shift" * (shift is not None)
