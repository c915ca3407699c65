"""The option --rows16 of commands: products whose rows have 16 bits on overlay xnn8, by name or by data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ..base.deferred import deferred

if TYPE_CHECKING:
    from torch import nn

    from ..rsnlib import models, row_bits
else:
    models = deferred("rsn.rsnlib.models")
    row_bits = deferred("rsn.rsnlib.row_bits")

AUTO = "auto"
ROWS16 = "with --overlay xnn8: products whose rows have 16 bits: module paths, * for one part or some; auto: by data"
CALLS = "with --rows16 auto: FILE.py:CALLABLE that returns calls, by which products are chosen"
UNTIL = "with --rows16 auto: how many products, or, below 1, the worst cosine of a row to reach"


def chosen_rows16(
    named: str | None, calls: str | None, until: float | None, model: nn.Module, smooth: Sequence[Any] | None = None
) -> list[str]:
    """Return the module paths of products whose rows have 16 bits. named, calls, until: the values of the options
    --rows16, --rows16-calls and --rows16-until. smooth: calls from which factors of SmoothQuant are chosen. If products
    are chosen by data, their paths are printed, as --rows16 takes them. Raises as `choose_rows16`, and
    `click.UsageError` for options that do not go together."""
    if named != AUTO:
        if calls is not None or until is not None:
            raise click.UsageError("--rows16-calls and --rows16-until go with --rows16 auto")
        return [] if named is None else named.split(",")
    if calls is None or until is None:
        raise click.UsageError("--rows16 auto takes --rows16-calls and --rows16-until")
    found = row_bits.choose_rows16(model, models.load_calls(calls), until=until, smooth=smooth)
    click.echo(f"rows16: {','.join(found)}", err=True)
    return found
