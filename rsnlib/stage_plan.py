"""Where a network is cut into stages: the cut whose slowest stage takes least time, each stage within its board.

The chain consists of the parts between the places where a network can be cut (`scheduler.stages.cut_places`). The time
of a part is that of a program of its own, without its launch; a stage takes its launch and the times of its parts, or
as long as the link takes for what it gets, if that is longer: the two overlap. Programs of whole stages are a little
faster, because weights of a part are loaded while the part before computes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, pairwise, zip_longest
from typing import Any

import numpy as np

from ..base.errors import ScheduleError, UnsupportedError
from ..hw.sim.machine import Machine, launch_seconds
from ..isa.overlay import Overlay
from ..isa.program import Program, Role, only_weights
from ..machine.description import LINK
from ..scheduler.graph import Gemm, LayerGraph, Rotary
from ..scheduler.memory import RoomError, sizes_as_text
from ..scheduler.shards import rounds, shard_places
from ..scheduler.stages import carried_bytes, cut_places, cuts_at, places_within, stages

UNEVEN = 1.05
"""From how much above its share on the slowest stage counts as uneven: places within feed-forwards take 1.3 times the
compilations to look for a cut, and several times the bytes of a link."""


@dataclass(frozen=True)
class ChainPart:
    """A part of a chain of layers: what it takes of a board's time and memory.

    seconds: modelled time. kept: bytes by bank that a board holds for this part all the time: caches, inputs and
    outputs of the network, and weights in banks that also hold other data. shared: bytes by bank of its other
    activations; equal parts of a stage share this memory. kind: a number that is the same for equal parts. link_s:
    seconds that the link takes to bring what this part and later ones read, if a stage begins here. exchange_s: how
    many of `seconds` are exchanges between shards. weights: bytes by bank of weights in banks that hold weights alone;
    all programs of a model share them. beside: the same part of each other program of the model on the same boards;
    None for a program that has ended before it. sets: how many times a board holds `kept` and `shared`, one set of
    slots each; those of the parts in `beside` are there once.
    """

    seconds: float
    kept: Mapping[str, int]
    shared: Mapping[str, int]
    kind: int = 0
    link_s: float = 0.0
    exchange_s: float = 0.0
    weights: Mapping[str, int] = field(default_factory=dict)
    beside: tuple[ChainPart | None, ...] = ()
    sets: int = 1


def needed(parts: Sequence[ChainPart]) -> dict[str, int]:
    """Return the bytes of memory that a stage of these parts needs on its board, by bank."""
    sizes: dict[str, int] = defaultdict(int)
    programs = [parts, *([x for x in of if x is not None] for of in zip(*(part.beside for part in parts), strict=True))]
    for number, own in enumerate(programs):
        kinds = {part.kind: part for part in own}
        for held in (*(part.kept for part in own), *(part.shared for part in kinds.values())):
            for bank, size in held.items():
                sizes[bank] += size * (1 if number else parts[0].sets)
    for part in parts:
        common = [part.weights, *(x.weights for x in part.beside if x is not None)]
        for bank in {bank for weights in common for bank in weights}:
            sizes[bank] += max(weights.get(bank, 0) for weights in common)
    return dict(sizes)


def least_slowest(
    parts: Sequence[ChainPart], boards: int, banks: Mapping[str, int], launch_s: float
) -> tuple[int, ...] | None:
    """Return where to cut a chain into `boards` stages: the number of the first part of each stage but the first,
    ascending; None if no cut fits the memory of the boards.

    Of all cuts that fit, it takes one whose slowest stage takes least time, and of these the one whose links take least
    time together. banks: bytes of a board's memory, by bank. launch_s: seconds of the launch of each stage.
    """
    ends = [0.0, *accumulate(part.seconds for part in parts)]
    fits: dict[tuple[int, int], bool] = {}

    def is_within(first: int, end: int) -> bool:
        if (first, end) not in fits:
            fits[first, end] = _fits(parts[first:end], banks)
        return fits[first, end]

    def link_s(first: int) -> float:
        return parts[first].link_s if first else 0.0

    def stage_s(first: int, end: int) -> float:
        return max(launch_s + ends[end] - ends[first], link_s(first))

    def cheapest(price: Callable[[float, int, int], float]) -> tuple[float, tuple[int, ...]] | None:
        """Return the least price of all stages, and their first parts; None if no cut fits. price: of the stages up to
        one, from that of those before it, its first part, and its end."""
        best: list[tuple[float, tuple[int, ...]] | None] = [(0.0, ()), *[None] * len(parts)]
        for _ in range(boards):
            following: list[tuple[float, tuple[int, ...]] | None] = [None] * len(best)
            for end in range(1, len(best)):
                for first in range(end - 1, -1, -1):
                    if not is_within(first, end):
                        break  # nor is any longer one
                    before, old = best[first], following[end]
                    if before is None:
                        continue
                    found = price(before[0], first, end)
                    if old is None or found < old[0]:
                        following[end] = found, (*before[1], first)
            best = following
        return best[-1]

    slowest = cheapest(lambda before, first, end: max(before, stage_s(first, end)))
    if slowest is None:
        return None
    # A chain that begins with a faster stage than it needs may have dearer links: so the links are a second question.
    least = cheapest(
        lambda before, first, end: before + link_s(first) if stage_s(first, end) <= slowest[0] else math.inf
    )
    assert least is not None
    return least[1][1:]


def slowest_seconds(parts: Sequence[ChainPart], cuts: Sequence[int], launch_s: float) -> float:
    """Return the seconds of the slowest stage of a chain, launch included, or of a link if that takes longer. parts: of
    the chain. cuts: as `least_slowest` returns them. launch_s: as for that."""
    ends = (0, *cuts, len(parts))
    stages_s = (launch_s + sum(part.seconds for part in parts[first:end]) for first, end in pairwise(ends))
    return max([*stages_s, *(parts[cut].link_s for cut in cuts)])


def is_uneven(parts: Sequence[ChainPart], cuts: Sequence[int], launch_s: float) -> bool:
    """Return whether the slowest stage of a chain takes over a twentieth more than an equal share of the time. If so,
    cuts within feed-forwards are worth trying. cuts, launch_s: as for `slowest_seconds`."""
    share = launch_s + sum(part.seconds for part in parts) / (len(cuts) + 1)
    return slowest_seconds(parts, cuts, launch_s) > UNEVEN * share


def link_seconds(overlay: Overlay, size: int) -> float:
    """Return the seconds that the link between two boards takes for `size` bytes: 0 if the overlay has no rates
    `link_gbs` and `link_us`."""
    return overlay.seconds.get("link_us", 0.0) + size * overlay.seconds.get(LINK, 0.0)


@dataclass(frozen=True)
class RoundTimes:
    """The times of a round of shards: the programs that run between two exchanges. run_s: modelled seconds of the
    slowest shard, with its launch. moved: bytes on the link of the first board, to and from the others. link_s: seconds
    that these take."""

    run_s: float
    moved: int
    link_s: float

    @property
    def seconds(self) -> float:
        """Seconds of the round: first `run_s`, then `link_s`."""
        return self.run_s + self.link_s


def round_times(programs: Sequence[Program | None]) -> RoundTimes:
    """Return the times of a round. programs: of each shard, None for one that computes nothing.

    The first board sends the others what their programs take, and they send it what these give, as
    `host.replicas.shards` does. All of it passes the link of the first board; messages of several boards at one time
    wait for each other's bytes, not for each other's latency.
    """
    made = [program for program in programs if program is not None]
    overlay = made[0].overlay
    run_s = max(Machine(program).timing.latency for program in made) + launch_seconds(overlay)
    sizes = [
        sum(4 * math.prod(b.view or b.shape) for x in programs[1:] if x is not None for b in x.with_role(role))
        for role in (Role.INPUT, Role.OUTPUT)
    ]
    return RoundTimes(run_s, sum(sizes), sum(link_seconds(overlay, size) for size in sizes if size))


def chain(
    network: LayerGraph,
    overlay: Overlay,
    build: Callable[[LayerGraph], Program],
    places: Sequence[int],
    shards: int = 1,
    known: dict[object, ChainPart] | None = None,
) -> list[ChainPart]:
    """Return the parts of a folded network between places where it can be cut, in order.

    places: numbers of layers, ascending, as `scheduler.stages.cut_places` returns them. build: makes the program of a
    part, once for each kind of part. shards: how many boards compute each part; with more than one, the time of a part
    includes all launches and exchanges. known: parts that were built before, by their form; it receives the new ones,
    so that a later call with other places need not build them again. Raises what `build` raises.
    """
    ends = {*network.inputs, *(out.name for out in network.outputs)}
    known = {} if known is None else known
    made = []
    for place, part in zip((0, *places), stages(network, places), strict=True):
        key = _form(part, ends)
        if key not in known and shards > 1:
            known[key] = replace(_sharded(part, overlay, build, shards, ends), kind=len(known))
        elif key not in known:
            program = build(part)
            fixed = [b for b in program.buffers if b.role in (Role.WEIGHT, Role.STATE) or b.name in ends]
            weights, others = _sizes(program)
            kept = {bank: sum(4 * b.size for b in fixed if b.bank == bank) for bank in others}
            shared = {bank: size - kept[bank] for bank, size in others.items()}
            known[key] = ChainPart(Machine(program).timing.latency, kept, shared, len(known), weights=weights)
        made.append(replace(known[key], link_s=link_seconds(overlay, carried_bytes(network, place))))
    return made


def _sizes(program: Program) -> tuple[dict[str, int], dict[str, int]]:
    """The bytes of a program in banks that hold weights alone, and in all others."""
    sizes = {bank: 4 * program.bank_size(bank) for bank in program.overlay.banks}
    weights = {bank: size for bank, size in sizes.items() if only_weights(program.in_bank(bank))}
    return weights, {bank: size for bank, size in sizes.items() if bank not in weights}


def _sharded(
    part: LayerGraph, overlay: Overlay, build: Callable[[LayerGraph], Program], shards: int, ends: set[str]
) -> ChainPart:
    """A part that several boards compute together, as `chain` returns it. Each program keeps its memory, because the
    board has all of them at once."""
    built: dict[object, Program] = {}
    boards = [(dict.fromkeys(overlay.banks, 0), dict.fromkeys(overlay.banks, 0)) for _ in range(shards)]
    seconds = exchange_s = 0.0
    for one in rounds(part, shards):
        programs: list[Program | None] = []
        for network in one.networks:
            key = None if network is None else _form(network, ends)
            if network is not None and key not in built:
                built[key] = build(network)
            programs.append(None if network is None else built[key])
        for program, held in zip(programs, boards, strict=True):
            if program is not None:
                for sums, sizes in zip(held, _sizes(program), strict=True):
                    for bank, size in sizes.items():
                        sums[bank] += size
        times = round_times(programs)
        seconds, exchange_s = seconds + times.seconds, exchange_s + times.link_s
    weights, kept = (
        {bank: max(sizes[bank] for sizes in of) for bank in overlay.banks} for of in zip(*boards, strict=True)
    )
    return ChainPart(seconds, kept, {}, exchange_s=exchange_s, weights=weights)


def _form(part: LayerGraph, ends: set[str]) -> object:
    """A key that is equal for parts with equal programs, but for names and numbers in weights. ends: inputs and
    outputs of the whole network, whose memory is not shared."""
    names: dict[str, int] = {}

    def number(name: str) -> int:
        return names.setdefault(name, len(names))

    def form(value: Any) -> Any:
        if isinstance(value, str):
            return number(value)
        if isinstance(value, np.ndarray):  # a bias of zeros and a scale of ones take no instruction
            is_vector = value.ndim == 1
            return value.shape, bool(value.any()) if is_vector else None, is_vector and bool((value == 1).all())
        if isinstance(value, Rotary):
            return value.key if value.source is None else (value.key, number(value.source))
        return value

    inputs = [(number(name), n, part.seq_of(name), name in ends) for name, n in part.inputs.items()]
    layers = [
        (
            type(layer),
            *(form(getattr(layer, f.name)) for f in fields(layer) if f.name not in ("path", "fused", "bias")),
            form(layer.bias) if isinstance(layer, Gemm) else id(layer.bias),
        )
        for layer in part.layers
    ]
    outputs = [(number(out.name), form(out.scale), form(out.shift), out.name in ends) for out in part.outputs]
    return tuple(inputs), tuple(layers), tuple(outputs)


def fewest(parts: Sequence[ChainPart], banks: Mapping[str, int]) -> int | None:
    """Return the fewest boards that hold a chain; None if one of its parts alone is too large for a board. banks: bytes
    of a board's memory, by bank."""
    boards, first = 1, 0
    for end in range(1, len(parts) + 1):
        if not _fits(parts[first:end], banks):
            boards, first = boards + 1, end - 1
            if not _fits(parts[first:end], banks):
                return None
    return boards


def plan(
    network: LayerGraph,
    overlay: Overlay,
    boards: int | None,
    build: Callable[[LayerGraph], Program],
    shards: int = 1,
    beside: Sequence[LayerGraph] = (),
) -> tuple[int, ...]:
    """Return the places where to cut a folded network into stages, numbers of layers as `scheduler.stages.stages` takes
    them.

    boards: how many boards compute all stages; None for the fewest that hold the network. build: as for `chain`.
    shards: how many boards compute each stage; with more than one, the network is one that `scheduler.shards.opened`
    returned.

    beside: the networks of other programs of the model, which lie on the same boards and are cut behind the same
    layers: those of prompts beside the step of a decoder. The boards then have room for as many sets of slots as there
    are stages, because `rsn serve` decodes one set in each stage, or for one set if they hold no more.

    Raises `RoomError`, with the bytes that are needed, if these boards cannot hold the network, or a part of it is
    too large for one board; `UnsupportedError` for more boards than parts; and what `build` raises.
    """
    more = "shards=2 (--shards 2) or more divides each layer among boards" if shards == 1 else "take more shards"
    if beside:
        more = f"fewer slots or a smaller capacity of a decoder need less; {more}"
    known: list[dict[object, ChainPart]] = [{} for _ in (network, *beside)]

    def chains(within: bool) -> tuple[tuple[int, ...], list[ChainPart]]:
        """Return where the network can be cut, and the parts between, with those of other programs."""

        def places_of(one: LayerGraph) -> tuple[int, ...]:
            return cut_places(one, within) if shards == 1 else shard_places(one, shards)

        places = places_of(network)
        for other in beside:
            places = places_within(network, places, other, places_of(other))
        parts = chain(network, overlay, build, places, shards, known[0])
        names = [network.layers[place - 1].y for place in places]
        others = zip(beside, known[1:], strict=True)
        return places, _with_others(
            parts, [chain(x, overlay, build, cuts_at(x, names), shards, of) for x, of in others]
        )

    try:
        places, parts = chains(within=False)
    except RoomError as error:
        raise RoomError(f"{error}; {more}") from error
    wanted = None if boards is None else boards // shards
    least = fewest(parts, overlay.banks)
    if least is None:
        number = next(i for i, part in enumerate(parts) if not _fits([part], overlay.banks))
        layer = network.layers[(0, *places)[number]].place
        raise RoomError(f"{layer}: a layer needs {_told([parts[number]], overlay)}: no board holds it; {more}")
    if wanted is not None and wanted > len(parts):
        raise UnsupportedError(f"boards={boards}: this network can be cut into {len(parts)} stages at most")
    if wanted is not None and wanted < least:
        needs = f"the model needs {_told(parts, overlay)}"
        each = "" if shards == 1 else f", on each of the shards={shards} boards of all stages"
        fewer = ", or fewer slots or a smaller capacity" if beside else ""
        raise RoomError(f"boards={boards}: {needs}{each}: at least {least * shards} boards{fewer}")
    count = wanted or least
    launch_s = launch_seconds(overlay) if shards == 1 else 0.0
    cuts = _cut(parts, count, overlay, launch_s)
    assert cuts is not None
    # On lanes of rows a product adds up the columns of a feed-forward as they come from the product before: in a stage
    # of its own in another order, and results would not be those of one board.
    if shards == 1 and overlay.lanes is None and is_uneven(parts, cuts, launch_s):
        with suppress(UnsupportedError, ScheduleError):  # a part of a feed-forward may be no program
            finer_places, finer = chains(within=True)
            found = _cut(finer, count, overlay, launch_s)
            if found is not None and slowest_seconds(finer, found, launch_s) < slowest_seconds(parts, cuts, launch_s):
                places, cuts = finer_places, found
    return tuple(places[part - 1] for part in cuts)


def _cut(parts: Sequence[ChainPart], count: int, overlay: Overlay, launch_s: float) -> tuple[int, ...] | None:
    """As `least_slowest`, for as many sets of slots as stages if these have room, else for one."""
    sets = [replace(part, sets=count) for part in parts] if any(part.beside for part in parts) else parts
    cuts = least_slowest(sets, count, overlay.banks, launch_s)
    return least_slowest(parts, count, overlay.banks, launch_s) if cuts is None else cuts


def _with_others(parts: Sequence[ChainPart], others: Sequence[Sequence[ChainPart]]) -> list[ChainPart]:
    """The parts of a program, each with those of others, which may end before."""
    rows = zip_longest(parts, *others)
    return [replace(part, beside=tuple(beside)) for part, *beside in rows]


def _fits(parts: Sequence[ChainPart], banks: Mapping[str, int]) -> bool:
    return all(size <= banks[bank] for bank, size in needed(parts).items())


def _told(parts: Sequence[ChainPart], overlay: Overlay) -> str:
    """What parts need together, beside what a board has, as text."""
    texts = [(bank, *sizes_as_text(size, overlay.banks[bank])) for bank, size in sorted(needed(parts).items())]
    return " and ".join(f"{size} in {bank}, of which a board has {limit}" for bank, size, limit in texts)
