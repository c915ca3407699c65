"""The overlay `xnn2` on the VCK190: XNN's six MMEs and off-chip memories, with six lanes that keep rows on chip.

Each lane has a memory of rows (X), one of tiles that live for a short time (T), an MME, and units for what becomes of
its results (C, Post). Two lanes are a pair, with a Softmax. Models are compiled for it in two modes
(`scheduler/lanes`): six row tiles of 128 rows, one for each lane, with one stream of weights; or three row tiles, one
for each pair, whose lanes share the columns, with two streams of weights.

A memory has a write port (XIn) and a read port (XOut). Their operations wait for each other by counts of tokens, which
are part of the program: `isa/overlays/xnn2/ports.py` explains them.
"""

from .machine import XNN2

__all__ = ["XNN2"]
