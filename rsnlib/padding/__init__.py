"""Decide whether padding of arguments can change a module's results, by abstract interpretation of the captured graph.

A program has one size; a smaller call is padded (`rsnlib.shapes`), and its result is cut. This is correct if no valid
element of the result depends on the padding, or on the size itself. `check` follows both through the graph: a
`TensorState` is what is known of a tensor; `elementwise`, `moves`, `reductions` and `products` hold a rule for each
operator. An operator without a rule is assumed to mix all elements of its operands.
"""
