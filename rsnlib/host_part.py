"""The host part of a model: what PyTorch computes before and after the machine.

It is the captured graph without the machine's operators. It needs neither the model nor the network, only operators of
PyTorch and the weights that these use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx import Node

from ..base.errors import CacheFull, TensorError, UnsupportedError
from ..isa.layout import scaled
from ..scheduler.graph import Array, LayerGraph, Rotary
from ..scheduler.integers import paired_table
from ..scheduler.tables import stored_table
from .beyond import check_rows_beyond
from .capture import Environment, Interface, run, shape_of, steps_of, used_up
from .key_spans import KeySpans, RowsOfCaches, rows_of
from .mask import FORBIDDEN, PLAIN, Pattern, key_spans
from .rotate import Factors
from .verification import Visible
from .view import View


@dataclass(frozen=True, eq=False)
class RotaryTable:
    """An input of the network with the factors of a rotation, which the host computes in each call. factors: the host's
    tensors with them. rotary: constant factors by which they are multiplied, in the order of the machine's columns.
    pitch: number of stored columns from one head to the next; the input has twice as many. paired: the input has one
    sine and one cosine for each pair of columns (`integers.paired_table`), in place of a factor for each column."""

    factors: Factors
    rotary: Rotary
    pitch: int
    paired: bool = False

    def rows(self, environment: Environment, batch: int, seq: int) -> Array:
        """Return the factors as the machine takes them: float32 (batch, seq, 2 * pitch), with `seq` rows for each of
        `batch` sequences. environment: holds the host's tensors that `factors` names. Raises `TensorError` if the table
        is `paired`, and a pair of columns has factors that are not one sine and one cosine."""
        columns = self.rotary.head_dim
        own, partner = (
            _four(environment[x]).select(self.factors.heads, 0).broadcast_to((batch, seq, columns))
            for x in (self.factors.own, self.factors.partner)
        )
        order = list(self.rotary.order or range(columns))
        made = replace(
            self.rotary,
            own=own[..., order].reshape(-1, columns).numpy() * self.rotary.own,
            partner=partner[..., order].reshape(-1, columns).numpy() * self.rotary.partner,
        )
        if self.paired:
            try:
                return paired_table(made).astype(np.float32).reshape(batch, seq, -1)
            except UnsupportedError as error:
                raise TensorError(str(error)) from None
        return stored_table(made, self.pitch, batch * seq).reshape(batch, seq, -1)


def _four(x: torch.Tensor) -> torch.Tensor:
    """The tensor with four dimensions."""
    return x.reshape((1,) * (4 - x.ndim) + tuple(x.shape))


@dataclass(frozen=True, eq=False)
class HostPart:
    """The host's operators before and after the machine. A call of the model is: prologue, machine, epilogue.

    batch, seq, lengths: of the network, as in `LayerGraph`. columns: number of columns of each output of the network,
    by its name. interface: how the module is called. constants: weights that the operators use, by node. before, after:
    operators in order. sources: for each input of the network, by its name, the host's tensor that fills it, and where
    each element of that tensor lies in the input. results: for each node that is an output of the network, the name of
    the output, and where each element of the node lies in it. seqs: rows of each sequence, for inputs and outputs of
    the network that have another number than `seq`, by name.

    Masks. masks: nodes of the attention masks; all must hide the same keys. patterns: for each mask that does not show
    the same keys to all rows, which keys each row sees. counted: number of keys of each sequence in these masks; 0
    means `seq`. added: names of inputs of the network that are masks, which the machine adds to scores.

    Caches come in kinds. Kind 0 is the network's own; any other kind is the number of rows of its caches. states: for
    each input of the network that keeps its contents between runs, by name, the host's cache, and where each of its
    elements lies in the input. stored_columns: where each column is stored, for such inputs, and for outputs that are
    not stored as they are, by name. rows_taken: for each node with the numbers of the rows that a call replaces, the
    kind of the caches; all caches of a kind must replace the same rows. counts: for each mask that belongs to another
    kind than 0, that kind. rings: for each input that is a cache whose rows move up, by name, its kind; the machine
    replaces the oldest row instead. prompts: for caches in which a call replaces the first rows, the node with the
    numbers of these rows, and how many they are. tables: for each input with the factors of a rotation, by name, from
    what the host computes it.

    affine: for outputs that another board reads as they are, by name: the scale and shift that the host applies,
    float32 (columns,), each or None. joined: for each output that was divided into several, by its name, the names of
    these, in the order of the columns.
    """

    batch: int
    seq: int
    lengths: tuple[int, ...]
    columns: Mapping[str, int]
    interface: Interface
    constants: Environment
    before: tuple[Node, ...]
    after: tuple[Node, ...]
    sources: Mapping[str, tuple[Node, View]]
    results: Mapping[Node, tuple[str, View]]
    masks: tuple[Node, ...]
    patterns: Mapping[Node, Pattern] = field(default_factory=dict)
    seqs: Mapping[str, int] = field(default_factory=dict)
    counted: int = 0
    added: frozenset[str] = frozenset()
    states: Mapping[str, tuple[Node, View]] = field(default_factory=dict)
    rows_taken: Mapping[Node, int] = field(default_factory=dict)
    prompts: tuple[tuple[Node, int], ...] = ()
    stored_columns: Mapping[str, npt.NDArray[np.intp]] = field(default_factory=dict)
    tables: Mapping[str, RotaryTable] = field(default_factory=dict)
    counts: Mapping[Node, int] = field(default_factory=dict)
    rings: Mapping[str, int] = field(default_factory=dict)
    affine: Mapping[str, tuple[Array | None, Array | None]] = field(default_factory=dict)
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    _checked: set[tuple[int, ...]] = field(default_factory=set)

    @property
    def rows(self) -> tuple[int, ...]:
        """The number of rows of each sequence, in order."""
        return self.lengths or (self.seq,) * self.batch

    def seq_of(self, name: str) -> int:
        """Return the number of rows of each sequence of an input or output of the network, given its name."""
        return self.seqs.get(name, self.seq)

    @cached_property
    def _returned(self) -> frozenset[Node]:
        """What the result and writes to arguments are made from."""
        writes = (x for _, value in self.interface.writes for x in value.all_input_nodes)
        return frozenset((*self.interface.result.all_input_nodes, *writes, *self.interface.written))

    @cached_property
    def _needed(self) -> frozenset[Node]:
        """The values of which the prologue passes on those that it has."""
        after = (x for node in self.after for x in node.all_input_nodes)
        return self._returned.union(after, (node for node, _ in self.states.values()))

    @cached_property
    def _used_before(self) -> dict[Node, list[Node]]:
        sources = (node for node, _ in self.sources.values())
        factors = (x for table in self.tables.values() for x in (table.factors.own, table.factors.partner))
        places = (*self.rows_taken, *(node for node, _ in self.prompts))
        return used_up(steps_of(self.before), self._needed.union(sources, factors, self.masks, places))

    @cached_property
    def _used_after(self) -> dict[Node, list[Node]]:
        return used_up(steps_of(self.after), self._returned)

    def prologue(self, *args: Any, **kwargs: Any) -> tuple[dict[str, Array], KeySpans | None, Environment]:
        """Run the operators before the machine, on the module's arguments.

        Returns the network's inputs by activation name, float32 (batch, rows, columns), which may share memory with the
        arguments; the valid keys of each sequence and the rows that caches take, or None for a network without masks
        and caches; and the values that the epilogue needs. Raises `TensorError` for an argument that differs from the
        example in structure, shape or type, for masks that the program cannot apply or that hide different keys, and as
        `run` does; `CacheFull` for a row beyond a cache; `UnsupportedError` if the host part depends on rows beyond the
        network's lengths.
        """
        arguments = self.interface.bind(args, kwargs)
        environment = self.constants | arguments
        run(self.before, environment, self._used_before)
        spans = self._spans(environment) if self.prompts or self.masks or self.rows_taken else None
        state = {node: environment[node] for node in self._needed if node in environment}
        if self.lengths and self.lengths not in self._checked and check_rows_beyond(self, arguments):
            self._checked.add(self.lengths)
        return self.inputs(environment), spans, state

    def visible(self, spans: KeySpans | None) -> Visible | None:
        """Return the rows that the masks of a call show; None for a network without masks. spans: as the prologue
        returns them."""
        return None if spans is None or not len(spans.lengths) else Visible(spans, self.counted or self.seq)

    def _spans(self, environment: Environment) -> KeySpans | None:
        """The keys that all masks show, and the rows that caches take. Raises TensorError like `prologue`."""
        for node, count in self.prompts:
            if not torch.equal(environment[node], torch.arange(count)):
                raise TensorError(
                    f"a call with {count} rows must be the first one of a cache; this one has other rows before: "
                    "compile an example that has, for a program of such calls"
                )
        kinds = dict.fromkeys((0, *self.counts.values(), *self.rows_taken.values()))
        found = {kind: self._spans_of(environment, kind) for kind in kinds}
        first, others = found.pop(0), {kind: spans for kind, spans in found.items() if spans is not None}
        if others:
            return (first or KeySpans(np.zeros(0, np.int64)))._replace(others=others)
        return first

    def _spans_of(self, environment: Environment, kind: int) -> KeySpans | None:
        """The same of one kind of keys: 0, those of the program, or the number of rows of other caches."""
        keys = kind or self.counted or self.seq
        masks = [x for x in self.masks if self.counts.get(x, 0) == kind]
        found = [key_spans(environment[x], self.batch, keys, self.patterns.get(x, PLAIN)) for x in masks]
        rows = self._rows_of(environment, kind)
        if not found:
            return None if rows is None else KeySpans(np.zeros(0, np.int64), None, rows)
        lengths = found[0].lengths
        starts = next((spans.starts for spans in found if spans.starts is not None), None)
        for spans in found:
            others = np.zeros_like(lengths) if spans.starts is None else spans.starts
            if (spans.lengths != lengths).any() or (starts is not None and (others != starts).any()):
                raise TensorError(
                    "the layers' attention masks hide different keys; the machine has one range of keys a sequence"
                )
        for i, (given, limit) in enumerate(zip(lengths, self.lengths or (keys,) * self.batch, strict=False)):
            if given > limit:
                raise TensorError(f"sequence {i} has {given} rows; compiled for at most {limit} (lengths)")
        return KeySpans(lengths, starts, rows)

    def _rows_of(self, environment: Environment, kind: int) -> npt.NDArray[np.int64] | None:
        """The row of each sequence that a call replaces in caches of a kind; None without. Raises TensorError for
        caches that take different rows."""
        found = [environment[node] for node, of in self.rows_taken.items() if of == kind]
        if not found:
            return None
        if any(not torch.equal(x, found[0]) for x in found):
            raise TensorError("the layers append to different rows of their caches")
        first, count = found[0].reshape(-1), self._cache_rows(kind)
        row, last = int(first[0]), int(first[-1])
        if not torch.equal(first, torch.arange(row, row + len(first))):
            raise TensorError("the new rows of a cache do not follow each other")
        if not 0 <= row <= last < count:
            raise CacheFull(f"row {last if row >= 0 else row} of a cache of {count} rows")
        return np.full(self.batch, row, np.int64)

    def state(self, name: str, environment: Environment) -> Array:
        """Return the host's contents of an input that keeps them between runs: float32 (batch, rows, columns). name: of
        the input. environment: the values that the prologue returns. Raises `KeyError` for another input."""
        node, view = self.states[name]
        return _rows(environment[node], view).reshape(self.batch, self.seq_of(name), -1)

    def inputs(self, environment: Environment) -> dict[str, Array]:
        """Return the network's inputs by name, float32 (batch, rows, columns). They may share memory with the tensors
        in `environment`, which holds the host's tensors that they are made from. Raises `TensorError` for a mask with
        NaN."""
        return {
            name: _rows(_to_add(environment[node]) if name in self.added else environment[node], view).reshape(
                self.batch, self.seq_of(name), -1
            )
            for name, (node, view) in self.sources.items()
        } | {name: table.rows(environment, self.batch, self.seq) for name, table in self.tables.items()}

    def at_rows(self, spans: KeySpans | None, rows: RowsOfCaches) -> KeySpans:
        """Return the parameters of a call in which each sequence takes a new row at a place of its own in the caches.

        spans: as the prologue returns them. rows: for each sequence the row of all caches, or by the number of rows
        that caches have. Raises `UnsupportedError` for a network without such caches, `TensorError` for rows that are
        not integers or not one for each sequence, and `CacheFull` for a row beyond the cache.
        """
        if spans is None or not self.rows_taken or self.rings or self.after_caches:
            raise UnsupportedError("rows of sequences: the model appends no rows to caches, or uses these otherwise")
        for kind in set(self.rows_taken.values()):
            taken = np.array(
                self._checked_rows(rows_of(rows, self._cache_rows(kind)), self._cache_rows(kind)), np.int64
            )
            if kind:
                spans = spans._replace(others={**spans.others, kind: spans.others[kind]._replace(rows=taken)})
            else:
                spans = spans._replace(rows=taken)
        return spans

    def _checked_rows(self, rows: Sequence[int], count: int) -> Sequence[int]:
        """Rows of the sequences, in caches of `count` rows. Raises like `at_rows`."""
        if len(rows) != self.batch:
            raise TensorError(f"{len(rows)} rows for {self.batch} sequences")
        for row in rows:
            if not hasattr(row, "__index__") or isinstance(row, bool):
                raise TensorError(f"row {row!r} of a cache; rows are integers")
            if not 0 <= row < count:
                raise CacheFull(f"row {row} of a cache of {count} rows")
        return rows

    def _cache_rows(self, kind: int) -> int:
        """The number of rows of the caches of a kind."""
        return kind or next(self.seq_of(name) for name in self.states)

    @property
    def after_caches(self) -> bool:
        """Whether the host puts new rows into a cache after the machine has run (`index_copy`)."""
        return any(node.target is torch.ops.aten.index_copy.default for node in self.after)

    def epilogue(self, outputs: Mapping[str, Array], state: Environment, rows: RowsOfCaches | None = None) -> Any:
        """Run the operators after the machine. Returns the module's result, in its original structure.

        outputs: by activation name, float32 (batch, rows, columns), with the Output's scale and shift applied; the
        result may share their memory. state: from the prologue of the same call. rows: as for `Interface.unbind`.
        Raises `TensorError` for an output that is missing or has another shape, and as `run` does.
        """
        environment = dict(state)
        self.take(outputs, environment)
        run(self.after, environment, self._used_after)
        return self.interface.unbind(environment, rows)

    def of_columns(self, joined: Mapping[str, tuple[str, ...]], network: LayerGraph) -> HostPart:
        """Return the same host part for a network in which some outputs are divided into several outputs, each with
        some of their columns. joined: for each divided output, by its name, the names of its parts, in the order of the
        columns. network: the network with the parts."""
        if not joined:
            return self
        parts = {part: name for name, found in joined.items() for part in found}
        kept = {name: n for name, n in self.columns.items() if name not in joined}
        rows = {part: self.seqs[name] for part, name in parts.items() if name in self.seqs}
        columns = kept | {part: network.columns(part) for part in parts}
        return replace(self, columns=columns, seqs={**self.seqs, **rows}, joined=joined)

    def _origins(self) -> Callable[[Node], frozenset[Node]]:
        """Return what gives, for a node, that and all that it is computed from, up to outputs of the network, arguments
        and constants."""
        found: dict[Node, frozenset[Node]] = {}

        def origins(node: Node) -> frozenset[Node]:
            if node not in found:
                is_given = node in self.results or node in self.constants or node.op != "call_function"
                below = () if is_given else node.all_input_nodes
                found[node] = frozenset({node}).union(*map(origins, below))
            return found[node]

        for node in (*self.before, *self.after):  # in order, so that the recursion is not deep
            origins(node)
        return origins

    def of_tables(self, names: Collection[str]) -> HostPart:
        """Return a smaller host part that only computes inputs with factors of rotations (`tables`), by its method
        `made_tables`. names: of the inputs that it computes. Its `interface` has only the arguments that they depend
        on."""
        origins = self._origins()
        tables = {name: table for name, table in self.tables.items() if name in names}
        roots = (x for table in tables.values() for x in (table.factors.own, table.factors.partner))
        needed = frozenset[Node]().union(*map(origins, roots))
        return replace(
            self,
            interface=replace(self.interface, arguments=tuple(x for x in self.interface.arguments if x in needed)),
            constants={node: x for node, x in self.constants.items() if node in needed},
            before=tuple(node for node in self.before if node in needed),
            sources={},
            tables=tables,
        )

    def made_tables(self, arguments: Mapping[str, torch.Tensor]) -> dict[str, Array]:
        """Return the inputs with factors of rotations that an object of `of_tables` computes, by name, float32 (batch,
        rows, columns). arguments: of the call, by the name of their node. Raises `KeyError` for a missing argument."""
        environment = self.constants | {node: arguments[node.name] for node in self.interface.arguments}
        run(self.before, environment)
        return self.inputs(environment)

    def of_stage(self, takes: Collection[str], made: Mapping[str, int], stage: int, is_last: bool) -> HostPart:
        """Return the host part of one stage of the network. It computes only what that stage needs: its inputs and
        caches; what is written to caches whose new rows its program gives; and, with `is_last`, the module's result. It
        also reads outputs of earlier stages (`columns`). Its arguments are those arguments of this object that it
        needs, one for each tensor, by name (`Interface.of_tensors`).

        takes: names of the inputs of the stage's program, those that keep their contents included. made: by the name of
        each output of the network, the number of the stage that computes it. stage: number of the stage, from 0.
        is_last: no stage follows.
        """
        origins = self._origins()

        def maker(node: Node) -> int:
            """The last stage that a value needs, 0 for none."""
            names = (self.results[x][0] for x in origins(node) if x in self.results)
            return max((made[part] for name in names for part in self.joined.get(name, (name,))), default=0)

        interface = self.interface
        writes = [(argument, value) for argument, value in interface.writes if maker(value) == stage]
        returned = interface.returned if is_last else ()
        sources = {name: x for name, x in self.sources.items() if name in takes}
        tables = {name: x for name, x in self.tables.items() if name in takes}
        rows = self._cache_rows(0) if self.states else 0
        # those of kind 0 first, which `_cache_rows` takes
        states = dict(sorted(self.states.items(), key=lambda x: self.seq_of(x[0]) != rows))
        states = {name: x for name, x in states.items() if name in takes}
        kinds = set(map(self.seq_of, states))
        rows_taken = {node: kind for node, kind in self.rows_taken.items() if (kind or rows) in kinds}
        roots = {
            *(x for pair in writes for x in pair),
            *(x for x in returned if isinstance(x, Node)),
            *(node for node, _ in (*sources.values(), *states.values(), *self.prompts)),
            *(x for table in tables.values() for x in (table.factors.own, table.factors.partner)),
            *self.masks,
            *rows_taken,
        }
        needed = frozenset[Node]().union(*map(origins, roots))
        results = {node: x for node, x in self.results.items() if node in needed}
        names = {part for name, _ in results.values() for part in self.joined.get(name, (name,))}
        return replace(
            self,
            columns={name: n for name, n in self.columns.items() if name in names},
            interface=interface.restricted([x for x in interface.arguments if x in needed], writes, returned),
            constants={node: x for node, x in self.constants.items() if node in needed},
            before=tuple(node for node in self.before if node in needed),
            after=tuple(node for node in self.after if node in needed),
            sources=sources,
            results=results,
            states=states,
            rows_taken=rows_taken,
            tables=tables,
            rings={name: kind for name, kind in self.rings.items() if name in states},
        )

    def take(self, outputs: Mapping[str, Array], environment: Environment) -> None:
        """Add to `environment` the tensors that are views of the network's outputs, by node. No two of them share
        memory. outputs: as for `epilogue`. Raises `TensorError` for an output that is missing or has another shape."""
        taken: set[str] = set()
        for node, (name, view) in self.results.items():
            parts = self.joined.get(name, (name,))
            missing = next((part for part in parts if part not in outputs), None)
            if missing is not None:
                raise TensorError(f"the network's output {missing} is missing")
            if len(parts) > 1:
                array = np.concatenate([outputs[part] for part in parts], axis=-1)
            else:
                array = outputs[parts[0]].copy() if parts[0] in taken else outputs[parts[0]]
            taken.update(parts)
            if name in self.affine:
                array = array.copy()
                for item, rows in zip(array, self.lengths or (self.seq_of(name),) * self.batch, strict=True):
                    item[:rows] = scaled(item[:rows], *self.affine[name])
            if name in self.stored_columns:
                array = array[..., self.stored_columns[name]]
            environment[node] = _shown(self._flat(name, array), view).reshape(shape_of(node))

    def _flat(self, name: str, array: Array) -> torch.Tensor:
        rows = self.seq_of(name)
        if array.ndim != 3 or array.shape[:2] != (self.batch, rows):
            raise TensorError(f"output {name} has shape {array.shape}, not ({self.batch}, {rows}, columns)")
        return torch.from_numpy(np.require(array, np.float32, ["C", "W"])).ravel()


def _shown(flat: torch.Tensor, view: View) -> torch.Tensor:
    """`view` of a flat activation, with one dimension for each atom of the view."""
    return flat.as_strided([size for size, _ in view.atoms], [stride for _, stride in view.atoms], view.offset)


def _to_add(mask: torch.Tensor) -> torch.Tensor:
    """A mask, bool or of numbers, as numbers to be added to scores. -inf stays, which makes a row without any key 0;
    beside the least finite numbers scores count as equal, as in PyTorch. Raises TensorError for NaN."""
    if mask.dtype == torch.bool:
        return torch.where(mask, 0.0, -torch.inf)
    if bool(mask.isnan().any()):
        raise TensorError("the attention mask has a row that sees no key, or a number that is NaN")
    return torch.where(mask.isneginf(), mask, mask.clamp(min=FORBIDDEN))


def _rows(tensor: torch.Tensor, view: View) -> Array:
    """The flat activation of which `tensor`, after broadcasting, is `view`: the inverse of `_shown`. It may share its
    memory."""
    tensor = tensor.detach()
    if tensor.dtype == torch.float32 and tensor.is_contiguous() and view == View.dense(tensor.shape):
        same: Array = tensor.reshape(-1).numpy()
        return same
    tensor = tensor.broadcast_to(view.shape)
    flat = torch.empty(tensor.numel(), dtype=torch.float32)
    shown = _shown(flat, view)
    shown.copy_(tensor.reshape(shown.shape))
    array: Array = flat.numpy()
    return array
