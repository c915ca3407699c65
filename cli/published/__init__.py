"""What the RSN paper measured, and the same measured on the model of the machine."""
