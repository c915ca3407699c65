"""The overlay `xnn8`: int8 on the AIE array. So far its numbers (docs/xnn8.md); its machine is not described yet."""
