"""Stream programs as trees: a file is parsed once, and everything else visits its nodes."""
