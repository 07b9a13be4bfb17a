"""Per-agent δ: every answer and every calibration treats agent i as if all agents had the δ of agent i."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from builders import WITH_VIEW, pairwise
from strategies import written_plans
from topdp import topology
from topdp.plan import Batches, Cycle, Full, Plan, Poisson, schedules
from topdp.privacy.accounting import Account, account
from topdp.privacy.answers import ADAPTIVE, GUARANTEES, ON_REQUEST
from topdp.privacy.basics.refusals import NotCovered, PrivacyError, PrivacyWarning
from topdp.privacy.budget_excess import BudgetExcess
from topdp.privacy.noise_calibration import calibrate
from topdp.privacy.observers.coalitions import coalitions
from topdp.privacy.published.calibrations import CALIBRATIONS
from topdp.privacy.published.claims import Analysis
from topdp.privacy.query import Query

EPSILON = [1.0, 2.0, 1.0, 0.5, 1.0, 2.0]
DELTAS = [1e-5, 1e-6, 1e-3, 1e-5, 1e-8, 1e-3]
GRAPH = topology.random(6, 0.5, seed=4)
BATCHES: dict[str, Callable[[], Batches]] = {
    "full": lambda: Full(20),
    "cycle": lambda: Cycle(20, 6),
    "poisson": lambda: Poisson(20, 5),
}


def write_of(name: str, rounds: int = 4) -> Callable[[np.ndarray], Plan]:
    rates = schedules.learning_rates(0.3, rounds, "linear")
    schedule = schedules.schedule(rates, np.ones(rounds + 1), "gradient")
    return lambda deviation: WITH_VIEW[name](0.4).plan(GRAPH, schedule, deviation, seed=1)


def analysis_of(kind: str = "full", calibration: str = "tight") -> Analysis:
    return Analysis(calibration, (BATCHES[kind](),) * 6, clip=2.0)


def definition(mu: float, epsilon: float) -> float:
    """The δ of N(0, 1) against N(μ, 1): Definition 1, written out for the best test at e^ε."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def accounted(plan: Plan, analysis: Analysis, delta: float | list[float], colluders: int = 1) -> Account:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return account(plan, analysis, delta, ON_REQUEST, query=Query(colluders=colluders))


def expect_each_agents_own(plan: Plan, analysis: Analysis, deltas: list[float], colluders: int) -> None:
    found = accounted(plan, analysis, deltas, colluders)
    assert found.delta == deltas and found.summary()["delta"] == deltas
    for delta in set(deltas):
        common = accounted(plan, analysis, delta, colluders)
        for key, answer in common.answers.items():
            own = found.answers[key]
            assert (own.epsilon is None) == (answer.epsilon is None), (key, own.reason, answer.reason)
            if answer.epsilon is None:
                continue
            for i in np.flatnonzero(np.array(deltas) == delta):
                # The bisection of several numbers at once may end one rounding apart.
                assert own.epsilon[i] == pytest.approx(answer.epsilon[i], rel=1e-11, abs=1e-11), (key, i)
            assert own.observers == answer.observers


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_an_account_has_for_each_agent_the_epsilon_at_its_delta(data):
    plan = data.draw(written_plans())
    n = plan.agents
    deltas = data.draw(st.lists(st.sampled_from([1e-8, 1e-5, 1e-3, 0.4]), min_size=n, max_size=n))
    kinds = data.draw(st.lists(st.sampled_from([Full(20), Cycle(20, 6)]), min_size=n, max_size=n))
    analysis = Analysis(
        data.draw(st.sampled_from(["tight", "moments", "udp"])),
        tuple(kinds),
        clip=data.draw(st.floats(0.1, 9.0)),
    )
    expect_each_agents_own(plan, analysis, deltas, data.draw(st.integers(0, min(2, n - 1))))


@pytest.mark.parametrize(("kind", "calibration"), pairwise(BATCHES, CALIBRATIONS))
def test_the_same_holds_for_all_batches_and_calibrations(kind, calibration):
    expect_each_agents_own(
        write_of("top-sync")(np.full(6, 2.0)), analysis_of(kind, calibration), DELTAS, colluders=2
    )


@pytest.mark.parametrize("name", WITH_VIEW)
def test_every_epsilon_is_the_least_that_the_definition_allows(name):
    found = accounted(write_of(name)(np.linspace(0.5, 2.0, 6)), analysis_of(), DELTAS)
    for key in ("view", "adaptive", "outsider", "worst_case"):
        answer = found.answers[key]
        for i, delta in enumerate(DELTAS):
            at_epsilon, at_less = (definition(answer.mu[i], answer.epsilon[i] * part) for part in (1, 0.999))
            assert at_epsilon <= delta * (1 + 1e-6) < at_less, (key, i)


@pytest.mark.parametrize("guarantee", ["view", "adaptive", "worst-case"])
@pytest.mark.parametrize("kind", ["full", "cycle"])
@pytest.mark.parametrize("name", ["top-sync", "plain-sync", "dsgd"])
def test_noise_meets_every_budget_at_its_own_delta_and_is_least(name, kind, guarantee):
    assert guarantee in GUARANTEES
    write, analysis = write_of(name), analysis_of(kind)
    noise = calibrate(write, analysis, guarantee, np.array(EPSILON), DELTAS).deviation
    key = guarantee.replace("-", "_")
    spent = accounted(write(noise), analysis, DELTAS).answers[key]
    assert (spent.epsilon <= np.array(EPSILON)).all()
    for i, (epsilon, delta) in enumerate(zip(EPSILON, DELTAS, strict=True)):
        assert definition(spent.mu[i], epsilon) <= delta * (1 + 1e-9), i
    less = accounted(write(noise * 0.999), analysis, DELTAS).answers[key]
    assert (less.epsilon > np.array(EPSILON)).any()
    strict = calibrate(write, analysis, guarantee, np.array(EPSILON), min(DELTAS)).deviation
    assert noise.sum() < 0.9 * strict.sum()  # the larger δ of some agents saves noise


@pytest.mark.parametrize(
    ("kind", "calibration"),
    [
        pytest.param(kind, name, marks=pytest.mark.slow if kind == "poisson" else ())
        for kind, name in pairwise(BATCHES, CALIBRATIONS)
    ],
)
def test_a_published_calibration_gives_each_agent_the_noise_of_its_own_budget(kind, calibration):
    write, analysis = write_of("plain-sync"), analysis_of(kind, calibration)
    epsilon, deltas = np.array([1.0, 1.0, 2.0] * 2), [1e-5, 1e-3, 1e-3] * 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        try:
            found = calibrate(write, analysis, "claimed", epsilon, deltas).deviation
        except NotCovered:
            assert kind == "poisson" and calibration not in ("tight", "moments", "optimal")
            return
        for i in range(3):
            alone = calibrate(write, analysis, "claimed", np.full(6, epsilon[i]), deltas[i]).deviation
            assert found[i] == found[i + 3] == alone[0]
        less, _ = analysis.claim(write(found * 0.999), deltas)
        claimed, _ = analysis.claim(write(found), deltas)
    assert (claimed <= epsilon * (1 + 1e-12)).all() and (less > epsilon).all()


@pytest.mark.slow
def test_sampled_budgets_are_met_at_every_delta():
    write, analysis = write_of("plain-sync"), analysis_of("poisson")
    noise = calibrate(write, analysis, "adaptive", np.array(EPSILON), DELTAS).deviation
    spent = accounted(write(noise), analysis, DELTAS).adaptive.epsilon
    assert (spent <= np.array(EPSILON)).all() and (spent > 0.99 * np.array(EPSILON)).any()
    excess = BudgetExcess(write, analysis.exposure(), ADAPTIVE, epsilon=np.array(EPSILON), delta=DELTAS)
    # Too little noise of the agent with the smallest δ, and more than enough of the others.
    enlarged, _ = excess.certified(noise * np.where(np.array(DELTAS) == 1e-8, 0.999, 2.0), 1.0)
    assert (accounted(write(enlarged), analysis, DELTAS).adaptive.epsilon <= np.array(EPSILON)).all()


def test_coalitions_learn_at_the_delta_of_each_agent():
    found = coalitions(write_of("top-sync")(np.ones(6)), analysis_of().exposure(), size=2, bound="upper")
    epsilon, members = found.worst_epsilon(DELTAS)
    for i, delta in enumerate(DELTAS):
        common, groups = found.worst_epsilon(delta)
        assert epsilon[i] == common[i] and members[i] == groups[i]


def test_an_account_is_read_back_and_older_ones_have_one_delta():
    plan, analysis = write_of("top-sync")(np.ones(6)), analysis_of()
    for delta in (1e-5, DELTAS):
        found = account(plan, analysis, delta, ["adaptive"])
        read = Account.from_details(found.details(), analysis)
        assert read.delta == delta and read.deltas.tolist() == np.broadcast_to(delta, 6).tolist()
    assert type(account(plan, analysis, np.float64(1e-5)).details()["delta"]) is float


def test_a_delta_that_permits_publishing_a_record_is_reported_by_its_agent():
    plan, sizes = write_of("top-sync")(np.ones(6)), (10, 200, 10, 10, 10, 10)
    analysis = Analysis("tight", tuple(map(Full, sizes)), clip=2.0)
    assert account(plan, analysis, [0.05, 1e-3, 0.05, 0.05, 0.05, 0.05]).warnings == ()
    (said,) = account(plan, analysis, [1e-3, 0.01, 0.05, 0.05, 0.05, 0.05]).warnings
    assert "delta 0.01 is not less than 1/200" in said


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([1e-5] * 5, "one for each of 6 agents, got 5"),
        ([], "one for each of 6 agents, got 0"),
        ([[1e-5] * 6], "one for each of 6 agents"),
        ([1e-5] * 5 + [0.0], "Expected 0 < delta < 1, got 0.0"),
        ([1e-5] * 5 + [1.0], "Expected 0 < delta < 1, got 1.0"),
        ([1e-5] * 5 + [math.nan], "Expected 0 < delta < 1, got nan"),
        ([1e-5] * 5 + ["x"], "Expected delta as a number"),
        ("x", "Expected delta as a number"),
        (None, "Expected delta as a number"),
    ],
)
def test_wrong_deltas_are_refused(wrong, words):
    write, analysis = write_of("top-sync"), analysis_of()
    with pytest.raises(PrivacyError, match=words):
        account(write(np.ones(6)), analysis, wrong)
    with pytest.raises(PrivacyError, match=words):
        calibrate(write, analysis, "adaptive", np.ones(6), wrong)
