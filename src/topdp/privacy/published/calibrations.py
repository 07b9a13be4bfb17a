"""The published calibrations by name."""

from __future__ import annotations

from topdp.privacy.published.calibration import Calibration
from topdp.privacy.published.composed import Moments, Optimal, Tight
from topdp.privacy.published.printed import Advanced, Theorem1, Udp

CALIBRATIONS: dict[str, Calibration] = {
    "tight": Tight(),
    "optimal": Optimal(),
    "udp": Udp(),
    "moments": Moments(),
    "advanced": Advanced(),
    "theorem1": Theorem1(),
}
