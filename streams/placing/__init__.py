"""Where kernels and buffers go: unrolling, dies, memories, and the devices that are known."""
