"""Dataflow graphs: kernels that exchange tokens over streams, and which of them share the memory of one chip."""
