"""Programs of STeP's evaluation, as functions that build them."""

METADATA = 16
"""Depth of a stream of flags, turns or numbers that waits beside a longer way, in tokens (the artifact's)."""

SUMS = "f32"
"""The type in which products of bf16 are summed, and of results."""
