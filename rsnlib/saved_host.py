"""Save the host part of a model as JSON and tensors, and read it: no pickle, and nothing is executed but operators.

Only operators of PyTorch's library `aten` that compute new tensors, and those of quantised numbers and of experts, are
written and read: none that writes to its arguments, reads files, or returns uninitialised memory.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple
from itertools import chain
from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx import Graph, Node

from ..base.errors import TensorError, UnsupportedError
from ..base.json_values import Json, as_bool, as_dict, as_int, as_ints, as_list, as_str
from ..scheduler.graph import Rotary
from .capture import Environment, Interface, draws, run, shape_of, site
from .experts.operators import IN_FILES
from .exporting import unlogged
from .host_part import HostPart, RotaryTable
from .mask import PLAIN, Pattern
from .quantised_ops import QUANTISED_OPS
from .rotate import Factors
from .structure import Structure, describe
from .view import View, merge

MAX_BYTES = 1 << 34
"""Limit on the bytes of all tensors that the operators make, so that a file cannot exhaust the memory."""
INTERNAL = frozenset(
    {
        "_adaptive_avg_pool2d",
        "_convolution",
        "_embedding_bag",
        "_log_softmax",
        "_native_batch_norm_legit_no_training",
        "_safe_softmax",
        "_softmax",
        "_to_copy",
        "_unsafe_view",
        "_weight_norm",
    }
)
"""Operators with a private name that captured graphs contain, and that are allowed."""
REFUSED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "from_file", "new_empty"})
"""Operators that are refused, because they read files or return uninitialised memory; also all `new_empty*`."""
WRITTEN_AS: dict[str, Any] = {
    "aten.empty_like.default": torch.ops.aten.zeros_like.default,
    "aten.new_empty.default": torch.ops.aten.new_zeros.default,
    "transformers.grouped_mm_fallback.default": torch.ops.rsn.grouped_mm.default,
}
"""Operators, by name, in whose place a file has another one with the same arguments: zeros are as good as memory that
is not initialised, and products in groups are not transformers' own."""
VALUES: dict[str, type] = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
"""Kinds of operator arguments that are attributes of `torch`, by their name in a file."""

KINDS = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.VAR_KEYWORD,
)


def is_allowed(target: object) -> bool:
    """Return whether a file may contain an operator. target: of a node."""
    if target is operator.getitem:
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target.overloadpacket in (*QUANTISED_OPS, *IN_FILES):
        return True
    if target.namespace != "aten" or target._schema.is_mutable:
        return False
    name = target.overloadpacket.__name__
    if name.startswith("_") and not name.startswith("__"):
        return name in INTERNAL
    return name not in REFUSED and not name.startswith("new_empty")


def encode(host: HostPart, keep: Callable[[torch.Tensor], str], *, writes: bool = False) -> Json:
    """Return a host part as JSON. keep: stores a tensor and returns its name. writes: whether the model may write to
    its arguments. Raises `UnsupportedError`, naming operator and module path, for anything that a file cannot hold: an
    operator that is not allowed (`is_allowed`), a constant that is no tensor, a model that writes to its arguments
    without `writes`, and one that writes in place to arguments that are not contiguous."""
    interface = host.interface
    made = {*interface.arguments, *host.constants, *host.before, *host.results, *host.after}
    in_place = [value for _, value in interface.writes if value not in made]

    def kept(vector: npt.NDArray[np.float32] | None) -> str | None:
        return None if vector is None else keep(torch.tensor(vector))

    return {
        "batch": host.batch,
        "seq": host.seq,
        "lengths": list(host.lengths),
        "seqs": dict(host.seqs),
        "counted": host.counted,
        "added": sorted(host.added),
        "columns": dict(host.columns),
        "constants": constants(host.constants, keep),
        "before": operators(host.before),
        "after": operators(host.after),
        "sources": [[name, node.name, _view(view)] for name, (node, view) in host.sources.items()],
        "tables": [[name, *_table(table, keep)] for name, table in host.tables.items()],
        "results": [
            [node.name, name, _view(view), list(shape_of(node))] for node, (name, view) in host.results.items()
        ],
        "masks": [[node.name, *astuple(host.patterns.get(node, PLAIN))] for node in host.masks],
        "in_place": operators(in_place),
        "caches": _caches(host),
        "joined": {name: list(parts) for name, parts in host.joined.items()},
        "affine": [[name, *map(kept, affine)] for name, affine in host.affine.items()],
        **described_interface(interface, keep, writes=writes),
    }


def described_interface(
    interface: Interface, keep: Callable[[torch.Tensor], str], *, writes: bool = False
) -> dict[str, Json]:
    """Return how a module is called, as JSON. keep, writes: as for `encode`. Raises `UnsupportedError` for a module
    that writes to its arguments without `writes`, for one that writes in place to arguments that are not contiguous,
    and for structures that cannot be written."""
    if interface.written and not writes:
        names = ", ".join(node.name for node in interface.written)
        raise UnsupportedError(f"the model writes to its arguments ({names}); a file cannot hold that")
    examples = [node.meta["val"] for node in interface.arguments]
    if interface.laid_out is not None and any(isinstance(x, torch.Tensor) and not x.is_contiguous() for x in examples):
        raise UnsupportedError("the model writes in place, and was compiled for arguments that are not contiguous")
    return {
        "signature": parameters(interface.signature),
        "arguments": [[node.name, described(node.meta["val"])] for node in interface.arguments],
        "argument_structure": describe(interface.structure, "an argument"),
        "laid_out": None if interface.laid_out is None else sorted(node.name for node in interface.laid_out),
        "fixed": [[node.name, keep(value)] for node, value in interface.fixed.items()],
        "written": [node.name for node in interface.written],
        "result": _value(interface.result.args[0]),
        "result_structure": describe(interface.result_structure, "the model's result"),
    }


def _caches(host: HostPart) -> Json:
    """What a host part says of caches, as JSON."""
    return {
        "states": [[name, node.name, _view(view)] for name, (node, view) in host.states.items()],
        "columns": {name: columns.tolist() for name, columns in host.stored_columns.items()},
        "rows_taken": [[node.name, kind] for node, kind in host.rows_taken.items()],
        "prompts": [[node.name, count] for node, count in host.prompts],
        "counts": [[node.name, kind] for node, kind in host.counts.items()],
        "rings": dict(host.rings),
    }


def _of_caches(description: Json, nodes: Mapping[str, Node]) -> dict[str, Any]:
    """The fields of a host part that `_caches` describes, by name."""
    states = {as_str(name): (nodes[node], _of_view(view)) for name, node, view in as_list(description["states"])}
    columns = {name: np.array(as_ints(x), np.intp) for name, x in as_dict(description["columns"]).items()}
    rings = {as_str(name): as_int(kind) for name, kind in as_dict(description["rings"]).items()}
    for name, places in columns.items():
        if len({*places.tolist()}) < len(places) or min(places, default=0) < 0:
            raise ValueError(f"the columns of {name} are not different ones")
    if not columns.keys() >= states.keys() >= rings.keys():
        raise ValueError(f"caches {sorted(states)} have columns of {sorted(columns)}, and move up as {sorted(rings)}")
    return {
        "states": states,
        "stored_columns": columns,
        "rows_taken": {nodes[node]: as_int(kind) for node, kind in as_list(description["rows_taken"])},
        "prompts": tuple((nodes[node], as_int(count)) for node, count in as_list(description["prompts"])),
        "counts": {nodes[node]: as_int(kind) for node, kind in as_list(description["counts"])},
        "rings": rings,
    }


def operators(nodes: Iterable[Node]) -> Json:
    """Return operators as JSON. nodes: the operators, in order. Raises `UnsupportedError`, naming operator and module
    path, for an operator that a file cannot hold."""
    made = []
    for node in nodes:
        if not is_allowed(_written_as(node)):
            raise UnsupportedError(
                f"{site(node)}: this operator cannot be saved; a file holds only operators of PyTorch's library aten "
                "that compute new tensors"
            )
        if draws(node):
            raise UnsupportedError(f"{site(node)}: it draws random numbers, which a saved model does not")
        made.append(_operator(node))
    return made


def constants(values: Environment, keep: Callable[[torch.Tensor], str]) -> Json:
    """Return constants as JSON. values: by node. keep: stores a tensor and returns its name. Raises `UnsupportedError`
    for one that is no tensor."""
    for node, value in values.items():
        if not isinstance(value, torch.Tensor):
            raise UnsupportedError(f"{node.name} is a {type(value).__name__}, which cannot be saved")
    return [[node.name, keep(value)] for node, value in values.items()]


class SavedGraphReader:
    """Makes a graph from JSON, node by node. nodes: those made so far, by name. tensor: returns a stored tensor by its
    name. All methods raise some `Exception` for a wrong description, of any class."""

    def __init__(self, tensor: Callable[[str], torch.Tensor]) -> None:
        self.nodes: dict[str, Node] = {}
        self.tensor = tensor
        self._graph = Graph()

    def _add(self, name: Json, node: Node) -> Node:
        if as_str(name) in self.nodes:
            raise ValueError(f"two values have the name {name!r}")
        self.nodes[name] = node
        return node

    def outside(self, name: Json, value: Any) -> Node:
        """Add the node of a value that no operator computes, and return it. name: of the node. value: an example of the
        value, as `of_described` returns it; None for a constant."""
        node = self._add(name, self._graph.placeholder(as_str(name)))
        node.meta["val"] = value
        return node

    def arguments(self, description: Json) -> tuple[Node, ...]:
        """Add the nodes of a module's arguments, and return them in order. description: as `described_interface`
        returns it."""
        return tuple(self.outside(name, of_described(x)) for name, x in as_list(description["arguments"]))

    def constants(self, description: Json) -> Environment:
        """Add the nodes of constants. Returns their values by node. description: as `saved_host.constants` returns
        it."""
        return {self.outside(name, None): self.tensor(as_str(stored)) for name, stored in as_list(description)}

    def operators(self, lines: Json) -> tuple[Node, ...]:
        """Add the nodes of operators, and return them in order. lines: as `saved_host.operators` returns them. Their
        operands must have been added before."""
        made = []
        for name, target, args, kwargs in as_list(lines):
            by_position = tuple(_read(x, self.nodes) for x in as_list(args))
            by_name = {key: _read(x, self.nodes) for key, x in as_dict(kwargs).items()}
            node = self._graph.call_function(_target(as_str(target)), by_position, by_name)
            made.append(self._add(name, node))
            if draws(node):
                raise ValueError(f"operator {target} draws random numbers")
        return tuple(made)

    def interface(self, description: Json, arguments: tuple[Node, ...]) -> Interface:
        """Return the interface of a module, all of whose nodes have been added. description: as `described_interface`
        returns it. arguments: the nodes that the method `arguments` has returned."""
        values = _read(description["result"], self.nodes)
        if not isinstance(values, list | tuple):
            raise ValueError(f"the values of the result are a {type(values).__name__}")
        result = self._graph.output(tuple(values))
        fixed = {self.nodes[name]: self.tensor(as_str(stored)) for name, stored in as_list(description["fixed"])}
        for node, value in fixed.items():
            expected = node.meta["val"] if node in arguments else None
            if not isinstance(expected, torch.Tensor) or (value.dtype, value.shape) != (expected.dtype, expected.shape):
                raise ValueError(f"{node.name} has values that do not fit an argument")
        structure = Structure(description["result_structure"])
        argument_structure = Structure(description["argument_structure"])
        written = tuple(self.nodes[as_str(name)] for name in as_list(description.get("written", [])))
        if not set(written) <= set(arguments):
            raise ValueError(f"it writes to {written}, not all of which are arguments")
        leaves = structure.num_leaves + len(written)
        if leaves != len(result.args[0]) or argument_structure.num_leaves != len(arguments):
            raise ValueError("structures of arguments or results have another number of values")
        return Interface(
            of_parameters(description["signature"]),
            arguments,
            argument_structure.spec,
            result,
            structure,
            fixed,
            written,
            laid_out=_laid_out(description.get("laid_out"), self.nodes),
        )


def decode(description: Json, tensor: Callable[[str], torch.Tensor]) -> HostPart:
    """Read a host part from JSON. tensor: returns a stored tensor by its name. Raises any `Exception` for a wrong
    description; callers must expect that, because anybody may have written the file."""
    reader = SavedGraphReader(tensor)
    nodes = reader.nodes
    arguments = reader.arguments(description)
    constants = reader.constants(description["constants"])
    before = reader.operators(description["before"])
    sources = {as_str(name): (nodes[node], _of_view(view)) for name, node, view in as_list(description["sources"])}
    tables = {
        as_str(name): _of_table(fields, nodes, tensor) for name, *fields in as_list(description.get("tables", []))
    }
    masks = {nodes[name]: _pattern(*fields) for name, *fields in as_list(description["masks"])}
    results = {
        reader.outside(node, torch.empty(as_ints(shape), device="meta")): (as_str(name), _of_view(view))
        for node, name, view, shape in as_list(description["results"])
    }
    after = reader.operators(description["after"])
    in_place = reader.operators(description.get("in_place", []))
    if any(node.target is not torch.ops.aten.index_copy.default for node in in_place):
        raise ValueError(f"{in_place} are no new rows of arguments")
    interface = reader.interface(description, arguments)
    columns = {name: as_int(n) for name, n in as_dict(description["columns"]).items()}
    batch, seq, lengths = as_int(description["batch"]), as_int(description["seq"]), as_ints(description["lengths"])
    if lengths and (len(lengths) != batch or min(lengths) < 1 or max(lengths) > seq):
        raise ValueError(f"its lengths are {lengths}, for {batch} sequences of {seq} rows")
    seqs = {as_str(name): as_int(rows) for name, rows in as_dict(description["seqs"]).items()}
    counted = as_int(description["counted"])
    if counted < 0 or any(rows < 1 for rows in seqs.values()) or (lengths and seqs):
        raise ValueError(f"its sequences have {seqs} rows, its masks {counted} keys, its lengths are {lengths}")
    host = HostPart(
        batch,
        seq,
        lengths,
        columns,
        interface,
        constants,
        before,
        after,
        sources,
        results,
        tuple(masks),
        {node: pattern for node, pattern in masks.items() if pattern != PLAIN},
        seqs,
        counted,
        frozenset(map(as_str, as_list(description["added"]))),
        tables=tables,
        joined={
            as_str(name): tuple(map(as_str, as_list(parts)))
            for name, parts in as_dict(description.get("joined", {})).items()
        },
        affine={as_str(name): _affine(columns[name], x, tensor) for name, *x in as_list(description.get("affine", []))},
        **(_of_caches(description["caches"], nodes) if "caches" in description else {}),
    )
    if not host.added <= set(sources):
        raise ValueError(f"masks {sorted(host.added)} are no inputs")
    for name in host.columns.keys() & host.stored_columns.keys():
        if not host.stored_columns[name].size or host.stored_columns[name].max() + 1 != host.columns[name]:
            raise ValueError(f"of output {name}, the positions of columns are not those of {host.columns[name]}")
    _check(host, in_place)
    return host


def _affine(
    columns: int, fields: Json, tensor: Callable[[str], torch.Tensor]
) -> tuple[npt.NDArray[np.float32] | None, npt.NDArray[np.float32] | None]:
    """The scale and shift of an output of this number of columns."""
    scale, shift = (None if name is None else tensor(as_str(name)).numpy() for name in as_list(fields))
    if any(x is not None and (x.dtype, x.shape) != (np.float32, (columns,)) for x in (scale, shift)):
        raise ValueError("a scale or shift does not fit its output")
    return scale, shift


def _laid_out(names: Json, nodes: Mapping[str, Node]) -> frozenset[Node] | None:
    return None if names is None else frozenset(nodes[as_str(name)] for name in as_list(names))


def _table(table: RotaryTable, keep: Callable[[torch.Tensor], str]) -> Json:
    """The factors of a rotation as JSON."""
    factors, rotary = table.factors, table.rotary
    kept = [keep(torch.from_numpy(np.ascontiguousarray(x))) for x in (rotary.own, rotary.partner)]
    places = [list(rotary.partners), list(rotary.order)]
    return [factors.own.name, factors.partner.name, factors.heads, table.pitch, *kept, *places, table.paired]


def _of_table(fields: Json, nodes: Mapping[str, Node], tensor: Callable[[str], torch.Tensor]) -> RotaryTable:
    own, partner, heads, pitch, *kept, partners, order = as_list(fields)[:8]
    paired = len(fields) > 8 and as_bool(fields[8])  # files from before it was written have none
    numbers = [tensor(as_str(x)).numpy() for x in kept]
    rotary = Rotary(numbers[0], numbers[1], as_ints(partners), "", as_ints(order))
    columns = len(rotary.partners)
    if (
        any(x.dtype != np.float32 or x.shape != (1, columns) for x in numbers)
        or not 1 <= columns <= as_int(pitch) << paired
    ):
        raise ValueError(f"a rotation of {columns} columns has factors of {[x.shape for x in numbers]}")
    if any(sorted(x) != [*range(columns)] for x in (rotary.partners, rotary.order) if x):
        raise ValueError("a rotation of columns that do not exist")
    if as_int(heads) not in (1, 2):
        raise ValueError(f"axis {heads} of heads")
    return RotaryTable(Factors(nodes[as_str(own)], nodes[as_str(partner)], heads), rotary, pitch, paired)


def _operator(node: Node) -> Json:
    """An operator as JSON: name of its result, name of the operator, arguments by position and by name."""
    name = "getitem" if node.target is operator.getitem else str(_written_as(node))
    return [node.name, name, _value(list(node.args)), {key: _value(x) for key, x in node.kwargs.items()}]


def _written_as(node: Node) -> Any:
    """The operator that a file has for a node."""
    return WRITTEN_AS.get(str(node.target), node.target)


def _target(name: str) -> Callable[..., Any]:
    if name == "getitem":
        return operator.getitem
    library, packet, overload = name.split(".")
    libraries = {"aten": torch.ops.aten, "rsn": torch.ops.rsn}
    target: Any = getattr(getattr(libraries[library], packet), overload) if library in libraries else None
    if not is_allowed(target):
        raise ValueError(f"operator {name} is not allowed in a file")
    return cast("Callable[..., Any]", target)


def _value(x: Any) -> Json:
    """An operator's argument as JSON. Raises UnsupportedError for a type that cannot be written."""
    if x is None or isinstance(x, bool | int | str) or (isinstance(x, float) and math.isfinite(x)):
        return x
    if isinstance(x, Node):
        return {"of": x.name}
    if isinstance(x, float):
        return {"float": str(x)}
    if isinstance(x, list | tuple):
        made = [_value(part) for part in x]
        return made if isinstance(x, list) else {"tuple": made}
    if isinstance(x, torch.device) and x.type == "cpu":
        return {"device": "cpu"}
    for kind, of in VALUES.items():
        if isinstance(x, of):
            return {kind: str(x).removeprefix("torch.")}
    raise UnsupportedError(f"an operator of the host part takes a {type(x).__name__}, which cannot be saved")


def _read(value: Json, nodes: Mapping[str, Node]) -> Any:
    """An operator's argument from JSON, as `_value` writes it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_read(part, nodes) for part in value]
    ((kind, x),) = value.items()
    if kind == "of":
        return nodes[x]
    if kind == "float":
        return float(x)
    if kind == "tuple":
        return tuple(_read(part, nodes) for part in x)
    if kind == "device":
        return torch.device("cpu")
    return _named(x, VALUES[kind])


def _named(name: str, kind: type) -> Any:
    """The attribute `name` of torch. Raises ValueError if it is not of this kind."""
    found = getattr(torch, name)
    if not isinstance(found, kind):
        raise ValueError(f"torch.{name} is not a {kind.__name__}")
    return found


def described(x: Any) -> Json:
    """Return what an argument must be, as JSON: shape and dtype of a tensor; the value of a number, a string or None;
    nothing for a container."""
    if isinstance(x, torch.Tensor):
        return {"shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch.")}
    return {"equal": _value(x)} if x is None or isinstance(x, bool | int | float | str) else {"several": True}


def of_described(description: Json) -> Any:
    """Return the argument that `described` describes: a meta tensor, a value, or () for a container. Raises any
    `Exception` for a wrong description."""
    if "several" in as_dict(description):
        return ()
    if "equal" in description:
        value = _read(description["equal"], {})
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise ValueError(f"an argument of the example is a {type(value).__name__}, which cannot be compared")
    return torch.empty(as_ints(description["shape"]), dtype=_named(description["dtype"], torch.dtype), device="meta")


def parameters(signature: inspect.Signature) -> Json:
    """Return a function's parameters as JSON: for each its name, its kind, and whether it has a default."""
    return [[p.name, p.kind.name, p.default is not p.empty] for p in signature.parameters.values()]


def of_parameters(description: Json) -> inspect.Signature:
    """Return the signature that `parameters` describes, for binding arguments. All its defaults are None. Raises any
    `Exception` for a wrong description."""
    kinds = {kind.name: kind for kind in KINDS}
    return inspect.Signature(
        [
            inspect.Parameter(name, kinds[kind], default=None if as_bool(has_default) else inspect.Parameter.empty)
            for name, kind, has_default in as_list(description)
        ]
    )


def _pattern(causal: Json, window: Json, left: Json) -> Pattern:
    if window is not None and as_int(window) < 1:
        raise ValueError(f"a mask has a window of {window} rows")
    return Pattern(as_bool(causal), None if window is None else as_int(window), as_bool(left))


def _view(view: View) -> Json:
    return [view.offset, [[list(atom) for atom in dim] for dim in view.dims]]


def _of_view(description: Json) -> View:
    offset, dims = description
    atoms = (((as_int(size), as_int(stride)) for size, stride in as_list(dim)) for dim in as_list(dims))
    return View(tuple(map(tuple, atoms)), as_int(offset))


def _check_within(name: str, view: View, elements: int) -> None:
    """Raise `ValueError` for a view that shows elements that an activation does not have, or some of them again, except
    all of them several times, as `expand` does, up to MAX_BYTES."""
    atoms = view.atoms
    once = prod(size for size, stride in atoms if stride)
    if view.offset < 0 or any(size < 1 or stride < 0 for size, stride in atoms) or once > elements:
        raise ValueError(f"{name} is no view of {elements} elements")
    if 4 * prod(view.shape) > MAX_BYTES:
        raise ValueError(f"{name} needs more than {MAX_BYTES >> 30} GiB")
    if view.offset + sum((size - 1) * stride for size, stride in atoms) >= elements:
        raise ValueError(f"{name} shows elements beyond {elements}")


def _check(host: HostPart, in_place: Iterable[Node]) -> None:
    """Run a host part with fake tensors, to check that operators and shapes fit. in_place: operators that make new
    values of arguments, and run there. Raises whatever PyTorch raises, and `ValueError` for tensors of more than
    MAX_BYTES. Operators that depend on values are checked only when they run."""
    for node, view in (*host.sources.values(), *host.states.values()):
        if merge(sorted(view.atoms, key=lambda atom: -atom[1])) != merge([(prod(view.shape), 1)]) or view.offset:
            raise ValueError(f"{node.name} is not each element of an input of the network once")
    with unlogged():
        fake = FakeRun(host.interface, host.constants)
        for node, (name, view) in host.results.items():
            columns = sum(host.columns[part] for part in host.joined.get(name, (name,)))
            columns = len(host.stored_columns.get(name, ())) or columns
            _check_within(node.name, view, host.batch * host.seq_of(name) * columns)
            fake.add(node, torch.empty(view.shape, device="meta").reshape(shape_of(node)))
        fake.run(chain(host.before, host.after, in_place))
        for node, view in (*host.sources.values(), *host.states.values()):
            if node in fake.values:
                fake.values[node].broadcast_to(view.shape)
        for argument, value in host.interface.writes:
            if value in fake.values and fake.values[value].shape != fake.values[argument].shape:
                raise ValueError(f"{argument.name} becomes a tensor of another shape")


class FakeRun:
    """Runs operators with fake tensors, to check that operators and shapes fit. values: by node, at first those of the
    arguments of an interface and of constants."""

    def __init__(self, interface: Interface, constants: Environment) -> None:
        self._mode = FakeTensorMode()
        self.values: Environment = {node: self._mode.from_tensor(x) for node, x in constants.items()}
        self._made_bytes: dict[int, int] = {}
        """Bytes by storage, because views take no memory."""
        for node in interface.arguments:
            self.add(node, node.meta["val"])

    def add(self, node: Node, like: Any) -> None:
        """Add the value of a node that no operator computes. like: a tensor of its shape and type, or, if it is no
        tensor, the value itself."""
        with self._mode:
            self.values[node] = torch.empty(like.shape, dtype=like.dtype) if isinstance(like, torch.Tensor) else like

    def run(self, nodes: Iterable[Node]) -> None:
        """Run operators in order with fake tensors. nodes: the operators. An operator whose result depends on the
        values of tensors is left out, and so are those that need its result. Raises whatever PyTorch raises, and
        `ValueError` for tensors of more than MAX_BYTES in all."""
        for node in nodes:
            if not all(x in self.values for x in node.all_input_nodes):
                continue  # it depends on values
            try:
                with self._mode:
                    run([node], self.values)
            except TensorError as error:
                if isinstance(error.__cause__, DataDependentOutputException | DynamicOutputShapeException):
                    continue
                raise
            made = self.values[node]
            for x in made if isinstance(made, list | tuple) else [made]:
                if isinstance(x, torch.Tensor):
                    self._made_bytes[x.untyped_storage()._cdata] = x.untyped_storage().nbytes()
            if sum(self._made_bytes.values()) > MAX_BYTES:
                raise ValueError(f"{node.target} and the operators before it need more than {MAX_BYTES >> 30} GiB")
