"""Executes a plan on data, on one device: draws, mixing, the engine, and many runs as one. Needs torch."""
