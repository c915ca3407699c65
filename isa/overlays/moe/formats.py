"""The instructions of the machine for experts."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from ...fields import Record, bits

ROWS = 8
"""Rows that one instruction of Acts names."""


class RowPort(IntEnum):
    """Where Acts, the memory of activations, sends a row to, or where it takes a row from."""

    X = 0
    """To X: a row of the left operand."""
    ROUTE = 1
    """To Route: the logits of a token."""
    SUM = 2
    """To Sum: a row to add up."""
    SHARES = 3
    """To Post: a factor for each row of a part."""
    RESULT = 4
    """From Post: a row of a product, which is stored."""
    TOTAL = 5
    """From Sum: a sum of rows, which is stored."""

    @property
    def stores(self) -> bool:
        """Whether Acts writes the row to memory; otherwise it reads it."""
        return self >= RowPort.RESULT


class Rows(Record, words=6):
    """Acts: move rows of a matrix, by their numbers."""

    addr: int = bits(0, 0, 32, "first element of row 0")
    size: int = bits(1, 0, 16, "elements of a row, which lie close")
    port: int = bits(1, 16, 4, "stream: X, Route, Sum, shares to Post; 4 from Post, 5 from Sum")
    count: int = bits(1, 20, 4, "rows, 1 to 8")
    row0: int = bits(2, 0, 16, "number of a row")
    row1: int = bits(2, 16, 16, "number of a row")
    row2: int = bits(3, 0, 16, "number of a row")
    row3: int = bits(3, 16, 16, "number of a row")
    row4: int = bits(4, 0, 16, "number of a row")
    row5: int = bits(4, 16, 16, "number of a row")
    row6: int = bits(5, 0, 16, "number of a row")
    row7: int = bits(5, 16, 16, "number of a row")


class Move(NamedTuple):
    """A uOP of Acts: it moves one row. addr: of its first element, in elements. size: its number of elements. port:
    where to or from, a value of `RowPort`."""

    addr: int
    size: int
    port: int


def rows_uops(mop: Rows, iteration: int) -> Iterator[Move]:
    """Yield one uOP for each row that a mOP names. iteration: ignored, since a repetition does the same again."""
    for i in range(mop.count):
        yield Move(mop.addr + getattr(mop, f"row{i}") * mop.size, mop.size, mop.port)


class Tiles(Record, words=2):
    """Weights: send tiles that lie one after the other."""

    addr: int = bits(0, 0, 32, "first element")
    tiles: int = bits(1, 0, 24, "tiles")


class Fill(Record, words=2):
    """X: take rows, and send their tiles of K from left to right, `times` times."""

    rows: int = bits(0, 0, 16, "rows")
    depth: int = bits(0, 16, 16, "tiles of K")
    times: int = bits(1, 0, 16, "how often all are sent")


class Hold(Record, words=2):
    """Hidden: take blocks of columns from Post, and send them as tiles of K, `times` times."""

    rows: int = bits(0, 0, 16, "rows")
    blocks: int = bits(0, 16, 16, "blocks of columns, tiles of K")
    times: int = bits(1, 0, 16, "how often all are sent")


class Product(Record, words=2):
    """Mac: make `results` blocks, each the sum of `depth` products of a tile of rows and a tile of weights."""

    rows: int = bits(0, 0, 16, "rows")
    results: int = bits(0, 16, 16, "blocks of columns")
    depth: int = bits(1, 0, 16, "products to a block")
    hidden: int = bits(1, 16, 1, "rows come from Hidden, not from X")


class Finish(Record, words=2):
    """Post: with `gate`, take pairs of blocks, and send activation(first) * second to Hidden; otherwise take the blocks
    of whole rows, and send rows to Acts."""

    rows: int = bits(0, 0, 16, "rows")
    blocks: int = bits(0, 16, 16, "blocks of columns, or pairs of them")
    gate: int = bits(1, 0, 1, "of pairs of blocks")
    activation: int = bits(1, 1, 3, "of the gate, in the order of ACTIVATIONS")
    shares: int = bits(1, 4, 2, "a factor of each row: 0 none, 1 from Acts, 2 from Route")


class Add(Record, words=2):
    """Sum: add up groups of `each` rows."""

    results: int = bits(0, 0, 16, "groups")
    each: int = bits(0, 16, 16, "rows to a group")
    size: int = bits(1, 0, 16, "elements of a row")


class Choose(Record, words=3):
    """Route: of each row of logits, choose the `each` largest; their shares are their softmax."""

    tokens: int = bits(0, 0, 16, "rows of logits")
    size: int = bits(0, 16, 16, "elements of a row, of which the first are logits")
    experts: int = bits(1, 0, 16, "logits of a row")
    each: int = bits(1, 16, 15, "experts to choose")
    over_chosen: int = bits(1, 31, 1, "softmax over the chosen ones, not over all")
    dense: int = bits(2, 0, 1, "shares of all experts and rows, 0 for those not chosen; nothing for Seq")


class TemplatePatch(IntEnum):
    """What Seq changes in a line of its template."""

    NONE = 0
    WEIGHTS = 1
    """addr += expert * pitch."""
    ROWS = 2
    """rows = rows of the part."""
    GATHER = 3
    """The numbers of the part's tokens, in as many instructions as they need."""
    PART = 4
    """row0 = number of the part."""
    SCATTER = 5
    """The numbers of the part's pairs of token and selector; issued behind the other lines of the next part."""


class Line(Record, words=8):
    """Seq: a line of the template."""

    opcode: int = bits(0, 0, 4, "format of the instruction")
    patch: int = bits(0, 4, 4, "what changes in it: nothing, weights, rows, gather, part, scatter")
    pitch: int = bits(1, 0, 32, "elements from one expert's weights to the next's")
    word0: int = bits(2, 0, 32, "the instruction")
    word1: int = bits(3, 0, 32, "the instruction")
    word2: int = bits(4, 0, 32, "the instruction")
    word3: int = bits(5, 0, 32, "the instruction")
    word4: int = bits(6, 0, 32, "the instruction")
    word5: int = bits(7, 0, 32, "the instruction")

    @staticmethod
    def of(opcode: int, mop: Record, patch: TemplatePatch = TemplatePatch.NONE, pitch: int = 0) -> Line:
        """Return the line that holds an instruction. opcode: of its format. patch: what Seq changes in it. pitch:
        elements from one expert's weights to the next's. Raises `FieldError` for a value that does not fit, `TypeError`
        for an instruction of more than six words.
        """
        words = {f"word{i}": word for i, word in enumerate(mop.encode())}
        return Line(opcode=opcode, patch=int(patch), pitch=pitch, **words)

    def mop(self, form: type[Record]) -> Record:
        """Return the instruction that the line holds. form: its type, of at most six words."""
        return form.decode([getattr(self, f"word{i}") for i in range(form.WORDS)])


class Run(Record, words=1):
    """Seq: issue the template for each part that Route names, until it names no more."""

    each: int = bits(0, 0, 16, "selectors of a token")
