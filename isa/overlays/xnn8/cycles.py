"""What the loops of the units cost in cycles, as hw/versal/xnn8 states them to the HLS compiler."""

from __future__ import annotations

from collections.abc import Mapping

from ...versal import loop as versal
from ...versal.loop import PipelinedLoop

LOOPS: Mapping[str, PipelinedLoop] = {
    **{name: versal.LOOPS[name] for name in ("fetch", "decode")},
    "burst": PipelinedLoop(1, 8, "a word of a port"),
    "cells": PipelinedLoop(1, 40, "a cell of X, X8 or T, or a word on its way to tiles, of keys or values half of one"),
    "constants": PipelinedLoop(1, 10, "a word of constants"),
    "gains": PipelinedLoop(1, 10, "a quarter of a word of gains, and the largest of them"),
    "factors": PipelinedLoop(1, 4, "the factor of a row"),
    "post": PipelinedLoop(1, 60, "eight results, or four sums of a head"),
    "x": PipelinedLoop(2, 40, "a cell of X, or eight values into X, with their sums, or into T"),
    "residual": PipelinedLoop(1, 40, "a row of a cell of X on its way to Post or off chip"),
    "sums": PipelinedLoop(1, 16, "the sums of a row of a block"),
    "norms": PipelinedLoop(1, 100, "the norm of a row, or what it is sent with: divisions and a root"),
}
