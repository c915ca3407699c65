"""Depths of FIFOs from the times of kernels: equations, start times, paths, and measured programs."""
