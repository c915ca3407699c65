"""Models that run on a board: compiled from a module, loaded from a file, or captured by torch.compile."""
