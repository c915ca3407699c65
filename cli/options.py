"""Options of commands, each declared once: as an attribute of a class, of which the command gets an instance.

An option may have kinds. A kind is the end of the message for its options where they have no effect, such as "only with
--raw", and `refuse` raises it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

FILE = click.Path(dir_okay=False)
PATH = click.Path(path_type=Path)
"""Types of arguments that name a file, as a text and as a `Path`."""

File = str
Count = int
"""Types of options: the name of a file, and a number from 1 on."""
TYPES = {"File": FILE, "Path": PATH, "Count": click.IntRange(1), "int": int, "float": float}
"""The type by which click reads an option, by its annotation."""

RAW = "only with --raw"
PROGRAMS = "not with --raw"
"""Kinds of options about bare images, and about tensors and parameters by name, which a bare image does not have."""
BINARIES = "only with a program (.bin) or a bare image"
STREAMS = "only with a stream program (.py)"

_Command = TypeVar("_Command", bound=Callable[..., object])


class _Option(click.Option):
    """An option with its kinds."""

    def __init__(self, *flags: Any, kinds: tuple[str, ...] = (), **settings: Any) -> None:
        super().__init__(*flags, **settings)
        self.kinds = kinds


class _Declared(NamedTuple):
    """An option as it is declared."""

    flags: tuple[str, ...]
    settings: dict[str, Any]


def option(help: str, *flags: str, of: tuple[str, ...] | str = (), **settings: Any) -> Any:
    """Declare an option of a command: the result is the value of an attribute in a subclass of `Options`.

    The attribute's annotation is the option's type. `bool` makes a flag; a `tuple` makes an option that a user may
    repeat; for other types see `TYPES`. help: its text in `--help`, which also shows a default. flags: its names on the
    command line; by default two dashes and the attribute's name. of: its kind or kinds, which `refuse` refuses
    together. settings: as for `click.option`.
    """
    own = (of,) if isinstance(of, str) else of
    return _Declared(flags, {**settings, "kinds": own, "help": help, "show_default": "default" in settings})


class Options:
    """Base class of the options of a command. A subclass declares each option as an annotated attribute with the value
    of `option(..)`; `with_options` adds them to a command, in this order. Options of a base class are not added. An
    instance has the value of each option: what the user gave, or the default.

    given: the values of all parameters of the command, by name, as click gives them; the constructor removes its own.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        for name in type(self).__annotations__:
            setattr(self, name, given.pop(name))


def with_options(group: type[Options]) -> Callable[[_Command], _Command]:
    """Return a decorator that adds the options of a group to a command, which gets an instance of the group as
    `options`."""

    def decorate(command: _Command) -> _Command:
        @wraps(command)
        def called(**given: Any) -> object:
            return command(options=group(given), **given)

        made: Any = called
        for name, kind in reversed(group.__annotations__.items()):
            declared: _Declared = getattr(group, name)
            flags = declared.flags or ("--" + name.replace("_", "-"),)
            how = {"type": TYPES.get(kind.removesuffix(" | None"))} | declared.settings
            how |= {"is_flag": True} if kind == "bool" else {"multiple": True} if kind.endswith("...]") else {}
            made = click.option(*flags, name, cls=_Option, **how)(made)
        decorated: _Command = made
        return decorated

    return decorate


JSON = option("one JSON object on stdout", "--json")
BOARD = option("board to run on: sim, csim, vck190, ssh://...", default="sim")
XCLBIN = option("bitstream of a real board [default: $RSN_XCLBIN]")
"""Options that several commands have."""


def was_given(name: str) -> bool:
    """Return whether the user gave an option of the running command, rather than its default. name: of its attribute.
    Raises `RuntimeError` outside of a command."""
    source = click.get_current_context().get_parameter_source(name)
    return source not in (None, click.core.ParameterSource.DEFAULT)


def given(*names: str) -> list[str]:
    """Return those of some options of the running command that the user gave, as the command line spells them. names:
    of their attributes."""
    flags = {p.name: p.opts[0] for p in click.get_current_context().command.params}
    return [flags[name] for name in names if name in flags and was_given(name)]


def refuse(kind: str, *others: str) -> None:
    """Raise `click.UsageError`, with `kind` as its reason, if the user gave options of this kind or of `others`."""
    params = click.get_current_context().command.params
    of_kind = [str(p.name) for p in params if isinstance(p, _Option) and {kind, *others} & set(p.kinds)]
    if wrong := given(*of_kind):
        raise click.UsageError(f"{', '.join(wrong)}: {kind}")


def refuse_contradictions(raw: bool) -> None:
    """Raise `click.UsageError` for options of the running command that would have no effect. raw: the command reads a
    bare image."""
    refuse(PROGRAMS if raw else RAW)
    if raw and len(given("timing_only", "dump_ddr")) == 2:
        raise click.UsageError("--dump-ddr: not with --timing-only, which computes nothing")


class SettingOption(click.ParamType[tuple[str, float]]):
    """An option value NAME=NUMBER, read to a pair of the name and a number of the type `number`."""

    name = "name=number"

    def __init__(self, number: type[int] | type[float]) -> None:
        self.number = number

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        name, sign, number = str(value).partition("=")
        try:
            return name.strip(), self.number(number)
        except ValueError:
            kind = "whole number" if self.number is int else "number"
            self.fail(f"{value!r}: " + (f"{number!r} is not a {kind}" if sign else "expected NAME=NUMBER"), param, ctx)


SIZES = option("value of a size that each run gives, e.g. rows=4", "--size", type=SettingOption(int))
"""The option for sizes of stream programs (`streams.language.Size`)."""
