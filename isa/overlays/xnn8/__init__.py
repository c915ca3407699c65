"""The overlay `xnn8` on the VCK190: integers of 8 bits on the AIE array, and of 16 bits beside it (docs/xnn8.md).

Three engines of 128 tiles share one stream of weights. An engine has 8 rows of 8 pairs of tiles: a row of pairs has 64
rows of a panel, which a row lane keeps, a column of pairs has 64 columns of the results, or a head in attention. The
eight lanes of an engine get the same instructions and go in step, so a unit stands for all of them: Rows for X, X8, T
and Post, Send and Heads for what reads them. What tiles do with a chunk of rows is said by a record behind it.

Send and Heads wait for blocks that Rows has written, and Rows for operations of theirs that have ended, by counts of
tokens that are part of the program. Constants bring two vectors of 64 columns for each block: scales and bias of a
product, then gain and shift of a residual that is normalised, then gains of what is written to X.
"""

from .machine import XNN8

__all__ = ["XNN8"]
