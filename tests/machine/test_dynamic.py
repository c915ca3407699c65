"""Networks of generators: tokens decide times and ways, units merge by arrival and share a memory."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from rsn.base.errors import DeadlockError, ProgramError
from rsn.machine.dynamic import DynamicKernel, DynamicNetwork, Ports
from rsn.machine.off_chip import OffChipMemory, Sharing
from rsn.machine.steps import Steps
from rsn.tests.effort import cases, in_both

DONE = object()


def source(jobs: Sequence[Any]) -> DynamicKernel:
    """Makes each job in as many cycles as its first part says."""

    def kernel(ports: Ports) -> Steps:
        for job in jobs:
            yield ports.busy(job[0])
            yield ports.put(job)
        yield ports.put(DONE)

    return kernel


def merge(ports: Ports) -> Steps:
    left = list(range(ports.inputs))
    while left:
        port = left[(yield ports.any_of(*left))]
        (token,) = yield ports.get(port)
        if token is DONE:
            left.remove(port)
        else:
            yield ports.put(token)
    yield ports.put(DONE)


def sink(seen: list[Any]) -> DynamicKernel:
    """Works on each job for as long as its second part says, and notes it and the time at which it is done."""

    def kernel(ports: Ports) -> Steps:
        while True:
            (token,) = yield ports.get()
            if token is DONE:
                return
            yield ports.busy(token[1])
            seen.append((token, ports.now))

    return kernel


def merging(jobs: Sequence[Sequence[Any]], depth: int, seen: list[Any]) -> DynamicNetwork:
    net = DynamicNetwork()
    for number, of in enumerate(jobs):
        net.unit(f"s{number}", source(of))
    net.unit("merge", merge)
    net.unit("sink", sink(seen))
    for number in range(len(jobs)):
        net.connect(f"s{number}", "merge", depth)
    net.connect("merge", "sink", depth)
    return net


def test_tokens_decide_how_long_units_work() -> None:
    seen: list[Any] = []
    run = merging([[(3, 10), (1, 2)], [(2, 1), (5, 4)]], 2, seen).run()
    # 2: (2, 1) comes; 3: (3, 10); 4: (1, 2); 7: (5, 4). The sink takes them one after the other, from 2 on.
    assert seen == [((2, 1), 3), ((3, 10), 13), ((1, 2), 15), ((5, 4), 19)]
    assert run.cycles == run.ends["sink"] == 19
    assert run.busy == {"s0": 4, "s1": 7, "merge": 0, "sink": 17}
    assert run.depends_on_time


@in_both
def test_one_queue_equals_its_recursion_in_all_visiting_orders() -> None:
    for seed in range(cases(300, 30)):
        random = Random(seed)
        jobs = [
            [(8 * random.randrange(6) + n * (not k), random.randrange(40), k) for k in range(random.randrange(8))]
            for n in range(random.randint(1, 4))
        ]
        came = []
        for n, of in enumerate(jobs):
            now = 0
            for job in of:
                now += job[0]
                came.append((now, n, job))  # no two sources at one time: n modulo 8
        expected, free = [], 0
        for time, _, job in sorted(came, key=lambda one: one[:2]):  # stable: jobs of one source stay in order
            free = max(free, time) + job[1]
            expected.append((job, free))
        for order in (None, lambda tasks: tasks[::-1], lambda tasks: Random(7).sample(tasks, len(tasks))):
            seen: list[Any] = []
            merging(jobs, 64, seen).run(order)
            assert seen == expected, seed


def test_what_follows_a_choice_is_not_before_the_token() -> None:
    def herald(ports: Ports) -> Steps:
        yield ports.put((0, (yield ports.any_of(0, 1))), 0)
        token = yield from ports.peek(1)
        yield ports.put((0, token), 0)
        for port in (0, 1):
            yield ports.get(port)
        yield ports.put(DONE, 0)

    seen: list[Any] = []

    def listen(ports: Ports) -> Steps:
        while (token := (yield ports.get())[0]) is not DONE:
            seen.append((token[1], ports.now))

    net = DynamicNetwork()
    net.unit("a", lambda ports: _once(ports, 5, "x"))
    net.unit("b", lambda ports: _once(ports, 9, "y"))
    net.unit("herald", herald)
    net.unit("listen", listen)
    net.connect("a", "herald", 1)
    net.connect("b", "herald", 1)
    net.connect("herald", "listen", 4)
    run = net.run(record=True)
    assert seen == [(0, 5), ("y", 9)]
    # the critical path is without gaps: it is b's work
    chain = run.timing.critical_path
    assert sum(chain.end - chain.start) == pytest.approx(run.timing.latency)


def _once(ports: Ports, cycles: int, token: Any) -> Steps:
    yield ports.busy(cycles)
    yield ports.put(token)


def test_an_output_with_two_readers_waits_for_room_at_both() -> None:
    seen: dict[str, list[Any]] = {"x": [], "y": []}
    net = DynamicNetwork()
    net.unit("s", source([(1, 0), (1, 10), (1, 0), (1, 0)]))
    for name in ("x", "y"):
        net.unit(name, sink(seen[name]))
        net.connect("s", name, 1, output=0)
    net.run()
    assert [time for _, time in seen["x"]] == [1, 12, 12, 12]
    assert seen["x"] == seen["y"]


def test_a_deadlock_names_units_and_their_places() -> None:
    net = DynamicNetwork()
    net.unit("merge", merge, "user.py:7")
    net.unit("sink", sink([]))
    net.unit("back", lambda ports: iter([ports.get(), ports.put(1)]))  # type: ignore[arg-type,return-value]
    net.connect("merge", "back", 1)
    net.connect("back", "merge", 1)
    net.connect("merge", "sink", 1)
    with pytest.raises(DeadlockError, match=r"merge +uOP 0 \(user.py:7\) +waits to get back->merge"):
        net.run()


def test_networks_that_do_not_fit() -> None:
    net = DynamicNetwork()
    net.unit("a", lambda ports: (ports.put(DONE, port) for port in range(ports.outputs)))
    with pytest.raises(ProgramError, match="two units a"):
        net.unit("a", source([]))
    with pytest.raises(ProgramError, match="no unit b"):
        net.connect("a", "b", 1)
    net.unit("b", lambda ports: (ports.get(port) for port in range(ports.inputs)))
    with pytest.raises(ProgramError, match="depth 0; the least is 1"):
        net.connect("a", "b", 0)
    net.connect("a", "b", 1, port=1)
    with pytest.raises(ProgramError, match="input 1 of b has a stream"):
        net.connect("a", "b", 1, port=1)
    with pytest.raises(ProgramError, match="input 0 of b has no stream"):
        net.run()
    net.connect("a", "b", 1)
    assert net.run().cycles == 0
    net = DynamicNetwork()
    net.unit("a", lambda ports: _once(ports, -1, 0))
    with pytest.raises(ProgramError, match="busy for -1 cycles"):
        net.run()


# -- memory off the chip ----------------------------------------------------------------------------------------------


def loader(memory: OffChipMemory, tiles: Sequence[int], clients: dict[str, tuple[int, int]], name: str) -> Any:
    def kernel(ports: Ports) -> Steps:
        for accesses in tiles:
            yield from memory.transfer(ports, clients[name], accesses)
            yield ports.put((0, 0))
        yield memory.end(ports, clients[name])
        yield ports.put(DONE)

    return kernel


def load(tiles: Sequence[Sequence[int]], **limits: Any) -> tuple[OffChipMemory, list[list[float]]]:
    net = DynamicNetwork()
    memory = OffChipMemory(net, **limits)
    clients: dict[str, tuple[int, int]] = {}
    seen: list[list[Any]] = [[] for _ in tiles]
    for k, of in enumerate(tiles):
        net.unit(f"l{k}", loader(memory, of, clients, f"l{k}"))
        net.unit(f"k{k}", sink(seen[k]))
        net.connect(f"l{k}", f"k{k}", 1)
        clients[f"l{k}"] = memory.client(f"l{k}")
    net.run()
    return memory, [[time for _, time in one] for one in seen]


def test_a_loader_alone_has_its_own_limit() -> None:
    memory, times = load([[64, 64]])
    assert times == [[64, 128]]
    assert memory.moved == 2 * 64 * 64
    assert memory.accesses(16, 48 * 2) == 32  # rows of 96 bytes take two accesses of 64 each
    assert load([[64]], per_client=4, latency=7)[1] == [[16 + 7]]


def test_loaders_share_what_there_is() -> None:
    assert load([[64]] * 16)[1] == [[64]] * 16
    times = load([[64]] * 32)[1]
    assert max(time for one in times for time in one) == 128  # 2048 accesses, 16 a cycle


def one_by_one(transfers: Sequence[tuple[int, int]], channels: int, each: int) -> list[int]:
    """The cycles after which transfers (begin, accesses) are done, if each cycle's accesses are dealt out in turn."""
    left = [accesses for _, accesses in transfers]
    done, cycle, turn = [0] * len(left), 0, 0
    while any(left):
        free, mine = channels, [each] * len(left)
        waiting = True
        while free and waiting:
            waiting = False
            for step in range(len(left)):
                k = (turn + step) % len(left)
                if free and left[k] and mine[k] and transfers[k][0] <= cycle:
                    left[k], mine[k], free, waiting = left[k] - 1, mine[k] - 1, free - 1, True
                    done[k] = cycle + 1
                    last = k
        turn = (last + 1) % len(left) if free < channels else turn
        cycle += 1
    return done


@in_both
def test_sharing_equals_accesses_one_by_one() -> None:
    for seed in range(cases(300, 30)):
        random = Random(seed)
        channels = random.randint(1, 6)
        each = random.randint(1, channels)
        transfers = [
            (random.choice((0, 0, 3, 40)), random.choice((1, 7, 30, 200))) for _ in range(random.randint(1, 9))
        ]
        sharing = Sharing(channels, each)
        found = [0.0] * len(transfers)
        for k in sorted(range(len(transfers)), key=lambda k: transfers[k][0]):
            begin, accesses = transfers[k]
            while (end := sharing.next_end) is not None and end <= begin:
                for client in sharing.end(end):
                    found[client] = end
            sharing.begin(begin, k, accesses)
        while (end := sharing.next_end) is not None:
            for client in sharing.end(end):
                found[client] = end
        expected = one_by_one(transfers, channels, each)
        # Which of several gets the accesses that do not divide by their number is decided anew in each cycle.
        assert found == pytest.approx(expected, abs=len(transfers) + 1), seed
        assert max(found) == pytest.approx(max(expected), abs=2), seed


def test_transfers_share_equally() -> None:
    served = load([[4, 4], [6]], channels=1)[1]
    # Both get half; the first is done in cycle 8, the second in 8 + 4, when the first has 2 more.
    assert served == [[8, 14], [12]]
    assert load([[8192]] * 24)[1] == [[12288]] * 24
    with pytest.raises(ProgramError, match="2 accesses a cycle of each client, and 1 of all"):
        load([[1]], channels=1, per_client=2)


def test_a_unit_waits_until_a_cycle() -> None:
    seen: list[tuple[int | None, float]] = []

    def waiting(ports: Ports) -> Steps:
        for until in (2, 5, 9, 5, 9):
            place = yield ports.any_of(0, 1, until=until)
            seen.append((place, ports.now))
            if place is not None:
                yield ports.get(place)
        assert (yield ports.any_of(1, until=3)) is None  # in the past
        yield ports.get(1)
        yield ports.get(1)

    net = DynamicNetwork()
    net.unit("a", source([(3,)]))
    net.unit("b", source([(5,), (50,)]))
    net.unit("waiting", waiting)
    net.connect("a", "waiting", 1)
    net.connect("b", "waiting", 1)
    assert net.run().cycles == 55
    assert seen == [(None, 2), (0, 3), (0, 3), (1, 5), (None, 9)]  # in cycle 3 the token and the end of a
