"""Single releases: (ε, δ) of their noise, and how much one record can change, and when.

Exact for Gaussian noise (`gaussian`), an upper bound for Poisson samples (`poisson`). `observers` covers the
rows of plans.
"""
