"""The rows of the paper's tables, each with the value that the model of the machine gives.

A table is a generator of rows. The published value of a row is looked up in `paper.toml` by its key.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache, cached_property
from importlib import resources
from math import inf
from typing import Any, ClassVar

from ...hw.sim.machine import launch_seconds
from ...isa.instruction_path import plan_of
from ...isa.layout import padded
from ...isa.overlay import Overlay
from ...isa.overlays.xnn import XNN, XNN_BASE
from ...isa.overlays.xnn.formats import Mme
from ...isa.program import Program
from ...isa.statistics import count
from ...isa.versal.logic import TILES_PER_MME
from ...machine.description import Rate
from ...machine.resources import VC1902
from ...machine.timing import RunTiming
from ...scheduler.best import Best
from ...scheduler.build import build
from ...scheduler.graph import AttentionLayer, LayerGraph
from ...scheduler.mapping import AttentionShape, Estimate, MappingType, PeakRates, estimate
from ...scheduler.schedule import PAPER, STRICT, Schedule, Segment
from . import networks

BANDWIDTHS = ("ddr_read_gbs", "ddr_write_gbs", "lpddr_read_gbs")
TILE_ROWS, TILE_COLS = 768, 1024
"""Size of an output tile (paper section 5.3)."""
_COMPUTE_CAUSES = ("MME compute", "MME set-up", "post-op")
COMPUTE = tuple(name for name, rate in XNN_BASE.rates.items() if rate.cause in _COMPUTE_CAUSES)
"""The rates of computation, whose times `infinite compute` sets to 0."""


@dataclass(frozen=True)
class Fit:
    """What was fitted on a row. constants: names of constants of the model; empty if only the units of the row were
    inferred from it. certain: whether it is recorded that the row was used. how: in which way the row was used, as text
    for the output."""

    constants: tuple[str, ...] = ()
    certain: bool = True
    how: str = "fitted on it"


PERHAPS_NOTE = (
    "perhaps fitted on: the off-chip set-up was fitted on rows of the encoder, and the time of a LayerNorm on rows of "
    "L=384; which rows is not recorded"
)
OWN_PACKING = "of our program: packed tighter than the authors'"
"""Note on rows that count instructions."""
FAR = 6.0
"""Percent of error beyond which a row gets an explanation, or the remark that there is none."""


@dataclass(frozen=True)
class Notes:
    """The notes of `notes.toml` on the published numbers of a paper, by the key of a number or by a pattern of keys.
    fits: what was fitted on a row; if several patterns match, the last one counts. known: what a reader must know of a
    row. explained: why the error of a row is beyond `FAR`. untimed: why a row compares no times. not_reproduced: why a
    number has no row."""

    fits: dict[str, Fit]
    known: Mapping[str, str]
    explained: Mapping[str, str]
    untimed: Mapping[str, str]
    not_reproduced: Mapping[str, str]

    @staticmethod
    def of(name: str, how: str = "fitted on it") -> Notes:
        """Return the notes on a paper. name: its table in `notes.toml`; raises `KeyError` for one that is not there.
        how: `Fit.how` of all its rows."""
        tables = read_toml("notes.toml")[name]
        fits = {pattern: Fit(tuple(found), True, how) for pattern, found in tables["fitted"].items()}
        perhaps = tables.get("perhaps_fitted", {})
        fits |= {pattern: Fit(tuple(found), False, how) for pattern, found in perhaps.items()}
        texts = (tables.get(of, {}) for of in ("known", "explained", "untimed", "not_reproduced"))
        return Notes(fits, *texts)


def read_toml(name: str) -> dict[str, Any]:
    """Return the tables of a TOML file of this folder. name: of the file. Raises `OSError` for a file that is not
    there."""
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


NOTES = Notes.of("paper")


@cache
def published() -> dict[str, Any]:
    """Return all published numbers of the paper by key: the names on the path to each in `paper.toml`, joined by
    dots."""
    return leaves(paper())


@cache
def paper() -> dict[str, Any]:
    """Return the published numbers of the paper by table, as `paper.toml` has them."""
    return read_toml("paper.toml")


def leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the numbers (and lists of shapes) of nested tables by key: the names on the path to each, joined by dots,
    behind `prefix`."""
    out: dict[str, Any] = {}
    for name, value in tree.items():
        out |= leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return out


@dataclass(frozen=True)
class PublishedRow:
    """A published number and the modelled one.

    table, row: names of both as the output shows them. key: of the published number in `paper.toml`. note: a text that
    the output shows before the notes of `notes.toml`. model: the modelled value, in `unit`; unit: of both values.
    bound: a text that replaces `{bound}` in the notes of `notes.toml`.
    """

    NOTES: ClassVar = NOTES

    table: str
    row: str
    key: str
    model: float
    unit: str = "ms"
    note: str = ""
    bound: str = ""

    @cached_property
    def paper(self) -> float:
        """The published value, in `unit`. Raises `KeyError` for a key that `paper.toml` does not have."""
        return float(published()[self.key])

    @property
    def error_pct(self) -> float:
        """The modelled value minus the published one, in percent of the published one."""
        return 100 * (self.model / self.paper - 1)

    @cached_property
    def fit(self) -> Fit | None:
        """What was fitted on this row; None for a prediction."""
        return next((fit for pattern, fit in reversed(self.NOTES.fits.items()) if fnmatch(self.key, pattern)), None)

    @property
    def kind(self) -> str:
        """Either "predicted", if nothing was fitted on the row, or "calibrated"."""
        return "predicted" if self.fit is None else "calibrated"

    @property
    def far(self) -> bool:
        """Whether the error is larger than `FAR` percent, in either direction."""
        return abs(self.error_pct) > FAR

    @property
    def explanation(self) -> str:
        """The note on the row that says why its error is larger than `FAR` percent; "" if there is none."""
        return self._noted(self.NOTES.explained)

    @property
    def known(self) -> str:
        """The row's own note, and what `notes.toml` says of the published number; "" if there is neither."""
        return "; ".join(filter(None, (self.note, self._noted(self.NOTES.known))))

    @property
    def untimed(self) -> str:
        """Why the row's error does not show how exact the modelled times are; "" if it does."""
        return self._noted(self.NOTES.untimed)

    def _noted(self, notes: Mapping[str, str]) -> str:
        """The first note whose pattern fits the row's key, "" if there is none."""
        return next(
            (text.format(bound=self.bound) for pattern, text in notes.items() if fnmatch(self.key, pattern)), ""
        )

    @property
    def timed(self) -> bool:
        """Whether the row compares a modelled time with a published one, so that its error is an error of the modelled
        times."""
        return not self.untimed

    @property
    def fitted(self) -> str:
        """The constants of the model that were fitted on the row, as text; "" if there are none."""
        if self.fit is None or not self.fit.constants:
            return ""
        return f"{'' if self.fit.certain else 'perhaps '}{self.fit.how}: {', '.join(self.fit.constants)}"

    @property
    def notes(self) -> str:
        """`known`, and a remark if it is not recorded whether constants were fitted on the row; as text."""
        perhaps = PERHAPS_NOTE if self.fit is not None and not self.fit.certain else ""
        return "; ".join(filter(None, (self.known, perhaps)))

    def as_json(self) -> dict[str, Any]:
        """Return the row as a JSON object: values in `unit`, the error in percent, and the notes."""
        facts: dict[str, Any] = {"table": self.table, "row": self.row, "paper": self.paper, "model": self.model}
        facts |= {"error_pct": self.error_pct, "kind": self.kind, "unit": self.unit, "timed": self.timed}
        if self.fit is not None:
            facts["fitted"] = list(self.fit.constants)
        if self.untimed:
            facts["untimed"] = self.untimed
        if self.notes:
            facts["note"] = self.notes
        if self.far:
            facts["explanation"] = self.explanation or None
        return facts


class Bench:
    """Builds and times programs, each once, for the base overlay and for the extended one with the same rates. Times
    are those of packed programs, with the instruction path.

    schedule: of programs for which none is named. rates: changed rates or depths of the base overlay, by the names in
    `rsn overlay`; raises `ProgramError` for an unknown name.
    """

    def __init__(self, schedule: Schedule | Best, rates: Mapping[str, float] | None = None) -> None:
        self.schedule = schedule
        self.base = XNN_BASE.with_rates(**dict(rates or {}))
        self.extended = dataclasses.replace(XNN, **_parameters(self.base))
        self._programs: dict[tuple[LayerGraph, str, bool], Program] = {}

    def program(self, network: LayerGraph, schedule: Schedule | Best | None = None, extended: bool = False) -> Program:
        """Return the program of a network, which is built once. schedule: None for that of the bench. extended: for the
        overlay with opcodes 8 to 14, not for the base overlay. Raises as `scheduler.build.build`."""
        schedule = schedule or self.schedule
        key = network, repr(schedule), extended
        if key not in self._programs:
            self._programs[key] = build(network, self.extended if extended else self.base, schedule).program
        return self._programs[key]

    def timing(
        self,
        network: LayerGraph,
        schedule: Schedule | Best | None = None,
        *,
        overlay: Overlay | None = None,
        extended: bool = False,
    ) -> RunTiming:
        """Return the timing of a network's program, in seconds, without the launch. overlay: the base overlay with
        other rates, on which the same program is timed. Other arguments as for `program`."""
        return plan_of(self.program(network, schedule, extended)).run(overlay)

    def ms(self, network: LayerGraph, schedule: Schedule | Best | None = None, *, extended: bool = False) -> float:
        """Return the milliseconds of a network's program, with the launch. Arguments as for `program`."""
        return 1e3 * (self.timing(network, schedule, extended=extended).latency + launch_seconds(self.base))

    def program_ms(self, program: Program) -> float:
        """Return the milliseconds of a program, with the launch."""
        return 1e3 * (plan_of(program).run().latency + launch_seconds(self.base))

    def forget(self, network: LayerGraph) -> None:
        """Drop a network's programs and traces, which are large for a long program."""
        for key in [key for key in self._programs if key[0] is network]:
            del self._programs[key]


def _parameters(overlay: Overlay) -> dict[str, Any]:
    return {name: getattr(overlay, name) for name in ("rates", "mop_fifo_depth", "uop_fifo_depth")}


def table3(bench: Bench) -> Iterator[PublishedRow]:
    """Yield the estimates of Table 3: attention by mapping type, times in ms, and the share of AIE tiles in use."""
    shape = AttentionShape(96, 512)
    for kind in (MappingType.A, MappingType.B, MappingType.C, MappingType.D):
        ours, plain = (
            _columns(estimate(kind, shape, r)) for r in (PeakRates.published(bench.base), PeakRates.of(bench.base))
        )
        for name, what in TABLE3_COLUMNS.items():
            unit, note = "ms", f"in the table's own units; in ours {plain[name]:.4g}"
            if name == "aie_used":
                unit, note = "of all tiles", ""
            yield PublishedRow("table3", f"{kind.name}: {what}", f"table3.{kind.name}.{name}", ours[name], unit, note)


TABLE3_COLUMNS = {
    "inf_flops": "latency with infinite FLOPS",
    "aie_used": "AIE used",
    "mm1_inf_bw": "MM1 with infinite bandwidth",
    "mm2_inf_bw": "MM2 with infinite bandwidth",
    "inf_bw": "latency with infinite bandwidth",
    "final": "final latency",
}


def _columns(e: Estimate) -> dict[str, float]:
    """Return the columns of Table 3 by name; times in ms."""
    seconds = {"inf_flops": e.inf_flops_s, "mm1_inf_bw": e.mm1_s, "mm2_inf_bw": e.mm2_s}
    seconds |= {"inf_bw": e.inf_bw_s, "final": e.final_s}
    aie = e.units * TILES_PER_MME / VC1902.capacities["AIE"].amount
    return {"aie_used": aie} | {name: 1e3 * s for name, s in seconds.items()}


def table6(bench: Bench) -> Iterator[PublishedRow]:
    """Yield Table 6: products of square matrices, in GFLOPS."""

    def gflops(n: int, ms: float) -> float:
        return 2 * n**3 / ms / 1e6

    for n in (1024, 3072, 6144):
        whole = gflops(n, bench.ms(networks.product(padded(n, TILE_ROWS), n, n), PAPER))
        model = gflops(n, bench.ms(networks.product(n, n, n)))
        yield PublishedRow("table6", f"square {n}", f"table6.rsn_xnn.{n}", model, "GFLOPS", bound=f"{whole:.0f} GFLOPS")


def table7(bench: Bench) -> Iterator[PublishedRow]:
    """Yield Table 7: latencies of four networks, in ms."""
    shapes = paper()["charm_shapes"]
    yield PublishedRow(
        "table7", "BERT", "table7.rsn_xnn.BERT", bench.ms(networks.encoder(6, 512)), note="one encoder, B=6"
    )
    whole = bench.ms(networks.vit(shapes["VIT"], 48, 64), extended=True)
    note = (
        f"48 sequences of 64 rows timed as 24 of 128, for which there is no mask; padded to 48 of 128: {whole:.1f} ms"
    )
    time = bench.ms(networks.vit(shapes["VIT"], 24, 128), extended=True)
    yield PublishedRow("table7", "ViT", "table7.rsn_xnn.VIT", time, note=note)
    launch = 1e3 * launch_seconds(bench.base)
    whole = launch + sum(
        bench.ms(networks.product(m, k, padded(n, TILE_COLS)), PAPER) - launch for m, k, n in shapes["NCF"]
    )
    yield PublishedRow(
        "table7", "NCF", "table7.rsn_xnn.NCF", bench.ms(networks.ncf(shapes["NCF"])), bound=f"{whole:.1f} ms"
    )
    yield PublishedRow("table7", "MLP", "table7.rsn_xnn.MLP", bench.ms(networks.mlp(shapes["MLP"])))


def table9(bench: Bench) -> Iterator[PublishedRow]:
    """Yield Table 9: parts of an encoder layer, in ms; and the times of one head on MemC of section 4.3, in us."""

    def row(name: str, column: str, model: float, note: str = "", unit: str = "ms") -> PublishedRow:
        what = f"{name.replace('_', ' ')}, {column.replace('_', ' ')}"
        return PublishedRow("table9", what, f"table9.{name}.{column}", model, unit, note)

    for name in ("key", "query", "value"):
        yield row(name, "no_optimize", bench.ms(networks.segment(name), STRICT))
        yield row(name, "bw_optimized", bench.ms(networks.segment(name)))
    yield row("qkv", "together", bench.ms(networks.segment("qkv")))
    for second, name in ((False, "attention_mm1"), (True, "attention_mm2")):
        program = networks.attention_half(second, bench.base, STRICT)
        yield row(name, "no_optimize", bench.program_ms(program), "mapping type B: the scores go through DDR")
    yield row("attention", "pipelined", bench.ms(networks.segment("attention")), "mapping type D")
    head = estimate(MappingType.D, AttentionShape(1, 512), PeakRates.of(bench.base))
    for name, what, seconds in (("recv_us", "receives", head.mm1_s), ("send_us", "sends", head.mm2_s)):
        model, note = 1e6 * seconds, "products alone (section 4.3)"
        yield PublishedRow("table9", f"MemC {what} the scores of a head", f"section43.{name}", model, "us", note)
    for name in ("dense", "ff1", "ff2"):
        yield row(name, "no_optimize", bench.ms(networks.segment(name), STRICT))
        yield row(name, "bw_optimized", bench.ms(networks.segment(name)))
    yield row("dense_ff", "together", bench.ms(networks.segment("dense_ff")))
    yield row("encoder", "final", bench.ms(networks.encoder(6, 512)))


def fig18(bench: Bench) -> Iterator[PublishedRow]:
    """Yield Fig. 18: an encoder layer by batch size: latency in ms, share of peak, tasks per second."""
    note = "off-chip set-up was fitted on encoder rows: B=6 as far as is recorded"
    b1, b3, b6 = (bench.ms(networks.encoder(batch, 512)) for batch in (1, 3, 6))
    rows = [bench.ms(networks.encoder_products(n), PAPER) for n in (512, padded(512, TILE_ROWS))]
    yield PublishedRow(
        "fig18", "B=1 latency", "fig18.latency_b1", b1, note=note, bound=f"{b1 + rows[1] - rows[0]:.2f} ms"
    )
    yield PublishedRow("fig18", "B=3 share of peak", "fig18.fraction_of_peak_b3", 3 / b3 / (6 / b6), "of B=6", note)
    yield PublishedRow("fig18", "B=6 throughput", "fig18.tasks_per_s_b6", 6e3 / b6, "tasks/s")


_PROJECTIONS_APART = Schedule(
    whole_tiles=True, segments=tuple(Segment(f"*.{name}", overlap=False) for name in ("q", "k", "v"))
)
"""Each of Q, K and V stored before what follows is loaded; all else overlaps."""


def table10(bench: Bench) -> Iterator[PublishedRow]:
    """Yield Table 10: 24 layers of BERT-Large by batch size, in ms; and their off-chip traffic, in GB."""
    facts = paper()["table10"]
    for batch in ("1", "2", "4", "8"):
        gpus = ", ".join(f"{gpu} {facts[gpu][batch]}" for gpu in ("T4", "V100", "A100", "L4"))
        network = networks.encoder(int(batch), 384, 24)
        model = bench.ms(network)
        bound = f"{bench.ms(network, _PROJECTIONS_APART):.1f} ms" if batch == "1" else ""
        what, key = f"VCK190, B={batch}", f"table10.vck190.{batch}"
        yield PublishedRow("table10", what, key, model, note=f"published: {gpus}", bound=bound)
        if batch != "8":
            bench.forget(network)
    moved = bench.timing(network).amounts
    size = sum(moved[name] for name in BANDWIDTHS)
    bound = f"{size / 1000 / 2**20:.1f}"
    yield PublishedRow("table10", "DRAM accesses, B=8", "table10.dram_gb_b8", size / 1e9, "GB", bound=bound)


def table11(bench: Bench) -> Iterator[PublishedRow]:
    """Yield Table 11: 24 layers of BERT-Large by bandwidth, in ms (section 5.7)."""
    network = networks.encoder(8, 384, 24)
    rates = bench.base.rates
    moved = bench.timing(network).amounts

    def ms(**changed: float) -> float:
        overlay = bench.base.with_rates(**changed)
        return 1e3 * (bench.timing(network, overlay=overlay).latency + launch_seconds(overlay))

    def ddr_ms(factor: float) -> str:
        seconds = sum(moved[name] * bench.base.seconds[name] for name in ("ddr_read_gbs", "ddr_write_gbs"))
        return f"{1e3 * seconds / factor:.0f} ms"

    note = "the program ordered for the board's bandwidth"
    for name in ("0.5", "1", "2", "3"):
        factor = float(name)
        time = ms(**_sweep(rates, factor))
        yield PublishedRow(
            "table11", f"bandwidth x {name}", f"table11.factor.{name}", time, note=note, bound=ddr_ms(factor)
        )
    products = ("mme_tile_us", "mme_k64_us", "mme_n64_us")
    mme = max(_busy_ms(bench, network, f"MME{i}", products) for i in range(6))
    time = ms(**_sweep(rates, inf), mme_setup_us=0, offchip_uop=0, launch_us=0)
    yield PublishedRow(
        "table11", "infinite bandwidth, no set-up", "table11.inf_bw_no_setup", time, note=note, bound=f"{mme:.0f} ms"
    )
    time = ms(**dict.fromkeys(COMPUTE, 0.0))
    yield PublishedRow("table11", "infinite compute", "table11.inf_compute", time, note=note, bound=ddr_ms(1))


def _sweep(rates: Mapping[str, Rate], factor: float) -> dict[str, float]:
    """Return the rates for `factor` times the bandwidth. The paper changed the amount of data instead, and padded the
    rest on chip (paper section 5.7): so words between an off-chip unit and a Mem take less time too."""
    return {bus: rates[bus].value * factor for bus in BANDWIDTHS} | {"mem_word": rates["mem_word"].value / factor}


def _busy_ms(bench: Bench, network: LayerGraph, unit: str, rates: tuple[str, ...]) -> float:
    """Return the milliseconds that the products of one MME take together. rates: names of the times of a tile product
    in full, K = 64 and N = 64 mode."""
    seconds = 0.0
    for op in bench.program(network).preloaded[unit]:
        assert isinstance(op, Mme)
        times = op.a_iter * op.b_iter * op.k_iter * op.acc_a * op.acc_b
        rate = rates[0] if op.k128 and op.n128 else rates[1] if op.n128 else rates[2]
        seconds += times * bench.base.seconds[rate]
    return 1e3 * seconds


def fig9(bench: Bench) -> Iterator[PublishedRow]:
    """Yield Fig. 9 and section 5.1: counts and bytes of the instructions of an encoder layer."""
    network = networks.encoder(6, 512)
    program = bench.program(network)
    sizes = count(program)

    def row(what: str, key: str, model: float, unit: str = "") -> PublishedRow:
        return PublishedRow("fig9", what, f"instructions.{key}", model, unit, OWN_PACKING)

    yield row("instructions", "total", sizes["mops"]["total"])
    for fu in paper()["instructions"]["by_fu"]:
        yield row(f"instructions, {fu}", f"by_fu.{fu}", sizes["mops"][fu])
    yield row("uOPs of an MME", "mme_uops", sizes["uops"]["MME"])
    ratio = {fu: sizes["uop_bytes"][fu] / sizes["bytes"][fu] for fu in paper()["instructions"]["by_fu"]}
    for side, fus in (("offchip", ["DDR", "LPDDR"]), ("onchip", [fu for fu in ratio if "DDR" not in fu])):
        for end, pick in (("lowest", min), ("highest", max)):
            what = f"uOP bytes to instruction bytes, {side}, {end}"
            yield row(what, f"expansion.{side}_{end}", pick(ratio[fu] for fu in fus), "x")
    preloaded = sum(4 * TILES_PER_MME * len(ops) for ops in program.preloaded.values())
    image = sizes["bytes"]["total"]
    density = _flops(network) / 1e6 / (image + preloaded)
    yield row("MFLOP to a byte of instructions", "mflop_per_byte", density, "MFLOP")
    yield row("instruction rate", "mb_per_s", image / 1e3 / bench.ms(network), "MB/s")


def _flops(network: LayerGraph) -> int:
    rows = network.batch * network.seq
    out = 0
    for layer in network.layers:
        if isinstance(layer, AttentionLayer):
            out += 4 * rows * network.seq * layer.heads * layer.head_dim
        else:
            k, n = layer.weight.shape
            out += 2 * rows * k * n
    return out


TABLES: dict[str, Callable[[Bench], Iterator[PublishedRow]]] = {
    "table3": table3,
    "table6": table6,
    "table7": table7,
    "table9": table9,
    "fig18": fig18,
    "table10": table10,
    "table11": table11,
    "fig9": fig9,
}
"""In the order of `rsn reproduce all`: slow tables last, tables of the same programs next to each other."""

SHARES = {"table3": 0, "table6": 2, "table7": 2, "table9": 2, "fig18": 1, "table10": 10, "table11": 3, "fig9": 1}
"""Rough seconds that each table takes, for the progress bar."""


def rows_of(
    tables: list[str],
    schedule: Schedule | Best,
    rates: Mapping[str, float] | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> list[PublishedRow]:
    """Return the rows of some tables, in order. tables: names of `TABLES`; raises `KeyError` for another one.

    schedule: of what the paper calls optimised. rates: changed rates or depths, by the names in `rsn overlay`.
    progress: called with the share that is done, 0 to 1.
    """
    bench = Bench(schedule, rates)
    total, done = sum(SHARES[t] for t in tables), 0
    out: list[PublishedRow] = []
    for table in tables:
        out += TABLES[table](bench)
        done += SHARES[table]
        progress(done / total if total else 1.0)
    return out


def calibrated_parameters() -> list[str]:
    """Return the names of the rates that were fitted on published rows."""
    return [name for name, rate in XNN_BASE.rates.items() if rate.calibrated]
