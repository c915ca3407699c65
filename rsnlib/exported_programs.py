"""Programs of torch.export as models: their modules, their example inputs, and the sizes that they leave open."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import logging
import os
import sys
import weakref
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from logging.handlers import BufferingHandler
from typing import Any, Self, TypeGuard

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.graph import _PyTreeCodeGen
from torch.utils import _pytree as pytree
from torch.utils._sympy.numbers import int_oo

from ..base.errors import UnsupportedError
from .call_arguments import by_name
from .exporting import unlogged
from .shapes import FORM, Arguments, Batch, Dim, Length, Shapes

SUFFIX = ".pt2"
"""The end of the names of files of `torch.export.save`."""
REGISTERING: dict[str, Callable[[], object]] = {
    "torchao": lambda: importlib.import_module("torchao.quantization"),
    "transformers": lambda: importlib.import_module("transformers.modeling_outputs"),
}
"""Packages that register types of results, or operators, with PyTorch when a module of theirs is imported: what imports
it."""


class ProgramModule(nn.Module):
    """A graph that torch.export made, as a module that shares all attributes with the graph's own module. The graph's
    own module takes arguments only as they were given at the export, and loses, when it is captured again, the modules
    from which its operators come; this one takes each argument by position or by name, and keeps them."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy what every module has; a graph does not change."""
        made = self.__class__.__new__(self.__class__)
        memo[id(self)] = made
        own = vars(nn.Module())
        made.__dict__ = {
            name: copy.deepcopy(value, memo) if name in own else value for name, value in vars(self).items()
        }
        return made


_modules: weakref.WeakKeyDictionary[ExportedProgram | nn.Module, nn.Module] = weakref.WeakKeyDictionary()
"""The modules that were made, by what they were made from: what is compiled twice follows one module."""


def as_module(exported: ExportedProgram | fx.GraphModule) -> nn.Module:
    """Return a program, or the module that `program.module()` has made of it, as a `ProgramModule`, the same one in
    each call. It lives as long as what it is made of, whose tensors it shares."""
    if exported not in _modules:
        graph_module = exported.module() if isinstance(exported, ExportedProgram) else exported
        assert isinstance(graph_module, fx.GraphModule)
        _modules[exported] = _module_of(graph_module)
    return _modules[exported]


def is_program(model: object) -> TypeGuard[ExportedProgram]:
    """Whether a model is a program of torch.export."""
    return isinstance(model, ExportedProgram)


def is_program_module(module: nn.Module) -> bool:
    """Whether a module is one that `as_module` made."""
    return isinstance(module, ProgramModule)


def is_exported(module: object) -> TypeGuard[fx.GraphModule]:
    """Whether a module is the result of `program.module()`: a graph of operators, in which only checks of the arguments
    are modules."""
    if not isinstance(module, fx.GraphModule) or not isinstance(module.graph._codegen, _PyTreeCodeGen):
        return False
    parts = (module.get_submodule(str(x.target)) for x in module.graph.find_nodes(op="call_module"))
    return all(type(part).__module__.startswith("torch.export.") for part in parts)


def _module_of(module: fx.GraphModule) -> nn.Module:
    signature, codegen = inspect.signature(module.forward), module.graph._codegen
    assert isinstance(codegen, _PyTreeCodeGen)
    arguments, results = codegen.pytree_info.in_spec, codegen.pytree_info.out_spec
    by_position, named = arguments.children()
    names = list(signature.parameters)[: by_position.num_children]

    def as_exported(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = signature.bind(*args, **kwargs).arguments
        return tuple(given[name] for name in names), {name: given[name] for name in named.context}

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = as_exported(args, kwargs)  # as the hook with which torch checks them takes them
        return nn.Module.__call__(self, *args, **kwargs)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        flat, found = pytree.tree_flatten(as_exported(args, kwargs))
        if found != arguments:
            raise TypeError(f"the arguments have another structure than those the program was exported with: {found}")
        # The interpreter says where each operator comes from; the code that torch makes of a graph does not.
        result = fx.Interpreter(self, graph=self._graph).run(*flat, enable_io_processing=False)
        return result if results is None else pytree.tree_unflatten(result, results)

    own = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), *signature.parameters.values()]
    forward.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    made: nn.Module = object.__new__(
        type(_name_of(module.graph), (ProgramModule,), {"forward": forward, "__call__": call})
    )
    made.__dict__ = module.__dict__
    return made


def _name_of(graph: fx.Graph) -> str:
    """The class of the module that was exported, without its package."""
    owners = (owner for node in graph.nodes for owner in node.meta.get("nn_module_stack", {}).values())
    kind = next((kind for path, kind in owners if not path), "")
    return str(getattr(kind, "__name__", kind)).rpartition(".")[2] or ExportedProgram.__name__


def read_program(path: str | os.PathLike[str]) -> ExportedProgram:
    """Read a program of `torch.export.save`. A package that registers a type or an operator of the program is imported,
    if it is one of `REGISTERING`. Raises `UnsupportedError`, naming the file, if it cannot be read."""
    name = os.fspath(path)
    if not zipfile.is_zipfile(path):
        what = "no program of torch.export" if os.path.exists(path) else "no such file"
        raise UnsupportedError(f"{name}: {what}")
    try:
        return _loaded(path)
    except _LoadError as error:
        reason, needed = str(error), [package for package in REGISTERING if package in str(error)]
    for package in needed:
        if importlib.util.find_spec(package) is None:
            raise UnsupportedError(f"{name} needs {package}: pip install {package}")
        REGISTERING[package]()
    try:
        if needed:
            return _loaded(path)
    except _LoadError as error:
        reason = str(error)
    raise UnsupportedError(f"{name}: torch.export cannot load it: {reason}")


class _LoadError(Exception):
    """torch.export cannot load a file. It has one line: what torch says of the cause."""


def _loaded(path: str | os.PathLike[str]) -> ExportedProgram:
    """Raises `_LoadError`. torch.export logs the cause, and raises an error that does not tell it."""
    handler, logger = BufferingHandler(sys.maxsize), logging.getLogger("torch.export")
    try:
        with unlogged():
            logger.addHandler(handler)
            return torch.export.load(path)
    except Exception as error:  # torch's errors for other files have no common type
        logged = [str(x.exc_info[1]) for x in handler.buffer if x.exc_info and x.exc_info[1]]
        raise _LoadError([str(error), *logged][-1].strip().partition("\n")[0]) from error
    finally:
        logger.removeHandler(handler)


def example_of(program: ExportedProgram, batch: int | None = None, seq: int | None = None) -> dict[str, Any]:
    """Return the inputs that a program was exported with, by name. batch, seq: sizes for those that it leaves open as
    `Batch` and as `Length`; None for those it was exported with. Raises `UnsupportedError` if it has no inputs, or no
    such size."""
    if program.example_inputs is None:
        raise UnsupportedError("the exported program has no example inputs: give them")
    args, kwargs = program.example_inputs
    signature = inspect.signature(as_module(program).forward)
    example = by_name(signature, args, kwargs)
    places = list(_open_sizes(program)) if batch is not None or seq is not None else []
    dims: dict[Any, Dim] = {}
    for kind, size in ((Batch, batch), (Length, seq)):
        found = {symbol for _, _, symbol in places if _kind(symbol, places) is kind}
        if size is not None and not found:
            raise UnsupportedError(f"the exported program has no open {kind.what}, so it cannot be {size}")
        dims |= {symbol: kind(size) for symbol in found if size is not None}
    if not dims:
        return example
    arguments = Arguments(signature, example, _shapes((place for place in places if place[2] in dims), dims))
    return arguments.example_of([dim.sizes[0] for dim in arguments.dims])


def shapes_of(program: ExportedProgram) -> Shapes | None:
    """Return the dynamic dimensions of a program; None if it has none.

    A size that is the first axis of all arguments that have it is a `Batch`, any other a `Length`; programs are for its
    largest value, and for a half, a quarter and an eighth of that. Raises `UnsupportedError` for a size without a
    largest value, for one that is computed of others, and for two of one range, which calls could not tell apart.
    """
    places = list(_open_sizes(program))
    dims: dict[Any, Dim] = {}
    for name, axis, symbol in places:
        what, remedy = f"argument {name} of the exported program: its size {axis}", f"give dynamic_shapes={FORM}"
        if not symbol.is_Symbol:
            raise UnsupportedError(f"{what} is {symbol}, which follows from another size: {remedy}")
        if symbol in dims:
            continue
        kind, values = _kind(symbol, places), program.range_constraints[symbol]
        if values.upper is int_oo:
            raise UnsupportedError(
                f'{what} has no largest value: export it with torch.export.Dim("{kind.what}", max=...), or {remedy}'
            )
        dim = kind(*_parts(int(values.lower), int(values.upper)))
        if dim in dims.values():
            raise UnsupportedError(f"{what} has the range of another size, {values.lower} to {values.upper}: {remedy}")
        dims[symbol] = dim
    return _shapes(places, dims) or None


Place = tuple[str, int, Any]
"""A size that a program leaves open: argument, axis, and torch's symbol or expression."""


def _open_sizes(program: ExportedProgram) -> Iterator[Place]:
    """Raises `UnsupportedError` for an open size inside of an argument that is no tensor."""
    structure = program.call_spec.in_spec
    args, kwargs = pytree.tree_unflatten(range(structure.num_leaves), structure)
    owners = by_name(inspect.signature(as_module(program).forward), args, kwargs)
    named = {leaf: name for name, leaf in owners.items() if isinstance(leaf, int)}
    nodes = zip(program.graph.find_nodes(op="placeholder"), program.graph_signature.input_specs, strict=True)
    given = (node.meta["val"] for node, spec in nodes if spec.kind == InputKind.USER_INPUT)
    for i, value in enumerate(given):
        for axis, n in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(n, int):
                continue
            if i not in named:
                raise UnsupportedError(
                    "the exported program leaves a size open of a tensor that is a part of an argument: export it for "
                    "one size"
                )
            yield named[i], axis, n.node.expr


def _kind(symbol: Any, places: list[Place]) -> type[Dim]:
    return Batch if all(axis == 0 for _, axis, other in places if other == symbol) else Length


def _shapes(places: Iterable[Place], dims: Mapping[Any, Dim]) -> Shapes:
    shapes: dict[str, dict[int, Dim]] = {}
    for name, axis, symbol in places:
        shapes.setdefault(name, {})[axis] = dims[symbol]
    return shapes


def _parts(smallest: int, largest: int) -> list[int]:
    """largest, a half, a quarter and an eighth of it, rounded up, those that are at least `smallest` and 1."""
    return [n for n in (-(-largest // part) for part in (1, 2, 4, 8)) if n >= max(smallest, 1)]
