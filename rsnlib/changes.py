"""Detect changes of a module since it was captured, in microseconds, before each call.

Detected: writes to parameters and buffers that PyTorch counts (in place, `load_state_dict`), replaced tensors
(`model.weight = ...`, `.data = ...`), replaced submodules and attributes, changes inside lists, dictionaries, sets and
objects of plain values, such as `model.config.x = ...`, hooks, and `train()`. Of writes through `.data` or NumPy, those
that change the first, a middle or the last number of a tensor; with `checksums` all. Not detected: changes inside other
objects, of classes and of globals. After these call `refresh` of the compiled model.
"""

from __future__ import annotations

import threading
import weakref
import zlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from ctypes import c_char
from enum import Enum, IntEnum
from itertools import chain
from operator import attrgetter, getitem, is_, itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.hooks import RemovableHandle

from ..base.errors import TensorError, UnsupportedError
from .exporting import GLOBAL_HOOKS
from .precision import Widened, floating_dtypes, has_halves

if TYPE_CHECKING:
    from .partition import Traced

_version = attrgetter("_version")
_training = itemgetter("training")
_OWN = frozenset(vars(nn.Module()))
"""Attributes that PyTorch gives every module. The dictionaries among them are compared separately."""
INERT: dict[type[nn.Module], frozenset[str]] = {
    nn.Linear: frozenset({"in_features", "out_features"}),
    nn.Embedding: frozenset({"num_embeddings", "embedding_dim"}),
    nn.LayerNorm: frozenset({"elementwise_affine"}),
    nn.Dropout: frozenset({"p", "inplace"}),
}
"""By class (no subclasses): attributes that do not affect what the module computes in eval mode."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_CONTAINERS = frozenset({list, deque, set, dict, OrderedDict, defaultdict})
"""Of these, what they hold is followed. A subclass may do anything."""
_PLAIN = (int, float, complex, str, bytes, type(None), type, Enum, torch.dtype, torch.device)
MOST_VALUES, MOST_OF_OBJECT = 10_000, 1000
"""Values inside of attributes that are followed; of an object, those that are looked at for one that is not plain."""


class Change(IntEnum):
    """How much a module has changed."""

    NONE = 0
    """No change was detected."""
    NUMBERS = 1
    """The same tensors hold other numbers."""
    STRUCTURE = 2
    """Anything else."""


class Numbers:
    """The state of tensors, to detect later writes: PyTorch's write counters, and the first, a middle and the last
    number of each, which tell most writes that PyTorch does not count, such as `x.data.mul_(2)`.

    checksums: also compare checksums of the contents, which finds all such writes, and takes about a second per GB in
    each comparison.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], checksums: bool = False) -> None:
        given = list({id(x): x for x in tensors}.values())
        self._wrapped = [x for x in given if is_traceable_wrapper_subclass(x)]
        self._parts = list(parts_of(self._wrapped))
        self._tensors = [x for x in given if not is_traceable_wrapper_subclass(x)] + self._parts
        # Tensors of inference mode have no write counter, and cannot be written to outside of that mode. A write to a
        # quantised weight counts there, not in its parts.
        self._counting = [x for x in (*self._tensors, *self._wrapped) if not x.is_inference()]
        self._versions = list(map(_version, self._counting))
        self._pointers = list(map(torch.Tensor.data_ptr, self._tensors))
        self._samples = [sample for x in self._tensors for sample in _samples(x)]
        self._sampled = b"".join(self._samples)
        self._sums = _sums(self._tensors) if checksums else None

    def have_moved(self) -> bool:
        """Return whether a tensor has other memory than before, as after `.data = ...`, or a quantised
        weight other parts."""
        if self._wrapped and not all(map(is_, parts_of(self._wrapped), self._parts)):
            return True
        return list(map(torch.Tensor.data_ptr, self._tensors)) != self._pointers

    def have_changed(self) -> bool:
        """Return whether a tensor was written to, by its counter, its samples or its checksum. Call it only if no
        tensor has moved (`have_moved`): it reads the memory that they had at first."""
        if list(map(_version, self._counting)) != self._versions or b"".join(self._samples) != self._sampled:
            return True
        return self._sums is not None and _sums(self._tensors) != self._sums


def parts_of(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the plain tensors of which tensor subclasses, such as quantised weights, consist; a plain tensor itself."""
    for x in tensors:
        if is_traceable_wrapper_subclass(x):
            yield from parts_of(getattr(x, name) for name in x.__tensor_flatten__()[0])
        else:
            yield x


class _Contents:
    """What the attributes of modules hold inside: lists, dictionaries and sets with what is in these in turn, and
    objects of plain values, such as configurations, up to `MOST_VALUES` of all. values: the attributes.

    tensors, modules: those in there."""

    def __init__(self, values: Iterable[object]) -> None:
        self.tensors, self.modules = list[torch.Tensor](), list[nn.Module]()
        self._live, self._before = list[Any](), list[Any]()
        waiting, seen, left = deque(values), set[int](), MOST_VALUES
        while waiting:
            value = waiting.popleft()
            if isinstance(value, _PLAIN) or id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, torch.Tensor):
                self.tensors.append(value)
            elif isinstance(value, nn.Module):
                self.modules.append(value)
            elif isinstance(value, tuple):
                waiting.extend(value)
            elif type(value) in _CONTAINERS or _is_plain(value):
                live: Any = value if type(value) in _CONTAINERS else vars(value)
                if len(live) > left:
                    continue
                left -= len(live)
                self._live.append(live)
                self._before.append(live.copy())
                waiting.extend(_inside(live))

    def have_changed(self) -> bool:
        """Return whether a container holds something else than before."""
        try:
            if self._live != self._before:  # identical objects compare equal without a call of __eq__
                return True
            live, before = (list(chain.from_iterable(map(_inside, all_))) for all_ in (self._live, self._before))
            # Two tensors of one number may compare equal.
            return not (all(map(is_, live, before)) or all(map(_same, live, before)))
        except (RuntimeError, ValueError):  # __eq__ of two different tensors or arrays; a write by another thread
            return True


def _inside(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _is_plain(value: object) -> bool:
    """Whether an object has attributes, which are numbers, texts and the like, containers of these, or other such
    objects: one that describes, as a configuration, and does not work, as a trainer, whose state changes by itself."""
    if not hasattr(value, "__dict__") or callable(value):
        return False
    waiting, seen = [value], set[int]()
    while waiting:
        part = waiting.pop()
        if isinstance(part, _PLAIN) or id(part) in seen:
            continue
        seen.add(id(part))
        if len(seen) > MOST_OF_OBJECT:
            return False
        if type(part) in _CONTAINERS or isinstance(part, tuple):
            waiting.extend(_inside(part))
        elif hasattr(part, "__dict__") and not callable(part) and not isinstance(part, torch.Tensor | nn.Module):
            waiting.extend(vars(part).values())
        else:
            return False
    return True


class Snapshot:
    """The state of a module, to detect later changes. checksums: as for `Numbers`. known: modules that other snapshots
    cover, which this one leaves out."""

    def __init__(self, module: nn.Module, checksums: bool = False, known: frozenset[nn.Module] = frozenset()) -> None:
        # Keep the attributes but not the module, so that a snapshot does not keep it alive.
        attributes = list(map(vars, module.modules()))
        self._dicts = [d[name] for d in attributes for name in ("_parameters", "_buffers", "_modules") if d[name]]
        self._entries = [dict(d) for d in self._dicts]
        self._attributes, self._counts = attributes, list(map(len, attributes))
        named = [
            (vars(part), name, value)
            for part in module.modules()
            for name, value in vars(part).items()
            if name not in _OWN and name not in _inert(part)
        ]
        self._owners, self._names, self._values = ([x[i] for x in named] for i in range(3))
        self._contents = _Contents(self._values)
        attached = (x for x in self._values if isinstance(x, torch.Tensor))
        owned = {id(x): x for x in chain(module.parameters(), module.buffers(), attached)}
        self._numbers = Numbers(owned.values(), checksums)
        # torch.export copies tensors that are no attributes, so new numbers of these are not found again.
        self._inside = Numbers((x for x in self._contents.tensors if id(x) not in owned), checksums)
        known |= frozenset(module.modules())
        self._unregistered = [Snapshot(part, checksums, known) for part in self._contents.modules if part not in known]
        self._hooked = self._dicts_of_hooks()
        self._hooks = [list(hooks) for hooks in self._hooked]
        self._hooks_so_far = RemovableHandle.next_id
        self._is_training = any(map(_training, attributes))

    def change(self) -> Change:
        """Return how much the module has changed since the snapshot."""
        try:
            if self._dicts != self._entries:  # identical objects compare equal without a call of __eq__
                return Change.STRUCTURE
        except (RuntimeError, ValueError):  # __eq__ of two different tensors has no single truth value
            return Change.STRUCTURE
        if list(map(len, self._attributes)) != self._counts or not self._has_same_attributes():
            return Change.STRUCTURE
        if any(map(_training, self._attributes)) != self._is_training or self._has_other_hooks():
            return Change.STRUCTURE
        if self._numbers.have_moved() or self._contents.have_changed():
            return Change.STRUCTURE
        if self._inside.have_moved() or self._inside.have_changed():
            return Change.STRUCTURE
        if any(part.change() for part in self._unregistered):
            return Change.STRUCTURE
        return Change.NUMBERS if self._numbers.have_changed() else Change.NONE

    def _has_same_attributes(self) -> bool:
        try:
            values = list(map(getitem, self._owners, self._names))
        except KeyError:
            return False
        if all(map(is_, values, self._values)):
            return True
        return all(map(_same, values, self._values))

    def _has_other_hooks(self) -> bool:
        """Whether a hook was registered or removed since the snapshot."""
        if [list(hooks) for hooks in self._hooked] != self._hooks:
            return True
        if RemovableHandle.next_id == self._hooks_so_far:
            return False
        if [list(hooks) for hooks in self._dicts_of_hooks()] != self._hooks:
            return True
        self._hooks_so_far = RemovableHandle.next_id  # the new hooks are of other modules, or of tensors
        return False

    def _dicts_of_hooks(self) -> list[Mapping[int, Any]]:
        """The hooks of all modules in the process, and of the modules that have some."""
        return [*GLOBAL_HOOKS, *(d[name] for d in self._attributes for name in _HOOKS if d[name])]


def _same(a: object, b: object) -> bool:
    """Whether two values are the same object, or equal numbers or strings, or tuples of such: their __eq__ is known."""
    if a is b or type(a) is not type(b):
        return a is b
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return isinstance(a, int | float | str) and a == b


def _inert(module: nn.Module) -> frozenset[str]:
    return INERT.get(type(module), frozenset())


def _samples(x: torch.Tensor) -> Iterator[memoryview]:
    """Yield the memory of three numbers of a tensor. It is valid as long as the tensor has that memory."""
    if x.device.type != "cpu" or x.layout is not torch.strided or not x.numel() or not x.data_ptr():
        return
    size = x.element_size()
    for part in (0.0, 0.5, 1.0):
        at = sum(int(part * (n - 1)) * step for n, step in zip(x.shape, x.stride(), strict=True))
        yield memoryview((c_char * size).from_address(x.data_ptr() + size * at))


def _sums(tensors: Iterable[torch.Tensor]) -> list[int]:
    return [zlib.crc32(_bytes(x)) for x in tensors]


def _bytes(x: torch.Tensor) -> Any:
    flat = x.detach().contiguous().view(-1).view(torch.uint8) if x.numel() else torch.empty(0, dtype=torch.uint8)
    return memoryview(flat.numpy())


class Followed:
    """Detects and counts the changes of a module. All programs compiled from one module share it. Methods are
    thread-safe.

    It holds only a weak reference to the module, unless `keeps`. That is for programs of torch.export: other modules
    may hold their tensors, and change them when the program itself is gone. For a module with weights in half precision
    it keeps a copy in float32. checksums: as for `Numbers`. graphs: for each compiled model, the function that traces
    its graph again after a change; emptied when the module is destroyed.
    """

    def __init__(self, module: nn.Module, checksums: bool = False, *, keeps: bool = False) -> None:
        self._module = weakref.ref(module)
        self._kept = module if keeps else None
        self._checksums = checksums
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = Snapshot(module, checksums)
        self._count = self._structure = 0
        self._dtypes = floating_dtypes(module)
        self._is_half = has_halves(module)
        self._widened: Widened | None = None
        self.graphs: weakref.WeakKeyDictionary[object, Callable[[], Traced]] = weakref.WeakKeyDictionary()
        weakref.finalize(module, Followed._drop, weakref.ref(self))

    def exists(self) -> bool:
        """Return whether the module has not been garbage-collected."""
        return self._module() is not None

    @property
    def original(self) -> nn.Module:
        """The module itself. Raises `UnsupportedError` if it was garbage-collected."""
        module = self._module()
        if module is None:
            raise UnsupportedError("the model that this was compiled from no longer exists: compile a model again")
        return module

    @property
    def module(self) -> nn.Module:
        """The module to compile: the module itself or, for half precision, its copy in float32 as of the last `look`.

        Raises `UnsupportedError` if the module no longer exists, and `TensorError` if it cannot be copied, or if the
        dtype of a weight of a model in half precision has changed, because arguments and results would change their
        types too.
        """
        original = self.original
        if not self._is_half:
            return original
        with self._lock:
            for name, dtype in floating_dtypes(original).items():
                first = self._dtypes.get(name, dtype)
                if first != dtype:
                    raise TensorError(
                        f"{name} was {first} when the model was compiled, and is {dtype} now: compile the model again"
                    )
            if self._widened is None:
                self._widened = Widened(original)
            return self._widened.module

    def look(self) -> int:
        """Compare the module with its state at the last `look`. Returns the number of changes detected since the module
        was followed. Raises `UnsupportedError` if it has changed and no longer exists."""
        with self._lock:
            snapshot = self._snapshot
            change = Change.NONE if snapshot is None else snapshot.change()
            if change:
                self._note(change)
            return self._count

    def change_since(self, count: int) -> Change:
        """Return how much the module has changed since `look` returned `count`. Only changes that `look` or `changed`
        has counted are known."""
        if count == self._count:
            return Change.NONE
        return Change.STRUCTURE if count < self._structure else Change.NUMBERS

    def changed(self) -> None:
        """Count a change of structure, even if none can be detected. Raises UnsupportedError if the module no longer
        exists."""
        with self._lock:
            self._note(Change.STRUCTURE)

    def _note(self, change: Change) -> None:
        self._snapshot = Snapshot(self.original, self._checksums)
        self._count += 1
        if change is Change.STRUCTURE:
            self._structure, self._widened = self._count, None
        elif self._widened is not None:
            self._widened.update()

    @staticmethod
    def _drop(followed: weakref.ref[Followed]) -> None:
        """Free what is kept, because the module is gone. Takes no lock: a finalizer may run while it is held."""
        mine = followed()
        if mine is not None:
            mine._snapshot = mine._widened = None
            mine.graphs.clear()

    def forget(self) -> None:
        """Replace the lock after a fork, because another thread may have held it."""
        self._lock = threading.Lock()
