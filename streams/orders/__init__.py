"""Orders of tokens: which part of a tensor each token of a stream is, and what stands between two orders.

`order` has the order of a stream, `operations` make orders of orders, `converter` is what stands between two of them.
`packed_tensor` says how a tensor lies off the chip, `text` writes the statements of tasks that go through a tensor, and
`shown` finds what the ends of streams show of an order.
"""
