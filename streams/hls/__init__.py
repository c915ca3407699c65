"""HLS C++ of task programs: a dataflow region whose processes are the units of a task machine."""
