"""Depths of FIFOs from the times of kernels: equations, start times, and measured programs."""
