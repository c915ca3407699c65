"""Dataflow graphs: kernels that exchange tokens over streams, and which of them share the memory of one chip.

`graph` has the graph, `topology` its order, `memory` what its kernels and converters hold.
Fusion into groups: `fusion` is Algorithm 2 of StreamTensor, `exact_fusion` proves the best groups, `best_fusion`
chooses.
"""
