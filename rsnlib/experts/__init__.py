"""Mixtures of experts: how they are found in a captured graph, and what takes their place."""
