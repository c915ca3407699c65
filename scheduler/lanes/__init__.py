"""Lowering for overlays of row lanes: the rows of a panel stay on chip from layer to layer."""
