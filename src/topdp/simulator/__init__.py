"""Simulation: execution of plans on data in one process, over ranks or by CUDA replay. Requires torch."""
