"""Shares of a device for the kernels and loads of a block: multipliers and bandwidth go to where they save most time.

The published rule (`placing.unrolling`) makes the slowest kernel faster. That is best for a pipeline that is always
full. A block that runs once is not: kernels wait until rows are complete. So here the modelled time of the whole
program decides. Where it is least, the amount of a resource that a kernel holds is proportional to the time that the
kernel would save with a little more of it. Steps towards that point take milliseconds each: they run the timed model of
the program, with fewer cycles for its beats. Then loads and stores get channels of the memory, in the way that costs
least time (`placing.channels`), and kernels share the multipliers once more beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf, log, prod

from ...base.errors import ResourceError
from ...streams.placing.devices import StreamDevice
from ...streams.sizing.program import SizedProgram
from ...streams.timing.timed import BeatTiming, TimedProgram
from .block import Streamed
from .knobs import PRODUCTS, Knobs, elements_beside
from .operators import StreamOperator
from .plans import KernelPlan, steps_of, types_of, units_of
from .ports import ChannelPorts, load_parts, mover, port_shares, widest_ports, widths
from .program import LEAST_DEPTH
from .resources import area, fabric_luts

FIRST_STEP, LAST_STEP = 2.0, 1.02
"""Largest ratio by which a step changes what a kernel holds: at first, and when the steps end. A step that saves no
time is taken back, and the next ones are smaller."""

LESS = 0.75
"""How much smaller, and larger, an amount is made to see how much time it saves."""

WORTH = 1.02
"""How much longer a machine may take to have fewer ports on memory channels."""

LEAST_PART = 1 / 16
"""Part of the multiply-adds of integers that are in LUTs at least: for fewer the search is not made again."""

TOGETHER = 6
"""Most kernels that get more units at once for those of others."""

MANY = 64
"""Units of a kernel of which the cost of one is the mean: two products may share a multiplier."""


@dataclass(eq=False)
class _Holder:
    """What holds an amount of a resource: a kernel, or several that work beside each other, the loads of an operator,
    or a store.

    operators, knob: the knobs that state the amount. tasks: numbers of the instances that are faster with it. cost: of
    a unit. most: units that can be used. whole: gives the units that are built of a number that it may have. speed: how
    many times as fast the tasks are with a number of units as with the least. part: of the units, those in LUTs.
    is_array: they are arrays that products share. units: that it holds.
    """

    operators: tuple[str, ...]
    knob: str
    tasks: Sequence[int]
    cost: float
    most: int
    whole: Callable[[float], int] = int
    speed: Callable[[int], float] = float
    part: float = 0.0
    is_array: bool = False
    units: float = 1.0

    @property
    def least(self) -> int:
        """The fewest units that are built."""
        return self.whole(1)

    @property
    def chosen(self) -> int:
        """Whole units."""
        return self.whole(max(1.0, self.units))

    @property
    def fewer(self) -> int:
        """The next smaller number of whole units, 0 if there is none."""
        return self.whole(self.chosen - 1) if self.chosen > self.least else 0

    @property
    def more(self) -> int:
        """The next larger number of whole units, 0 if there is none."""
        units = self.chosen + 1
        while units <= self.most:
            if self.whole(units) > self.chosen:
                return self.whole(units)
            units += max(1, units // 16)
        return self.most if self.whole(self.most) > self.chosen else 0


def balanced(made: Streamed, device: StreamDevice, dsps: int, prefetch: int, luts: int = 0) -> Streamed:
    """Return the block with the knobs that make it fastest within a number of multipliers: `unroll` (of products) or
    `lanes` (of other kernels), `fabric` and `port` for each operator that has none of its own, and `together` for all
    operators. Knobs that are given for all operators are limits.

    If there are LUTs left and this saves time, the same part of the multiply-adds of each product of integers is in
    LUTs.

    made: the block. device: whose memory channels the ports use. dsps: multipliers (DSPs) that kernels may use.
    prefetch: bytes that loads may keep on the chip ahead of their kernels. luts: LUTs that kernels may use. Raises
    `ResourceError` if kernels with the fewest units need more multipliers, and as `port_shares` does.
    """
    most = made.knobs.together
    made = made.changed(replace(made.knobs, together=1))
    plain, cycles = _shared(made, device, dsps, prefetch, 0.0)
    part = _part_in_luts(plain, device, luts)
    if part < LEAST_PART:
        return _with_heads_together(plain, most, prefetch)
    both, fewer = _shared(made, device, dsps, prefetch, part)
    return _with_heads_together(both if fewer < cycles else plain, most, prefetch)


def _with_heads_together(made: Streamed, most: int, prefetch: int) -> Streamed:
    """The block whose kernels on rows take as many row tiles of heads together as take the least time: 1, or twice as
    many as long as this saves time. most: the limit."""
    cycles, count = _Steps(made, prefetch).cycles([]), 2
    while count <= most:
        changed = made.changed(replace(made.knobs, together=count), ports=made.ports)
        if all(plan.sizes.get("together", 1) < count for plan in changed.plans.values()):
            break
        taken = _Steps(changed, prefetch).cycles([])
        if taken >= cycles:
            break
        made, cycles, count = changed, taken, 2 * count
    return made


def _part_in_luts(made: Streamed, device: StreamDevice, luts: int) -> float:
    """The part of the multiply-adds of integers for which there are LUTs beside as many DSPs as they have now."""
    nodes, units = made.nodes, made.units
    free = luts - sum(area(node, units[node.name], device)["LUT"] for node in nodes)
    each = [
        (units[x.name], fabric_luts(types_of(x), max(1, units[x.name] // prod(made.plans[x].computed))))
        for x in made.plans
        if steps_of(x, made.plans[x]) and "fabric" not in made.knobs.of.get(x.name, {})
    ]
    more = max(0, free) / max(1, sum(count * cost for count, cost in each))
    return more / (1 + more) if each else 0.0


def _shared(made: Streamed, device: StreamDevice, dsps: int, prefetch: int, part: float) -> tuple[Streamed, int]:
    """The block with what is chosen, and the cycles of an execution (`_Steps.cycles`). part: of the multiply-adds of
    integers, those in LUTs."""
    knobs = made.knobs
    bandwidth = device.bytes_a_cycle(device.gbs)
    single = made.changed(replace(knobs, unroll=1, lanes=1, port=1), ports=ChannelPorts(device, waits=False))
    kernels, ports = _kernels(single, knobs, device, part), _ports(single, knobs, device)
    free = {name for holder in kernels for name in holder.operators}
    nodes = made.nodes
    given = sum(
        area(node, 0 if node.name in free else knobs.lanes_of(node.name, node.op), device, knobs.at(node.name).fabric)[
            "DSP"
        ]
        for node in nodes
    )
    least = given + int(sum(holder.cost * holder.least for holder in kernels))
    if least > dsps:
        raise ResourceError(
            f"{device.name}: {dsps:,} DSPs may be used, and the {len(made.plans)} kernels need {least:,} with the "
            f"fewest units; choose a larger device, or cut the block"
        )
    multipliers = kernels, float(dsps - given)
    steps = _Steps(single, prefetch)
    steps.run([multipliers, (ports, bandwidth)])
    wanted = {name: holder.units for holder in ports for name in holder.operators}
    found = []
    for shares in port_shares(single, device, wanted, knobs.port):
        steps = _Steps(single.changed(ports=ChannelPorts(device, shares)), prefetch)
        steps.improve([multipliers])
        steps.enlarge([multipliers])
        steps.trade([multipliers])
        found.append((steps.cycles([multipliers]), [holder.chosen for holder in kernels], shares))
    enough = WORTH * min(cycles for cycles, _, _ in found)
    cycles, chosen, shares = next(way for way in found if way[0] <= enough)
    of = {operator: dict(given) for operator, given in knobs.of.items()}
    for holder, units in zip(kernels, chosen, strict=True):
        for name in holder.operators:
            of.setdefault(name, {})[holder.knob] = units
            if holder.part:
                of[name]["fabric"] = int(holder.part * units)
    return made.changed(replace(knobs, of=of), ports=ChannelPorts(device, shares)), cycles


def _instances(made: Streamed) -> dict[str, int]:
    """The number of each task's instance; tasks of blocks have one."""
    return {instance.task.name: k for k, instance in enumerate(made.report.region.instances)}


def _kernels(single: Streamed, knobs: Knobs, device: StreamDevice, part: float) -> list[_Holder]:
    """Kernels whose units are free. single: the block with the fewest units. part: as for `_shared`."""
    numbers = _instances(single)
    nodes = {node.name: node for node in single.nodes}
    found: list[_Holder] = []
    beside: dict[object, _Holder] = {}
    are_alike = any(x.op in ("join", "array") or steps_of(x, plan) for x, plan in single.plans.items())
    for x, plan in single.plans.items():
        knob = "unroll" if x.op in PRODUCTS else "lanes"
        reads = x.attributes["arrays"] if x.op == "array" else (x.operands[0], x.shape)
        alike = (x.op, reads, types_of(x) if x.op in PRODUCTS else (), x.name in knobs.of)
        if are_alike and alike in beside and knob not in knobs.of.get(x.name, {}):
            # One of several kernels that read the same tiles, such as queries, keys and values, saves no time alone,
            # nor does one of the arrays that products share.
            other = beside[alike]
            other.operators, other.tasks = (*other.operators, x.name), [*other.tasks, numbers[x.name]]
            other.cost *= len(other.operators) / (len(other.operators) - 1)
        elif knob not in knobs.of.get(x.name, {}):
            whole = cache(partial(units_of, x, plan, device.float_add))
            in_luts = part if steps_of(x, plan) and "fabric" not in knobs.of.get(x.name, {}) else 0.0
            few, many = (area(nodes[x.name], n, device, int(in_luts * n))["DSP"] for n in (MANY, 2 * MANY))
            speed = cache(partial(_speed, x, plan, whole(1)))
            most = whole(getattr(knobs, knob))
            cost = (many - few) / MANY or 1
            of_array, task = x.op == "array", numbers[x.name]
            found.append(_Holder((x.name,), knob, [task], cost, most, whole, speed, in_luts, of_array))
            beside[alike] = found[-1]
    return found


def _speed(x: StreamOperator, plan: KernelPlan, least: int, units: int) -> float:
    """How many times as fast a kernel is as with the least units; a product of integers with the passes that scale its
    sums."""
    steps = steps_of(x, plan)
    if not 0 < steps < inf:
        return units / least

    def taken(n: int) -> float:
        return steps / n + 1 / elements_beside(types_of(x), plan.sizes["tm"], n, steps)

    return taken(least) / taken(units)


def _ports(single: Streamed, knobs: Knobs, device: StreamDevice) -> list[_Holder]:
    """Loads and stores whose ports are free: all loads of an operator have the same one, and so have those of arrays
    that products share and that get as many tiles."""
    numbers, most = _instances(single), widest_ports(single, device)
    parts, wider = load_parts(single), widths(single)
    arrays = {x.name: x.operands[0].shape for x in single.plans if x.op == "array"}
    shared = {name: tuple(other for other in arrays if arrays[other] == shape) for name, shape in arrays.items()}
    of: dict[tuple[str, ...], list[str]] = {}
    for task in single.written.moved:
        name = mover(single, task)
        if "port" not in knobs.of.get(name, {}):
            of.setdefault(shared.get(name, (name,)), []).append(task)
    found = []
    for names, tasks in of.items():
        limit = knobs.port * min(wider[single.written.moved[task].tensor] for task in tasks if parts[task] == 1)
        cost, widest = sum(parts[task] for task in tasks), min(most[name] for name in names)
        found.append(_Holder(names, "port", [numbers[task] for task in tasks], cost, min(limit, widest)))
    return found


_Resource = tuple[list[_Holder], float]
"""Who holds a resource, and how much there is."""


class _Steps:
    """Steps towards the amounts with which the program takes the least time. single: the block with the fewest units;
    amounts that its knobs state for single operators stay, and so do the shares of memory channels that it has. sizes:
    how many times as fast the arrays are that are not shared out while others are. layers: those that a model has
    beyond the ones of the block, and the number of the instance that ends a layer; None if nothing is behind them."""

    def __init__(self, single: Streamed, prefetch: int) -> None:
        sized = single.sized()
        self.model = TimedProgram(sized.outcomes.bodies[0], sized.packing)
        self.depths = _depths(sized, set(single.written.loads), prefetch)
        self.sizes: dict[int, float] = {}
        self.layers: tuple[float, int] | None = None
        repeated = single.block.repeated
        if repeated and any(single.times_of(x.name) < single.layers for x in single.block.graph.kernels):
            self.layers = repeated.count / single.layers - 1, _instances(single)[repeated.result]
        self._known: dict[tuple[float, ...], int] = {}

    def run(self, resources: Sequence[_Resource]) -> None:
        """Set the units of all holders to the best ones that are found from two begins: what takes least time if all
        kernels work at the same time, and if they work one after the other. Steps from one alone may end where kernels
        beside each other, such as those of queries and keys, have few units: none of them saves time by itself."""
        busy = self.model.code.cycles
        found = []
        for serial in (False, True):
            for holders, amount in resources:
                work = [float(max(busy[task] for task in holder.tasks)) for holder in holders]
                costs = [holder.cost if serial else 1.0 for holder in holders]
                goal = [(w * c) ** (0.5 if serial else 1.0) for w, c in zip(work, costs, strict=True)]
                self._share(holders, amount, goal)
            self._climb(resources)
            found.append((self.cycles(resources), [[holder.units for holder in holders] for holders, _ in resources]))
        _, best = min(found, key=lambda one: one[0])
        for (holders, _), chosen in zip(resources, best, strict=True):
            for holder, units in zip(holders, chosen, strict=True):
                holder.units = units
        self.improve(resources)

    def improve(self, resources: Sequence[_Resource]) -> None:
        """Set the units of all holders to the best ones that are found from those that they have."""
        self._climb(resources)
        for holders, amount in resources:
            self._spend_rest(holders, amount, resources)

    def enlarge(self, resources: Sequence[_Resource]) -> None:
        """Give arrays that products share their next sizes, as long as this saves time, with less for all others. An
        array that takes more steps of its sums in a cycle has twice the units: no small step leads there. At the end
        all others get what they have from the begin on, if this saves time: with arrays of another size, small steps
        from what they had may not lead to what is best."""
        for holders, amount in resources:
            arrays = [holder for holder in holders if holder.is_array]
            for holder in arrays:
                while holder.more and self._beside([holder], [holder.more], holders, amount, resources, self._less):
                    pass
            if arrays:
                self._beside(arrays, [holder.chosen for holder in arrays], holders, amount, resources, self.run)

    def _beside(
        self,
        arrays: Sequence[_Holder],
        units: Sequence[int],
        holders: list[_Holder],
        amount: float,
        resources: Sequence[_Resource],
        share: Callable[[Sequence[_Resource]], None],
    ) -> bool:
        """Share what arrays with these units leave of an amount among the other holders, if there is enough for them
        and this saves time. Returns whether it does. share: shares an amount among others."""
        before, best = [(holder, holder.units) for holder in holders], self.cycles(resources)
        others = [holder for holder in holders if holder not in arrays]
        rest = amount - sum(array.cost * n for array, n in zip(arrays, units, strict=True))
        if rest < sum(other.cost * other.least for other in others):
            return False
        for array, n in zip(arrays, units, strict=True):
            array.units = float(n)
            self.sizes |= dict.fromkeys(array.tasks, array.speed(n))
        share([(others, rest)])
        if self.cycles(resources) < best:
            return True
        for holder, had in before:
            holder.units = had
        return False

    def _less(self, resources: Sequence[_Resource]) -> None:
        """Share amounts in the proportions of what the holders have, and improve that."""
        for holders, amount in resources:
            self._share(holders, amount, [holder.cost * holder.units for holder in holders])
        self.improve(resources)

    def _climb(self, resources: Sequence[_Resource]) -> None:
        """Take steps from the present units to better ones."""
        best, step = self.cycles(resources), FIRST_STEP
        while step > LAST_STEP:
            before = [(holder, holder.units) for holders, _ in resources for holder in holders]
            for holders, amount in resources:
                saved = [self._saved(holder, resources) for holder in holders]
                held = [holder.cost * holder.units for holder in holders]
                if any(saved):
                    goal = [amount * s / sum(saved) for s in saved]
                    held = [h * min(step, max(1 / step, g / h)) for h, g in zip(held, goal, strict=True)]
                self._share(holders, amount, held)
            cycles = self.cycles(resources)
            if cycles < best:
                best = cycles
            else:
                step **= 0.5
                for holder, units in before:
                    holder.units = units

    def _spend_rest(self, holders: list[_Holder], amount: float, resources: Sequence[_Resource]) -> None:
        """Give what whole units leave over to those that save most time with it, one after the other, as long as some
        save time."""
        gained = True
        while gained:
            before, gained = self.cycles(resources), False
            saved = [(self._with_more(holder, before, resources), k) for k, holder in enumerate(holders)]
            for of_price, k in sorted(saved, reverse=True):
                holder = holders[k]
                left = amount - sum(other.cost * other.chosen for other in holders)
                if of_price > 0 and holder.cost * (holder.more - holder.chosen) <= left:
                    now = self.cycles(resources)
                    if self._with_more(holder, now, resources) > 0:
                        holder.units, gained = float(holder.more), True

    def _with_more(self, holder: _Holder, before: int, resources: Sequence[_Resource]) -> float:
        """The cycles that the next larger number of units saves, for what it costs; 0 if there is none. before: the
        cycles without."""
        units, more = holder.units, holder.more
        if not more:
            return 0.0
        price, holder.units = holder.cost * (more - holder.chosen), float(more)
        saved = (before - self.cycles(resources)) / price
        holder.units = units
        return saved

    def trade(self, resources: Sequence[_Resource]) -> None:
        """Give the kernels that work longest more units for those that others lose least with, as long as this saves
        time. Of kernels behind each other, each of which takes about as long, one alone saves none; and units of a
        kernel often double, so no small step pays for them."""
        for holders, amount in resources:
            while self._traded(holders, amount, resources):
                pass

    def _traded(self, holders: Sequence[_Holder], amount: float, resources: Sequence[_Resource]) -> bool:
        """Trade once: of the kernels that work longest, take as many together as save most time. Returns whether this
        saves time; else nothing is changed."""
        before, had = self.cycles(resources), [holder.units for holder in holders]
        lost: list[tuple[float, int, _Holder]] = []
        for holder in holders:
            if holder.fewer:
                units, freed = holder.units, holder.cost * (holder.chosen - holder.fewer)
                holder.units = float(holder.fewer)
                lost.append(((self.cycles(resources) - before) / freed, len(lost), holder))
                holder.units = units
        busy = self.model.code.cycles
        slow = [holder for holder in holders if holder.more and not holder.is_array]
        slow.sort(key=lambda holder: -max(busy[task] for task in holder.tasks) / holder.speed(holder.chosen))
        best, chosen = before, had
        for count in range(1, min(TOGETHER, len(slow)) + 1):
            for holder in slow[:count]:
                holder.units = float(holder.more)
            for _, _, holder in sorted(lost):
                if sum(other.cost * other.chosen for other in holders) <= amount:
                    break
                if holder not in slow[:count]:
                    holder.units = float(holder.fewer)
            is_enough = sum(other.cost * other.chosen for other in holders) <= amount
            if is_enough and self.cycles(resources) < best:
                best, chosen = self.cycles(resources), [holder.units for holder in holders]
            for holder, units in zip(holders, had, strict=True):
                holder.units = units
        for holder, units in zip(holders, chosen, strict=True):
            holder.units = units
        return best < before

    def _share(self, holders: list[_Holder], amount: float, goal: list[float]) -> None:
        """Share an amount in these proportions, but for the least and the most units of each holder."""
        open_ = dict(enumerate(goal))
        left = amount
        while open_:
            total = sum(open_.values())
            wanted = {k: left * (w / total if total else 1 / len(open_)) / holders[k].cost for k, w in open_.items()}
            over = [k for k, units in wanted.items() if units >= holders[k].most]
            under = [k for k, units in wanted.items() if units < holders[k].least]
            # Those at a limit first: what they leave, or take, changes the others' parts.
            for k in under or over or list(open_):
                holders[k].units = min(max(float(holders[k].least), wanted[k]), float(holders[k].most))
                left -= holders[k].units * holders[k].cost
                del open_[k]

    def _saved(self, holder: _Holder, resources: Sequence[_Resource]) -> float:
        """The time that more units save: cycles between fewer and more of them, for the logarithm of their ratio."""
        units = holder.units
        fewer, more = max(float(holder.least), units * LESS), min(float(holder.most), max(units + 1, units / LESS))
        taken = []
        for holder.units in (fewer, more):
            taken.append(self.cycles(resources))
        holder.units = units
        return max(0.0, (taken[0] - taken[1]) / log(more / fewer)) if more > fewer else 0.0

    def cycles(self, resources: Sequence[_Resource]) -> int:
        """Return the cycles of an execution with the units of all holders, with all layers if something is behind
        them: the others take as long as those of the block, and what is behind them is computed once."""
        units = [1.0] * self.model.code.instances
        for task, speed in self.sizes.items():
            units[task] = speed
        for holders, _ in resources:
            for holder in holders:
                for task in holder.tasks:
                    units[task] = holder.speed(holder.chosen)
        if tuple(units) not in self._known:
            run = self.model.sped_up(units).run(self.depths)
            assert isinstance(run, BeatTiming), "a program without limits that is deep enough to end"
            more, last = self.layers or (0, 0)
            self._known[tuple(units)] = run.latency + int(more * run.last[last])
        return self._known[tuple(units)]


def _depths(sized: SizedProgram, loads: set[str], prefetch: int) -> dict[int, int]:
    """Depths of the streams of loads, in proportion to what they load; other streams are endless."""
    of: dict[int, int] = {}
    for instance in sized.region.instances:
        if instance.task.name in loads:
            of |= {s: n for node in instance.body for s, put, n in node.needs if put}
    bits = {s: group.bits for group in sized.groups.values() for s in group.elements}
    total = sum(n * bits[s] for s, n in of.items())
    return {s: max(LEAST_DEPTH, min(n, int(n * prefetch * 8 / total))) for s, n in of.items()}
