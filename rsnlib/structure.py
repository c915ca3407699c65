"""The structure of arguments and results as JSON: tuples, lists, dictionaries, and classes with named fields.

A file contains only the names of classes. `class_named` looks them up where that cannot run foreign code: in modules
that the process has already imported, and in `transformers`. If the class is not found, a `Record` with the same fields
takes its place.
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
from ..base.json_values import Json, as_dict, as_list, as_str

LEAF = "*"
"""The description of a leaf."""
TRUSTED = "transformers"
"""The package whose modules may be imported to find a class, if it is installed."""


class Record(Mapping[str, Any]):
    """Stands for an instance of a class that this process lacks. Fields can be read by attribute, name or position; a
    field that does not exist raises `AttributeError`, `KeyError` or `IndexError`.

    kind: name of the class. fields: values by name, in order. absent: names of further fields, which are None.
    """

    def __init__(self, kind: str, fields: Mapping[str, Any], absent: Sequence[str] = ()) -> None:
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
        """Return the values of all fields that are not None, in order."""
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
    """A structure read from its description (`describe`). Classes are looked up at each use, because they may be
    imported later."""

    description: Json

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Build the structure with these leaves, in order. Raises `ValueError` for too many or too few leaves, or for a
        wrong description."""
        rest = iter(leaves)
        made = _build(self.description, rest)
        if next(rest, rest) is not rest:
            raise ValueError("more leaves than the structure has")
        return made

    @property
    def num_leaves(self) -> int:
        """The number of leaves of the structure. Raises `ValueError` for a wrong description."""
        numbers = count()
        _build(self.description, numbers)
        return next(numbers)

    @property
    def spec(self) -> pytree.TreeSpec:
        """The structure as a pytree spec of PyTorch. Raises `ValueError` for a wrong description."""
        return pytree.tree_structure(_build(self.description, count()))


def describe(spec: pytree.TreeSpec, name: str) -> Json:
    """Describe a structure as JSON. spec: of the structure (pytree). name: what messages call it. Raises
    `UnsupportedError` for a dictionary with keys other than strings and whole numbers, and for a class without named
    fields."""
    if spec.is_leaf():
        return LEAF
    children = [describe(child, name) for child in spec.children()]
    sample = spec.unflatten(list(range(spec.num_leaves)))
    kind = type(sample)
    if kind in (tuple, list):
        return {kind.__name__: children}
    if kind in (dict, OrderedDict):
        if any(not isinstance(key, str | int) for key in sample):
            raise UnsupportedError(f"{name} is a dictionary with keys other than strings and whole numbers")
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
            f"{name} is a {kind.__name__}, which cannot be saved: return tensors, or a tuple, a dictionary or a "
            "dataclass of tensors"
        )
    if len(names) != len(children):
        raise UnsupportedError(
            f"{name} is a {kind.__name__}, which cannot be saved: its fields are not the values that PyTorch sees in it"
        )
    fields = [list(x) for x in zip(names, children, strict=True)]
    return {form: {"module": kind.__module__, "name": kind.__qualname__, "fields": fields, "absent": absent}}


def _build(description: Json, leaves: Iterator[Any]) -> Any:
    if description == LEAF:
        try:
            return next(leaves)
        except StopIteration:
            raise ValueError("fewer leaves than the structure has") from None
    ((form, parts),) = as_dict(description).items()
    if form in ("tuple", "list"):
        made = [_build(part, leaves) for part in as_list(parts)]
        return tuple(made) if form == "tuple" else made
    if form in ("dict", "ordered"):
        pairs = [(_key(key), _build(part, leaves)) for key, part in as_list(parts)]
        return dict(pairs) if form == "dict" else OrderedDict(pairs)
    if form not in ("namedtuple", "mapping", "dataclass"):
        raise ValueError(f"no structure is called {form!r}")
    fields = {as_str(name): _build(part, leaves) for name, part in as_list(parts["fields"])}
    absent = tuple(map(as_str, as_list(parts["absent"])))
    return _instance(form, as_str(parts["module"]), as_str(parts["name"]), fields, absent)


def _key(key: Json) -> str | int:
    """A dictionary's key. Raises `ValueError` for anything but a string or a whole number."""
    if not isinstance(key, str | int):
        raise ValueError(f"{key!r} cannot be a key of a dictionary")
    return key


def _instance(form: str, module: str, name: str, fields: dict[str, Any], absent: tuple[str, ...]) -> Any:
    """An instance of the class, if it is found and has exactly these fields; else a namedtuple or a Record."""
    kind: Any = class_named(module, name)
    try:
        if form == "namedtuple":
            if kind is None or not issubclass(kind, tuple) or getattr(kind, "_fields", None) != tuple(fields):
                kind = _namedtuple(name.rpartition(".")[2], tuple(fields))
            return kind(*fields.values())
        if kind is not None and issubclass(kind, dict) == (form == "mapping") and _declared(kind) == {*fields, *absent}:
            return kind(**fields, **dict.fromkeys(absent))
    except TypeError:  # its constructor takes other arguments
        pass
    return Record(name.rpartition(".")[2], fields, absent)


def _declared(kind: type) -> set[str]:
    """The names of the fields of a dataclass; empty for other classes."""
    return {x.name for x in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()


@cache
def _namedtuple(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)


def class_named(module: str, name: str) -> type | None:
    """Return the class with the names of its module and its own; None if it is not found. The module must be imported
    already or belong to the package `TRUSTED`."""
    if module not in sys.modules:
        if module.partition(".")[0] != TRUSTED:
            return None
        try:
            import_module(module)
        except Exception:  # not installed, or another version
            return None
    found: object = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None
