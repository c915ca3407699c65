"""What instances access of tensors, for every size: whether two of them meet, and whether both ends of a stream go
through a tensor in the same order.

An access is a box: for each axis the first element and the one behind the last, as forms in the grid point and in the
indices of the loops around it. Two instances do not meet in a tensor if neither stores into it, or if any two of their
boxes, one of them stored, are apart along an axis, whatever the loops have come to. Equal stores need no
order. That tokens order accesses to the same element is not proved here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

from .domain import Domain, Undecided
from .polynomial import Polynomial
from .tree import AccessBox, Box, InstanceGroup, SlicePassage, Variables


@dataclass(frozen=True)
class _Meeting:
    """Two accesses, in two instances. bound: all variables of both."""

    bound: Variables
    one: Box
    two: Box


def separate(groups: Sequence[InstanceGroup], domain: Domain) -> None:
    """Check that no two instances access the same element of a tensor, one of them to store. groups: of the instances.
    Raises `Undecided`, with the lines, if this is not proved, and otherwise as `Domain.at_least`."""
    tensors: dict[str, list[tuple[InstanceGroup, AccessBox]]] = defaultdict(list)
    for group in groups:
        for access in dict.fromkeys(group.accesses):
            tensors[access.tensor].append((group, access))
    for tensor, found in tensors.items():
        if all(access.alike for _, access in found) and len({(group.task, group.ran) for group, _ in found}) == 1:
            continue
        for (a, one), (b, two) in combinations_with_replacement(found, 2):
            if (one.store or two.store) and not all(_apart(meeting, domain) for meeting in _meetings(a, one, b, two)):
                first, second = sorted((one.place, two.place))
                where = f"line {second.line}" if first.line == second.line else f"lines {first.line} and {second.line}"
                raise Undecided(
                    f"{where}: instances of {' and '.join(dict.fromkeys((a.task, b.task)))} access {tensor}, and it is "
                    "not proved that tokens order them"
                )


def _meetings(a: InstanceGroup, one: AccessBox, b: InstanceGroup, two: AccessBox) -> Iterator[_Meeting]:
    """The ways in which two instances can make two accesses."""
    names = {name: f"{name}'" for name, _ in two.bound}
    variables = {name: Polynomial.variable(new) for name, new in names.items()}
    renamed = tuple((names[name], times.put(variables)) for name, times in two.bound)
    box = tuple((low.put(variables), high.put(variables)) for low, high in two.box)
    if a is not b:
        yield _Meeting((*one.bound, *renamed), one.box, box)
        return
    # Two instances of a group differ along an axis of the grid. Either of them may be the one with the lower index.
    for name, times in a.axes:
        for low, high in ((name, names[name]), (names[name], name)):
            ahead = f"{name}''"
            put = {high: Polynomial.variable(low) + Polynomial.variable(ahead) + 1}
            bound = tuple((n, count.put(put)) for n, count in (*one.bound, *renamed) if n not in (low, high))
            # One index more than there are, so that both ranges hold one for every size.
            pair = ((low, times), (ahead, times - Polynomial.variable(low)))
            boxes = [tuple((x.put(put), y.put(put)) for x, y in its) for its in (one.box, box)]
            yield _Meeting((*pair, *bound), boxes[0], boxes[1])


def _apart(meeting: _Meeting, domain: Domain) -> bool:
    with domain.within(meeting.bound):
        return any(
            domain.proves(low - end) or domain.proves(first - high)
            for (first, end), (low, high) in zip(meeting.one, meeting.two, strict=True)
        )


# -- orders -----------------------------------------------------------------------------------------------------------


def same_orders(groups: Sequence[InstanceGroup], domain: Domain) -> None:
    """Check that the tokens of each stream are got in the order in which they are put, where statements show both
    orders. groups: of the instances. Raises `Undecided`, with the line, if this is not proved."""
    ends: dict[str, dict[bool, list[tuple[InstanceGroup, list[SlicePassage]]]]] = {}
    for group in groups:
        of_end: dict[tuple[str, bool], list[SlicePassage]] = defaultdict(list)
        for passage in group.passages:
            of_end[passage.stream, passage.put].append(passage)
        for (stream, put), found in of_end.items():
            ends.setdefault(stream, {True: [], False: []})[put].append((group, found))
    for stream, sides in ends.items():
        shown = {put: [(_order(group, its), its) for group, its in found] for put, found in sides.items()}
        for order, _ in shown[True]:
            for other, passages in shown[False]:
                if order and other and order != other:
                    raise Undecided(
                        f"line {passages[0].place.line}: it is not proved that {stream} is got in the order in which "
                        "it is put"
                    )


def _order(group: InstanceGroup, passages: Sequence[SlicePassage]) -> tuple[object, ...]:
    """What an end goes through, with loop variables by the order in which they appear, and counted from where it
    begins; empty for one that shows no order, as where single elements are moved."""
    if any(passage.box is None for passage in passages) or all(all(passage.single) for passage in passages):
        return ()
    names: dict[str, Polynomial] = {}
    grid = {name for name, _ in group.axes}
    out: list[object] = []
    begin: Sequence[Polynomial] | None = None
    for passage in passages:
        assert passage.box is not None
        loops = [(name, times) for name, times in passage.bound if name not in grid]
        for name, _ in loops:
            names.setdefault(name, Polynomial.variable(f"${len(names)}"))
        first = [low.put(dict.fromkeys(names, 0)) for low, _ in passage.box]
        begin = first if begin is None else begin
        spans = tuple(
            (low.put(names) - at.put(names), (high - low).put(names))
            for (low, high), at in zip(passage.box, begin, strict=True)
        )
        counts = tuple((names[name], times.put(names)) for name, times in loops)
        if any(form.variables() & grid for pair in (*counts, *spans) for form in pair):
            return (object(),)  # it differs between instances: equal to no other order
        out.append((counts, spans, passage.single))
    return tuple(out)
