"""The structure of arguments and results, as JSON: tuples, lists, dictionaries, and classes with named fields.

A file names a class; it never brings one. `class_named` looks where that cannot run code of a stranger's choice: among
the modules that the process has imported already, and in `transformers`. Where the class is not there, a `Record` has
the same fields.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import count
from typing import Any

from torch.utils import _pytree as pytree

from ..base.errors import UnsupportedError

Json = Any
LEAF = "*"
TRUSTED = "transformers"
"""The package whose modules are imported for their classes, where it is installed."""


class Record(Mapping[str, Any]):
    """Values with names, for a class that this process has not: by attribute, by name, by position; in order."""

    def __init__(self, kind: str, fields: Mapping[str, Any], absent: Sequence[str] = ()) -> None:
        """kind: what the class is called. absent: fields that are None."""
        self._kind, self._fields, self._absent = kind, dict(fields), tuple(absent)

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("_fields", {})
        if name in fields:
            return fields[name]
        if name in self.__dict__.get("_absent", ()):
            return None
        raise AttributeError(f"{self.__dict__.get('_kind')} has no field {name!r}; there are {', '.join(fields)}")

    def __getitem__(self, key: Any) -> Any:
        return self._fields[key] if isinstance(key, str) else self.to_tuple()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def to_tuple(self) -> tuple[Any, ...]:
        """The values that are there."""
        return tuple(self._fields.values())

    def __repr__(self) -> str:
        return f"{self._kind}({', '.join(f'{name}={value!r}' for name, value in self._fields.items())})"


def _flatten(record: Record) -> tuple[list[Any], Any]:
    return list(record.values()), (record._kind, tuple(record), record._absent)


def _unflatten(values: Any, context: Any) -> Record:
    kind, names, absent = context
    return Record(kind, dict(zip(names, values, strict=True)), absent)


pytree.register_pytree_node(Record, _flatten, _unflatten)


@dataclass(frozen=True)
class Structure:
    """A structure from its description. Classes are looked for at each use: one that was not imported may be, now."""

    description: Json

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Raises `ValueError` where there are more or fewer leaves, or where this is no description."""
        rest = iter(leaves)
        made = _build(self.description, rest)
        if next(rest, rest) is not rest:
            raise ValueError("more leaves than the structure has")
        return made

    @property
    def num_leaves(self) -> int:
        """How many there are."""
        numbers = count()
        _build(self.description, numbers)
        return next(numbers)

    @property
    def spec(self) -> pytree.TreeSpec:
        """As PyTorch has it."""
        return pytree.tree_structure(_build(self.description, count()))


def describe(spec: pytree.TreeSpec, what: str) -> Json:
    """A structure as JSON. what: of it, for messages. Raises UnsupportedError for a class without named fields."""
    if spec.is_leaf():
        return LEAF
    children = [describe(child, what) for child in spec.children()]
    sample = spec.unflatten(list(range(spec.num_leaves)))
    kind = type(sample)
    if kind in (tuple, list):
        return {kind.__name__: children}
    if kind in (dict, OrderedDict):
        if any(not isinstance(key, str | int) for key in sample):
            raise UnsupportedError(f"{what} is a dictionary with keys that are neither text nor whole numbers")
        return {"dict" if kind is dict else "ordered": [list(x) for x in zip(sample, children, strict=True)]}
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        names, absent, form = list(sample._fields), [], "namedtuple"
    elif dataclasses.is_dataclass(sample):
        declared = [x.name for x in dataclasses.fields(sample)]
        names = list(sample) if isinstance(sample, dict) else [x for x in declared if getattr(sample, x) is not None]
        absent = [x for x in declared if x not in names]
        form = "mapping" if isinstance(sample, dict) else "dataclass"
    else:
        raise UnsupportedError(
            f"{what} is a {kind.__name__}, which cannot be saved: return tensors, or a tuple, a dictionary or a "
            "dataclass of tensors"
        )
    if len(names) != len(children):
        raise UnsupportedError(f"{what} is a {kind.__name__}, whose fields are not what PyTorch sees of it")
    fields = [list(x) for x in zip(names, children, strict=True)]
    return {form: {"module": kind.__module__, "name": kind.__qualname__, "fields": fields, "absent": absent}}


def _build(description: Json, leaves: Iterator[Any]) -> Any:
    if description == LEAF:
        try:
            return next(leaves)
        except StopIteration:
            raise ValueError("fewer leaves than the structure has") from None
    ((form, parts),) = description.items()
    if form in ("tuple", "list"):
        made = [_build(part, leaves) for part in parts]
        return tuple(made) if form == "tuple" else made
    if form in ("dict", "ordered"):
        pairs = [(key, _build(part, leaves)) for key, part in parts]
        return dict(pairs) if form == "dict" else OrderedDict(pairs)
    if form not in ("namedtuple", "mapping", "dataclass"):
        raise ValueError(f"no structure is called {form!r}")
    fields = {str(name): _build(part, leaves) for name, part in parts["fields"]}
    return _instance(form, parts["module"], parts["name"], fields, tuple(map(str, parts["absent"])))


def _instance(form: str, module: str, name: str, fields: dict[str, Any], absent: tuple[str, ...]) -> Any:
    """Of the class, if it is there and has just these fields; of one of ours otherwise."""
    kind: Any = class_named(module, name)
    try:
        if form == "namedtuple":
            if kind is None or not issubclass(kind, tuple) or getattr(kind, "_fields", None) != tuple(fields):
                kind = _namedtuple(name.rpartition(".")[2], tuple(fields))
            return kind(*fields.values())
        if kind is not None and issubclass(kind, dict) == (form == "mapping") and _declared(kind) == {*fields, *absent}:
            return kind(**fields, **dict.fromkeys(absent))
    except TypeError:  # it is made in another way
        pass
    return Record(name.rpartition(".")[2], fields, absent)


def _declared(kind: type) -> set[str]:
    """The fields of a dataclass."""
    return {x.name for x in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()


@cache
def _namedtuple(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)


def class_named(module: str, name: str) -> type | None:
    """A class, by the name of its module and its own, if this process has the module or may import it."""
    if module not in sys.modules:
        if module.partition(".")[0] != TRUSTED:
            return None
        try:
            import_module(module)
        except Exception:  # it is not installed, or another version
            return None
    found: object = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None
