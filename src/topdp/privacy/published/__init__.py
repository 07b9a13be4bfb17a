"""The published calibrations: the noise that each requires for a budget, and the ε that it claims.

    CALIBRATIONS["tight"].calibrate(1.0, 1e-5, releases=1000, batches=Full(2000)).sigma
    CALIBRATIONS["moments"].claim(noise_multipliers, 1e-5)

All use the caller's adjacency and sensitivity, so that their noise can be compared. A plan that reuses noise
has no claim of its own; `observers` covers what is learned from it.
"""
