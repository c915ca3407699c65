"""The option value NAME=NUMBER."""

from __future__ import annotations

from typing import Any

import click


class Setting(click.ParamType[tuple[str, float]]):
    """An option value NAME=NUMBER."""

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
