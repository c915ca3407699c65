"""Who may write and read the slots of a memory with two ports, counted in tokens.

The write port puts a token for each tile, the read port for each operation; each operation waits for a number of tokens
of the other port before it begins. This counts them: a read comes behind the last writes
of what it reads, a write behind the last reads of what it overwrites. What waits, waits for operations that were added
before it. So a program cannot deadlock by it, if no stream of tokens fills: `relieve` keeps that of the reads from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

SLACK = 24
"""Tokens of each stream that are taken only when they must be; more are taken with the next operation, so that the
stream never fills."""
MANY = 48
"""Reads that are not waited for, at most, where `relieve` is asked: fewer than a stream of tokens holds (`TOKENS` of
ports.py)."""


@dataclass
class SlotTokens:
    """Counts the tokens between the two ports of one memory. Writes and reads must be added in an order in which they
    could be executed one by one. A new object is a memory in which nothing was written.

    writer_waited: how many operations of the read port the write port has waited for so far. reader_waited: how many
    tiles the read port has waited for so far."""

    written: int = 0
    """Tiles that were written so far."""
    reads: int = 0
    """Operations of the read port so far."""
    writer_waited: int = 0
    reader_waited: int = 0
    _written: dict[int, int] = field(default_factory=dict)
    _read: dict[int, int] = field(default_factory=dict)

    def write(self, slots: Iterable[int | tuple[int, ...]]) -> int:
        """Add an operation that writes a tile to each of these slots, or one tile to all slots of a tuple. Returns the
        number of reads that it waits for.
        """
        tiles = [(s,) if isinstance(s, int) else s for s in slots]
        wait = self.overwrite(s for tile in tiles for s in tile)
        for tile in tiles:
            self.written += 1
            for s in tile:
                self._written[s] = self.written
        return wait

    def overwrite(self, slots: Iterable[int]) -> int:
        """Add an operation that overwrites these slots and puts no tokens for tiles. Returns the number of reads that
        it waits for."""
        need = max((self._read.get(s, 0) for s in slots), default=0)
        wait = max(need, self.reads - SLACK, self.writer_waited) - self.writer_waited
        self.writer_waited += wait
        return wait

    def relieve(self) -> int:
        """Add an operation of the write port that writes nothing, if the write port has not waited for more than `MANY`
        reads. Returns the number of reads that it waits for; 0 if no operation is added. The write port of K or V needs
        it: while it waits for one of its memories, it takes no tokens of the other."""
        if self.unwaited <= MANY:
            return 0
        wait = self.unwaited - SLACK
        self.writer_waited += wait
        return wait

    def after_reads(self) -> int:
        """Add an operation that writes nothing. Returns the reads that it waits for: all so far."""
        wait = self.reads - self.writer_waited
        self.writer_waited = self.reads
        return wait

    @property
    def unread(self) -> int:
        """Number of tokens of tiles that no operation of the read port has taken."""
        return self.written - self.reader_waited

    @property
    def unwaited(self) -> int:
        """Number of tokens of operations of the read port that the write port has not taken."""
        return self.reads - self.writer_waited

    def needs(self, slots: Iterable[int]) -> int:
        """Return how many more tiles a read of these slots would have to wait for."""
        return max(max((self._written.get(s, 0) for s in slots), default=0) - self.reader_waited, 0)

    def read(self, slots: Iterable[int]) -> int:
        """Add an operation that reads these slots. Returns the number of tiles that it waits for."""
        slots = list(slots)
        wait = max(self.needs(slots), self.written - SLACK - self.reader_waited)
        self.reader_waited += wait
        self.reads += 1
        for s in slots:
            self._read[s] = self.reads
        return wait

    def read_each(self, slots: Iterable[tuple[int, ...]]) -> int:
        """Add an operation that reads the last tiles that were written, one for each tuple, from all slots of the
        tuple. It waits for one more tile before each of them. Returns the number of tiles that it waits for before all
        that. The write port must have written at least as many tiles that no read has waited for."""
        tiles = list(slots)
        wait = self.unread - len(tiles)
        assert wait >= 0, "waits for tiles that it has waited for before"
        self.reader_waited = self.written
        self.reads += 1
        for s in (s for tile in tiles for s in tile):
            self._read[s] = self.reads
        return wait

    def reread(self, slots: Iterable[int]) -> bool:
        """Whether a further read of these slots can be part of the last operation of the read port. It can if that
        operation read the same slots, nothing was written to them since, and at most `SLACK` tokens of tiles have not
        been taken."""
        few = self.written - self.reader_waited <= SLACK
        return few and self.needs(slots) == 0 and all(self._read.get(s) == self.reads for s in slots)
