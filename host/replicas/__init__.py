"""Copies of a model over many boards: each is a pipeline of stages, a stage has a board, and requests go to any copy.

`stage` has a stage with its board, `pipeline` the stages of one copy, in this process or (`on_ray`) as actors of Ray,
and `replicated` what takes the requests: it knows which copies work, and asks another one where one is lost.
"""
