"""Which tasks of a mapped program are double buffered: each choice is mapped, and the one that costs least is taken.

A choice is checked as any program is, so that tokens still order what instances do to a tensor. Of many tasks, those
are added one by one that make the cost less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from ..check import report_on
from ..costs import datapath_of
from ..reader import read_again
from ..tree import Region
from .errors import MappingError
from .exhaustive import NODES
from .graph import MappingGraph, mapping_graph
from .machine import MeshDescription
from .mapping import Mapped
from .search import BestMapping, Progress, least_cycles, search, search_from, silent

CHOICES = 16
"""Up to so many choices of tasks, all are looked at."""


def search_buffered(
    region: Region,
    at_most: int,
    machine: MeshDescription | None = None,
    start: Callable[[Region], Mapped] | None = None,
    progress: Progress = silent,
) -> BestMapping:
    """Return the best mapping on at most `at_most` nodes; further tasks may be double buffered for it. machine: as for
    `search`. start: makes the mapping at which a search begins, of a region; None for an instance on each node and no
    fused loops. progress: called with the share of the work that is done; the search without further double buffering
    counts as half. Raises `MappingError`, for the program without further double buffering, if no mapping fits."""
    return _BufferSearch(region, at_most, machine, start or _unfused, progress).best()


def _unfused(region: Region) -> Mapped:
    return Mapped.start(mapping_graph(region), fuse=False)


class _BufferSearch:
    """The choices that were looked at. found: the best mapping. bounds: cycles that no mapping of each has fewer of."""

    def __init__(
        self,
        region: Region,
        at_most: int,
        machine: MeshDescription | None,
        start: Callable[[Region], Mapped],
        progress: Progress,
    ) -> None:
        self.region, self.at_most, self.machine, self.start = region, at_most, machine, start
        self.progress, self.done, self.part = progress, 0.0, 0.5
        self.found: BestMapping | None = None
        self.states = self.fitting = 0
        self.all_seen = True
        self.bounds: list[int] = []

    def best(self) -> BestMapping:
        """Look at choices; return the best mapping. Raises `MappingError` if nothing fits."""
        self._look(self.start(self.region))
        single = {name: made for name in self._open() if (made := self._checked(frozenset((name,)))) is not None}
        tried = self._tried(single)
        all_choices = 1 << len(tried) <= CHOICES
        self.part = 0.5 / max(1, (1 << len(tried)) - 1 if all_choices else len(tried))
        if all_choices:
            for count in range(1, len(tried) + 1):
                for names in combinations(tried, count):
                    made = single[names[0]] if count == 1 else self._checked(frozenset(names))
                    if made is not None:
                        self._offer(made)
        else:
            self._one_by_one(tried, single)
        if self.found is None:  # say why the program does not fit as it is
            start = self.start(self.region)
            self.found = search(start.graph, self.at_most, self.machine, start=start)
        bound = min(self.bounds)
        return replace(self.found, states=self.states, fitting=self.fitting, bound=bound, all_seen=self.all_seen)

    def _open(self) -> Iterator[str]:
        """Tasks that are not double buffered, and whose tensors take cycles."""
        region = self.region
        buffered = {decl.buffer_of for decl in region.streams}
        for task in region.tasks:
            timed = datapath_of(task, region.rates, region.float_add, region.variants) is not None
            if timed and task.parameters and task.name not in buffered and not task.part:
                yield task.name

    def _checked(self, names: frozenset[str]) -> Region | None:
        """The program with more tasks double buffered; None if it has mistakes."""
        made = read_again(self.region, self.region.buffered | names)
        return None if report_on(made).code else made

    def _offer(self, region: Region) -> bool:
        """Map a choice, if the primitives that are given apply to it, and return as `_look`."""
        try:
            start = self.start(region)
        except MappingError:  # a node with buffers needs more bytes
            return False
        return self._look(start)

    def _look(self, start: Mapped) -> bool:
        """Map a choice, if it may be the best; return whether it is, so far."""
        self.bounds.append(least_cycles(start, self.at_most))
        if self.found is not None and self.bounds[-1] > self.found.cost.cycles:
            return False
        done, part = self.done, self.part
        found = search_from(start, self.at_most, self.machine, lambda share: self.progress(done + part * share))
        self.done += part
        if found is None:
            return False
        self.states += found.states
        self.fitting += found.fitting
        self.all_seen = self.all_seen and found.all_seen
        if self.found is not None and found.cost >= self.found.cost:
            return False
        self.found = found
        return True

    def _tried(self, single: Mapping[str, Region]) -> list[str]:
        """The tasks that are tried. In a program of which not all mappings are looked at, these are the ones of which
        some instance takes fewer cycles with buffers."""
        alone = {node.name: node.cycles for node in mapping_graph(self.region).nodes}
        if len(alone) <= NODES:
            return [*single]
        graphs = {name: mapping_graph(made) for name, made in single.items()}
        tried = [name for name, graph in graphs.items() if any(x.cycles < alone[x.name] for x in graph.nodes)]
        if len(tried) < len(single) or 1 << len(tried) > CHOICES:
            self._leave_out([mapping_graph(self.region), *graphs.values()])
        return tried

    def _leave_out(self, graphs: Sequence[MappingGraph]) -> None:
        """Note that not all choices are looked at. graphs: of the program, and with each task alone double buffered."""
        self.all_seen = False
        work, least = dict[str, int](), dict[str, int]()
        for node in (node for graph in graphs for node in graph.nodes):
            work[node.name] = min(node.computing, work.get(node.name, node.computing))
            least[node.name] = min(node.cycles, least.get(node.name, node.cycles))
        self.bounds.append(max(-(-sum(work.values()) // self.at_most), *least.values()))

    def _one_by_one(self, tried: Sequence[str], single: Mapping[str, Region]) -> None:
        """Add the tasks to the choice that make the cost less, in the order of the file."""
        taken = frozenset[str]()
        for name in tried:
            made = self._checked(taken | {name}) if taken else single[name]
            if made is not None and self._offer(made):
                taken |= {name}
