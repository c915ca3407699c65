"""The first lines of `explain`: each module's share of the model's FLOPs and of its modelled time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from ..scheduler.bounds import ProgramBound
from ..scheduler.graph import TOP

MAX_LINES = 16
"""Largest number of module lines in a summary."""
ITSELF = "(itself)"
"""The line for operators of a module that are in none of its submodules."""


@dataclass(frozen=True)
class ModuleWork:
    """Work of a module in one call, without its submodules. path: of the module. flops: as `FlopCounter` counts, 2 for
    a multiply and add. on_machine: the machine computes them. seconds: modelled time on the machine."""

    path: str
    flops: int = 0
    on_machine: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Modelled:
    """The modelled times of a program, in seconds. latency_s: from launch to end. layers: the time of each layer, by
    the name of its result: from the last store of the layer before to its own last store. segments: the time of each
    segment, by name, counted in the same way. bound: lower bounds for these times; None if there are none. four_bits:
    the names of the results of layers whose weights have 4 bits; None for an overlay that computes in float32."""

    latency_s: float
    layers: Mapping[str, float]
    segments: Mapping[str, float] = field(default_factory=dict)
    bound: ProgramBound | None = None
    four_bits: frozenset[str] | None = None


@dataclass
class _Module:
    """A module with its submodules, or several equal modules. flops, seconds: totals. machine_flops: the part of
    `flops` that the machine computes."""

    name: str
    flops: int = 0
    machine_flops: int = 0
    seconds: float = 0.0
    parts: dict[str, _Module] = field(default_factory=dict)

    def add(self, work: ModuleWork) -> None:
        """Add work to the totals."""
        self.flops += work.flops
        self.machine_flops += work.flops * work.on_machine
        self.seconds += work.seconds

    @property
    def kind(self) -> object:
        """A key that is equal for modules with equal FLOPs in equal places. Times are left out, because they differ
        between equal layers."""
        parts = [(part.name, part.kind) for part in self.parts.values() if part.flops]
        return self.flops, self.machine_flops, tuple(sorted(parts, key=lambda x: x[0]))


def head(work: Sequence[ModuleWork], latency_s: float | None) -> str:
    """Return the machine's share of all FLOPs as text. work: of all modules. latency_s: adds the modelled latency,
    given in seconds; None leaves it out."""
    total = sum(x.flops for x in work)
    own = sum(x.flops for x in work if x.on_machine)
    unit, name = _flop_unit(total)
    words = f"{_percent(own, total).strip()} of {total / unit:.4g} {name}" if total else "no FLOPs"
    return words if latency_s is None else f"{words}, modelled latency {_time(latency_s)}"


def table(work: Iterable[ModuleWork], latency_s: float | None = None) -> list[str]:
    """Return a table as lines of text: FLOPs and modelled time of each module, with equal layers in one line and
    without modules that have neither. work: of all modules. latency_s: modelled latency in seconds; None omits the
    columns of time."""
    root = _tree(work)
    rows = list(_shown(root))
    total, timed = root.flops, latency_s is not None
    unit, name = _flop_unit(total)
    second, in_ms = (1e3, "ms") if (latency_s or 0) >= 1e-3 else (1e6, "us")
    heads = ["module", name, "of all", "on the machine", f"modelled {in_ms}", "of all"]
    cells = [heads if timed else heads[:4]]

    def row(name: str, x: _Module) -> list[str]:
        flops = [f"{x.flops / unit:.3f}", _percent(x.flops, total), _percent(x.machine_flops, x.flops)]
        times = [f"{x.seconds * second:.3f}", _percent(x.seconds, latency_s or 0)]
        return [name, *(flops if x.flops else ["-"] * 3), *((times if x.seconds else ["-"] * 2) if timed else [])]

    cells += [row("  " * depth + x.name, x) for depth, x in rows]
    rest = (latency_s or 0) - root.seconds
    if timed and rest > 1e-9:
        cells.append(row("launch", _Module("", seconds=rest)))
    cells.append(row("total", replace(root, seconds=latency_s or 0.0)))
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = [
        "  ".join([line[0].ljust(widths[0]), *(x.rjust(w) for x, w in zip(line[1:], widths[1:], strict=True))])
        for line in cells
    ]
    lines.append("FLOPs: products, convolutions and attention at the model's sizes, 2 for a multiply and add")
    if timed:
        lines.append("modelled: the machine's time up to the module's last store, from the store before it;")
        lines.append("what PyTorch computes on the host is not timed")
    return lines


def _tree(work: Iterable[ModuleWork]) -> _Module:
    """The tree of modules by path, with equal list members merged, without modules that have neither FLOPs nor time."""
    root = _Module("")
    for x in work:
        at = root
        at.add(x)
        for name in x.path.split(".") if x.path else (TOP,):
            at = at.parts.setdefault(name, _Module(name))
            at.add(x)
        # Kept as a part, so that the parts of a module add up to it.
        at.parts.setdefault(ITSELF, _Module(ITSELF)).add(x)
    return _joined(_folded(root))


def _folded(module: _Module) -> _Module:
    """The module with equal numbered parts merged, and without parts that have neither FLOPs nor time."""
    named: dict[object, list[_Module]] = {}
    for part in (_folded(part) for part in module.parts.values() if part.flops or part.seconds):
        named.setdefault((part.kind if part.name.isdigit() else part.name), []).append(part)
    merged = map(_merged, named.values())
    return replace(module, parts={part.name: part for part in merged})


def _joined(module: _Module) -> _Module:
    """The module without levels that contain a single module; their names are joined."""
    parts = [_joined(part) for part in module.parts.values()]
    if len(parts) == 1 and parts[0].name == ITSELF:
        return replace(module, parts={})
    if len(parts) == 1 and module.name:
        return replace(parts[0], name=f"{module.name}.{parts[0].name}")
    return replace(module, parts={part.name: part for part in parts})


def _merged(group: Sequence[_Module]) -> _Module:
    """Merge several modules into one, part by part."""
    if len(group) == 1:
        return group[0]
    parts: dict[str, list[_Module]] = {}
    for part in (part for module in group for part in module.parts.values()):
        parts.setdefault(part.name, []).append(part)
    name = group[0].name if len({x.name for x in group}) == 1 else _ranges(sorted(int(x.name) for x in group))
    return _Module(
        name,
        sum(x.flops for x in group),
        sum(x.machine_flops for x in group),
        sum(x.seconds for x in group),
        {name: _merged(same) for name, same in parts.items()},
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers as ranges, such as 0-11 or 0,2,5-7."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _shown(root: _Module) -> Iterable[tuple[int, _Module]]:
    """The modules to show with their depth, at most MAX_LINES; modules with the largest share are expanded first."""
    opened = {id(root)}

    def visible(module: _Module, depth: int) -> list[tuple[int, _Module]]:
        found = []
        for part in module.parts.values():
            found.append((depth, part))
            found += visible(part, depth + 1) if id(part) in opened else []
        return found

    def share(module: _Module) -> float:
        by_time = module.seconds / root.seconds if root.seconds else 0.0
        return max(by_time, module.flops / root.flops if root.flops else 0.0)

    while True:
        lines = visible(root, 0)
        room = MAX_LINES - len(lines)
        closed = [x for _, x in lines if x.parts and id(x) not in opened and len(x.parts) <= room]
        if not closed:
            break
        opened.add(id(max(closed, key=share)))
    if len(lines) <= MAX_LINES:
        return lines
    kept = sorted(lines, key=lambda line: -share(line[1]))[: MAX_LINES - 1]
    kept_ids = {id(x) for _, x in kept}
    rest = [x for _, x in lines if id(x) not in kept_ids]
    others = _merged([replace(x, name=f"{len(rest)} others", parts={}) for x in rest])
    return [*(line for line in lines if id(line[1]) in kept_ids), (0, others)]


def _flop_unit(flops: int) -> tuple[float, str]:
    units = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"))
    return next((unit for unit in units if flops >= unit[0]), (1.0, "FLOP"))


def _percent(part: float, whole: float) -> str:
    """A share as rounded text. "100.0 %" and "0.0 %" are used only for exactly all and nothing; "" if `whole` is 0."""
    if not whole:
        return ""
    share = 100 * part / whole
    text = f"{share:.1f}"
    if 0 < part < whole and text in ("100.0", "0.0"):
        text = ">99.9" if share > 50 else "<0.1"
    return f"{text} %"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
