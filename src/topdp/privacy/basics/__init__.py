"""Single releases: what their noise is worth in (ε, δ), and how much one record can change, and when.

Exact for Gaussian noise (`gaussian`), from the private side for Poisson samples (`poisson`). Who reads which
row of a plan is the observers' business.
"""
