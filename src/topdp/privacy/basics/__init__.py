"""Single releases: the (ε, δ) of their noise, how much one record can change them, and when.

Results are exact for Gaussian noise (`gaussian`), and upper bounds for Poisson samples (`poisson`).
`observers` covers the rows of plans.
"""
