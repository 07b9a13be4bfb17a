"""Simulation: execution of plans on records in one process, over ranks or by CUDA replay. Needs torch."""
