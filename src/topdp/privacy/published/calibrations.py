"""The published calibrations by name, and a comparison of the noise that each requires for one budget."""

from __future__ import annotations

import warnings
from typing import Any, cast

from topdp.base.progress import Progress, silent
from topdp.plan.batches import Adjacency, Batches, Cycle, Full, Poisson
from topdp.privacy.basics.refusals import NotCovered, PrivacyError, PrivacyWarning
from topdp.privacy.published._composed import Moments, Optimal, Tight
from topdp.privacy.published._printed import Advanced, Theorem1, Udp
from topdp.privacy.published.calibration import Calibration

CALIBRATIONS: dict[str, Calibration] = {
    "tight": Tight(),
    "optimal": Optimal(),
    "udp": Udp(),
    "moments": Moments(),
    "advanced": Advanced(),
    "theorem1": Theorem1(),
}


def side_by_side(
    epsilon: float,
    delta: float,
    releases: int,
    records: int,
    clip: float = 1.0,
    adjacency: str = "add-remove",
    cycle: int | None = None,
    poisson: int | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Return the JSON object of `topdp calibrate`: the σ of each calibration, or None if it is refused.

    `remarks` has the reasons of refusals, and warnings. `cycle`, `poisson`: the size of cyclic or Poisson
    batches; the default is full batches. `progress` receives the name of each calibration as it begins.

    >>> found = side_by_side(1.0, 1e-5, releases=1000, records=2000)
    >>> round(found["sigma"]["tight"], 5), round(found["sigma"]["theorem1"], 4)
    (0.05899, 1.4703)
    """
    if not (0 < clip < float("inf")):
        raise PrivacyError(f"Expected a finite clip > 0, got {clip}.")
    if cycle is not None and poisson is not None:
        raise PrivacyError("Expected either cycle or poisson, got both. Remove one.")
    batches: Batches = Full(records)
    if cycle is not None:
        batches = Cycle(records, cycle)
    elif poisson is not None:
        batches = Poisson(records, poisson)
    kind = cast(Adjacency, adjacency)
    sigma: dict[str, float | None] = dict.fromkeys(CALIBRATIONS)
    exact: dict[str, float | None] = dict.fromkeys(CALIBRATIONS)
    remarks: dict[str, str] = {}
    for number, (name, rule) in enumerate(CALIBRATIONS.items(), 1):
        progress(f"{name}, calibration {number} of {len(CALIBRATIONS)}")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PrivacyWarning)
            try:
                noise = rule.calibrate(epsilon, delta, releases, batches, kind)
                sigma[name], exact[name] = noise.sigma, noise.exact_epsilon
            except NotCovered as refusal:
                remarks[name] = str(refusal)
        if caught:
            remarks[name] = str(caught[0].message)
    return {
        "epsilon": epsilon,
        "delta": delta,
        "releases": releases,
        "records": records,
        "batches": {"kind": batches.kind, "size": batches.typical_records},
        "clip": clip,
        "adjacency": adjacency,
        "sensitivity": clip * batches.sensitivity(kind),
        "sigma": sigma,
        "noise_std": {name: None if value is None else value * clip for name, value in sigma.items()},
        "exact_epsilon": exact,
        **({"remarks": remarks} if remarks else {}),
    }
