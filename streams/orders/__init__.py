"""Orders of tokens: which part of a tensor each token of a stream is, and what stands between two orders."""
