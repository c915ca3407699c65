"""What the overlays `xnn` and `xnn2` share: the machine on the VCK190 around their units.

Tiles and words that move on chip, the MMEs' arithmetic and places, off-chip memories, published rates, the loops of the
C++ sources with what they cost, and what hosts, linker and sources must agree on.
"""
