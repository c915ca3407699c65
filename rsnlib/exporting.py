"""Run torch.export beside other threads, which may run modules, or capture others with torch.compile."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from functools import cache
from io import StringIO
from typing import Any

import torch
from torch import nn
from torch._dynamo.convert_frame import compile_lock
from torch._export import utils
from torch.export import _trace, exported_program
from torch.fx import _symbolic_trace
from torch.fx._lazy_graph_module import _LazyGraphModule, _use_lazy_graph_module
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import _ModuleStackTracer
from torch.fx.traceback import preserve_node_meta
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

GLOBAL_HOOKS: tuple[dict[int, Any], ...] = (_global_forward_hooks, _global_forward_pre_hooks)
"""The hooks of all modules of the process."""
TRACE_LOG = "torch.__trace"
"""The name of the logger of torch's trace for machines."""
TRACER = __file__
"""The file whose functions stand between torch's and the module's in tracebacks."""

if hasattr(os, "register_at_fork"):
    # Another thread may have held it when the process was forked.
    os.register_at_fork(after_in_child=compile_lock._at_fork_reinit)


@contextmanager
def in_turn(called: Callable[[nn.Module], AbstractContextManager[None]] = lambda _: nullcontext()) -> Iterator[None]:
    """Context for torch.export and fake tensors: one thread at a time, without torch's log. called: gets each module
    that torch.export calls while it captures, and makes a context for that call, which ends before the module's
    attributes are restored.

    torch.export replaces parts of PyTorch while it captures, so it takes the lock under which torch.compile captures.
    Other threads may run modules: `nn.Module.__call__` and `torch.compiler.is_exporting` are replaced, but do in their
    threads what they always do.
    """
    with compile_lock, unlogged(), _tracing_own_thread(called), _exporting_in_own_thread():
        yield


@contextmanager
def global_hooks_of(model: nn.Module) -> Iterator[None]:
    """Context in which torch.export captures a model, and hooks that are registered for all modules do not run for the
    wrappers that torch.export puts around the model: they would change its arguments and results a second time. Other
    threads call them for every module, as always."""
    own, inner = threading.get_ident(), set(model.modules())

    def only_inside(hook: Callable[..., Any]) -> Callable[..., Any]:
        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            of_torch = type(module).__module__.startswith(("torch._", "torch.export", "torch.fx"))
            if of_torch and module not in inner and threading.get_ident() == own:
                return None
            return hook(module, *args, **kwargs)

        return called

    replaced = [(hooks, key, hook, only_inside(hook)) for hooks in GLOBAL_HOOKS for key, hook in hooks.items()]
    for hooks, key, _, new in replaced:
        hooks[key] = new
    try:
        yield
    finally:
        for hooks, key, hook, new in replaced:
            if hooks.get(key) is new:  # not removed meanwhile
                hooks[key] = hook


@contextmanager
def without_extras() -> Iterator[None]:
    """Context in which torch does not record what this package never reads: the call stack of each operator, a second
    description of its result ("tensor_meta"), operands for Inductor, and the Python code of each graph (it is made when
    somebody asks for it). This saves a third of the time of a capture. And torch asks its dispatcher once for all
    composite operators, not once for each namespace of operators, and looks for sizes that depend on data in graphs
    that have some."""

    def replace_unbacked_bindings(graph_module: torch.fx.GraphModule) -> None:
        if any("unbacked_bindings" in node.meta for node in graph_module.graph.nodes):
            before[_trace, "_replace_unbacked_bindings"](graph_module)

    replaced: dict[tuple[Any, str], object] = {
        (torch.fx.config, "do_not_emit_stack_traces"): True,
        (utils, "_materialize_cpp_cia_ops"): cache(utils._materialize_cpp_cia_ops),
        (proxy_tensor, "_extract_tensor_metadata"): lambda val: None,
        (proxy_tensor, "_should_save_eager_input_vals"): lambda target, operands=None: False,
        (_trace, "_replace_unbacked_bindings"): replace_unbacked_bindings,
        (exported_program, "_create_graph_module_for_export"): _LazyGraphModule,
    }
    before = {place: getattr(*place) for place in replaced if hasattr(*place)}
    for place in before:
        setattr(*place, replaced[place])
    try:
        with _use_lazy_graph_module(True), preserve_node_meta():
            yield
    finally:
        for place, old in before.items():
            setattr(*place, old)


@contextmanager
def unlogged() -> Iterator[None]:
    """Context that suppresses what torch logs and prints when it cannot capture a module, because the error says it.
    Output to stderr is printed at the end if nothing fails. One thread at a time, and none that captures: stderr and
    the levels are those of the process, and each thread puts back what it found. Torch's trace for machines, which has
    a logger of its own, stays: without TORCH_TRACE its handler ends at the first message, and torch then makes none."""
    with compile_lock:
        names = [n for n in logging.root.manager.loggerDict if n.split(".")[0] == "torch" and n != TRACE_LOG]
        handlers = [handler for name in names for handler in logging.getLogger(name).handlers]
        levels = [handler.level for handler in handlers]
        try:
            for handler in handlers:
                handler.setLevel(logging.CRITICAL)
            with redirect_stderr(StringIO()) as printed:
                yield
            sys.stderr.write(printed.getvalue())
        finally:
            for handler, level in zip(handlers, levels, strict=True):
                handler.setLevel(level)


class _AddedMethod(_symbolic_trace._PatchedFn):
    """A method that a class gets, and then inherits again."""

    def patch(self) -> None:
        """Add it."""
        setattr(self.frame_dict, self.fn_name, self.new_fn)

    def revert(self) -> None:
        """Remove it."""
        delattr(self.frame_dict, self.fn_name)


class _PatcherOfClasses(_symbolic_trace._Patcher):
    """Replaces methods in the classes of the captured module and its submodules, not in `nn.Module`. There, Python goes
    through all classes below, four times a capture: 2 ms if transformers has loaded a few of its models. Modules that
    are not submodules are not recorded anyway. Other threads may trace with a patcher of this class."""

    traced = threading.local()
    """`classes`: those of the module that this thread captures."""

    def patch_method(self, cls: type, name: str, new_fn: Callable[..., Any], deduplicate: bool = True) -> None:
        """Replace a method until all patches are reverted."""
        classes: Collection[type[nn.Module]] = getattr(self.traced, "classes", ())
        inherited = (name not in vars(own) and getattr(own, name) is getattr(cls, name) for own in classes)
        if cls is nn.Module and classes and all(inherited):
            for own in classes:
                self.patches_made.append(_AddedMethod(own, name, None, new_fn))
                self.patches_made[-1].patch()
        else:
            super().patch_method(cls, name, new_fn, deduplicate)


class _OwnThreadTracer(_ModuleStackTracer):
    """The tracer of torch.export, which records the modules that are called: only those of its own thread. torch's own
    takes every call of a module in the process for one of the captured module."""

    called: Callable[[nn.Module], AbstractContextManager[None]]
    """Makes a context for the call of a module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._thread = threading.get_ident()

    def trace(self, root: Any, concrete_args: dict[str, object] | None) -> torch.fx.Graph:
        """Record what a module does."""
        traced = _PatcherOfClasses.traced
        around = getattr(traced, "classes", ())
        traced.classes = {type(module) for module in self.scope_root.modules()}
        try:
            return super().trace(root, concrete_args)
        finally:
            traced.classes = around

    def call_module(self, m: Any, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a module. Records it, if this thread traces."""
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        with type(self).called(m):
            return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: object, parameter_proxy_cache: Any) -> object:
        """An attribute of a module; its stand-in for the tracer, if this thread traces."""
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


def _uncalled(_: nn.Module) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def _tracing_own_thread(called: Callable[[nn.Module], AbstractContextManager[None]]) -> Iterator[None]:
    _OwnThreadTracer.called = staticmethod(called)
    proxy_tensor._ModuleStackTracer = _OwnThreadTracer
    patcher, _symbolic_trace._Patcher = _symbolic_trace._Patcher, _PatcherOfClasses
    try:
        yield
    finally:
        proxy_tensor._ModuleStackTracer = _ModuleStackTracer
        _symbolic_trace._Patcher = patcher
        _OwnThreadTracer.called = staticmethod(_uncalled)  # the other one holds the module


@contextmanager
def _exporting_in_own_thread() -> Iterator[None]:
    is_exporting, own = torch.compiler.is_exporting, threading.get_ident()
    torch.compiler.is_exporting = lambda: threading.get_ident() == own and is_exporting()
    try:
        yield
    finally:
        torch.compiler.is_exporting = is_exporting
