"""The answers `adaptive` and `outsider`, compared with a dense oracle that shares no code with them.

The oracle is in dense_adaptive.py. The tests cover all graph families and protocols, zero to two colluders,
decay, unequal noise and cycles, and plans that no protocol of topdp writes, with draws that several agents
share. They also check general laws: the answer equals the claim under the plain rule, equals the worst case
in pairs, and lies between view and worst case; and the short form of a plan gives the same answer as the
long one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import combinations

import dense_adaptive as dense
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from builders import PROTOCOLS, cyclic_pairs
from strategies import custom_plans
from topdp import topology
from topdp.plan import NOBODY, Cycle, Full, PerRound, Plan, schedules
from topdp.privacy import Analysis, Exposure, account, adaptive, exposure, outsider, view, worst_case
from topdp.privacy.answers import VIEW
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.observers.observer_filter import Public
from topdp.privacy.query import Query
from topdp.topology import Topology

GRAPHS: dict[str, Topology] = {
    "random": topology.random(8, 0.35, 1),
    "ring": topology.ring(6),
    "star": topology.star(7),
    "tree": topology.tree(7),
    "mesh": topology.mesh(8),
    "complete": topology.complete(5),
    "grid": topology.grid(8),
    "small-world": topology.small_world(8, 4, 0.3, 1),
    "regular": topology.regular(8, 3, 1),
}
NEAR = 1e-9
TIGHT = 5e-3  # how far the certified bound may exceed what is reached, for an owner's worst observer


def plan_on(
    graph: Topology,
    protocol: str,
    rounds: int = 6,
    alpha: float = 0.25,
    spread: float = 1.02,
    **options: object,
) -> Plan:
    """Falling steps, decaying and unequal noise, and offline agents."""
    rates = schedules.learning_rates(0.5, rounds, "linear")
    schedule = schedules.schedule(rates, schedules.step_decay(0.8, 3, rounds), "gradient")
    deviation = spread ** np.random.default_rng(graph.agents).uniform(-1, 1, graph.agents)
    if protocol.endswith("-async"):
        options["offline"] = 0.2
    return PROTOCOLS[protocol](alpha, **options).plan(graph, schedule, deviation, seed=3)


def unit(plan: Plan, period: int = 1) -> Exposure:
    return exposure(plan.agents, 1.0, Full(1) if period == 1 else Cycle(period, 1))


def dense_mu(plan: Plan, owner: int, J: Sequence[int], public: str, period: int = 1) -> dict[str, float]:
    """μ of the aligned record, and bounds on the worst record; with many digits if floats do not suffice."""
    try:
        M = dense.gram(*dense.coefficients(plan, owner, J, public))
    except dense.AmbiguousError:
        M = dense.gram(*dense.coefficients(plan, owner, J, public, Decimal))
    if M is None:
        return dict.fromkeys(("aligned", "low", "high"), np.inf)
    low, high = dense.bracket(M, period)
    return {"aligned": dense.aligned(M, period) ** 0.5, "low": low**0.5, "high": high**0.5}


def assert_equal_to_dense(
    plan: Plan, owner: int, J: tuple[int, ...], public: Public, period: int = 1, found: float | None = None
) -> None:
    """The aligned μ is exact; the bound is never below what is reached, and exact if signs allow it."""
    kind = {Public.NOTHING: "nothing", Public.ESTIMATES: "estimates", Public.LINKS: "links"}[public]
    expected = dense_mu(plan, owner, J, kind, period)
    reached, bound = (
        view(plan, unit(plan, period), [J], [owner], bound=which, public=public)  # type: ignore[arg-type]
        for which in ("aligned", "upper")
    )
    assert reached.lower[owner, 0] == pytest.approx(expected["aligned"], rel=NEAR, abs=NEAR)
    assert bound.upper is not None
    uppers = [bound.upper[owner, 0], *([found] if found is not None else [])]
    for upper in uppers:
        assert upper >= expected["low"] * (1 - NEAR)
        if expected["high"] <= expected["aligned"] * (1 + NEAR):
            assert upper == pytest.approx(expected["high"], rel=10 * NEAR, abs=NEAR)


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "family"), cyclic_pairs(PROTOCOLS, GRAPHS, 4))
def test_answers_equal_the_dense_formula(protocol, family):
    plan = plan_on(GRAPHS[family], protocol)
    numbers = np.random.default_rng(len(family))
    for colluders in (0, 1, 2):
        found = adaptive(plan, unit(plan), Query(colluders=colluders))
        at = int(numbers.integers(len(found.observers)))
        J = found.observers[at]
        owner = int(numbers.choice([i for i in range(plan.agents) if i not in J]))
        assert found.upper is not None
        assert_equal_to_dense(plan, owner, J, Public.ESTIMATES, found=float(found.upper[owner, at]))
    owner = int(numbers.integers(plan.agents))
    outside = outsider(plan, unit(plan))
    assert outside.upper is not None
    assert_equal_to_dense(plan, owner, (), Public.LINKS, found=float(outside.upper[owner, 0]))


@pytest.mark.parametrize("colluders", [0, 1, 2])
def test_the_worst_of_all_coalitions_is_found(colluders):
    plan = plan_on(topology.grid(6), "top-sync", rounds=4)
    found = adaptive(plan, unit(plan), Query(colluders=colluders))
    assert set(found.observers) == set(combinations(range(6), colluders))
    for owner in (1, 3):
        coalitions = [J for J in combinations(range(6), colluders) if owner not in J]
        every = [dense_mu(plan, owner, J, "estimates") for J in coalitions]
        low, high = (max(one[end] for one in every) for end in ("low", "high"))
        assert low * (1 - NEAR) <= found.worst()[owner] <= high * (1 + TIGHT)


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "period"), cyclic_pairs(PROTOCOLS, [2, 3, 9], 1))
def test_cyclic_batches_count_the_worst_position(protocol, period):
    plan = plan_on(GRAPHS["grid"], protocol)
    for owner, J in ((1, (2,)), (4, ()), (3, (0, 7))):
        assert_equal_to_dense(plan, owner, J, Public.ESTIMATES, period)
    found = adaptive(plan, unit(plan, period))
    expected = [dense_mu(plan, 1, (j,), "estimates", period) for j in range(8) if j != 1]
    assert found.worst()[1] >= max(one["low"] for one in expected) * (1 - NEAR)
    assert found.worst()[1] <= max(one["high"] for one in expected) * (1 + TIGHT)


@pytest.mark.parametrize(("protocol", "number"), cyclic_pairs(PROTOCOLS, [Decimal, Fraction], 1))
def test_the_oracle_agrees_with_exact_arithmetic(protocol, number):
    plan = plan_on(topology.ring(4), protocol, rounds=3)
    for J in ((), (1,), (1, 3)):
        floats, exact = (
            dense.gram(*dense.coefficients(plan, 0, J, "estimates", one)) for one in (float, number)
        )
        np.testing.assert_allclose(floats, exact, rtol=1e-11, atol=1e-11 * np.abs(exact).max())


@pytest.mark.parametrize("protocol", ["plain-sync", "plain-async"])
def test_adaptive_equals_the_claim_under_the_plain_rule(protocol):
    """With full batches, a tight claim and no offline agents; also with decay and unequal noise."""
    offline = {"offline": 0.0} if protocol == "plain-async" else {}
    rates = schedules.learning_rates(0.5, 8, "linear")
    schedule = schedules.schedule(rates, schedules.step_decay(0.8, 3, 8), "gradient")
    deviation = 0.2 * np.array([1.0, 1.3, 0.7, 1.0, 2.0, 1.1])
    plan = PROTOCOLS[protocol](0.25, **offline).plan(topology.ring(6), schedule, deviation, 1)
    analysis = Analysis("tight", (Full(100),) * 6, clip=4.0)
    found = account(plan, analysis, 1e-5, answers=["adaptive"])
    assert found.claimed.epsilon is not None and np.isfinite(found.claimed.epsilon).all()
    np.testing.assert_allclose(found.answer("adaptive").epsilon, found.claimed.epsilon, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("family", ["random", "ring", "small-world"])
def test_adaptive_lies_between_view_and_worst_case(protocol, family):
    plan = plan_on(GRAPHS[family], protocol)
    if (plan.weight.values < 0).any():  # with accelerated averaging the view is refused
        with pytest.raises(NotCovered, match="chebyshev"):
            VIEW.observe(plan, unit(plan), Query())
        plan = plan_on(GRAPHS[family], protocol, chebyshev=False)
    exposed = unit(plan)
    seen, worst = view(plan, exposed, owners="all"), worst_case(plan, exposed).mu
    none, one, two = (adaptive(plan, exposed, Query(colluders=colluders)).worst() for colluders in (0, 1, 2))
    outside = outsider(plan, exposed).worst()
    slack = 1 + TIGHT  # for the bounds, which are not exact
    for lower, higher in ((seen.worst(), one), (none, one), (one, two), (two, worst), (none, outside)):
        assert (lower <= higher * slack).all()
    assert (two <= worst * (1 + NEAR)).all() and (outside <= worst * (1 + NEAR)).all()
    if protocol.endswith("-async"):
        np.testing.assert_allclose(one, worst, rtol=NEAR)
        assert (seen.worst() < 0.95 * one).any()


def pair_secrets(
    edges: Sequence[tuple[int, int]], own: np.ndarray, shared: float, rounds: int, between: bool = False
) -> Plan:
    """Every agent reads every row; i and j add the same draw with opposite signs, and know it.

    `between`: agents send separate rows, and estimates are noiseless averages of the sent rows.
    """
    n, R = len(own), rounds + 1
    m = 2 * n if between else n
    draw, std = np.full((m, 1 + len(edges)), NOBODY), np.zeros((m, 1 + len(edges)))
    for i in range(n):
        row = n + i if between else i
        draw[row, 0], std[row, 0] = i, own[i]
        for e, (first, second) in enumerate(edges):
            if i in (first, second):
                draw[row, 1 + e], std[row, 1 + e] = n + e, shared if i == first else -shared
    sent = np.arange(n, m) if between else np.arange(n)
    source, weight = np.full((m, n), NOBODY), np.zeros((m, n))
    source[:n], weight[:n] = sent, np.random.default_rng(n).dirichlet(np.ones(n), n)
    if between:
        source[n:, 0], weight[n:, 0] = np.arange(n), 1.0
    readers = np.full((m, n), NOBODY)
    readers[sent] = np.arange(n)
    rates = schedules.learning_rates(0.5, rounds, "linear")
    return Plan(
        agents=n,
        owner=np.arange(m) % n,
        source=PerRound.same(source, R),
        weight=PerRound.same(weight, R),
        carries=PerRound.same(np.arange(m) >= m - n, R),
        rate=rates,
        draw=PerRound.same(draw, R),
        std=PerRound.same(std, R),
        scale=rates * schedules.step_decay(0.9, 2, rounds),
        known_by=np.array([*((i, NOBODY) for i in range(n)), *edges]),
        readers=PerRound.same(readers, R),
    )


SECRETS = {
    "all pairs": list(combinations(range(6), 2)),
    "ring": [(i, (i + 1) % 6) for i in range(6)],
    "path": [(i, i + 1) for i in range(5)],
    "leaf": [(0, 1), (1, 2), (2, 3), (3, 1), (3, 4), (4, 5), (5, 2)],
    "none": [],
}


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("secrets", SECRETS)
def test_answers_with_pair_secrets_equal_the_laplacian_formula(secrets, between):
    """The short form, the long form, and the Laplacian of the secrets that J does not know agree.

    μ_i² = Σ_t λ_t² [(scale_t² (a² + s² L_-J))⁻¹]_ii in closed form.
    """
    own, shared = np.array([0.3, 0.4, 0.3, 0.5, 0.3, 0.35]), 2.0
    plan = pair_secrets(SECRETS[secrets], own, shared, rounds=4, between=between)
    exposed = unit(plan)

    def by_hand(J: tuple[int, ...]) -> np.ndarray:
        rest = [i for i in range(6) if i not in J]
        covariance = np.diag(own**2)
        for i, j in SECRETS[secrets]:
            if i not in J and j not in J:
                covariance[[i, j], [i, j]] += shared**2
                covariance[[i, j], [j, i]] = -(shared**2)
        inverse = np.linalg.inv(covariance[np.ix_(rest, rest)]).diagonal()
        return np.sqrt(inverse * np.sum((plan.rate / plan.scale) ** 2))

    np.testing.assert_allclose(outsider(plan, exposed).worst(), by_hand(()), rtol=NEAR)
    # If sent rows are separate, no estimate shows the rows that were sent last.
    for colluders in (1, 2) if between else (0, 1, 2):
        found = adaptive(plan, exposed, Query(colluders=colluders))
        for at, J in list(enumerate(found.observers))[:: 1 + colluders]:
            rest = [i for i in range(6) if i not in J]
            long = view(plan, exposed, [J], "all", public=Public.ESTIMATES)
            assert found.upper is not None and long.upper is not None
            np.testing.assert_allclose(found.upper[rest, at], by_hand(J), rtol=NEAR)
            np.testing.assert_allclose(long.upper[rest, 0], by_hand(J), rtol=10 * NEAR)
    assert_equal_to_dense(plan, 2, (4,), Public.ESTIMATES)


def test_pair_noise_hides_agents_from_an_outsider_but_not_from_all_others():
    """All others together know every secret, so that only the small own noise remains."""
    plan = pair_secrets(SECRETS["all pairs"], np.full(6, 0.3), 2.0, rounds=6)
    outside, worst = outsider(plan, unit(plan)).worst(), worst_case(plan, unit(plan)).mu
    assert (outside < 0.45 * worst).all()
    assert (outside < adaptive(plan, unit(plan), Query(colluders=1)).worst()).all()
    assert outside[0] == pytest.approx(dense_mu(plan, 0, (), "links")["high"], rel=NEAR)


def test_sending_a_row_twice_reveals_nothing_more():
    """Each estimate is also sent as a separate row with the same draws."""
    plan = pair_secrets(SECRETS["leaf"], np.array([0.3, 0.4, 0.3, 0.5, 0.3, 0.35]), 2.0, rounds=2)
    twice = replace(
        plan,
        owner=np.tile(plan.owner, 2),
        **{
            name: PerRound.same(np.concatenate([getattr(plan, name)[0]] * 2), plan.releases)
            for name in ("source", "weight", "carries", "draw", "std", "readers")
        },
    )
    for colluders in (0, 1, 2):
        once, again = (adaptive(one, unit(one), Query(colluders=colluders)).worst() for one in (plan, twice))
        np.testing.assert_allclose(again, once, rtol=NEAR)


def test_a_round_without_noise_is_infinite_for_agents_with_a_gradient_in_it():
    plan = pair_secrets(SECRETS["ring"], np.full(6, 0.3), 2.0, rounds=3)
    carries = np.ones(6, bool)
    carries[4] = False
    bare = replace(plan, scale=plan.scale * [1, 1, 0, 1], carries=PerRound.same(carries, 4))
    for found in (adaptive(bare, unit(bare)), outsider(bare, unit(bare))):
        assert found.worst()[4] == 0
        assert np.isinf(found.worst()[[0, 1, 2, 3, 5]]).all()


def test_an_unsent_estimate_without_noise_is_infinite():
    """Finite for observers of messages only; infinite if estimates are public, for this owner alone."""
    plan = plan_on(topology.ring(6), "top-sync", rounds=4, spread=1.0)
    std = np.array([plan.std[r] for r in range(plan.releases)])
    std[1:, 2] = 0.0
    bare = replace(plan, std=PerRound.each(std))
    assert (bare[1].readers[2] == NOBODY).all()
    assert np.isfinite(view(bare, unit(bare), owners="all").worst()).all()
    for colluders in (0, 1):
        assert np.isinf(adaptive(bare, unit(bare), Query(colluders=colluders)).worst()).tolist() == [
            i == 2 for i in range(6)
        ]
    assert dense_mu(bare, 2, (), "estimates")["low"] == np.inf
    assert np.isfinite(dense_mu(bare, 3, (0,), "estimates")["high"])


def test_dominant_pair_noise_never_gives_an_answer_below_the_truth():
    """Pair draws are millions of times as large as own noise, so that floats lose the own noise."""
    n, edges = 30, [(i, (i + k) % 30) for i in range(30) for k in (1, 2, 3, 4)]
    plan = pair_secrets(edges, np.ones(n), 4e6, rounds=1)
    least = np.sqrt(np.sum((plan.rate / plan.scale) ** 2) / n)  # as if only the sum were visible
    for found in (
        outsider(plan, unit(plan)),
        adaptive(plan, unit(plan), Query(colluders=1)),
    ):
        assert (found.worst() >= least * (1 - NEAR)).all()


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_adaptive_equals_the_dense_formula_at_alpha_0_and_1(protocol, alpha):
    """α = 0: reduced noise is zero, so that messages have none. α = 1: no agent mixes anything."""
    plan = plan_on(topology.ring(5), protocol, rounds=4, alpha=alpha, spread=1.0)
    found = adaptive(plan, unit(plan))
    for owner in (0, 2):
        others = [j for j in range(5) if j != owner]
        expected = max(dense_mu(plan, owner, (observer,), "estimates")["high"] for observer in others)
        assert found.worst()[owner] == pytest.approx(expected, rel=NEAR)


@settings(max_examples=60)
@given(custom_plans(), st.data())
def test_answers_for_arbitrary_plans_are_never_below_the_dense_formula(plan, data):
    """Rows exist in some rounds only; J mixes rows that it never read; several agents or none know a draw."""
    owner = data.draw(st.integers(0, plan.agents - 1))
    others = [i for i in range(plan.agents) if i != owner]
    J = tuple(sorted(data.draw(st.sets(st.sampled_from(others) if others else st.nothing()))))
    public = data.draw(st.sampled_from([Public.ESTIMATES, Public.LINKS]))
    kind = "estimates" if public is Public.ESTIMATES else "links"
    expected = dense_mu(plan, owner, J, kind)
    assume(expected["high"] == np.inf or expected["high"] < 1e3)
    found = view(plan, unit(plan), [J], [owner], public=public)
    answer = (
        adaptive(plan, unit(plan), Query(colluders=len(J)))
        if public is Public.ESTIMATES
        else outsider(plan, unit(plan))
    )
    assert found.upper is not None
    assert found.upper[owner, 0] >= expected["low"] * (1 - 1e-8)
    if public is Public.ESTIMATES or not J:
        assert answer.worst()[owner] >= expected["low"] * (1 - 1e-8)


def test_a_round_without_draws_and_gradients_reveals_nothing():
    which = np.arange(3, dtype=np.int32)
    plan = Plan(
        agents=1,
        owner=np.array([0]),
        source=PerRound(np.zeros((3, 1, 1), dtype=int), which),
        weight=PerRound(np.array([[[0.02]], [[0.0]], [[0.49]]]), which),
        carries=PerRound(np.array([[False], [True], [True]]), which),
        rate=np.array([0.08, 0.51, 0.14]),
        draw=PerRound(np.array([[[-1]], [[0]], [[0]]]), which),
        std=PerRound(np.array([[[1.7]]]), np.zeros(3, dtype=np.int32)),
        scale=np.array([0.64, 0.84, 0.68]),
        known_by=np.array([[-1, -1]]),  # no agent knows it, so it counts as shared
        readers=PerRound(np.array([[[-1]], [[-1]], [[0]]]), which),
        protocol="custom",
    )
    expected = dense_mu(plan, 0, (), "estimates")["high"]
    assert adaptive(plan, unit(plan), Query(colluders=0)).worst()[0] == pytest.approx(expected, rel=NEAR)
