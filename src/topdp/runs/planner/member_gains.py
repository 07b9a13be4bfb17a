"""What each member gains by joining: the noise in its model alone and together. No data, no torch.

Alone means `alone`: the member trains on its own records, with its own budget, in as many rounds with the
same steps. Its noise follows from a calibration, and that of the models together from the plan. Which members
cost the others is estimated from public numbers, without further plans (`_Members.noise`).

Less noise is not always a better model: records of other members also differ from a member's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from topdp import topology
from topdp.base.array_types import Floats
from topdp.errors import InputError
from topdp.privacy.answers import ADAPTIVE, guarantee_kind
from topdp.privacy.basics.gaussian import epsilon_of, mu_of
from topdp.privacy.noise_calibration import calibrate
from topdp.privacy.query import Query
from topdp.privacy.residual_noise import ResidualNoise, residual_noise
from topdp.protocols import Central
from topdp.runs.agent_weights import best_weights
from topdp.runs.auto_values import noise_alone, with_keys
from topdp.runs.methods import ALONE
from topdp.runs.resolve import resolve
from topdp.runs.resolved_run import ResolvedRun

COSTLY_BELOW = 0.98  # a member is named if the others have less than this share of the noise without it
SEARCH_STEPS = 24  # halvings in the search for the budget or weight with which a member costs nothing


def member_gains(run: ResolvedRun, residual: ResidualNoise, pooled: float) -> dict[str, Any]:
    """Return the gains of all members for JSON.

    `residual`: the noise of the plan. `pooled`: the variance that counts as 1, that with pooled records.
    `alone`, `together` [agents]: the variance of the noise in the member's model at the end. `costly`: the
    members without whom the average of the others has less noise, and what would change that. Raise
    InputError if there is nothing to compare.
    """
    if not run.method.mixes:
        raise InputError(f"Method {run.method.name} has no members that mix their models.")
    if run.epsilon is None:
        raise InputError("σ is set, so there is no budget at which a member could train alone.")
    alone = alone_noise(run) / pooled
    # With smaller weights the average takes shorter steps.
    together = residual.estimates / (pooled * run.total_weight**2)
    members = _Members.of(run)
    return {
        "records": list(run.counts),
        "epsilon": run.epsilon.tolist(),
        "alone": alone.tolist(),
        "together": together.tolist(),
        "costly": [cost for agent in range(len(alone)) if (cost := _cost(members, agent)) is not None],
    }


def alone_noise(run: ResolvedRun) -> Floats:
    """Return the variance of the noise in each member's model [agents] if it trains alone at its budget."""
    config = run.config.model_copy(
        update={
            "method": run.config.method.model_copy(update={"name": ALONE.name, "mode": "sync"}),
            "robust": run.config.robust.model_copy(update={"rule": "mean"}),
        }
    )
    alone = resolve(config, run.graph, run.counts)
    assert alone.epsilon is not None
    deviation = calibrate(
        alone.write_plan, alone.analysis, ADAPTIVE.name, alone.epsilon, alone.delta, Query()
    ).deviation
    # Nobody mixes, so the plan of one agent shows what becomes of the noise of each.
    single_agent = replace(alone, graph=topology.single(), protocol=Central())
    unit = residual_noise(single_agent.write_plan(np.ones(1))).average[-1]
    return np.square(deviation) * float(unit)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Members:
    """Public facts on which the noise of an average depends, for some or all members.

    `needs` [members]: the noise that each needs alone at weight 1, per unit of sensitivity. `counts`: of
    records. `weights`: None: the best ones. `epsilon`, `delta`: the budgets. `by_records`: whether every
    record counts the same. `hidden_together`: whether pair noise hides all members together, against
    `colluders`; `could_hide`: whether it would under the guarantee.
    """

    needs: Floats
    counts: Floats
    weights: Floats | None
    epsilon: Floats
    delta: Floats
    by_records: bool
    hidden_together: bool
    could_hide: bool
    colluders: int

    @classmethod
    def of(cls, run: ResolvedRun) -> _Members:
        assert run.epsilon is not None
        weights = np.array([batches.weight for batches in run.batches])
        chosen = with_keys(run.config, privacy={"weights": "equal"})
        equal = resolve(chosen, run.graph, run.counts)
        kind = guarantee_kind(run.config.privacy.guarantee)
        return cls(
            needs=noise_alone(equal, equal.analysis, equal.schedule) / equal.analysis.exposure().sensitivity,
            counts=np.array(run.counts, float),
            weights=weights,
            epsilon=run.epsilon,
            delta=run.delta,
            by_records=run.config.train.weighting == "records",
            hidden_together=run.method.shares_noise and kind.relies_on_others,
            could_hide=kind is ADAPTIVE,
            colluders=run.config.privacy.colluders,
        )

    def without(self, agent: int) -> _Members:
        keep = np.arange(len(self.needs)) != agent
        arrays = {name: getattr(self, name)[keep] for name in ("needs", "counts", "epsilon", "delta")}
        return replace(self, **arrays, weights=None if self.weights is None else self.weights[keep])

    @property
    def noise(self) -> float:
        """The variance of the noise in the average, up to a common factor, at equal length of its steps."""
        n, w = len(self.needs), self.weights
        if w is None:
            w = best_weights(self.needs, self.hidden_together)
        signal, own = (self.counts, 1.0) if self.by_records else (np.ones(n), self.counts)
        variance = np.square(w * self.needs / own)
        total = _hidden_together(variance, self.colluders) if self.hidden_together else variance.sum()
        return float(total / (w @ signal) ** 2)


def _hidden_together(needs: Floats, colluders: int) -> float:
    """Return about the least sum of own variances if strong pair noise hides all members together.

    `needs` [members]: the variance that each needs. The members outside a coalition then need the largest of
    their needs in total. The member with the largest need adds what the others' own noise leaves open when c
    of them collude; if it colludes itself, c - 1 of the others do.

    >>> _hidden_together(np.ones(5), colluders=1), _hidden_together(np.array([9.0, 1, 1]), colluders=1)
    (1.25, 9.5)
    """
    largest = np.sort(needs)[::-1]
    n, total = len(largest), 0.0
    for place in reversed(range(min(colluders, n - 1) + 1)):
        # f(1 .. n; c) = s_1² + c/(n-1)·f(2 .. n; c-1)
        total = float(largest[place]) + total * (colluders - place) / max(n - 1 - place, 1)
    return total


def _cost(members: _Members, agent: int) -> dict[str, Any] | None:
    """Return how much less noise the average has without the member, and what would change that; None if the
    member does not make it worse.
    """
    if len(members.needs) < 3:
        return None
    share = _without_over_with(members, agent)
    if share >= COSTLY_BELOW:
        return None
    settings = {
        "train.weighting=records": replace(members, by_records=True),
        "privacy.weights=auto": replace(members, weights=None),
        "method.name=correlated": replace(members, hidden_together=members.could_hide),
    }
    helpful = [
        setting
        for setting, changed in settings.items()
        if changed.noise < members.noise * COSTLY_BELOW and _without_over_with(changed, agent) >= COSTLY_BELOW
    ]

    def with_need(factor: float) -> _Members:
        return replace(members, needs=_scaled(members.needs, agent, factor))

    def with_weight(factor: float) -> _Members:
        weights = np.ones(len(members.needs)) if members.weights is None else members.weights
        return replace(members, weights=_scaled(weights, agent, factor))

    budget = float(members.epsilon[agent]), float(members.delta[agent])
    need, weight = _largest_harmless(with_need, agent), _largest_harmless(with_weight, agent)
    return {
        "agent": agent,
        "noise_of_others": share,
        "settings": helpful,
        # A Gaussian release needs noise in proportion to 1/μ.
        "epsilon": None if need is None else float(epsilon_of(mu_of(*budget) / need, budget[1])),
        "weight": None
        if weight is None
        else weight * (1.0 if members.weights is None else float(members.weights[agent])),
    }


def _without_over_with(members: _Members, agent: int) -> float:
    return members.without(agent).noise / members.noise


def _scaled(values: Floats, agent: int, factor: float) -> Floats:
    scaled = values.copy()
    scaled[agent] *= factor
    return scaled


def _largest_harmless(changed: Callable[[float], _Members], agent: int) -> float | None:
    """Return the largest factor up to 1 with which the member does not make the average worse; None if no
    factor is found.
    """
    low, high = 0.0, 1.0
    for _ in range(SEARCH_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _without_over_with(changed(middle), agent) >= 1 else (low, middle)
    return low or None
