"""From task instances to the nodes of a machine: the graph, its primitives, the proof after mapping, the search."""
