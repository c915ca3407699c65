"""Instruction sets: formats, packets, programs and their checks; `overlays/` holds the overlays."""
