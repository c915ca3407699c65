"""Memory on chip of fused transformer blocks, and groups under a limit, beside the figures of StreamTensor.

    python benchmarks/stream_fusion.py [blocks] [models] [groups] [sweep] [networks]

Without names of tables it prints all of them. Everything is counted, from shapes, tiles and orders: nothing is
measured, and nothing depends on this computer. *Published* figures are from the paper (MICRO'25,
10.1145/3725843.3762817), which states neither lengths nor tiles for them.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace

from rsn.benchmarks.compared.transformer_block import BlockShape, block
from rsn.benchmarks.measuring import command_line, print_tables
from rsn.streams.dataflow.best_fusion import fuse
from rsn.streams.dataflow.fusion import Fusion, FusionSpace, printed
from rsn.streams.dataflow.memory import Counted, fusion_space, memory_use

PUBLISHED_PERCENT = 14.8, 16.8
"""Intermediate results on chip after fusion, in percent of those before: the range over four models (Fig. 10a)."""

LENGTH = 256
"""Rows of the models' tables."""

LLAMA = BlockShape(LENGTH, 2048, 5632, 32, 4, activation="silu", gated=True, rotary=True, layer_norms=False, bias=False)
GEMMA = replace(LLAMA, hidden=1152, ffn=6912, heads=4, kv_heads=1, activation="gelu", head_norms=True, after_norms=True)
MODELS = {
    "gpt2": BlockShape(LENGTH, 1024, 4096, 16),
    "qwen": replace(LLAMA, hidden=896, ffn=4864, heads=14, kv_heads=2),
    "llama": LLAMA,
    "gemma": replace(GEMMA, head_dim=256),  # as in the model; the paper's table leaves it out
}
"""Hidden size, columns of the feed-forward network, heads, heads of keys, activation: table 7. What the models have
besides is from their public descriptions: gates, positions, norms."""
LAYERS = {"gpt2": 24, "qwen": 24, "llama": 22, "gemma": 26}
"""Table 7."""
ON_CHIP_MB = 41
"""Of the paper's device, a U55C: table 6."""


def plain(shape: BlockShape) -> BlockShape:
    """Return a block with the length, hidden size and ffn of `shape`, and the defaults of `BlockShape` for all else:
    one head, no gate, no positions, gelu, LayerNorms and biases."""
    return BlockShape(shape.length, shape.hidden, shape.ffn)


# -- memory -----------------------------------------------------------------------------------------------------------

HEADINGS = f"{'streams':>8}{'whole B':>12}{'converters B':>14}{'%':>6}{'shared B':>11}{'%':>6}"


def memory_row(shape: BlockShape, tile: int) -> tuple[str, str]:
    """Return two parts of a table row about a block of i8. The first has the number of streams, the bytes of whole
    tensors, of converters and of shared converters, and what both kinds of converters take in percent of whole tensors.
    The second has the bytes of FIFOs, what shared converters and FIFOs take in percent of whole tensors, and the bytes
    of kernels. tile: rows and columns of a tile."""
    graph = block(shape, tile)
    use = memory_use(graph)
    row = f"{len(graph.edges):>8}{use.whole:>12}{use.converters:>14}{100 * use.ratio:>6.1f}"
    row += f"{use.shared:>11}{100 * use.shared_ratio:>6.1f}"
    return row, f"{use.fifos:>9}{100 * use.fused_ratio:>6.1f}{use.kernels:>11}"


def blocks(options: Namespace) -> Iterator[str]:
    """Yield the lines of a table: bytes on chip of blocks, as whole tensors and as converters, beside the published
    range (StreamTensor, Fig. 10a). options: not read."""
    yield "A block on chip, one head, i8 (counted)"
    yield "  whole: double buffers of the tensor of each stream; converters: one for each stream that needs it;"
    yield "  shared: q, k and v have one; %: of whole"
    yield f"{'length':>6}{'hidden':>8}{'ffn':>6}{'tile':>6}{HEADINGS}"
    for length, hidden, ffn, tile in ((64, 128, 256, 16), (256, 1024, 4096, 16), (256, 1024, 4096, 64)):
        row, _ = memory_row(BlockShape(length, hidden, ffn), tile)
        yield f"{length:>6}{hidden:>8}{ffn:>6}{tile:>6}{row}"
    yield published_row(46)


def published_row(column: int) -> str:
    """Return a table row with the published range of percents. column: where its field begins, in characters."""
    low, high = PUBLISHED_PERCENT
    return f"{'published, of four models':<{column}}{f'{low} to {high}':>14}"


def models(options: Namespace) -> Iterator[str]:
    """Yield the lines of a table: bytes on chip of a block of each of the four models (StreamTensor, table 7), plain
    and as built. options: not read."""
    yield f"Blocks of four models on chip, length {LENGTH}, i8 (counted)"
    yield "  plain: with one head, without gate and positions; as built: with all of them"
    yield "  FIFOs: of 2 tokens; both %: of whole; the last column: accumulators, strips, tiles of weights"
    yield f"{'model':<7}{'form':<10}{'tile':>5}{HEADINGS}{'FIFOs B':>9}{'%':>6}{'kernels B':>11}"
    for name, shape in MODELS.items():
        for form, built in (("plain", plain(shape)), ("as built", shape)):
            for tile in (16, 32, 64):
                row, besides = memory_row(built, tile)
                yield f"{name:<7}{form:<10}{tile:>5}{row}{besides}"
    yield published_row(42)


# -- groups -----------------------------------------------------------------------------------------------------------

CHAIN = [(a, b, 100) for a, b in zip("abcde", "bcdef", strict=True)]
GRAPHS = {
    "chain of 6, 100 each": (FusionSpace.of_numbers("abcdef", CHAIN), (99, 100, 250, 300, 500)),
    "chain of 6, equal types": (FusionSpace.of_numbers("abcdef", [(a, b, 0) for a, b, _ in CHAIN]), (0,)),
    "c<-a 500, d<-b 10, d<-c 90": (
        FusionSpace.of_numbers("abcd", [("a", "c", 500), ("b", "d", 10), ("c", "d", 90)]),
        (50, 100, 600),
    ),
    "diamond, 30 each": (
        FusionSpace.of_numbers("abcd", [("a", "b", 30), ("a", "c", 30), ("b", "d", 30), ("c", "d", 30)]),
        (119, 120),
    ),
}


def cells(fusion: Fusion) -> str:
    """Return part of a table row: the nodes of each group, the bytes of each group, the number of streams off the
    chip."""
    names = " ".join("".join(group) for group in fusion.groups)
    return f"{names:<14}{' '.join(map(str, fusion.bytes)):<14}{len(fusion.off_chip):>4}"


def groups(options: Namespace) -> Iterator[str]:
    """Yield the lines of a table: the groups of small graphs under limits of bytes, by StreamTensor's Algorithm 2 and
    by our search. options: not read."""
    yield "Groups of small graphs: Algorithm 2 as listed, and the proved best (counted)"
    listed, best = (f"{name:<14}{'C':<14}{'off':>4}" for name in ("Algorithm 2", "best"))
    yield f"{'graph, bytes of converters':<28}{'C_max':>6}  {listed}  {best}"
    for name, (space, limits) in GRAPHS.items():
        for limit in limits:
            yield f"{name:<28}{limit:>6}  {cells(printed(space, limit))}  {cells(fuse(space, limit))}"


def kilobytes(fusion: Fusion) -> str:
    """Return part of a table row: the number of nodes of each group, and the kB (1000 bytes) of the tensors off the
    chip."""
    sizes = " ".join(str(len(group)) for group in fusion.groups)
    return f"{sizes:<20}{fusion.off_chip_bytes / 1e3:>8.0f}"


def sweep(options: Namespace) -> Iterator[str]:
    """Yield the lines of a table: the groups of single blocks when the limit of bytes is what the block takes as one
    group, a half, a quarter and an eighth of it. options: not read."""
    yield f"Blocks in groups: C_max in parts of what one group takes, length {LENGTH}, tile 64, i8 (counted)"
    yield "  nodes of each group, and kB of the tensors off the chip, counted once for each stream"
    yield "  converters: they alone count, one for each stream; all: shared converters, kernels and FIFOs count"
    listed, best = (f"{name:<20}{'off kB':>8}" for name in ("Algorithm 2", "best"))
    yield f"{'block':<17}{'counts':<11}{'part':<5}{'C_max B':>9}  {listed}  {best}"
    gap = 0
    shapes = {"gpt2, plain": plain(MODELS["gpt2"]), **{f"{name}, as built": shape for name, shape in MODELS.items()}}
    for name, shape in shapes.items():
        graph = block(shape, 64)
        for title, counted in (("converters", Counted.CONVERTERS), ("all", Counted.ALL)):
            space = fusion_space(graph, counted, shared=counted != Counted.CONVERTERS)
            whole = space.bytes_of(range(len(space.names)))
            for part in (1, 2, 4, 8):
                limit = whole // part
                if limit < max(space.own_bytes):
                    continue
                found = fuse(space, limit)
                gap = max(gap, found.gap_bytes)
                row = f"{name:<17}{title:<11}{f'1/{part}':<5}{limit:>9}"
                yield f"{row}  {kilobytes(printed(space, limit))}  {kilobytes(found)}"
    yield f"of all that a better fusion could keep on chip: {gap} B at most"


def networks(options: Namespace) -> Iterator[str]:
    """Yield the lines of a table: all layers of each model in groups of at most `ON_CHIP_MB` MB. options: not read."""
    yield f"All layers in groups: C_max {ON_CHIP_MB} MB, all memory counts, length {LENGTH}, tile 64, i8 (counted)"
    yield "  MB: of one group of all layers; off MB: of the tensors off the chip, counted once for each stream"
    headings = "".join(f"{name:>14}{'off MB':>8}" for name in ("Algorithm 2", "best"))
    yield f"{'model':<7}{'layers':>6}{'nodes':>7}{'MB':>8}{headings}{'gap MB':>8}"
    for name, shape in MODELS.items():
        space = fusion_space(block(shape, 64, layers=LAYERS[name]))
        whole = space.bytes_of(range(len(space.names)))
        row = f"{name:<7}{LAYERS[name]:>6}{len(space.names):>7}{whole / 1e6:>8.1f}"
        best = fuse(space, int(ON_CHIP_MB * 1e6))
        for found in (printed(space, int(ON_CHIP_MB * 1e6)), best):
            row += f"{f'{len(found.groups)} groups':>14}{found.off_chip_bytes / 1e6:>8.2f}"
        yield f"{row}{best.gap_bytes / 1e6:>8.2f}"


TABLES = {"blocks": blocks, "models": models, "groups": groups, "sweep": sweep, "networks": networks}


def main() -> None:
    """Print the tables."""
    print_tables(command_line(__doc__), TABLES)


if __name__ == "__main__":
    main()
