"""Rates of what the overlays share: memories, streams, MMEs, the path of instructions. Each says where it is from, and
whether it was fitted on published latencies."""

from __future__ import annotations

from ...machine.description import Rate

MOVING = {
    "ddr_read_gbs": Rate(21.0, "GB/s", "paper 5.3, observed", "DDR load"),
    "ddr_write_gbs": Rate(23.5, "GB/s", "paper 5.3, observed", "DDR store"),
    "lpddr_read_gbs": Rate(20.5, "GB/s", "paper 5.3, observed", "LPDDR"),
    "offchip_uop": Rate(35, "PL cycles", "per DDR or LPDDR uOP, fitted on encoder rows", "off-chip set-up", True),
    "mem_word": Rate(1, "PL cycles", "structure: 1024-bit stream", "on-chip transfer"),
    "mesh_beat": Rate(1, "PL cycles", "structure: 512 beats a tile", "on-chip transfer"),
    "mme_tile_us": Rate(3.709, "us", "paper Table 6a, 128x128x128", "MME compute"),
    "mme_k64_us": Rate(2.064, "us", "paper Table 6a, K = 64", "MME compute"),
    "mme_n64_us": Rate(1.995, "us", "paper Table 6a, N = 64", "MME compute"),
}
"""Of off-chip memories, streams, and MMEs at work."""
ISSUING = {
    "launch_us": Rate(40.0, "us", "per program, fitted on the square GEMMs", "launch", True),
    "dispatch": Rate(1, "PL cycles", "structure: one word a cycle", "instruction issue"),
    "decode": Rate(1, "PL cycles", "structure: cycles per uOP are the decoder's", "instruction issue"),
}
"""Of the launch of a program, and of its instructions."""
LINK = {
    "link_gbs": Rate(1.18, "GB/s", "10 Gb/s Ethernet: 1448 of each 1538 bytes are TCP's", "link between boards"),
    "link_us": Rate(50.0, "us", "per message, assumed: no link was measured", "link between boards"),
}
"""Of the link between the boards of a model in stages."""
