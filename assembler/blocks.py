"""Walk through the items of a text with its loops and block calls unrolled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lark import Token

from . import syntax as s
from .diagnostic import ErrorReport, Mistake, SourceText, Span, did_you_mean, listing
from .names import ScopedNames, Value

UNROLLED = 1 << 20
"""Limit of loop iterations, calls, statements and packets that one text unrolls into. Far above any real image."""

NESTED = 32
"""Limit of loops and calls nested in each other."""

Visit = Callable[[Any], None]


class Blocks:
    """Holds the blocks of a text and walks through bodies: it unrolls loops and calls and visits every other item.

    names: the names of the text, which loops and calls add to while they are walked through. report: where mistakes go.
    A mistake ends the item in which it occurs; the walk goes on with the next item.
    """

    def __init__(self, names: ScopedNames, report: ErrorReport) -> None:
        self.names = names
        self.report = report
        self._blocks: dict[str, tuple[s.Block, SourceText]] = {}
        self._running: list[str] = []
        self._unrolled = 0
        self._least_of: dict[str, int] = {}
        """By block, the fewest items that a call of it unrolls into, as far as known."""

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
        """Call `visit` with every item of a body, loops and calls unrolled. Mistakes go to the report; raises
        `SourceError` once it is full, or for a text that unrolls into too many items.

        depth: number of loops and calls around the body. calls: whether to walk into called blocks; a walk for
        declarations need not, since blocks contain none.
        """
        for item in body:
            try:
                match item:
                    case s.TextLoop():
                        for _ in self._iterations(item, depth):
                            self.walk(item.body, visit, depth + 1, calls)
                    case s.BlockCall():
                        if calls:
                            self._call(item, visit, depth)
                    case _:
                        visit(item)
            except Mistake as e:
                self.report.add(e)

    def spend(self, span: Span) -> None:
        """Count one unrolled item, which stands at `span`. Raises `SourceError` beyond `UNROLLED` items."""
        self._foresee(span, 1)
        self._unrolled += 1

    def _foresee(self, span: Span, items: int) -> None:
        """Raise `SourceError` if so many items more, at `span`, are beyond `UNROLLED`."""
        if self._unrolled + items > UNROLLED:
            self.report.add(Mistake(span, f"the text unrolls into more than {UNROLLED} statements"))
            self.report.check()

    def _least(self, body: tuple[Any, ...]) -> int:
        """The fewest items that a body unrolls into: of loops with bounds that are no plain numbers, one."""
        return sum(map(self._least_item, body))

    def _least_item(self, item: Any) -> int:
        match item:
            case s.TextLoop():
                low, high = (0 if x is None else _plain(x) for x in (item.range.low, item.range.high))
                known = low is not None and high is not None
                return 1 + (max(0, high - low) * (1 + self._least(item.body)) if known else 0)  # type: ignore[operator]
            case s.BlockCall():
                name = str(item.name)
                if name in self._blocks and name not in self._least_of:
                    self._least_of[name] = 0  # of a block that calls itself, which is an error
                    self._least_of[name] = 1 + self._least(self._blocks[name][0].body)
                return self._least_of.get(name, 0)
            case s.Section():
                return self._least(item.body)
            case s.Mop() | s.PacketBlock():
                return 1
        return 0

    def _iterations(self, loop: s.TextLoop, depth: int) -> Iterator[None]:
        self._bound(loop.start, depth)
        self.spend(s.token_span(loop.start))  # a loop of 0 iterations takes time too
        bounds = loop.range
        low = 0 if bounds.low is None else self.names.integer(bounds.low)
        high = self.names.integer(bounds.high)
        if high < low:
            raise Mistake(s.span(bounds.high), f"{low}..{high} runs backwards: a range ends at or above its start")
        self._foresee(s.token_span(loop.start), (high - low) * (1 + self._least(loop.body)))
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

    def _call(self, call: s.BlockCall, visit: Visit, depth: int) -> None:
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
        self._foresee(s.token_span(call.name), self._least(block.body))
        called = f"called from {self.report.text.at(s.token_span(call.name)[0])}"
        self._running.append(name)
        try:
            with self.names.frame(values), self.report.inside(text, called):
                self.walk(block.body, visit, depth + 1)
        finally:
            self._running.pop()


def _plain(e: s.Expr) -> int | None:
    """The value of a number that stands for itself; None for any other expression."""
    return s.number(e) if isinstance(e, Token) and e.type == "INT" else None
