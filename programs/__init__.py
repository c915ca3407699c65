"""Programs to learn from: the paper's examples, written by hand (`.rsn`), a language model that is compiled and run
(`minilm`), and servers of it."""
