"""Runs: from a configuration to a run folder. `run.py` lists the steps; read it first."""
