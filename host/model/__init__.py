"""Models that run on a board: what is compiled, and what is loaded from a file."""
