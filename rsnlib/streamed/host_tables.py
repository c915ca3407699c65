"""What a program of C++ needs to do the host's part of a `MachineDecoder`: tables in place of PyTorch.

Before the layers stand rows of embeddings, to which those of places may be added, and tensors that follow from the
position alone, such as masks and rotary tables. Behind them stand a norm and a product with the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from ...base.errors import UnsupportedError
from ..call_arguments import by_name
from ..capture import Environment, arguments, packet, site
from ..capture import run as run_on_host
from ..rules import VIEWS
from ..static_cache import parts_of
from .attention import flat_matrices
from .decoding import DecoderProgram, logits_of
from .lengths import BlockOfLength
from .operators import Array, FromHost, Positions
from .reading import OperatorBlock

aten = torch.ops.aten
MOVES = frozenset((*VIEWS, aten.index, aten.slice, aten.select, aten.index_select))
"""Operators behind the layers that only choose rows."""

BEHIND = (
    "behind the layers a program for a board computes a norm and a product in float32; let the machine compute what is "
    "behind them (--head)"
)


@dataclass(frozen=True)
class HostTables:
    """What the host needs to compute a language model before and behind the layers that a machine computes: tables in
    float32.

    embedding: a row for each word, (vocabulary, width). places: a row that is added for each position, (capacity,
    width); None for none. gamma, beta: scale and shift of the last norm, (width,) each; None for none. centred: the
    last norm subtracts the mean. eps: of the last norm. head, bias: weight and bias of the product with the vocabulary,
    (vocabulary, width) and (vocabulary,). bias is None if there is none; head and bias are None for a machine that
    gives logits.
    """

    embedding: Array
    places: Array | None
    gamma: Array | None = None
    beta: Array | None = None
    centred: bool = False
    eps: float = 0.0
    head: Array | None = None
    bias: Array | None = None


@dataclass(frozen=True)
class PositionalTensor:
    """An input tensor of a machine whose rows depend only on their positions. rows: a row of 32-bit numbers for each
    position, (positions, width). lying: for each element of the tensor in the machine's memory, the number of that
    element among the rows of the run, taken row by row; int32."""

    rows: Array
    lying: Array


def host_tables(program: DecoderProgram, capacity: int, vocabulary: int) -> HostTables:
    """Return the tables from which the host computes a model before and behind its layers. program: of a step.
    capacity: number of positions. vocabulary: number of words. Raises `UnsupportedError`, naming the operator, for a
    model that computes anything else before or behind the layers."""
    at, _ = program.host_values([0], 0)
    block = at.block
    (tokens, position) = _arguments(block)
    assert program.block.repeated is not None
    carried = next(x.data for x in program.block.graph.operators if x.name == program.block.repeated.carried)
    first = at.held.get(id(carried), carried)
    assert isinstance(first, FromHost)
    rows = first.node
    if packet(rows) is aten.add and not rows.kwargs and not _depends(arguments(rows)["other"], {tokens}):
        words, places = arguments(rows)["self"], arguments(rows)["other"]
    else:
        words, places = rows, None
    if _depends(words, position) or not _depends(words, {tokens}):
        raise UnsupportedError(
            f"{site(words)}: what the layers begin with is no row of a table for each token, to which one for each "
            "position may be added; PyTorch computes it, and a program for a board cannot"
        )
    # Word by word: the sizes in the graph are those of one token.
    of_words = [
        _value(words, {**block.lifted, tokens: torch.tensor([[word]])}).reshape(-1) for word in range(vocabulary)
    ]
    embedding = torch.stack(of_words)
    added = None
    if places is not None:
        found = [program.host_values([0], k)[1][places].reshape(-1) for k in range(capacity)]
        added = torch.stack(found).broadcast_to(capacity, embedding.shape[1])
    logits = logits_of(block)
    behind = {} if logits in block.results else _behind(block, logits)
    return HostTables(_array(embedding), None if added is None else _array(added), **behind)


def positional_tensors(program: DecoderProgram, positions: int) -> dict[str, PositionalTensor]:
    """Return the input tensors of a machine whose rows depend only on their positions, by name: all that the host
    computes for a run, without the input rows of the first layer and without the number of the row whose logits are
    wanted.

    positions: how many positions the tables have, from 0 on. Raises `UnsupportedError` for a tensor that depends on the
    tokens; and, of a program of any length, for a tensor of which a row depends on more than its position.
    """
    tokens, _ = _arguments(program.block)
    names = [name for name in program.given if name not in (program.carried, program.chosen)]
    for name in names:
        if any(_depends(x.node, {tokens}) for x in _held(program, name)):
            raise UnsupportedError(f"{name} depends on the tokens; a program for a board has tables by position")
    one = [0] * (1 if program.is_sized else program.rows)
    runs = [program.host_values(one, position) for position in range(positions)]
    found = {name: np.stack([_elements(program, name, *run) for run in runs]) for name in names}
    first = max(0, positions - program.rows)
    longest = program.host_values([0] * program.rows, first)
    made = {}
    for name, rows in found.items():
        whole = _elements(program, name, *longest)
        by_row = program.is_sized and rows[0].size < whole.size
        count = program.rows if by_row else 1
        # Of a layer, a head and a row: the columns.
        width = rows[0].size // (len(whole) * whole.shape[1])
        each = whole.reshape(*whole.shape[:2], count, width)
        by_position = rows.reshape(positions, -1)
        if not np.array_equal(each.transpose(2, 0, 1, 3).reshape(count, -1), by_position[first : first + count]):
            raise UnsupportedError(f"{name}: a row depends on more than its position, and PyTorch computes it")
        number = np.arange(whole.size, dtype=np.int32).reshape(count, *whole.shape[:2], width)
        made[name] = PositionalTensor(by_position, _lying(program, name, number.transpose(1, 2, 0, 3)))
    return made


def _held(program: DecoderProgram, name: str) -> list[FromHost | Positions]:
    """What a tensor that the host makes holds, for each layer, or once for all."""
    held = program.written.inputs[name]
    return [x for x in (held if isinstance(held, tuple) else (held,)) if isinstance(x, FromHost | Positions)]


def _elements(program: DecoderProgram, name: str, at: BlockOfLength, values: Environment) -> Array:
    """The elements of a tensor that the host makes, row-major, (layers, heads, elements of a head): float32 or
    int32."""
    found: list[Array] = []
    for held in _held(program, name):
        x = at.held.get(id(held), held)
        if isinstance(x, Positions):
            found.append(values[x.node].to(torch.int32).numpy().reshape(1, -1))
        else:
            assert isinstance(x, FromHost)
            heads = next(y.shape[0] for y in program.block.graph.operators if y.data is _held(program, name)[0])
            found.append(flat_matrices(values[x.node], x.view).reshape(heads, -1))
    return np.stack(found)


def _lying(program: DecoderProgram, name: str, numbers: Array) -> Array:
    """Numbers of elements, (layers, heads, rows, columns), as these lie in memory, (elements,)."""
    if isinstance(_held(program, name)[0], Positions):
        return np.ascontiguousarray(numbers).reshape(-1)
    return np.concatenate([program.written.laid_out(name, of_layer).reshape(-1) for of_layer in numbers])


def _behind(block: OperatorBlock, logits: Node) -> dict[str, Any]:
    """The last norm and the product."""
    values = dict(block.lifted)

    def vector(node: Node | None) -> Array | None:
        return None if node is None else _array(_value(node, values))

    product = _moved(logits)
    if packet(product) is not aten.linear:
        raise UnsupportedError(f"{site(product)}: {BEHIND}")
    a = arguments(product)
    norm = _moved(a["input"])
    if packet(norm) not in (aten.layer_norm, aten.rms_norm) or _moved(norm.all_input_nodes[0]) not in block.results:
        raise UnsupportedError(f"{site(norm)}: {BEHIND}")
    of = arguments(norm)
    centred = packet(norm) is aten.layer_norm
    eps = of["eps"] if of["eps"] is not None else torch.finfo(torch.float32).eps
    named = {"gamma": vector(of["weight"]), "beta": vector(of.get("bias")), "centred": centred, "eps": float(eps)}
    return named | {"head": vector(a["weight"]), "bias": vector(a["bias"])}


def _moved(node: Node) -> Node:
    """The node of which another one has rows."""
    while packet(node) in MOVES:
        node = node.all_input_nodes[0]
    return node


def _arguments(block: OperatorBlock) -> tuple[Node, set[Node]]:
    """The arguments for tokens, and those for the position."""
    interface = block.interface
    given = by_name(interface.signature, *pytree.tree_unflatten(list(interface.arguments), interface.structure))
    layers = given["past_key_values"].layers
    return given["input_ids"], {part.cumulative_length for layer in layers for part in parts_of(layer)}


def _depends(node: Node, on: set[Node]) -> bool:
    seen, stack = {node}, [node]
    while stack:
        for x in stack.pop().all_input_nodes:
            if x not in seen:
                seen.add(x)
                stack.append(x)
    return bool(seen & on)


def _value(node: Node, values: Environment) -> torch.Tensor:
    """The value of a node, of which `values` has what it depends on; they receive those in between."""
    if node not in values:
        for x in node.all_input_nodes:
            _value(x, values)
        run_on_host([node], values)
    found: torch.Tensor = values[node]
    return found


def _array(tensor: torch.Tensor) -> Array:
    made: Array = np.ascontiguousarray(tensor.detach().to(torch.float32).numpy())
    return made
