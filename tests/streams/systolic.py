"""The output-stationary systolic array of appendix A of Dato (arXiv 2509.06794), with its types put right."""

from __future__ import annotations

from rsn.tests.streams.sizes import program_text


def systolic(size: int, depth: int, pack: int) -> str:
    """Return the program for matrices of size x size x size on 16 x 16 multipliers, all streams of one depth. pack:
    cycles to pack a column."""
    return program_text("systolic", M=size, N=size, K=size, DEPTH=depth, PACK=pack)
