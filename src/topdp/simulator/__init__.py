"""Simulation: executes plans on data in one process, over ranks or by CUDA replay. Needs torch."""
