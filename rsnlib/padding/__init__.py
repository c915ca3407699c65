"""Whether what a tensor is filled up with can reach a module's results: decided on the captured graph, not tried out.

A program is for one size; a call of a smaller one is filled up (`rsnlib.shapes`), and its result is cut. That is right
if no valid element of the result depends on what was filled in, nor on the size itself. `check` follows both through
the graph: `state` says what is known of a tensor, `elementwise`, `moves`, `reductions` and `products` hold a rule for
each operator. What has no rule, and takes a filled-up tensor, is taken to mix everything.
"""
