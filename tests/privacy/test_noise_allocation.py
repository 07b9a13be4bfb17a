"""Own noise where partners share noise: the least there is, by duality; budgets are kept, and used."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import nnls

from builders import WITH_VIEW
from topdp import topology
from topdp.plan import Full, Poisson, Schedule, schedules
from topdp.privacy import Analysis, account, adaptive, exposure
from topdp.privacy import noise_allocation as module
from topdp.privacy.answers import ADAPTIVE
from topdp.privacy.basics.gaussian import mu_of
from topdp.privacy.basics.refusals import PrivacyError
from topdp.privacy.budget_excess import BudgetExcess
from topdp.privacy.noise_allocation import Allocation, allocate
from topdp.privacy.noise_calibration import calibrate
from topdp.privacy.observers.shared_noise import connectivity_bound, noisy_releases
from topdp.privacy.query import Query
from topdp.privacy.residual_noise import residual_noise
from topdp.protocols import Correlated
from topdp.protocols.pair_secrets import secret_pairs

ONCE = Schedule(rate=np.ones(1), noise=np.ones(1))


def exposed(pairs: np.ndarray, own: np.ndarray, shared: float, colluders: int) -> list[tuple]:
    """(agent, 1/z², its slopes in all own variances) of every agent and coalition; variances as given."""
    n, found = len(own), []
    for J in itertools.combinations(range(n), colluders):
        left = [i for i in range(n) if i not in J]
        covariance = np.diag(own)
        for i, j in pairs:
            if i not in J and j not in J:
                covariance[[i, j], [i, j]] += shared
                covariance[[i, j], [j, i]] -= shared
        inverse = np.linalg.inv(covariance[np.ix_(left, left)])
        for at, agent in enumerate(left):
            slopes = np.zeros(n)
            slopes[left] = -(inverse[at] ** 2)
            found.append((agent, inverse[at, at], slopes))
    return found


def surely_needed(found: Allocation, pairs: np.ndarray, alone: np.ndarray, colluders: int) -> float:
    """A sum of own variances below which no allocation hides everybody: by duality, since it is convex.

    Of Lagrange's function with the multipliers that fit best; what they do not fit is given away.
    """
    needs, own = alone**2, found.own**2
    floor = needs / len(alone)
    every = [(needs[i] * value - 1, needs[i] * slopes) for i, value, slopes in
             exposed(pairs, own, found.pair**2, colluders)]  # fmt: skip
    near = [(value, slopes) for value, slopes in every if value > -1e-3]
    at_floor = own < floor * (1 + 1e-3)
    columns = np.column_stack([*(-slopes for _, slopes in near), *np.eye(len(own))[at_floor]])
    multipliers, _ = nnls(columns, np.ones(len(own)))
    left = 1 - columns @ multipliers
    values = np.array([*(value for value, _ in near), *(floor - own)[at_floor]])
    given_away = np.abs(left) @ np.maximum(own, needs.max())
    return float(own.sum() + multipliers @ values - given_away)


CASES = [  # agents, colluders, secrets, degree
    (4, 0, "all", 3),
    (4, 1, "all", 3),
    (5, 1, "links", 2),
    (6, 1, "regular", 4),
    (7, 3, "all", 3),
    (8, 2, "regular", 4),
    (12, 1, "regular", 6),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_allocation_hides_everybody_with_less(case):
    """Needs that differ little and much, pair noise that is weak and strong."""
    agents, colluders, secrets, degree = case
    pairs = secret_pairs(secrets, topology.ring(agents), degree, seed=0)
    numbers = np.random.default_rng(agents)
    for spread, strength in itertools.product((0.1, 0.6), (3.0, 10.0, 50.0)):
        alone = np.exp(numbers.normal(0, spread, agents))
        found = allocate(pairs, alone, colluders, strength)
        most = max(
            alone[i] ** 2 * value for i, value, _ in exposed(pairs, found.own**2, found.pair**2, colluders)
        )
        assert most == pytest.approx(1, abs=1e-5)  # hides everybody, and some agent no better than it must
        total = float((found.own**2).sum())
        assert surely_needed(found, pairs, alone, colluders) > total * (1 - 3e-3), (spread, strength)
        assert (found.own**2 >= alone**2 / agents * (1 - 1e-9)).all()


def test_equal_needs_get_equal_noise_and_no_floor_binds():
    for agents, colluders, secrets, degree in CASES:
        pairs = secret_pairs(secrets, topology.ring(agents), degree, seed=0)
        found = allocate(pairs, np.full(agents, 0.7), colluders, 10.0)
        assert np.ptp(found.own) < 1e-12 and found.own[0] ** 2 > 0.49 / agents
        most = max(0.49 * value for _, value, _ in exposed(pairs, found.own**2, found.pair**2, colluders))
        assert most == pytest.approx(1, abs=1e-8)


def in_the_average(found, alone):
    """The variance in the average of the estimates, over that with pooled records and the mean need."""
    return float((found.own**2).sum()) / float((alone**2).mean())


@pytest.mark.parametrize("case", CASES[3:], ids=str)
@pytest.mark.parametrize("gossip", [0, 3])
def test_what_stays_in_the_average_is_what_the_plan_leaves(case, gossip):
    """And the account of that plan says that everybody has what it needs."""
    agents, colluders, secrets, degree = case
    graph = topology.ring(agents)
    alone = np.exp(np.random.default_rng(1).normal(0, 0.4, agents))
    found = allocate(secret_pairs(secrets, graph, degree, 0), alone, colluders)
    plan = Correlated(secrets=secrets, degree=degree, pair_noise=found.pair_noise, gossip=gossip).plan(
        graph, ONCE, found.own, 0
    )
    left = residual_noise(plan)
    pooled = float((alone**2).mean()) / agents**2
    assert left.average[-1] / pooled == pytest.approx(in_the_average(found, alone), rel=1e-9)
    assert gossip == 0 or left.between[-1] < left.between[0]
    mu = adaptive(plan, exposure(agents, 1.0), Query(colluders=colluders)).worst() * alone
    assert mu.max() == pytest.approx(1, abs=1e-5)


def test_many_agents_are_hidden_by_how_well_they_are_connected(monkeypatch):
    """The same way without looking at coalitions: more noise, though never too little."""
    agents, colluders = 24, 2
    graph = topology.ring(agents)
    pairs = secret_pairs("regular", graph, 10, 0)
    for spread in (0.0, 0.3, 1.0):
        alone = np.exp(np.random.default_rng(2).normal(0, spread, agents))
        best = allocate(pairs, alone, colluders, 30.0)
        monkeypatch.setattr(module, "MAX_EXACT_AGENTS", 5)
        found = allocate(pairs, alone, colluders, 30.0)
        monkeypatch.undo()
        plan = Correlated(secrets="regular", degree=10, pair_noise=found.pair_noise, gossip=0).plan(
            graph, ONCE, found.own, 0
        )
        mu = adaptive(plan, exposure(agents, 1.0), Query(colluders=colluders)).worst() * alone
        assert mu.max() <= 1 + 1e-9
        bound = connectivity_bound(plan, noisy_releases(plan), colluders)
        assert bound is not None and (bound[0, 0] * alone**2).max() == pytest.approx(1, abs=1e-5)
        assert 1 <= in_the_average(found, alone) / in_the_average(best, alone) < 1.6
    # Too few partners for any bound: everybody is left to itself.
    monkeypatch.setattr(module, "MAX_EXACT_AGENTS", 5)
    lonely = allocate(secret_pairs("regular", graph, 2, 0), np.ones(agents), colluders, 30.0)
    np.testing.assert_allclose(lonely.own, 1.0)


BUDGETS = {  # records and ε of each agent
    "shards": ([448, 501, 1160, 2000, 3115, 3941], [1.0] * 6),
    "budgets": ([400] * 6, [1.0, 0.5, 2.0, 4.0, 1.0, 0.5]),
    "both": ([100, 400, 400, 200, 300, 400], [0.5, 1.0, 1.0, 2.0, 0.7, 1.0]),
}


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("colluders", [1, 2])
def test_budgets_of_ones_own_are_kept_with_the_least_sum_of_noise(budget, colluders):
    """The sum of own variances counts: an agent may lie below its budget, since it hides others too."""
    records, epsilon = BUDGETS[budget]
    analysis, delta = Analysis("tight", tuple(map(Full, records)), 2.0), 1e-5
    alone = analysis.exposure().sensitivity / mu_of(np.array(epsilon), delta)
    graph, along = topology.ring(6), schedules.schedule(np.linspace(1, 0.2, 9), np.ones(9), "gradient")
    found = allocate(secret_pairs("all", graph, 5, 0), alone, colluders, 20.0)

    def write(deviation: np.ndarray):
        return Correlated(secrets="all", pair_noise=found.pair_noise, gossip=1).plan(
            graph, along, deviation, 0
        )

    def calibrated(shares: np.ndarray | None) -> np.ndarray:
        return calibrate(
            write,
            analysis,
            "adaptive",
            np.array(epsilon),
            delta,
            shares=shares,
            query=Query(colluders=colluders),
        ).deviation

    own = calibrated(found.own)
    answer = account(
        write(own), analysis, delta, guarantee="adaptive", query=Query(colluders=colluders)
    ).adaptive.epsilon
    assert answer is not None and (answer <= np.array(epsilon)).all()
    share = mu_of(answer, delta) / mu_of(np.array(epsilon), delta)
    assert share.max() == pytest.approx(1, abs=1e-6)
    # Less than each for itself, and than in proportion to what each needs alone.
    assert (own**2).sum() < min((calibrated(other) ** 2).sum() for other in (None, alone)) * (1 + 1e-6)
    # Nobody's noise can be lowered: with 1% less some agent would exceed its budget.
    accounts = BudgetExcess(
        write,
        analysis.exposure(),
        ADAPTIVE,
        epsilon=np.array(epsilon),
        delta=delta,
        query=Query(colluders=colluders),
    )
    for agent in range(6):
        less = own.copy()
        less[agent] *= 0.99
        assert accounts.whole(less).max() > 1, agent


def test_poisson_samples_with_budgets_of_ones_own():
    analysis, delta = Analysis("tight", tuple(Poisson(n, 5) for n in (20, 40, 80, 20, 60)), 2.0), 1e-5
    epsilon = np.array([1.0, 1.0, 2.0, 1.5, 1.0])
    schedule = schedules.schedule(np.ones(4), np.ones(4), "gradient")

    def write(deviation: np.ndarray):
        return WITH_VIEW["correlated"](0.5).plan(topology.ring(5), schedule, deviation, 1)

    found = calibrate(write, analysis, "adaptive", epsilon, delta, query=Query(colluders=1))
    answer = account(write(found.deviation), analysis, delta, guarantee="adaptive").adaptive.epsilon
    assert answer is not None and (answer <= epsilon).all() and (answer / epsilon).max() > 1 - 1e-5


@pytest.mark.parametrize("many", [False, True])
def test_extreme_needs_get_numbers(many, monkeypatch):
    if many:
        monkeypatch.setattr(module, "MAX_EXACT_AGENTS", 1)
    numbers = np.random.default_rng(0)
    for agents, spread, strength in itertools.product((2, 3, 8), (0.0, 1e-9, 3.0), (1e-3, 1.0, 1e6)):
        graph = topology.complete(2) if agents == 2 else topology.ring(agents)
        alone = np.exp(numbers.normal(0, spread, agents)) * 10 ** numbers.uniform(-8, 8)
        for colluders in {0, 1, agents - 1}:
            own = allocate(secret_pairs("links", graph, 2, 0), alone, colluders, strength).own
            assert np.isfinite(own).all() and (own > 0).all()
            assert (own <= np.sqrt(agents) * alone.max() * 1.01).all()


@pytest.mark.parametrize(
    ("alone", "colluders", "strength"),
    [
        ([1.0, 0.0, 1.0], 1, 10.0),
        ([1.0, np.inf, 1.0], 1, 10.0),
        ([1.0, np.nan, 1.0], 1, 10.0),
        ([1.0, 1.0, 1.0], 3, 10.0),
        ([1.0, 1.0, 1.0], -1, 10.0),
        ([1.0, 1.0, 1.0], 1, 0.0),
        ([1.0, 1.0, 1.0], 1, np.nan),
    ],
)
def test_questions_that_are_none_are_refused(alone, colluders, strength):
    with pytest.raises(
        PrivacyError, match="finite needs > 0, fewer colluders than agents, and a strength > 0"
    ):
        allocate(topology.complete(3).edges, np.array(alone), colluders, strength)
