"""Loops and calls of blocks: what a body becomes when it is unrolled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lark import Token

from . import syntax as s
from .diagnostic import Mistake, Report, Span, Text, listing, meant
from .names import Names, Value

UNROLLED = 1 << 20
"""Iterations, calls, statements and packets that a text may unroll into: far above any real image, and seconds to
reach."""

NESTED = 32
"""Loops and calls inside each other."""

Visit = Callable[[Any], None]


class Blocks:
    """The blocks of a text, and the one way to walk through a body: loops and calls are unrolled, the rest is visited.

    A mistake ends the item that it is in; the walk goes on behind it.
    """

    def __init__(self, names: Names, report: Report) -> None:
        self.names = names
        self.report = report
        self._blocks: dict[str, tuple[s.Block, Text]] = {}
        self._running: list[str] = []
        self._unrolled = 0

    def declare(self, block: s.Block) -> None:
        name = str(block.name)
        if name in self._blocks:
            raise Mistake(s.token_span(block.name), f"block {name} is declared already")
        seen: set[str] = set()
        overlay = self.names.overlay
        for p in block.parameters:
            if str(p) in seen:
                raise Mistake(s.token_span(p), f"parameter {p} is named twice")
            if str(p) in overlay.by_unit or str(p) in overlay.by_kind or str(p) in overlay.by_format:
                raise Mistake(s.token_span(p), f"{p} is a name of the datapath")
            seen.add(str(p))
        self._blocks[name] = block, self.report.text

    def walk(self, body: tuple[Any, ...], visit: Visit, depth: int = 0, calls: bool = True) -> None:
        """calls: whether to go into them; blocks hold no declarations."""
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
        """Count what has been unrolled. Ends the run when it is too much."""
        self._unrolled += 1
        if self._unrolled > UNROLLED:
            self.report.add(Mistake(span, f"the text unrolls into more than {UNROLLED} statements"))
            self.report.check()

    def _iterations(self, loop: s.Loop, depth: int) -> Iterator[None]:
        self._bound(loop.start, depth)
        self.spend(s.token_span(loop.start))  # a loop that runs 0 times takes time too
        bounds = loop.range
        low = 0 if bounds.low is None else self.names.integer(bounds.low)
        high = self.names.integer(bounds.high)
        if high < low:
            raise Mistake(s.span(bounds.high), f"{low}..{high} runs backwards")
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
            raise Mistake(s.token_span(call.name), f"no block is called {name}", *meant(name, self._blocks), known)
        block, text = self._blocks[name]
        if name in self._running:
            way = " -> ".join([*self._running[self._running.index(name) :], name])
            raise Mistake(s.token_span(call.name), f"block {name} calls itself", f"the calls are {way}")
        wanted = [str(p) for p in block.parameters]
        if len(call.arguments) != len(wanted):
            takes = f"{len(wanted)} argument{'s' * (len(wanted) != 1)}" + (f" ({', '.join(wanted)})" if wanted else "")
            raise Mistake(s.span(call), f"block {name} takes {takes}, not {len(call.arguments)}")
        values: dict[str, Value] = {p: self.names.argument(a) for p, a in zip(wanted, call.arguments, strict=True)}
        self.spend(s.token_span(call.name))
        called = f"called from {self.report.text.at(s.token_span(call.name)[0])}"
        self._running.append(name)
        try:
            with self.names.frame(values), self.report.inside(text, called):
                self.walk(block.body, visit, depth + 1)
        finally:
            self._running.pop()
