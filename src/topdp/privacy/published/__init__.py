"""The published calibrations: the noise that each requires for a budget, and the ε that each claims.

    CALIBRATIONS["tight"].calibrate(1.0, 1e-5, releases=1000, batches=Full(2000)).sigma
    CALIBRATIONS["moments"].claim(noise_multipliers, 1e-5)

All calibrations use the caller's adjacency and sensitivity, so that their noise can be compared. No
calibration has a claim about the reuse of noise in a plan. `observers` computes what is learned from such a
plan.
"""
