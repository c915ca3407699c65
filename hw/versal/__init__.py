"""The machine's sources for the VCK190."""
