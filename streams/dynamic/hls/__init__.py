"""Programs of dynamic streams as HLS C++: a process for each operator."""
