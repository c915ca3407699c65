"""Products for xnn8 in blocks of up to 512 columns: their weights and constants off chip."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..isa.layout import padded
from ..isa.overlays.xnn8.emission import Destination, StoredWeights
from ..isa.overlays.xnn8.formats import PAIRS, SHORT_WEIGHT_WORD, WEIGHT_WORD
from ..isa.overlays.xnn8.numbers import BLOCK, BlockNumbers
from ..isa.overlays.xnn8.stored import PackedConstants, columns_of, short_weight_words, weight_words
from .graph import AttentionLayer, Gemm
from .integer_lanes import LaneSeconds, LanesOfSequences
from .integer_memory import PanelBuffers
from .integers import IntegerNetwork

Pairs = tuple[BlockNumbers, BlockNumbers]


class PlacedProduct(NamedTuple):
    """A part of a product of up to 512 columns. weights: where its weights lie, and how they are read. constants: the
    address, in address units of 64 bytes, of the constants of its columns."""

    weights: StoredWeights
    constants: int


class ProductBlocks:
    """Divides the products of a network into parts of up to 512 columns, and places their weights and constants. at:
    how the sequences lie in lanes. takes: estimates for the work of a panel. memory: where weights and constants are
    placed."""

    def __init__(self, of: IntegerNetwork, at: LanesOfSequences, takes: LaneSeconds, memory: PanelBuffers) -> None:
        self._of, self._at, self._takes, self._memory = of, at, takes, memory
        layers = of.network.layers
        self._beside = {y: x for x in layers if isinstance(x, AttentionLayer) for y in (x.v, x.q)}
        """Attentions by their values and queries, which are computed while DDR passes keys and values on."""

    def passes(self, layer: Gemm) -> bool:
        """Return whether the result of a product goes to DDR part by part, each through the same cells of X: no layer
        reads the result, it has no norm and no residual, and it has more than 512 columns."""
        is_plain = layer.y in self._of.sent and self._of.sent[layer.y].norm is None and layer.residual is None
        return is_plain and layer.y not in self._of.network.readers and layer.width > PAIRS * BLOCK

    def placed(self, layer: Gemm, to: Destination, more: Sequence[Pairs]) -> list[PlacedProduct]:
        """Divide a product into parts of up to 512 columns, place their weights and constants, and return the parts in
        order. to: where the results go. more: further constants for each block of stored columns, such as scale and
        shift of a norm: pairs of vectors."""
        product = self._of.products[layer.y]
        scales, biases = columns_of(product.columns), columns_of(product.bias)
        shifts = product.shifts[:, 0].tolist()
        order = [*range(len(shifts))]
        if layer.gated:  # columns of pairs have blocks of the gate and of what it multiplies in turn
            order = [i for pair in zip(order[: len(order) // 2], order[len(order) // 2 :], strict=True) for i in pair]
        each = 1 + to.gated  # blocks of sums of a block that is stored
        together = 2 if to.norm is not None and to.pitch > BLOCK else 1
        vectors = [[columns_of(vector) for vector in pair] for pair in more]
        out = []
        step = self._columns(layer, len(order), each * (1 + (to.pitch > BLOCK)))
        for at in range(0, len(shifts), step):
            some = order[at : at + step]
            columns = len(some)
            of_ddr = self._of_ddr(layer, columns, at // step, len(product.weight) // BLOCK)
            name, short = f"{layer.y}.{at // step}", product.short is not None
            words = len(product.weight) // BLOCK * (SHORT_WEIGHT_WORD if short else WEIGHT_WORD)

            def part(which: int, some: Sequence[int] = some, of_ddr: int = of_ddr) -> npt.NDArray[np.float32]:
                if product.short is None:
                    return weight_words(_taken(product.weight, some), of_ddr)[which]
                codes, multipliers = (_taken(x, some) for x in product.short)
                return short_weight_words(codes, multipliers, of_ddr)[which]

            lpddr = self._memory.weight(f"{name}.lpddr", "lpddr", words * (columns - of_ddr), partial(part, 0))
            ddr = self._memory.weight(f"{name}.ddr", "ddr", words * of_ddr, partial(part, 1)) if of_ddr else 0
            constants: list[PackedConstants] = []
            for first in range(0, columns, each * together):
                taken = some[first : first + each * together]
                constants += [PackedConstants(scales[i], biases[i], shifts[i]) for i in taken]
                stored = range((at + first) // each, (at + first + len(taken)) // each)
                constants += [PackedConstants(a[i], b[i]) for i in stored for a, b in vectors]
            addr = self._memory.vectors(f"{name}.constants", [constants]).addr
            of_some = tuple(shifts[i] for i in some)
            out.append(PlacedProduct(StoredWeights(lpddr, ddr, of_ddr, of_some, short, product.low_bits), addr))
        return out

    def _columns(self, layer: Gemm, count: int, together: int) -> int:
        """Of how many columns of pairs the blocks of a product are: of all of them; where memories bind, of as many in
        each block. count: of the product. together: these are in one block."""
        if self.passes(layer):
            return PAIRS
        even = padded(-(-count // -(-count // PAIRS)), together)
        short = self._of.products[layer.y].short is not None
        full, less = (
            self._takes.chunk(columns, short=short, of_ddr=self._of_ddr(layer, columns, 0, 0))
            for columns in (PAIRS, even)
        )
        return even if less < full else PAIRS

    def _of_ddr(self, layer: Gemm, columns: int, number: int, chunks: int) -> int:
        """Of the columns of pairs of a block of a product, how many have their weights in DDR: half, or none while DDR
        passes keys and values on. number: of the block."""
        of = self._beside.get(layer.y) if self._at.parts > 1 else None
        if of is None:
            return columns // 2
        passed = self.apart_seconds(of.v, "ddr_write_gbs")
        passed += sum(self.apart_seconds(name, "ddr_read_gbs") for name in (of.k, of.v))
        short = self._of.products[layer.y].short is not None
        before = number * chunks * self._takes.chunk(PAIRS, short=short, of_ddr=0)
        return 0 if layer.y == of.v or before < passed else columns // 2

    def apart_seconds(self, name: str, rate: str) -> float:
        """Return an estimate of the seconds in which DDR moves keys or values of all rows of a sequence. name: of the
        keys or values. rate: name of the rate, `ddr_read_gbs` or `ddr_write_gbs`."""
        return self._at.pitch * len(self._of.columns[name].places) * self._takes.seconds[rate]


def _taken(x: npt.NDArray[Any], blocks: Sequence[int]) -> npt.NDArray[Any]:
    """Some blocks of 64 columns, side by side."""
    return np.concatenate([x[:, BLOCK * i : BLOCK * (i + 1)] for i in blocks], 1)
