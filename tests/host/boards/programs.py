"""Small programs that use all that a board has: scratch, outputs, weights in LPDDR, op lists, run-time lengths."""

from __future__ import annotations

from functools import cache

import numpy as np

from rsn.host.boards.probes import terminators
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.overlays.xnn.formats import Ddr
from rsn.isa.packet import Packet
from rsn.isa.program import Buffer, Program, Role
from rsn.scheduler.build import Built, build
from rsn.scheduler.graph import AttentionLayer, Gemm, LayerGraph, Output
from rsn.scheduler.schedule import PAPER

SEQ = 130
X = np.random.default_rng(1).standard_normal((2, SEQ, 64)).astype(np.float32)


@cache
def attention(overlay: Overlay = XNN, seed: int = 4) -> Built:
    """Attention over two sequences, of which the overlay's extension masks what is beyond their lengths."""
    rng = np.random.default_rng(seed)
    qkv = [
        Gemm(n, "x", n, rng.standard_normal((64, 64)).astype(np.float32) / 8, np.zeros(64, np.float32)) for n in "qkv"
    ]
    layers = (*qkv, AttentionLayer("a", "q", "k", "v", "y", 1, 64, overlay is XNN))
    seq = 256 if overlay is XNN_BASE else SEQ
    return build(LayerGraph(2, seq, {"x": 64}, (Output("y"),), layers), overlay, PAPER)


@cache
def base() -> Built:
    """A product, for the published machine."""
    w = np.random.default_rng(5).standard_normal((64, 128)).astype(np.float32) / 8
    layers = (Gemm("g", "x", "y", w, np.ones(128, np.float32)),)
    return build(LayerGraph(2, SEQ, {"x": 64}, (Output("y"),), layers), XNN_BASE, PAPER)


def stuck() -> Program:
    """Loads what nobody takes: it never ends."""
    load = Packet.of(1, [Ddr(addr=0, size=4 * 8192, load=1, to_a0=1)])
    buffers = (Buffer("x", "ddr", 0, (512, 64), role=Role.INPUT), Buffer("y", "ddr", 4096, (128, 64), role=Role.OUTPUT))
    return Program(XNN, (load, *terminators(XNN)), buffers=buffers)
