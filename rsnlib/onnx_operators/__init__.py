"""The ONNX operators that are read: one table, of functions (`table`)."""
