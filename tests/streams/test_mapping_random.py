"""Mappings of random programs against an oracle that shares no code with them: a graph is legal if its contraction has
no cycle, orders are compared token by token, and the mapped program is run token by token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import chain as joined
from random import Random

from rsn.streams.mapping.cost import cost
from rsn.streams.mapping.errors import MappingError
from rsn.streams.mapping.mapping import Mapped
from rsn.streams.mapping.primitives import bundle, chain
from rsn.streams.mapping.proof import check_mapped
from rsn.streams.mapping.search import search
from rsn.streams.mapping.shots import Shots
from rsn.streams.tree import Body, Choice, FixedLoop, Op
from rsn.tests.effort import cases, in_full

from .graphs import HEAD, start

Word = list[tuple[int, bool]]


def program(random: Random) -> str:
    """Layers of tasks with one to three instances; every stream leads to a later layer. Instances read and write their
    streams one after another, or in turn."""
    layers = [random.randint(1, 3) for _ in range(random.randint(2, 4))]
    streams: list[tuple[str, int, int, int]] = []  # name, layers, tokens
    decls, puts, gets = "", defaultdict[int, list[str]](list), defaultdict[int, list[str]](list)
    for a in range(len(layers)):
        for b in range(a + 1, len(layers)):
            if random.random() < 0.6:
                name = f"s{len(streams)}"
                streams.append((name, a, b, random.randint(1, 3)))
    bodies = {k: ([], []) for k in range(len(layers))}
    for name, a, b, tokens in streams:
        width = max(layers[a], layers[b])
        decls += f"{name}: Stream[i32, {random.randint(1, 3)}][{width}]\n"
        for layer, store in ((a, puts), (b, gets)):
            of = layers[layer]
            shift = random.choice([0, 0, 1]) if of == width else 0
            if of == width:
                ends = [f"(i + {shift}) % {width}"]
            else:
                order = [j for j in range(width) if j % of == 0] if of > 1 else list(range(width))
                ends = [str(j) for j in random.sample(order, len(order))]
                if of > 1:
                    ends = [f"i + {j}" if int(j) + of <= width else j for j in ["0"]]
            turns = random.random() < 0.3
            what = [f"{name}[{e}].put(i)" if store is puts else f"use({name}[{e}].get())" for e in ends]
            lines = what * tokens if turns else list(joined.from_iterable([line] * tokens for line in what))
            bodies[layer][0 if store is gets else 1].append(lines)
    text = HEAD + decls
    for layer, (got, put) in bodies.items():
        for part in (got, put):
            random.shuffle(part)
        lines = list(joined.from_iterable(got + put)) or ["pass"]
        tid = "i = get_tid()"
        text += f"@task(mapping=[{layers[layer]}])\ndef t{layer}():\n    {tid}\n" + "".join(f"    {x}\n" for x in lines)
    return text


def expand(body: Body) -> Word:
    out: Word = []
    for node in body:
        if isinstance(node, Op):
            out.append((node.stream, node.put))
        elif isinstance(node, FixedLoop):
            out += expand(node.body) * node.times
        else:
            assert isinstance(node, Choice)
            raise AssertionError("no branches here")
    return out


def runs_to_its_end(mapped: Mapped) -> bool:
    """Run a mapped program token by token: nodes run their instances in turn, streams inside one node have no limit,
    the others those of their physical stream. Each reader must get the token of the logical stream that it wants."""
    graph = mapped.graph
    physical = {edge.stream: stream for stream in mapped.streams for edge in stream.logical}
    words = [[op for shot in group.shots for op in expand(graph.nodes[shot].body)] for group in mapped.groups]
    queues: dict[object, list[int]] = defaultdict(list)
    at = [0] * len(words)
    moved = True
    while moved:
        moved = False
        for k, word in enumerate(words):
            while at[k] < len(word):
                stream, put = word[at[k]]
                lane = physical.get(stream)
                queue = queues[("local", stream) if lane is None else lane.number]
                if put and lane is not None and len(queue) >= lane.depth:
                    break
                if not put and not queue:
                    break
                if put:
                    queue.append(stream)
                else:
                    assert queue.pop(0) == stream, "the token of another stream"
                at[k] += 1
                moved = True
    return all(n == len(word) for n, word in zip(at, words, strict=True))


def has_cycle(mapped: Mapped, together: list[int]) -> bool:
    """Whether the graph has a cycle once some nodes are one (transitive closure)."""
    of = [min(together) if k in together else k for k in range(len(mapped.groups))]
    count = len(of)
    reach = [[False] * count for _ in range(count)]
    for edge in mapped.graph.edges.values():
        a, b = of[mapped.of[edge.writer]], of[mapped.of[edge.reader]]
        if a != b:
            reach[a][b] = True
    for k in range(count):
        for i in range(count):
            for j in range(count):
                reach[i][j] = reach[i][j] or (reach[i][k] and reach[k][j])
    return any(reach[k][k] for k in range(count))


def feeds(mapped: Mapped, a: int, b: int) -> bool:
    return any((mapped.of[e.writer], mapped.of[e.reader]) == (a, b) for e in mapped.graph.edges.values())


def ordered(mapped: Mapped) -> bool:
    """Whether all streams of each pair of nodes come in one order at both ends, token by token."""
    words = [[op for shot in group.shots for op in expand(mapped.graph.nodes[shot].body)] for group in mapped.groups]
    pairs = defaultdict[tuple[int, int], set[int]](set)
    for e in mapped.graph.edges.values():
        pairs[mapped.of[e.writer], mapped.of[e.reader]].add(e.stream)
    return all(
        [s for s, _ in words[a] if s in streams] == [s for s, _ in words[b] if s in streams]
        for (a, b), streams in pairs.items()
        if a != b
    )


def kernel(group: Shots) -> int:
    """The kernel of a node, or of the parts of a bundle."""
    return kernel(group.parts[0]) if group.kind == "bundle" else group.kernel


def step(random: Random, mapped: Mapped) -> tuple[Mapped, str]:
    """Try a primitive; compare its verdict with the oracle's. Return the mapping after it, and what came of it."""
    nodes = range(len(mapped.groups))
    a, b = random.sample(nodes, 2)
    one, two = (mapped.members(k)[0] for k in (a, b))
    if random.random() < 0.5:
        made, what = tried(lambda: chain(mapped, one, two))
        assert (made is not None) == (not has_cycle(mapped, [a, b]) and not feeds(mapped, b, a)), what
        return made or mapped, what or "chain"
    alike = kernel(mapped.groups[a]) == kernel(mapped.groups[b])
    legal = alike and not has_cycle(mapped, [a, b]) and not feeds(mapped, a, b) and not feeds(mapped, b, a)
    apart = random.random() < 0.5
    made, what = tried(lambda: bundle(mapped, [one, two], separate=apart))
    if what == "order":
        assert legal
        assert not ordered(bundle(mapped, [one, two], separate=True))
    else:
        assert (made is not None) == legal, what
    return made or mapped, what or "bundle"


def tried(action: Callable[[], Mapped]) -> tuple[Mapped | None, str]:
    """The mapping that a primitive makes, or None and the code of its refusal."""
    try:
        return action(), ""
    except MappingError as error:
        return None, error.code


@in_full
def test_primitives_and_proofs_agree_with_the_oracle() -> None:
    found: dict[str, int] = defaultdict(int)
    programs = 0
    seed = 0
    while programs < cases(200, 12, share=16):
        seed += 1
        random = Random(seed)
        try:
            mapped = start(program(random))
        except AssertionError:  # the check refuses it
            continue
        if len(mapped.groups) < 3:
            continue
        programs += 1
        assert runs_to_its_end(mapped)
        for _ in range(8):
            if len(mapped.groups) < 2:
                break
            mapped, what = step(random, mapped)
            found[what] += 1
        plain = mapped.unfused()
        ends = runs_to_its_end(plain)
        assert (not check_mapped(plain).code) == ends, (seed, str(check_mapped(plain)))
        found["ends" if ends else "stands still"] += 1
    assert {"chain", "bundle", "path", "kernel", "ends"} <= found.keys(), dict(found)


@in_full
def test_what_the_search_finds_runs_to_its_end() -> None:
    programs = found = seed = 0
    while programs < cases(200, 3):
        seed += 1
        random = Random(seed)
        try:
            mapped = start(program(random))
        except AssertionError:
            continue
        if len(mapped.groups) < 3:
            continue
        programs += 1
        try:
            best = search(mapped.graph, random.randint(1, len(mapped.groups)), states=20)
        except MappingError:
            continue
        found += 1
        assert not check_mapped(best.mapped).code
        assert best.cost == cost(best.mapped)
        plain = best.mapped.unfused()
        assert runs_to_its_end(plain) == (not check_mapped(plain).code)
    assert found > programs // 2
