"""The residual noise of plans, compared with rows written out as sums of draws."""

from __future__ import annotations

import numpy as np
import pytest

from builders import PROTOCOLS
from topdp import topology
from topdp.plan import Plan, schedules
from topdp.privacy.residual_noise import residual_noise


def coefficients(plan: Plan) -> list[np.ndarray]:
    """Per release [rows, releases·draws]: the coefficient of every draw in every row."""
    rows, found = np.zeros((plan.rows, plan.releases, plan.draws)), []
    for r, this in enumerate(plan):
        made = np.zeros_like(rows)
        for m in np.flatnonzero(this.exists):
            for source, weight in zip(this.source[m], this.weight[m], strict=True):
                if source >= 0:
                    made[m] += weight * rows[source]
            for draw, std in zip(this.draw[m], this.std[m], strict=True):
                if draw >= 0:
                    made[m, r, draw] += std
        rows = made
        found.append(rows.reshape(plan.rows, -1))
    return found


@pytest.mark.parametrize("name", PROTOCOLS)
def test_residual_noise_equals_that_of_rows_written_as_sums_of_draws(name):
    graph, own = topology.random(6, 0.5, 1), np.linspace(0.5, 1.5, 6)
    along = schedules.schedule(schedules.learning_rates(0.5, 3, "linear"), np.ones(4), "gradient")
    plan = PROTOCOLS[name](0.25).plan(graph, along, own, 2)
    found = residual_noise(plan)
    for r, rows in enumerate(coefficients(plan)):
        estimates = rows[:6]
        mean = estimates.mean(axis=0)
        assert found.average[r] == pytest.approx(mean @ mean, rel=1e-9)
        between = np.square(estimates - mean).sum() / 6
        assert found.between[r] == pytest.approx(between, rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(found.estimates, np.square(estimates).sum(axis=1), rtol=1e-9)


def test_pair_noise_cancels_in_the_average_and_averaging_removes_differences():
    graph, along = topology.ring(6), schedules.schedule(np.ones(1), np.ones(1), "gradient")
    for pair_noise in (0.0, 1.0, 100.0):
        plan = PROTOCOLS["correlated"](0.5, pair_noise=pair_noise, gossip=12).plan(
            graph, along, np.ones(6), 0
        )
        found = residual_noise(plan)
        np.testing.assert_allclose(found.average, 1 / 6, rtol=1e-9)
        assert found.between[-1] < 1e-6 * max(1.0, pair_noise**2)
