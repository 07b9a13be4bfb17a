"""What noise a plan leaves in the estimates: in their average, and between them. Not a matter of privacy.

Noise enters rows, and rows mix: both are linear, so the covariance of all rows follows from the plan alone.
Methods can be compared by it before any data are read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topdp.errors import InputError
from topdp.plan import Plan
from topdp.plan.arrays import Floats


class Leftover(NamedTuple):
    """Variances of one parameter, after each release.

    `average` [releases]: of the mean of all estimates. `between` [releases]: of an estimate around that mean.
    """

    average: Floats
    between: Floats


def leftover(plan: Plan) -> Leftover:
    """As if gradients did not react to noise.

    >>> import numpy as np
    >>> from topdp import protocols, topology
    >>> from topdp.plan import Schedule
    >>> steps = Schedule(rate=np.ones(2), noise=np.ones(2))
    >>> plan = protocols.Muffliato(gossip=1).plan(topology.complete(4), steps, np.ones(4), seed=0)
    >>> found = leftover(plan)
    >>> found.average.round(3).tolist(), found.between.round(3).tolist()
    ([0.25, 0.25, 0.5, 0.5], [0.75, 0.0, 0.75, 0.0])
    """
    if plan.adjusts is not None:
        raise InputError("Expected a plan of linear rows, got one with Adam: its noise has no formula.")
    if plan.robust is not None:
        raise InputError("Expected a plan of linear rows, got robust mixing: its noise has no formula.")
    n, m = plan.agents, plan.rows
    C, average, between = np.zeros((m, m)), np.zeros(plan.releases), np.zeros(plan.releases)
    own, rows = np.arange(n), np.arange(m)[:, None]
    for r, this in enumerate(plan):
        W = np.zeros((m, m))
        np.add.at(W, (rows, np.maximum(this.source, 0)), np.where(this.source >= 0, this.weight, 0.0))
        N = np.zeros((m, plan.draws))
        np.add.at(N, (rows, np.maximum(this.draw, 0)), np.where(this.draw >= 0, this.std, 0.0))
        N[~this.exists] = 0.0
        C = W @ C @ W.T + N @ N.T
        of_mean = float(C[np.ix_(own, own)].mean())
        average[r], between[r] = of_mean, float(C[own, own].mean()) - of_mean
    return Leftover(average, between)
