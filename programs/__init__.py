"""Programs to learn from: the paper's examples by hand (`.rsn`), and a language model compiled and run (`minilm`)."""
