"""The normal form of a captured graph, which rules, proofs of padding, stream blocks and the search for experts read.

torch.export writes one operator in many ways. `passes` bring a graph to the operators of one table (`operators`), which
also tells what no longer occurs behind which pass. `text` prints a graph.
"""
