"""The published calibrations: the noise that each requires for a budget, and the ε that it claims.

    CALIBRATIONS["tight"].calibrate(1.0, 1e-5, releases=1000, batches=Full(2000)).sigma
    CALIBRATIONS["moments"].claim(noise_multipliers, 1e-5)

All use the caller's adjacency and sensitivity, so that their noise can be compared. A plan that reuses noise
has no claim of its own; `observers` covers what is learned from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topdp.base.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from topdp.privacy.published.calibration import Calibrated, Calibration, exact_epsilon
    from topdp.privacy.published.calibrations import CALIBRATIONS
    from topdp.privacy.published.printed import discounted_noise

__all__ = [
    "CALIBRATIONS",
    "Calibrated",
    "Calibration",
    "discounted_noise",
    "exact_epsilon",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "CALIBRATIONS": "calibrations",
        "Calibrated": "calibration",
        "Calibration": "calibration",
        "discounted_noise": "printed",
        "exact_epsilon": "calibration",
    },
)
