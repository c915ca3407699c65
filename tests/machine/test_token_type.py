"""Every stream of every overlay says what its words are, and the fingerprint does not depend on it."""

import dataclasses

import pytest

from rsn.isa.overlay import Overlay
from rsn.isa.overlays import OVERLAYS, XNN
from rsn.machine.token_type import ELEMENT, TokenType


def test_elements_of_a_word() -> None:
    assert ELEMENT.word_elements == 1
    assert TokenType("block", 128, 64, words=256).word_elements == 32
    assert TokenType("tile", 128, 128).word_elements == 16384


def test_tokens_follow_the_contract() -> None:
    """Contract section 2: blocks to and from off-chip memory, tiles between Mem, Mesh and MME, numbers of rows."""
    off_chip = {u.name for u in XNN.units if u.bank}
    for s in XNN.streams:
        neighbours = XNN.by_unit[s.src].kind == XNN.by_unit[s.dst].kind
        expected = {"softmax": "row", "norm": "row sum"}[s.label] if neighbours else "tile"
        assert s.token.name == ("block" if {s.src, s.dst} & off_chip else expected), s.name
    assert all(s.token is ELEMENT for name in ("fig6", "fig7") for s in OVERLAYS[name].streams)


@pytest.mark.parametrize("overlay", OVERLAYS.values(), ids=lambda o: o.name)
def test_the_fingerprint_leaves_token_types_out(overlay: Overlay) -> None:
    streams = tuple(dataclasses.replace(s, token=TokenType("other", 3, 5)) for s in overlay.streams)
    assert dataclasses.replace(overlay, streams=streams).fingerprint == overlay.fingerprint
