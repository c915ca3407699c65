"""Export a module with torch.export, and query the exported graph: names, shapes, arguments, values.

`normal_form.passes.capture` brings the graph to its normal form; what captures a module calls that.
"""

from __future__ import annotations

import copy
import inspect
import re
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._functorch import predispatch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from ..base.errors import TensorError, UnsupportedError
from ..scheduler.graph import TOP
from .call_arguments import (
    LEAVES,
    CallForms,
    Layouts,
    as_laid_out,
    as_tensor,
    by_name,
    canonical,
    check_apart,
    overlap,
    put_in_common,
    results_in_arguments,
    results_in_common,
)
from .exported_programs import as_module, is_exported, is_program_module
from .exporting import TRACER, global_hooks_of, in_turn, without_extras
from .key_spans import RowsOfCaches, rows_of
from .static_cache import register as register_static_cache
from .structure import Structure
from .writes import LAID_OUT, Attributes, UnfollowedWriteError, changes_state, depends_on_calls, without_writes, writes

Environment = dict[Node, Any]
"""Values of nodes."""
FLOAT32 = "the machine computes in float32"
TORCH = Path(torch.__file__).parent
UNTAGGED = frozenset({"feature_dropout", "feature_alpha_dropout", "rrelu", "binomial", "_sample_dirichlet"})
"""Operators that draw random numbers although torch does not tag them so."""
COMMON = "rsn_common"
"""Key in a graph's meta: `results_in_common`."""
VIEWS_OF_ARGUMENTS = "rsn_views_of_arguments"
"""Key in a graph's meta: `results_in_arguments`."""
SPELLED = "rsn_spelled"
"""Key in a node's meta: the full name of the operator in the user's model, if the normal form has another one."""
LIFTED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def module_of(model: Any) -> nn.Module:
    """Check that a model can be captured, and return the module to capture (without the wrapper of torch.compile).

    model: what the user gave. Raises `UnsupportedError` for anything but a module in eval mode, not quantized, whose
    weights have shapes, or a program of torch.export, and if torch.autocast is on; `TensorError` for weights that are
    not on the CPU.
    """
    if isinstance(model, type):
        raise UnsupportedError(f"{model.__name__} is a class: give a module, {model.__name__}(...)")
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedError(f"{type(model).__name__} is TorchScript: give the module that it was made from")
    if isinstance(model, ExportedProgram) or is_exported(model):
        model = as_module(model)
    if not isinstance(model, nn.Module):
        function = '; for a function use torch.compile(function, backend="rsn")' if callable(model) else ""
        raise UnsupportedError(f"the model must be a torch.nn.Module, not {type(model).__name__}{function}")
    module: nn.Module = getattr(model, "_orig_mod", model)
    is_graph = is_program_module(module)  # each of its operators says whether it trains
    for path, part in module.named_modules():
        where = f"{path} ({type(part).__name__})" if path else type(part).__name__
        if ".quantized" in type(part).__module__:
            raise UnsupportedError(f"{where} is quantized; {FLOAT32}: give the model before quantization")
        if part.training and not is_graph:
            raise UnsupportedError(f"{where} is in training mode: call model.eval() first")
    for path, parameter in module.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise UnsupportedError(f"{path} has no shape yet: call the model once first")
        _check_place(path, parameter, "model")
    for path, tensor in module.named_buffers():
        _check_place(path, tensor, "model")
    if torch.is_autocast_enabled("cpu"):
        raise UnsupportedError(f"torch.autocast is on; {FLOAT32}: compile outside of it")
    return module


def _check_place(name: str, tensor: torch.Tensor, owner: str) -> None:
    if tensor.device.type == "meta":
        raise TensorError(f"{name} is on the meta device, without values: create it on the CPU")
    if tensor.device.type != "cpu":
        raise TensorError(f'{name} is on {tensor.device}: call {owner}.to("cpu") first')


def _check_argument(name: str, x: Any) -> None:
    label = f"argument {name}"
    if isinstance(x, np.ndarray):
        raise TensorError(f"{label} is a numpy array: convert it with torch.from_numpy({name})")
    if not isinstance(x, torch.Tensor):
        return
    _check_place(label, x, name)
    if x.is_nested:
        raise TensorError(f"{label} is nested: convert it with torch.nested.to_padded_tensor")
    if x.layout != torch.strided:
        raise TensorError(f"{label} is {x.layout}: convert it with {name}.to_dense()")
    if not x.numel():
        raise TensorError(f"{label} is empty, shape {tuple(x.shape)}: a program needs at least one row")


def _with_own_elements(x: torch.Tensor) -> torch.Tensor:
    """A tensor detached from others, of which no element is several along an axis, as after `expand`: later calls may
    give each of them a value, and have to have the same strides."""
    is_expanded = any(n > 1 and stride == 0 for n, stride in zip(x.shape, x.stride(), strict=True))
    return x.detach().contiguous() if is_expanded else x.detach()


def exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """Export a module that `module_of` has checked. The graph has PyTorch's own operators, not those that they are
    composed of, and none that works in place. args, kwargs: example arguments; their shapes become those of the graph.
    Raises `UnsupportedError` if torch cannot capture the module, if it changes its own state, or if it writes in a way
    that cannot be followed; `TensorError` for operands of other types where PyTorch needs equal ones, and for a region
    of torch.autocast."""
    name = type(model).__name__
    # torch.export would merge two arguments that are the same tensor.
    args, kwargs = pytree.tree_map_only(torch.Tensor, _with_own_elements, (args, kwargs))
    original = model
    try:
        model = _twin(original)
        # Without gradients, or each `with torch.no_grad()` inside the module would become a graph of its own.
        attributes = Attributes(model)
        with in_turn(attributes.called), global_hooks_of(model), torch.no_grad(), without_extras():
            program = torch.export.export(model, args, kwargs, strict=False)
            _complete_users(program)
            common, views = results_in_common(program), results_in_arguments(program)
            if any(map(_is_transform, program.graph.nodes)) and not writes(program):
                program = program.run_decompositions({})
            _check_transforms(name, program)
            if writes(program):
                program = without_writes(program)
            program.graph_module.meta |= {COMMON: common, VIEWS_OF_ARGUMENTS: views}
    except UnfollowedWriteError as error:
        raise UnsupportedError(f"{site(error.node)}: {error}") from error
    except (UnsupportedError, TensorError):
        raise
    except Exception as error:  # the errors of torch.export have no common type
        raise UnsupportedError(_why_not(name, error)) from error
    # The machine need not support results that the module drops, such as the weights of an attention.
    program.graph.eliminate_dead_code()
    signature = program.graph_signature
    known = OutputKind.USER_OUTPUT, OutputKind.USER_INPUT_MUTATION
    changed = [str(spec.target) for spec in signature.output_specs if spec.kind not in known]
    assigned = attributes.changed
    if changed or (assigned and (model is original or depends_on_calls(copied(original), args, kwargs))):
        raise changes_state(name, dict.fromkeys([*changed, *assigned]))
    for spec in signature.input_specs:
        if spec.kind not in (*LIFTED, InputKind.USER_INPUT):
            raise UnsupportedError(f"{name} has an input of kind {spec.kind.name}")
    for node in program.graph.nodes:
        _check_types(node)
    return program


def _complete_users(program: ExportedProgram) -> None:
    """Tell each node all its users: torch.export forgets some of a result of operators behind a region."""
    for node in program.graph.nodes:
        for x in node.all_input_nodes:
            x.users.setdefault(node)


def _is_transform(node: Node) -> bool:
    """Whether an operator begins or ends a transform of torch.func, such as `torch.vmap`."""
    return getattr(node.target, "__module__", "") in (predispatch.__name__,)


def _check_transforms(name: str, program: ExportedProgram) -> None:
    """Raises UnsupportedError for transforms of torch.func that could not be decomposed: their operators run only in
    the midst of the transform, and torch.export takes some of their tensors for constants."""
    found = [x for x in program.graph.nodes if _is_transform(x)]
    if found:
        node = next((x for x in found if x.all_input_nodes), found[0])
        raise UnsupportedError(f"{site(node)}: this transform of torch.func is not supported")
    if any(isinstance(x, FakeTensor) or is_functorch_wrapped_tensor(x) for x in program.constants.values()):
        raise UnsupportedError(f"torch.export cannot capture {name}: it takes a tensor of the example for a constant")


def tensors_of(model: nn.Module) -> Iterable[torch.Tensor]:
    """Return a module's tensors, each once: parameters, buffers, and attributes of it and of its submodules that are
    tensors."""
    attributes = (x for module in model.modules() for x in vars(module).values() if isinstance(x, torch.Tensor))
    return {id(x): x for x in chain(model.parameters(), model.buffers(), attributes)}.values()


def copied(model: nn.Module, others: Mapping[int, torch.Tensor] = MappingProxyType({})) -> nn.Module:
    """Copy a module and its submodules, but share their tensors. others: by id() of a tensor, the one to take instead.
    Raises whatever copy.deepcopy of the module's attributes raises."""
    return copy.deepcopy(model, {id(x): others.get(id(x), x) for x in tensors_of(model)})


def without_values(model: object) -> nn.Module | None:
    """Return a copy of a module in which tensors without values (on the meta device) have values on the CPU; None if
    the module has no such tensor. All elements of such a tensor become the same number, stored once, so that it takes
    no memory; floating-point tensors become float32. The copy serves to compile programs for models that are larger
    than this computer's memory."""
    others = {}
    for x in tensors_of(model) if isinstance(model, nn.Module) else ():
        if x.is_meta:
            dtype = torch.float32 if x.is_floating_point() else x.dtype
            value = torch.full((), 0.5).to(dtype).expand(x.shape)  # not 0: a bias of zeros is left out
            others[id(x)] = nn.Parameter(value, requires_grad=False) if isinstance(x, nn.Parameter) else value
    return copied(model, others) if isinstance(model, nn.Module) and others else None


def cloned(x: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor. An axis with stride 0, along which all elements are one in memory, has stride 0 in the
    copy too."""
    ones = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.stride())
    return x[ones].clone().expand(x.shape) if 0 in x.stride() else x.clone()


def _twin(model: nn.Module) -> nn.Module:
    """A copy of the module that shares its tensors, because torch.export replaces a module's tensors for a while and
    other threads may use the module. The module itself if it cannot be copied."""
    try:
        return copied(model)
    except Exception:
        return model


def _check_types(node: Node) -> None:
    """Raises TensorError for types that PyTorch refuses, or converts, only at run time: mixed operand types, autocast
    regions."""
    if node.op == "call_function" and op_name(node) == "wrap_with_autocast" and node.args[2]:
        raise TensorError(f"{site(node)}: torch.autocast; {FLOAT32}: remove it")
    if packet(node) not in (torch.ops.aten.layer_norm, torch.ops.aten.linear, torch.ops.aten.addmm):
        return
    operands = {name: x for name, x in arguments(node).items() if isinstance(x, Node)}
    types = {dtype_of(x) for x in operands.values()}
    if len(types) > 1:
        name, odd = next((name, x) for name, x in operands.items() if dtype_of(x) != torch.float32)
        raise TensorError(
            f"{site(node)}: its {name} is {dtype_of(odd)}; {FLOAT32}: convert it first, as model.float() does"
        )


def _why_not(name: str, error: Exception) -> str:
    """Why a module cannot be captured, as one line, with the user's source line if the traceback has one."""
    frames = traceback.extract_tb(error.__traceback__)
    begun = next((i for i, frame in enumerate(frames) if Path(frame.filename).is_relative_to(TORCH)), 0)
    inner = [x for x in frames[begun:] if x.filename != TRACER]
    own = [x for x in inner if not Path(x.filename).is_relative_to(TORCH) and x.filename[:1] != "<"]
    where = f", at {own[-1].filename}:{own[-1].lineno}, in {own[-1].name}" if own else ""
    message = str(error).strip().partition("\n")[0]
    if isinstance(error, GuardOnDataDependentSymNode):
        return (
            f"{name} branches on the values of a tensor{where}: move that out of the module, or use "
            'torch.compile(model, backend="rsn"), which breaks the graph there'
        )
    unknown = re.match(r"Found <class '(?:.*\.)?(\w+)'> in output", message)
    if unknown:
        is_cache = "cache" in unknown[1].lower()
        remedy = "a cache of keys and values: switch it off, use_cache=False" if is_cache else "return tensors instead"
        return f"{name} returns a {unknown[1]}, which torch.export does not support ({remedy})"
    if own and own[-1] is inner[-1]:
        return f"{name} raises {type(error).__name__}: {message}{where}"
    return f"torch.export cannot capture {name}: {message or type(error).__name__}{where}"


def fitting(
    forward: Callable[..., Any], name: str, example_inputs: tuple[Any, ...] | dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], inspect.Signature]:
    """Check example inputs against a function.

    name: of the function, for messages. example_inputs: positional (tuple) or named (dict). Returns positional inputs,
    named inputs, both in canonical form (`canonical`), and the signature of `forward`. Raises `TensorError` for inputs
    that do not fit the signature, and for tensors that cannot be captured: NumPy arrays, tensors that are empty,
    nested, not dense, or not on the CPU.
    """
    register_static_cache()
    if not isinstance(example_inputs, tuple | dict):
        raise TensorError(f"example inputs are a tuple or a dict of tensors, not {type(example_inputs).__name__}")
    args, kwargs = (example_inputs, {}) if isinstance(example_inputs, tuple) else ((), example_inputs)
    signature = inspect.signature(forward)
    try:
        args, kwargs = canonical(signature, args, kwargs)
    except TypeError as error:
        raise TensorError(f"the example inputs do not fit {name}{signature}: {error}") from error
    for argument, given in signature.bind(*args, **kwargs).arguments.items():
        for x in pytree.tree_leaves(given):
            _check_argument(argument, x)
    return args, kwargs, signature


@dataclass(frozen=True, eq=False)
class Interface:
    """How a captured module is called.

    signature: of the module's forward. arguments: placeholders of its flattened arguments. structure: of the arguments
    (pytree). result: the output node. result_structure: of the result (pytree). fixed: arguments whose values are
    constants of the program, with these values. written: arguments that the module writes to, such as a cache of keys
    and values; their new values come before the results in `result`. laid_out: if the module writes in place, the
    arguments that it may write to, through views; then all arguments must have the strides of the example, because with
    other strides some views would be copies. None if it does not write in place. common: groups of results that share
    memory (`results_in_common`): behind a graph break, a write to one result of a group is a write to all. views: the
    results that are views of an argument which the module writes to, by position (`ViewsOfArguments`); a write to one
    of them is a write to the argument.
    """

    signature: inspect.Signature
    arguments: tuple[Node, ...]
    structure: pytree.TreeSpec
    result: Node
    result_structure: pytree.TreeSpec | Structure
    fixed: Mapping[Node, torch.Tensor] = field(default_factory=dict)
    written: tuple[Node, ...] = ()
    laid_out: frozenset[Node] | None = None
    common: tuple[Layouts, ...] = ()
    views: Mapping[int, tuple[Node, tuple[int, ...], int]] = field(default_factory=dict)

    @classmethod
    def of(cls, program: ExportedProgram, signature: inspect.Signature) -> Interface:
        """Return the interface of an exported program, without fixed arguments. signature: of the module's forward."""
        placeholders = zip(program.graph.find_nodes(op="placeholder"), program.graph_signature.input_specs, strict=True)
        arguments = tuple(node for node, spec in placeholders if spec.kind == InputKind.USER_INPUT)
        specs = program.call_spec
        named = {node.name: node for node in arguments}
        written = tuple(
            named[str(spec.target)]
            for spec in program.graph_signature.output_specs
            if spec.kind == OutputKind.USER_INPUT_MUTATION
        )
        result = program.graph.output_node()
        names: frozenset[str] | None = program.graph_module.meta.get(LAID_OUT)
        laid_out = None if names is None else frozenset(named[name] for name in names if name in named)
        common = program.graph_module.meta.get(COMMON, ())
        views = {
            position: (named[argument], stride, offset)
            for position, (argument, stride, offset) in program.graph_module.meta.get(VIEWS_OF_ARGUMENTS, {}).items()
            if named.get(argument) in written
        }
        structures = specs.in_spec, result, specs.out_spec
        return cls(signature, arguments, *structures, {}, written, laid_out, common, views)

    def of_tensors(self, result: str) -> Interface:
        """Return the interface of the same module with one parameter for each tensor, by name, so that a file can hold
        it whatever classes the module's arguments have. A container `cache` becomes `cache_0`, `cache_1` and so on.
        result: the field of the module's result that calls return, a tensor. Raises `AttributeError` for a result
        without it."""
        names = self.names
        whole: Any = self.result_structure.unflatten(list(self.returned))
        written = [value for _, value in self.writes]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([inspect.Parameter(names[x], kind) for x in self.arguments])
        return Interface(
            signature,
            self.arguments,
            pytree.tree_structure(((0,) * len(self.arguments), {})),
            Graph().output((*written, getattr(whole, result))),
            pytree.tree_structure(0),
            self.fixed,
            self.written,
            self.laid_out,
        )

    def restricted(
        self, arguments: Sequence[Node], writes: Sequence[tuple[Node, Node]], returned: Sequence[Any]
    ) -> Interface:
        """Return the interface of a part of the module, with one parameter for each tensor. Call it on the result of
        `of_tensors`. arguments: the placeholders that the part takes, in order. writes: the arguments that the part
        writes to, each with the node of its new value. returned: all that the module returns if the part returns it,
        else empty."""
        names = dict(zip(self.arguments, self.signature.parameters.values(), strict=True))
        return replace(
            self,
            signature=inspect.Signature([names[x] for x in arguments]),
            arguments=tuple(arguments),
            structure=pytree.tree_structure(((0,) * len(arguments), {})),
            result=Graph().output((*(value for _, value in writes), *returned)),
            result_structure=self.result_structure if returned else pytree.tree_structure(()),
            fixed={node: x for node, x in self.fixed.items() if node in arguments},
            written=tuple(argument for argument, _ in writes),
        )

    @property
    def names(self) -> dict[Node, str]:
        """The names of the arguments, by placeholder: those of the module's parameters, which may differ from the names
        of the placeholders. The tensors of a container `cache` are called `cache_0`, `cache_1` and so on."""
        args, kwargs = pytree.tree_unflatten(list(self.arguments), self.structure)
        names: dict[Node, str] = {}
        for name, value in by_name(self.signature, args, kwargs).items():
            leaves = pytree.tree_leaves(value)
            own = [name] if leaves == [value] else [f"{name}_{i}" for i in range(len(leaves))]
            names.update(zip(leaves, own, strict=True))
        return names

    @property
    def writes(self) -> tuple[tuple[Node, Node], ...]:
        """The arguments (placeholders) that the module writes to, each with the node of its new value."""
        values = self.result.args[0]
        assert isinstance(values, list | tuple)
        return tuple(zip(self.written, values, strict=False))

    @property
    def returned(self) -> tuple[Any, ...]:
        """The nodes, or constants, that the module returns, in order."""
        values = self.result.args[0]
        assert isinstance(values, list | tuple)
        return tuple(values[len(self.written) :])

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Environment:
        """Return the arguments of a call by placeholder: `args` by position, `kwargs` by name. NumPy arrays become
        tensors, and whole numbers of fewer bits int64, if the example has that type. Raises `TensorError` for arguments
        that otherwise differ from the example in structure, type or shape, or in their values if these are fixed; that
        are not dense CPU tensors; that the module writes to and that share memory, or have other strides than the
        example; and as `as_tensor` does."""
        environment: Environment
        if LEAVES.issuperset(map(type, chain(args, kwargs.values()))):
            environment = self._forms.arranged(self._flattened, args, kwargs)
        else:
            environment = self._flattened(args, kwargs)
        for node, value in environment.items():
            example = node.meta["val"]
            if isinstance(value, np.ndarray) and isinstance(example, torch.Tensor):
                array, value = value, as_tensor(node.name, value)
                if node in self.written and array.ctypes.data != value.data_ptr():
                    raise TensorError(
                        f"argument {node.name}, which the module writes to, is an array that PyTorch cannot write to"
                    )
                environment[node] = value
            if (
                isinstance(value, torch.Tensor)
                and value.dtype != dtype_of(node)
                and node not in {*self.written, *self.returned}
            ):
                value = environment[node] = _as_int64(node, value)
            if not isinstance(example, torch.Tensor):
                if type(value) is not type(example) or value != example:
                    raise TensorError(f"argument {node.name} must be {example!r}, as when the module was traced")
            elif not isinstance(value, torch.Tensor):
                raise TensorError(f"argument {node.name} must be a tensor, not {type(value).__name__}")
            elif value.layout != torch.strided or value.device.type != "cpu":
                kind = value.layout if value.layout != torch.strided else value.device
                raise TensorError(f"argument {node.name} is a tensor of {kind}; it must be a dense one on the CPU")
            elif (value.dtype, value.shape) != (example.dtype, example.shape):
                raise TensorError(
                    f"argument {node.name} is {value.dtype} {tuple(value.shape)}; the module was traced with "
                    f"{example.dtype} {tuple(example.shape)}"
                )
            elif node in self.fixed and not torch.equal(value, self.fixed[node]):
                raise TensorError(
                    f"argument {node.name} has other values than in the example; they are constants of the program, "
                    "because the machine has tables for rotary positions: compile again with these values"
                )
            elif self.laid_out is not None:
                environment[node] = as_laid_out(node, value, is_written=node in self.laid_out)
        if self.written:
            check_apart(environment, self.written)
        return environment

    @cached_property
    def _forms(self) -> CallForms[Node]:
        return CallForms()

    def _flattened(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Environment:
        """The arguments of a call by placeholder. Raises `TensorError` for another structure than the example's."""
        try:
            flat, structure = pytree.tree_flatten(canonical(self.signature, args, kwargs))
        except TypeError as error:
            raise TensorError(f"the module's arguments: {error}") from error
        if structure != self.structure:
            raise TensorError(self._difference(args, kwargs))
        return dict(zip(self.arguments, flat, strict=True))

    def _difference(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """A message on the first argument that the example lacks or has with another structure."""
        example_args, example_kwargs = pytree.tree_unflatten(list(self.arguments), self.structure)
        known = by_name(self.signature, example_args, example_kwargs)
        given = by_name(self.signature, args, kwargs)
        names = ", ".join(known)
        for name in given:
            if name not in known:
                return f"unexpected argument {name}: the example has {names}; calls must have the example's arguments"
        for name in known:
            if name not in given:
                return f"argument {name} is missing; the example has {names}"
        for name, value in given.items():
            if pytree.tree_structure(value) != pytree.tree_structure(known[name]):
                form = "a tensor or a number" if isinstance(known[name], Node) else f"a {type(known[name]).__name__}"
                return f"argument {name} ({type(value).__name__}) has another structure than in the example ({form})"
        return "the arguments differ in number or structure from those the module was traced with"

    def unbind(self, environment: Environment, rows: RowsOfCaches | None = None) -> Any:
        """Return the module's result, in its original structure, and write to the arguments of the call what the module
        writes to them.

        environment: the values of the arguments, and of the nodes that the module returns or writes. Where the node of
        a cache's new value is missing, the node of its new rows must be there: only these rows are then written. rows:
        the numbers of the rows of caches that the new rows replace; None takes those that the module computes. Raises
        `TensorError` as `rows_of` does.
        """
        memory = [environment[argument] for argument in self.written]
        new: Environment = {}
        for argument, node in self.writes:
            value = environment.get(node)
            if value is not None and value is not environment[argument] and any(overlap(value, x) for x in memory):
                value = value.clone()  # a view of an argument, which may be written to before this one
            new[argument] = value
        for argument, node in self.writes:
            cache, value = environment[argument], new[argument]
            if value is not None:
                if value is not cache:
                    cache.copy_(value)
                continue
            a = arguments(node)  # new rows of a cache, which need no copy of all of it
            if rows is None:
                cache.index_copy_(a["dim"], environment[a["index"]], environment[a["source"]])
            else:
                own = list(rows_of(rows, cache.shape[2]))
                cache[range(len(own)), :, own] = environment[a["source"]][:, :, 0]
        written = {value: argument for argument, value in self.writes}  # what is returned is the argument itself
        values = list(map_arg(self.returned, lambda node: environment[written.get(node, node)]))
        for i, (argument, stride, offset) in self.views.items():
            memory, view = environment[argument], torch.empty(0, dtype=values[i].dtype)
            if overlap(values[i], memory):
                continue
            begin = memory.storage_offset() * memory.itemsize + offset
            values[i] = view.set_(memory.untyped_storage(), begin // view.itemsize, values[i].shape, stride)
        put_in_common(values, self.common)
        return self.result_structure.unflatten(values)


def run(
    nodes: Collection[Node], environment: Environment, used_up: Mapping[Node, Iterable[Node]] = MappingProxyType({})
) -> None:
    """Run operators in order, without gradients. nodes: the operators. environment: holds the values of their operands
    by node, and receives their results. used_up: by operator, the nodes whose values no later operator reads;
    `environment` loses them behind it. Raises `TensorError`, naming the operator, for operands that an operator cannot
    take, such as an index that is out of range."""
    if not nodes:
        return
    with torch.no_grad():
        for node in nodes:
            args, kwargs = map_arg((node.args, node.kwargs), environment.__getitem__)
            try:
                environment[node] = node.target(*args, **kwargs)
            except (IndexError, RuntimeError, ValueError) as error:
                raise TensorError(f"{site(node)}: {str(error).strip().partition(chr(10))[0]}") from error
            for read in used_up.get(node, ()):
                del environment[read]


def used_up(steps: Sequence[tuple[Node, Sequence[Node]]], later: Iterable[Node]) -> dict[Node, list[Node]]:
    """Return which values no later step reads, by the last node of the step behind which they can be forgotten; for
    `run`, so that a call keeps no more values than it needs. steps: in order: the last node of each, and all nodes that
    it reads or makes. later: nodes that are read behind the last step."""
    found, kept = {}, set(later)
    for last, nodes in reversed(steps):
        found[last] = [node for node in dict.fromkeys(nodes) if node not in kept]
        kept.update(nodes)
    return found


def steps_of(nodes: Iterable[Node]) -> list[tuple[Node, Sequence[Node]]]:
    """Return operators as steps for `used_up`: each step is one operator. nodes: the operators, in order."""
    return [(node, (*node.all_input_nodes, node)) for node in nodes]


def computed(node: Node, environment: Environment) -> torch.Tensor:
    """Compute a tensor from the arguments and constants in `environment`, which receives all results. node: the
    operator that makes it. Raises as `run`."""
    needed, stack = set(), [node]
    while stack:
        x = stack.pop()
        if x not in environment and x not in needed:
            needed.add(x)
            stack.extend(x.all_input_nodes)
    run([x for x in node.graph.nodes if x in needed], environment)
    return environment[node]


def lifted(program: ExportedProgram) -> Environment:
    """Return the values of all inputs of a graph other than arguments, by node: parameters, buffers, constants and
    subgraphs. Tensors share memory with the program."""
    values = {node: getattr(program.graph_module, node.target) for node in program.graph.find_nodes(op="get_attr")}
    placeholders = program.graph.find_nodes(op="placeholder")
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        if spec.kind in LIFTED:
            tensors = program.state_dict if spec.target in program.state_dict else program.constants
            values[node] = tensors[spec.target].detach()
    return values


class Constants:
    """The nodes of a graph that depend on no argument. Their values are computed when they are first needed. `node in
    constants` tells whether a node is one of them."""

    def __init__(self, program: ExportedProgram) -> None:
        self._values = lifted(program)
        self._nodes = set(self._values)
        for node in program.graph.nodes:
            self.note(node)

    def note(self, node: Node) -> bool:
        """Decide whether an operator depends on no argument, and remember it. Call it for the operators in order: its
        operands must have been noted before. Returns whether the operator is constant. One that draws random numbers is
        not."""
        if node.op == "call_function" and not draws(node) and all(x in self._nodes for x in node.all_input_nodes):
            self._nodes.add(node)
        return node in self._nodes

    def add(self, node: Node, value: torch.Tensor) -> None:
        """Add a node with its value, a tensor of the node's shape."""
        self._nodes.add(node)
        self._values[node] = value

    def __contains__(self, x: object) -> bool:
        return isinstance(x, Node) and x in self._nodes

    def value(self, node: Node) -> torch.Tensor:
        """Return the value of a constant node, in the node's shape. It may share memory with the module. node: must be
        in this object. Raises `TensorError` as `run` does."""
        if node not in self._values:
            for x in node.all_input_nodes:
                self.value(x)
            run([node], self._values)
        return self._values[node]


def packet(node: Node) -> Any:
    """Return the operator of a node without its overload, such as torch.ops.aten.add."""
    return getattr(node.target, "overloadpacket", node.target)


def op_name(node: Node) -> str:
    """Return the operator's full name in the user's model, such as aten.gelu.default."""
    spelled: str | None = node.meta.get(SPELLED)
    return spelled or (str(node.target) if isinstance(node.target, OpOverload) else node.target.__name__)


def short_name(node: Node) -> str:
    """Return the operator's name in the user's model without its overload, such as gelu."""
    spelled: str | None = node.meta.get(SPELLED)
    name: str = packet(node).__name__ if spelled is None else spelled.split(".")[-2]
    return name


def module_path(node: Node) -> str:
    """Return the dotted path of the module that an operator comes from, such as "layers.0.attn"; "" for the root
    module."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = str(stack[-1][0]) if stack else ""
    # torch.compile names a module by the variable that holds it: G['model'].layers.0, or L['self'].layers.0; modules of
    # PyTorch itself are called fn.
    return re.sub(r"^[LG]\['(\w+)'\]", r"\1", re.sub(r"^L\['(self|fn)'\]\.?", "", path))


def site(node: Node) -> str:
    """Return an operator's name and module path, for messages."""
    return f"{op_name(node)} at {module_path(node) or TOP}"


def shape_of(node: Node) -> tuple[int, ...]:
    """Return the shape of a node's tensor, in elements; () if it is no tensor. A size that depends on data is a
    symbol."""
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def is_empty(node: Node) -> bool:
    """Return whether the node is known to be a tensor without elements."""
    return any(isinstance(n, int) and n == 0 for n in shape_of(node))


def is_static(node: Node) -> bool:
    """Return whether all sizes of the node's result are integers: none is a symbol whose value depends on the data.
    True for a result that is no tensor."""
    value = node.meta.get("val")
    parts = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(n, int) for part in parts if isinstance(part, torch.Tensor) for n in part.shape)


def dtype_of(node: Node) -> torch.dtype | None:
    """Return the dtype of a node's tensor; None if it is no tensor."""
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None


def _as_int64(node: Node, value: torch.Tensor) -> torch.Tensor:
    """An argument as int64, if the example's is and the module computes the same with it: whole numbers of fewer bits,
    and truths where the module does nothing with its argument but make truths of it. Others stay as they are."""
    if dtype_of(node) != torch.int64:
        return value
    casts = [packet(user) is torch.ops.aten._to_copy and dtype_of(user) == torch.bool for user in node.users]
    taken = {torch.int32, torch.int16, torch.int8, torch.uint8, *([torch.bool] if casts and all(casts) else [])}
    return value.long() if value.dtype in taken else value


def draws(node: Node) -> bool:
    """Return whether the operator draws random numbers; dropout does so in training mode only. A subgraph draws if one
    of its operators does."""
    parts = (getattr(node.graph.owning_module, str(x.target), None) for x in node.all_input_nodes if x.op == "get_attr")
    if any(draws(x) for part in parts if isinstance(part, GraphModule) for x in part.graph.nodes):
        return True
    if not isinstance(node.target, OpOverload):
        return False
    name = packet(node).__name__.removesuffix("_")
    if torch.Tag.nondeterministic_seeded not in node.target.tags and name not in UNTAGGED:
        return False
    a = arguments(node)
    rates = [a.get("dropout_p"), a.get("dropout"), a.get("p") if "dropout" in name else None]
    return a.get("train", a.get("training")) is not False and 0 not in rates


def arguments(node: Node) -> dict[str, Any]:
    """Return an operator's arguments by name, with defaults for those not given; empty for operators without a schema.
    The dict is new in each call; nodes stand for tensors."""
    if not isinstance(node.target, OpOverload):
        return {}
    declared = node.target._schema.arguments
    given = dict(zip((x.name for x in declared), node.args, strict=False))
    return {**{x.name: x.default_value for x in declared}, **given, **node.kwargs}
