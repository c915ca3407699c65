"""Depths of streams: the least without deadlock, the least without stall, and what the steps between cost."""
