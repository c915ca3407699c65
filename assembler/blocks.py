"""Walk through the items of a text with its loops and block calls unrolled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lark import Token

from . import syntax as s
from .diagnostic import Mistake, Report, Span, Text, did_you_mean, listing
from .names import Names, Value

UNROLLED = 1 << 20
"""Limit of loop iterations, calls, statements and packets that one text unrolls into. Far above any real image, and
reached within seconds."""

NESTED = 32
"""Limit of loops and calls nested in each other."""

Visit = Callable[[Any], None]


class Blocks:
    """Holds the blocks of a text and walks through bodies: it unrolls loops and calls and visits every other item.

    A mistake ends the item in which it occurs; the walk goes on with the next item.
    """

    def __init__(self, names: Names, report: Report) -> None:
        self.names = names
        self.report = report
        self._blocks: dict[str, tuple[s.Block, Text]] = {}
        self._running: list[str] = []
        self._unrolled = 0

    def declare(self, block: s.Block) -> None:
        """Register a block. Raises `Mistake` if the name is taken, a parameter is repeated, or a parameter has the name
        of a unit, a kind or a format."""
        name = str(block.name)
        if name in self._blocks:
            raise Mistake(s.token_span(block.name), f"block {name} is already declared")
        seen: set[str] = set()
        overlay = self.names.overlay
        for p in block.parameters:
            if str(p) in seen:
                raise Mistake(s.token_span(p), f"parameter {p} is named twice")
            if str(p) in overlay.by_unit or str(p) in overlay.by_kind or str(p) in overlay.by_format:
                raise Mistake(s.token_span(p), f"parameter {p} has the name of a unit, kind or format of the overlay")
            seen.add(str(p))
        self._blocks[name] = block, self.report.text

    def walk(self, body: tuple[Any, ...], visit: Visit, depth: int = 0, calls: bool = True) -> None:
        """Call `visit` with every item of a body, loops and calls unrolled. Mistakes go to the report.

        depth: number of loops and calls around the body. calls: whether to walk into called blocks; a walk for
        declarations need not, since blocks contain none.
        """
        for item in body:
            try:
                match item:
                    case s.Loop():
                        for _ in self._iterations(item, depth):
                            self.walk(item.body, visit, depth + 1, calls)
                    case s.Call():
                        if calls:
                            self._call(item, visit, depth)
                    case _:
                        visit(item)
            except Mistake as e:
                self.report.add(e)

    def spend(self, span: Span) -> None:
        """Count one unrolled item, which stands at `span`. Raises `SourceError` beyond `UNROLLED` items."""
        self._unrolled += 1
        if self._unrolled > UNROLLED:
            self.report.add(Mistake(span, f"the text unrolls into more than {UNROLLED} statements"))
            self.report.check()

    def _iterations(self, loop: s.Loop, depth: int) -> Iterator[None]:
        self._bound(loop.start, depth)
        self.spend(s.token_span(loop.start))  # a loop of 0 iterations takes time too
        bounds = loop.range
        low = 0 if bounds.low is None else self.names.integer(bounds.low)
        high = self.names.integer(bounds.high)
        if high < low:
            raise Mistake(s.span(bounds.high), f"{low}..{high} runs backwards: a range ends at or above its start")
        if bounds.variable is None:
            for _ in range(low, high):
                self.spend(s.token_span(loop.start))
                yield
            return
        with self.names.variable(bounds.variable) as assign:
            for i in range(low, high):
                self.spend(s.token_span(loop.start))
                assign(i)
                yield

    def _bound(self, token: Token, depth: int) -> None:
        if depth >= NESTED:
            raise Mistake(s.token_span(token), f"more than {NESTED} loops and calls inside each other")

    def _call(self, call: s.Call, visit: Visit, depth: int) -> None:
        self._bound(call.name, depth)
        name = str(call.name)
        if name not in self._blocks:
            known = f"blocks are {listing(self._blocks)}" if self._blocks else "no block is declared"
            raise Mistake(
                s.token_span(call.name), f"no block is called {name}", *did_you_mean(name, self._blocks), known
            )
        block, text = self._blocks[name]
        if name in self._running:
            cycle = " -> ".join([*self._running[self._running.index(name) :], name])
            raise Mistake(s.token_span(call.name), f"block {name} calls itself", f"the calls are {cycle}")
        names = [str(p) for p in block.parameters]
        if len(call.arguments) != len(names):
            takes = f"{len(names)} argument{'s' * (len(names) != 1)}" + (f" ({', '.join(names)})" if names else "")
            raise Mistake(s.span(call), f"block {name} takes {takes}, not {len(call.arguments)}")
        values: dict[str, Value] = {p: self.names.argument(a) for p, a in zip(names, call.arguments, strict=True)}
        self.spend(s.token_span(call.name))
        called = f"called from {self.report.text.at(s.token_span(call.name)[0])}"
        self._running.append(name)
        try:
            with self.names.frame(values), self.report.inside(text, called):
                self.walk(block.body, visit, depth + 1)
        finally:
            self._running.pop()
