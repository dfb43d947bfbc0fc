"""seqio tasks, one file a benchmark: `reader` and `register`."""
