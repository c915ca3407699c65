"""The published measurements of the RSN paper, and the same quantities from the model of the machine."""
