"""The cases of programs/streams beside published figures of Dato (arXiv 2509.06794).

    python benchmarks/streams_cases.py [lines] [systolic] [attention] [scaling] [mapping]

Without names of tables it prints all of them. Each column says where it is from. *counted*: lines, operations and bytes
of our programs. *modelled*: clock cycles of our model of time, in which the operations of a beat fire at once, and a
token is visible when its beat ends; nothing was measured on a device. *published*: read from the paper; its figures are
of devices, so that they show a range or a shape, and are no reference for ours.
"""

from __future__ import annotations

import ast
import tokenize
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from math import prod
from typing import Any
from unittest.mock import patch

import numpy as np

from rsn.benchmarks.measuring import command_line, print_tables
from rsn.host.tasks import run_tasks
from rsn.isa.overlays.tasks.unit import TensorPart
from rsn.streams.build import build
from rsn.streams.check import check
from rsn.streams.mapping.buffering import search_buffered
from rsn.streams.mapping.errors import MappingError
from rsn.streams.mapping.graph import mapping_graph
from rsn.streams.mapping.machine import MeshDescription
from rsn.streams.mapping.mapping import Mapped
from rsn.streams.mapping.search import search
from rsn.streams.reader import Rates, read
from rsn.streams.run import fire_together, stream_depths
from rsn.streams.timing.timed import BeatTiming, TimedProgram
from rsn.streams.tree import Region
from rsn.tests.streams.sizes import FOLDER, program_text

# -- lines ------------------------------------------------------------------------------------------------------------

PUBLISHED_LINES = {"gemm_3d": ("GEMM", 8, 101), "mha": ("MHA", 44, 239), "ffn": ("FFN", 14, 101)}
"""Case, lines of Dato and of IRON: table 2."""


def lines_of(text: str) -> tuple[int, int]:
    """Return two counts of the lines of a program. Both leave out blank lines, comments, imports and docstrings. The
    first counts lines as they stand, the second counts a statement of several lines once. text: the program. Raises
    `SyntaxError` if it is not Python."""
    tree = ast.parse(text)
    left_out: set[int] = set()
    for node in ast.walk(tree):
        first = node.body[0] if isinstance(node, ast.Module | ast.FunctionDef) else None
        docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        for part in (node if isinstance(node, ast.Import | ast.ImportFrom) else None, first if docstring else None):
            if part is not None:
                left_out.update(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    standing: set[int] = set()
    logical, begins = 0, 0
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
            continue
        begins = begins or token.start[0]
        standing.update(range(token.start[0], token.end[0] + 1))
        if token.type == tokenize.NEWLINE:
            logical += begins not in left_out
            begins = 0
    return len(standing - left_out), logical


def lines(options: Namespace) -> Iterator[str]:
    """Yield the lines of a table: lines of our programs beside those of Dato and IRON (Dato, table 2). options: not
    read."""
    yield "Lines, not blank, no comment, import or docstring; sizes and tensors count (counted; Dato, IRON: published)"
    yield f"{'':<8}{'as formatted':>14}{'statements':>12}{'Dato':>8}{'IRON':>8}"
    for program, (name, dato, iron) in PUBLISHED_LINES.items():
        formatted, statements = lines_of(program_text(program))
        yield f"{name:<8}{formatted:>14}{statements:>12}{dato:>8}{iron:>8}"


# -- time -------------------------------------------------------------------------------------------------------------


def cycles(region: Region, depth: int | None = None) -> int:
    """Return the modelled clock cycles of one execution of a program. region: read with `timed=True`. depth: of every
    stream, in tokens; None for the declared depths."""
    depths, packing = stream_depths(region)
    if depth is not None:
        depths = dict.fromkeys(depths, depth)
    bodies = fire_together([instance.beats for instance in region.instances], depths, packing).bodies
    result = TimedProgram(bodies, packing).run(depths)
    assert isinstance(result, BeatTiming)
    return result.latency


CLOCK_GHZ = 0.3
PUBLISHED_PERCENT = 97.7
ARRAY = 16
SIZES = (64, 128, 256, 512, 1024)


def systolic(options: Namespace) -> Iterator[str]:
    """Yield the lines of a table: modelled cycles of the systolic array of 16 x 16 multipliers for several packings,
    depths and sizes, beside the published utilisation (Dato). options: not read."""
    yield "Systolic array of 16 x 16, int8 (modelled), and the line cycles = tiles (n + a) + b through 64 and 128"
    yield (
        f"{'pack depth':<11}{'a':>6}{'b':>7}"
        + "".join(f"{n:>9}" for n in SIZES[:3])
        + "".join(f"{f'{n} %':>8}" for n in SIZES)
        + f"{'GOP/s at 1024':>15}{'line at 1024':>14}"
    )
    for packing in (1, 16):
        regions = [read(program_text("systolic", M=n, N=n, K=n, PACK=packing), timed=True) for n in SIZES]
        for depth in (2, 4) if packing == 1 else (2, 4, 16, 32):
            found = [cycles(region, depth) for region in regions]
            tiles = [(n // ARRAY) ** 2 for n in SIZES]
            over = [c - t * n for c, t, n in zip(found, tiles, SIZES, strict=True)]
            a = (over[1] - over[0]) / (tiles[1] - tiles[0])
            b = over[0] - a * tiles[0]
            line = [t * (n + a) + b for t, n in zip(tiles, SIZES, strict=True)]
            percent = [100 * n**3 / ARRAY**2 / c for n, c in zip(SIZES, found, strict=True)]
            rate = 2 * SIZES[-1] ** 3 / found[-1] * CLOCK_GHZ
            fits = "exact" if line[2:] == found[2:] else f"{100 * (line[-1] / found[-1] - 1):+.1f} %"
            yield (
                f"{packing:>4}{depth:>6} {a:>6.1f}{b:>7.1f}"
                + "".join(f"{c:>9}" for c in found[:3])
                + "".join(f"{p:>8.1f}" for p in percent)
                + f"{rate:>15.1f}{fits:>14}"
            )
    published = 2 * ARRAY**2 * CLOCK_GHZ * PUBLISHED_PERCENT / 100
    yield f"{'published':<83}{PUBLISHED_PERCENT:>8.1f}{published:>15.1f}"


# -- attention --------------------------------------------------------------------------------------------------------

KERNELS: Rates = {"matmul": 128, "elements": 16}
"""Multiply-adds, and elements of other kernels, in a clock cycle of a task instance."""
WORD = 4
HEADS, WIDTH, COLUMNS = 12, 768, 64


class Traffic:
    """Counts the elements that a run reads and writes in tensors off the chip."""

    def __init__(self) -> None:
        self.elements = 0

    def of(self, text: str, shapes: Mapping[str, Sequence[int]]) -> int:
        """Run a program with data; return the bytes that all runs of this object have read and written off the chip.
        text: the program. shapes: of its input tensors, by name."""
        load, store = TensorPart.__getitem__, TensorPart.__setitem__

        def loaded(part: TensorPart, index: Any) -> Any:
            value = load(part, index)
            self.elements += int(np.size(value))
            return value

        def stored(part: TensorPart, index: Any, value: Any) -> None:
            self.elements += int(np.size(value))
            store(part, index, value)

        inputs = {name: np.ones(shape, np.float32) / prod(shape) for name, shape in shapes.items()}
        with patch.object(TensorPart, "__getitem__", loaded), patch.object(TensorPart, "__setitem__", stored):
            run_tasks(build(check(text)), inputs)
        return WORD * self.elements


def mha_bytes(rows: int) -> int:
    """Return the bytes that the program `mha` reads and writes off the chip. It reads X twice, once for keys and values
    and once for queries, and each weight once. rows: of X."""
    return WORD * (3 * rows * WIDTH + 4 * WIDTH**2)


def flash_bytes(rows: int) -> int:
    """Return the bytes that the program `flash_attention` reads and writes off the chip. It reads all keys and values
    for each block of 128 queries. rows: of queries and of keys, a multiple of 128."""
    return WORD * (2 * rows * WIDTH + rows // 128 * 2 * rows * WIDTH)


def sequential_bytes(rows: int, projections: bool) -> int:
    """Return the bytes off the chip of attention if kernels run one after the other, and each reads its operands and
    writes its result once: S = Q K, softmax of S, P V. rows: of queries and of keys. projections: whether four
    projections belong to it."""
    attention = 4 * rows * WIDTH + 4 * HEADS * rows**2
    return WORD * (attention + projections * 4 * (2 * rows * WIDTH + WIDTH**2))


def attention(options: Namespace) -> Iterator[str]:
    """Yield the lines of a table: modelled cycles and MB (10**6 bytes) off the chip of attention with and without
    projections, for several lengths. options: not read. Raises `AssertionError` if a run of a short length moves other
    bytes than `mha_bytes` or `flash_bytes` says."""
    yield "Attention, 12 heads x 64, float32: MHA with its projections (48 instances), FlashAttention without (36)"
    macs, rest = KERNELS["matmul"], KERNELS["elements"]
    yield f"  cycles: modelled; an instance does {macs:g} multiply-adds, or {rest:g} elements of others, in a cycle;"
    yield "  64 elements pass a stream in a cycle, 16 a port off the chip, whose memory takes no time"
    yield "  MB off the chip: counted; fused: these programs; sequential: a kernel after another, each through memory"
    yield f"{'L':<6}{'MHA cycles':>12}{'fused MB':>10}{'sequential':>12}{'ratio':>7}" + (
        f"{'flash cycles':>14}{'fused MB':>10}{'sequential':>12}{'ratio':>7}"
    )
    for rows in (128, 256, 512, 1024, 2048):
        cells = ""
        for program, fused, projections, wide in (
            ("mha", mha_bytes(rows), True, 12),
            ("flash_attention", flash_bytes(rows), False, 14),
        ):
            text = program_text(program, L=rows)
            if rows <= 256:
                names = dict.fromkeys(("WQ", "WK", "WV", "WO"), (WIDTH, WIDTH)) | {"X": (rows, WIDTH)}
                shapes = names if projections else dict.fromkeys("QKV", (HEADS, rows, COLUMNS))
                assert Traffic().of(text, shapes) == fused, (program, rows)
            apart = sequential_bytes(rows, projections)
            clock = cycles(read(text, timed=True, rates=KERNELS))
            cells += f"{clock:>{wide}}{fused / 1e6:>10.1f}{apart / 1e6:>12.1f}{apart / fused:>7.1f}"
        yield f"{rows:<6}{cells}"


# -- scaling ----------------------------------------------------------------------------------------------------------

GEMM, TILE, ELEMENT = 2048, 64, 2
MESHES = {(1, 4): 1.0, (2, 4): 1.97, (4, 4): 3.67}
"""Rows and columns, and the published speed-up."""


def scaling(options: Namespace) -> Iterator[str]:
    """Yield the lines of a table: the modelled speed-up of a product on meshes of several sizes, beside the published
    one (Dato). options: not read."""
    yield f"GEMM {GEMM}^3 in {8 * ELEMENT}-bit tiles of {TILE}^3 on a mesh: speed-up over 1x4 (modelled)"
    yield f"  {KERNELS['matmul']:g} multiply-adds a cycle and instance; all loads together get so many bytes a cycle,"
    yield "  in equal parts for the rows that load A and the columns that load B; launches take no time"
    yield f"{'bytes a cycle':<15}" + "".join(f"{f'{r}x{c}':>8}" for r, c in MESHES) + f"{'cycles of 4x4':>16}"
    for bandwidth in (8, 16, 24, 32):
        found = []
        for rows, columns in MESHES:
            load = -(-TILE * TILE * ELEMENT * (rows + columns) // bandwidth)
            text = program_text("mesh_gemm", R=rows, C=columns, T=TILE, M=GEMM, N=GEMM, K=GEMM, LOAD=load)
            found.append(cycles(read(text, timed=True, rates=KERNELS)))
        yield f"{bandwidth:<15}" + "".join(f"{found[0] / n:>8.2f}" for n in found) + f"{found[-1]:>16}"
    yield f"{'published':<15}" + "".join(f"{s:>8.2f}" for s in MESHES.values())


# -- mapping ----------------------------------------------------------------------------------------------------------


def mapping(options: Namespace) -> Iterator[str]:
    """Yield the lines of a table: for each case the best mapping on a mesh of 4 x 4 tiles that `search` finds, or what
    such a mesh lacks. options: not read."""
    mesh = MeshDescription()
    yield f"All cases on {mesh.name}: {mesh.in_ports} input and {mesh.out_ports} output ports and {mesh.memory} bytes a"
    yield "tile (modelled); plain: without double buffers; bound: cycles that no mapping has fewer of, * where all"
    yield "mappings were looked at"
    heads = f"{'bound':>8}{'off chip':>10}{'on chip':>9}{'ports':>7}{'tile':>7}"
    yield f"{'':<19}{'nodes':>9}{'plain':>9}{'cycles':>9}{heads}"
    for file in sorted(FOLDER.glob("[a-z]*.py")):
        region = read(file.read_text(encoding="utf-8"), file.name, timed=True, rates=KERNELS)
        graph = mapping_graph(region)
        try:
            plain = search(graph, mesh.tiles, mesh, start=Mapped.start(graph, fuse=False)).cost
            found = search_buffered(region, mesh.tiles, mesh)
        except MappingError as error:
            yield f"{file.stem:<19}{len(graph.nodes):>4} -> -: {error.notes[-1]}"
            continue
        nodes = range(len(found.mapped.groups))
        held = max(sum(holder.count for holder in found.mapped.memory(k)) for k in nodes)
        best = f"{found.bound}{'*' if found.all_seen else ''}"
        cost = found.cost
        yield (
            f"{file.stem:<19}{f'{len(graph.nodes)} -> {len(nodes)}':>9}{plain.cycles:>9}{cost.cycles:>9}{best:>8}"
            f"{cost.off_chip:>10}{cost.on_chip:>9}{cost.ports:>7}{held:>7}"
        )


TABLES = {"lines": lines, "systolic": systolic, "attention": attention, "scaling": scaling, "mapping": mapping}


def main() -> None:
    """Print the tables."""
    print_tables(command_line(__doc__), TABLES)


if __name__ == "__main__":
    main()
