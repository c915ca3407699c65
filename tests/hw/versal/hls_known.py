"""What the checker of HLS sources finds in C++ of stream programs: it has still to be mended."""

from __future__ import annotations

from collections.abc import Mapping

STREAM_PROGRAMS: Mapping[str, Mapping[str, int]] = {
    "cannon": {"bundle": 3, "state-order": 13, "word-width": 8},
    "ffn": {"bundle": 4, "word-width": 7},
    "flash_attention": {"bundle": 4, "pipeline-place": 3, "word-width": 48},
    "gemm_3d": {"bundle": 3, "state-order": 1, "word-width": 8},
    "mesh_gemm": {"bundle": 3, "state-order": 8, "word-width": 16},
    "mha": {"bundle": 4, "pipeline-place": 1, "state-order": 1, "word-width": 82},
    "producer_consumer": {},
    "ring": {"bundle": 2, "state-order": 4},
    "split_k": {"bundle": 2, "word-width": 4},
    "summa": {"bundle": 3, "state-order": 6, "word-width": 8},
    "systolic": {"pipeline-place": 3, "ports": 9, "state-order": 2},
}
"""How many places the C++ of each shipped program has, by rule: all processes of a tensor share a bundle, a word of a
stream is a whole tile, and statements of a task that access several streams are not kept apart."""
