"""Benchmark of a private round: against other implementations, against hardware limits, and as it grows."""
