"""Patterns: groups of units that compute one layer together. An overlay supplies them, derived from its description.

The scheduler has a lowering for each type of pattern and knows units by their roles in it alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProductGrid:
    """Product units in rows and columns that compute one output tile of a matrix product (paper section 5.3).

    left: for each row, the memory whose tiles go to all product units of the row. right: for each column, the memory
    whose tiles go to all product units of the column. products, results: by row and column, the product unit and the
    memory that receives its results. left_switch, right_switch: between memories and product units. activations,
    weights: the off-chip units that fill `left` and `right`; results go to `activations`.
    """

    left: tuple[str, ...]
    right: tuple[str, ...]
    products: tuple[tuple[str, ...], ...]
    results: tuple[tuple[str, ...], ...]
    left_switch: str
    right_switch: str
    activations: str
    weights: str

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.left)

    @property
    def columns(self) -> int:
        """Number of columns."""
        return len(self.right)

    def upper_left(self, rows: int, columns: int) -> ProductGrid:
        """The grid of the first rows and columns."""
        return ProductGrid(
            self.left[:rows],
            self.right[:columns],
            tuple(units[:columns] for units in self.products[:rows]),
            tuple(units[:columns] for units in self.results[:rows]),
            self.left_switch,
            self.right_switch,
            self.activations,
            self.weights,
        )


@dataclass(frozen=True)
class AttentionPipeline:
    """Units that compute the two products of attention at the same time (paper section 4.3, mapping type D).

    scores: the grid of Q K^T; its results compute softmax and send the probabilities on. products, results: for each
    row of `scores`, the product unit of P V that its probabilities go to, and the memory of its results. values: the
    memory of V, which feeds all of `products`. stored: the memory that feeds them with probabilities from off-chip
    memory (mapping type B).
    """

    scores: ProductGrid
    products: tuple[str, ...]
    results: tuple[str, ...]
    values: str
    stored: str


@dataclass(frozen=True)
class Patterns:
    """The patterns of a machine. attention: None if its units form none."""

    grid: ProductGrid
    attention: AttentionPipeline | None
