"""Calibration: accounting inverts it with an error on the private side only; unsuitable input is rejected."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import AVERAGING, RULES, WITH_VIEW, cyclic_pairs, pairwise
from topdp import topology
from topdp.errors import InputError
from topdp.plan import Cycle, Full, Plan, PlanError, Poisson, schedules
from topdp.privacy.accounting import account
from topdp.privacy.answers import GUARANTEES, guarantee_kind
from topdp.privacy.basics.gaussian import mu_of
from topdp.privacy.basics.refusals import NotCovered, PrivacyError, PrivacyWarning
from topdp.privacy.budget_excess import BudgetExcess, Writer
from topdp.privacy.noise_calibration import calibrate
from topdp.privacy.observers.view import view
from topdp.privacy.observers.worst_case import worst_case
from topdp.privacy.published.calibrations import CALIBRATIONS, side_by_side
from topdp.privacy.published.claims import Analysis, noise_multipliers
from topdp.privacy.query import Query
from topdp.protocols import PlainAsynchronous, PlainSynchronous, TopAsynchronous

GRAPH = topology.random(6, 0.5, seed=4)
DELTA = 1e-5
BUDGETS = {  # name -> ε of each agent, records of each agent
    "common": ([1.0] * 6, [20] * 6),
    "own budgets": ([0.5, 1.0, 4.0, 1.0, 4.0, 0.5], [20] * 6),
    "own sizes": ([1.0] * 6, [10, 43, 20, 10, 43, 20]),
}


def writer(
    name: str,
    rounds: int = 5,
    decay: float = 1.0,
    period: int = 2,
    noise_on: str = "gradient",
    alpha: float = 0.4,
    graph: topology.Topology = GRAPH,
    fading: str = "linear",
    law: str = "steps",
) -> Writer:
    rates = schedules.learning_rates(0.3, rounds, fading)
    along = {
        "steps": lambda: schedules.step_decay(decay, period, rounds),
        "power": lambda: schedules.power_of_rate(rates, 0.5),
        "curvature": lambda: schedules.for_curvature(rates, [0.5, 4.0]),
    }[law]()
    schedule = schedules.schedule(rates, along, noise_on)

    def write(deviation: np.ndarray) -> Plan:
        return WITH_VIEW[name](alpha).plan(graph, schedule, deviation, seed=1)

    return write


def analysis(records: list[int], batch: str = "full", size: int = 5, **options: object) -> Analysis:
    make = {
        "full": Full,
        "cycle": lambda count: Cycle(count, size),
        "poisson": lambda count: Poisson(count, size),
    }[batch]
    settings = {"calibration": "tight", "clip": 2.0, **options}
    return Analysis(batches=tuple(make(count) for count in records), **settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_VIEW)
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_the_account_after_calibration_equals_the_budget(guarantee, name):
    """Every agent has at most ε, and the agent with the largest share has at least (1 - 1e-6)·ε."""
    # The claim does not depend on the protocol: one protocol has all budgets, the others have one.
    budgets = ["common"] if guarantee == "claimed" and name != "top-sync" else list(BUDGETS)
    tried = pairwise(budgets, ("full", "cycle"), (1.0, 0.8), ("gradient", "estimate"))
    if name not in RULES:  # each setting once is enough: these protocols write rounds with the same code
        tried = [("own budgets", "cycle", 0.8, "estimate"), ("own sizes", "full", 0.8, "gradient")]
    for budget, batch, decay, noise_on in tried:
        epsilon, records = BUDGETS[budget]
        write, exposed = writer(name, decay=decay, noise_on=noise_on), analysis(records, batch)
        if guarantee == "claimed" and name in AVERAGING:
            with pytest.raises(NotCovered, match=f"No published analysis covers plans of protocol '{name}'"):
                calibrate(write, exposed, guarantee, np.array(epsilon), DELTA)
            continue
        calibrated = calibrate(write, exposed, guarantee, np.array(epsilon), DELTA)
        answer = account(write(calibrated.deviation), exposed, DELTA, guarantee=guarantee).answer(guarantee)
        share = answer.epsilon / np.array(epsilon)
        assert 1 - 1e-6 <= share.max() <= 1, (budget, batch, decay, noise_on)
        if guarantee == "claimed":  # agents are calibrated separately, so each uses up its budget
            assert share.min() >= 1 - 1e-6
        elif budget == "common" and "plain" in name and "sync" in name and batch == "full":
            assert share.min() > 0.4


@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_every_published_calibration_is_inverted_by_its_own_claim(calibration):
    """Also if noise decays, which only a search can invert."""
    exposed = analysis([20] * 6, calibration=calibration)
    for decay in (1.0, 0.8):
        write = writer("top-sync", decay=decay)
        calibrated = calibrate(write, exposed, "claimed", np.full(6, 1.5), DELTA)
        claimed, said = exposed.claim(write(calibrated.deviation), DELTA)
        assert (1 - 1e-6) * 1.5 <= claimed.max() <= 1.5
        assert not said


@pytest.mark.exhaustive
@pytest.mark.parametrize("law", ["power", "curvature"])
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_noise_that_follows_the_steps_is_calibrated_under_every_guarantee(guarantee, law):
    names = [name for name in WITH_VIEW if guarantee != "claimed" or name not in AVERAGING]
    batches = ["full", "cycle"] if law == "power" else ["cycle", "full"]
    poisson = [(name, "poisson") for name in ("plain-sync", "correlated") if name in names]
    for name, batch in cyclic_pairs(names, batches, 1) + poisson:
        write, exposed = writer(name, law=law, fading="cosine"), analysis([20] * 6, batch)
        noise = calibrate(write, exposed, guarantee, np.ones(6), DELTA).deviation
        found = account(write(noise), exposed, DELTA, guarantee=guarantee).answer(guarantee)
        assert 1 - 1e-6 <= found.epsilon.max() <= 1, (name, batch)


@pytest.mark.parametrize("calibration", ["tight", "optimal", "moments", "udp"])
def test_sigma_does_not_depend_on_the_schedule_if_noise_follows_the_steps(calibration):
    """With full batches and fresh noise. For the paper's decay, σ is the initial noise, which is larger."""
    exposed = analysis([20] * 6, calibration=calibration)
    sigmas = {
        law: calibrate(writer("plain-sync", 40, law=law, decay=decay), exposed, "claimed", np.ones(6), DELTA)
        for law, decay in (("steps", 1.0), ("power", 0.0), ("curvature", 0.0))
    }
    equal = sigmas["steps"].deviation
    for law in ("power", "curvature"):
        np.testing.assert_allclose(sigmas[law].deviation, equal, rtol=1e-6)
    decayed = calibrate(writer("plain-sync", 40, decay=0.8), exposed, "claimed", np.ones(6), DELTA)
    assert (decayed.deviation > equal).all()


def test_theorem1_has_no_claim_if_noise_grows():
    write, exposed = writer("top-sync", law="power"), analysis([20] * 6, calibration="theorem1")
    with pytest.raises(NotCovered, match="covers constant or decaying noise, but this noise grows"):
        calibrate(write, exposed, "claimed", np.ones(6), DELTA)
    found = account(write(np.full(6, 2.0)), exposed, DELTA)
    assert found.claimed.status == "refused" and "this noise grows" in found.claimed.reason


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(list(WITH_VIEW)),
    guarantee=st.sampled_from(["view", "worst-case"]),
    epsilon=st.lists(st.floats(0.01, 20), min_size=6, max_size=6),
    records=st.lists(st.integers(1, 500), min_size=6, max_size=6),
    delta=st.sampled_from([1e-12, 1e-5, 0.1]),
    rounds=st.integers(1, 6),
    alpha=st.sampled_from([0.1, 0.5, 1.0]),
)
def test_any_budgets_are_met_and_used_up(name, guarantee, epsilon, records, delta, rounds, alpha):
    """Calibration is a fixed-point search; wherever it stops, its error is on the private side."""
    write, exposed = writer(name, rounds, alpha=alpha), analysis(records)
    calibrated = calibrate(write, exposed, guarantee, np.array(epsilon), delta)
    assert np.isfinite(calibrated.deviation).all() and (calibrated.deviation > 0).all()
    found = account(write(calibrated.deviation), exposed, delta, guarantee=guarantee).answer(guarantee)
    share = found.epsilon / np.array(epsilon)
    assert share.max() <= 1
    # Compared in μ, because near δ = δ(0) the last digit of μ can change all of a small ε.
    used = mu_of(np.maximum(found.epsilon, 1e-9), delta) / mu_of(np.array(epsilon), delta)
    assert used.max() >= 1 - 1e-6


MIXED = (1.0, 0.5, 2.0, 4.0, 1.0, 0.5)
SHARDS = {  # name -> graph, records of each agent, ε of each agent
    "one small": (topology.ring(4), [100, 50, 40, 10], [1.0] * 4),
    "one large": (topology.ring(4), [120, 100, 100, 100], [1.0] * 4),
    "dirichlet": (topology.random(6, 0.5, seed=4), [448, 501, 1160, 2000, 3115, 3941], [1.0] * 6),
    "star": (topology.star(6, hubs=1), [813, 1292, 2518, 448, 3941, 1549], [1.0] * 6),
    "budgets": (topology.random(6, 0.5, seed=1), [100] * 6, MIXED),
    "cycles": (topology.random(6, 0.5, seed=4), [5, 10, 20, 40, 80, 80], [1.0] * 6),
}


OWN_NOISE = {name: make for name, make in WITH_VIEW.items() if name != "correlated"}
"""Where partners share noise the sum of all that is own counts, and not each alone (`noise_allocation`)."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("guarantee", "name", "shards"), pairwise(["view", "adaptive", "worst-case"], OWN_NOISE, SHARDS)
)
def test_if_agents_differ_no_agents_noise_can_be_reduced(guarantee, name, shards):
    """Each agent has the least noise for one release, or 1% less would make some agent exceed its budget."""
    graph, records, epsilon = SHARDS[shards]
    write = writer(name, 8, alpha=0.25, graph=graph)
    exposed = analysis(records, "cycle" if shards == "cycles" else "full")
    accounts = BudgetExcess(
        write, exposed.exposure(), guarantee_kind(guarantee), epsilon=np.array(epsilon), delta=DELTA
    )
    deviation = calibrate(write, exposed, guarantee, np.array(epsilon), DELTA).deviation
    excess = accounts.whole(deviation)
    below = excess < 1 - 6e-4
    assert excess.max() <= 1 and (deviation[below] < accounts.least()[below] * 1.001).all()
    assert not below.any() or (guarantee, name[-5:]) == ("view", "async")  # some agents have no readers there
    # With messages without own noise it would be infinite.
    assert np.isfinite(worst_case(write(deviation), exposed.exposure()).mu).all()
    for agent in np.flatnonzero(~below):
        less = deviation.copy()
        less[agent] *= 0.99
        assert accounts.whole(less).max() > 1, agent


def test_a_long_plan_is_balanced_with_few_accounts(monkeypatch):
    """The first releases and aligned records show how the agents' losses depend on each other's noise."""
    asked = []
    whole = BudgetExcess.whole
    monkeypatch.setattr(BudgetExcess, "whole", lambda self, noise: asked.append(noise) or whole(self, noise))
    graph, records, epsilon = SHARDS["dirichlet"]
    write, exposed = writer("top-sync", 80, alpha=0.25, graph=graph), analysis(records)
    found = calibrate(write, exposed, "adaptive", np.array(epsilon), DELTA)
    assert len(asked) <= 3
    target = mu_of(np.array(epsilon), DELTA)
    assert (found.view.worst() >= (1 - 6e-4) * target).all()


def test_equal_agents_get_equal_noise():
    for exposed in (analysis([20] * 6), analysis([20] * 6, "cycle"), analysis([20] * 6, "poisson")):
        for name in ("plain-sync", "top-sync"):
            write = writer(name, fading="none")
            deviation = calibrate(write, exposed, "adaptive", np.full(6, 1.0), DELTA).deviation
            assert np.ptp(deviation) == 0


def test_the_search_reports_progress():
    said = []

    def progress(stage: str, done: int = 0, total: int | None = None, /, **details: object) -> None:
        said.append((done, total, stage))

    graph, records, epsilon = SHARDS["one small"]
    write, exposed = writer("top-sync", 40, alpha=0.25, graph=graph), analysis(records)
    calibrate(write, exposed, "adaptive", np.array(epsilon), DELTA, query=Query(progress=progress))
    notes = list(dict.fromkeys(note for _, _, note in said))
    assert notes[0] == "accounting: balancing noise, step 1"
    assert re.fullmatch(r"accounting: balancing noise, step 2: agent \d at \d+\.\d\d of its budget", notes[1])
    assert said[0][:2] == (1, 4) and said[-1][:2] == (4, 4)
    said.clear()
    calibrate(write, analysis([20] * 4), "adaptive", np.ones(4), DELTA, query=Query(progress=progress))
    assert {note for _, _, note in said} == {"accounting"}


def test_per_agent_budgets_are_nearly_used_up_by_every_agent():
    """Agents with a larger budget add less noise than the strictest budget would require of all."""
    epsilon, records = BUDGETS["own budgets"]
    write, exposed = writer("plain-sync"), analysis(records)
    each = calibrate(write, exposed, "view", np.array(epsilon), DELTA).deviation
    strictest = calibrate(write, exposed, "view", np.full(6, min(epsilon)), DELTA).deviation
    assert each.sum() < 0.7 * strictest.sum()
    share = account(write(each), exposed, DELTA, ["view"]).view.epsilon / np.array(epsilon)
    assert share.min() > 0.9


def test_smaller_budgets_more_releases_and_stronger_guarantees_need_more_noise():
    exposed = analysis([20] * 6)

    def noise(epsilon: float, rounds: int = 5, guarantee: str = "view") -> float:
        write = writer("top-sync", rounds)
        return float(calibrate(write, exposed, guarantee, np.full(6, epsilon), DELTA).deviation[0])

    assert noise(0.5) > noise(1.0) > noise(2.0)
    assert noise(1.0, 10) > noise(1.0, 5)
    assert noise(1.0, guarantee="worst-case") > noise(1.0) > noise(1.0, guarantee="claimed")


@pytest.mark.parametrize(("name", "budget"), cyclic_pairs(WITH_VIEW, BUDGETS, 1))
def test_the_view_that_calibration_returns_is_that_of_the_plan(name, budget):
    epsilon, records = BUDGETS[budget]
    write, exposed = writer(name), analysis(records, "cycle")
    calibrated = calibrate(write, exposed, "view", np.array(epsilon), DELTA)
    fresh = view(write(calibrated.deviation), exposed.exposure(), owners="all")
    for kept, new in ((calibrated.view.upper, fresh.upper), (calibrated.view.lower, fresh.lower)):
        np.testing.assert_allclose(kept, new, rtol=1e-9)
        assert (np.nan_to_num(kept) >= np.nan_to_num(new) * (1 - 1e-13)).all()
    np.testing.assert_array_equal(calibrated.view.asked, fresh.asked)


@pytest.mark.parametrize("name", WITH_VIEW)
def test_the_worst_case_is_never_below_the_view(name):
    write, exposed = writer(name, decay=0.8), analysis(BUDGETS["own sizes"][1])
    calibrated = calibrate(write, exposed, "worst-case", np.full(6, 1.0), DELTA)
    found = account(write(calibrated.deviation), exposed, DELTA, ["view"])
    assert (found.view.epsilon <= found.worst_case.epsilon * (1 + 1e-9)).all()
    assert found.view.largest <= 1
    assert calibrated.view is None


@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_claimed_noise_equals_side_by_side_noise_for_one_more_release(calibration):
    """T rounds are T + 1 releases; σ is per unit of clip."""
    exposed = analysis([200] * 6, calibration=calibration, clip=3.0)
    deviation = calibrate(writer("top-sync", 9), exposed, "claimed", np.full(6, 2.0), DELTA).deviation
    sigma = side_by_side(2.0, DELTA, releases=10, records=200, clip=3.0)["sigma"][calibration]
    np.testing.assert_allclose(deviation / 3.0, sigma, rtol=1e-12)


@pytest.mark.parametrize(("releases", "period"), [(100, 10), (10_000, 1000)])
def test_the_account_includes_the_cost_of_decay(releases, period):
    """γ = 0.9 at a claimed ε = 1 that ignores decay has in fact ε = 1.86 (docs/privacy.md)."""
    decay = 0.9 ** (np.arange(releases) // period)
    pair, exposed = topology.complete(2), analysis([20] * 2)

    def plan(noise: np.ndarray, deviation: np.ndarray) -> Plan:
        return PlainSynchronous(0.5).plan(pair, schedules.Schedule(np.ones(releases), noise), deviation, 0)

    constant = np.ones(releases)
    noise = calibrate(lambda d: plan(constant, d), exposed, "worst-case", np.ones(2), DELTA).deviation
    for fall, expected in ((constant, 1.0), (decay, 1.86)):
        made = plan(fall, noise)
        assert round(float(exposed.claim(made, DELTA)[0].max()), 2) == expected
        assert round(float(worst_case(made, exposed.exposure()).epsilon(DELTA).max()), 2) == expected


def test_calibration_compensates_decay_with_more_noise():
    """The account with decay meets ε, so that the first rounds have more noise than without decay."""
    exposed = analysis([20] * 6)
    constant, falling = (
        calibrate(writer("plain-sync", 9, decay), exposed, "worst-case", np.full(6, 1.0), DELTA).deviation
        for decay in (1.0, 0.8)
    )
    t = np.maximum(np.arange(10) - 1, 0)
    ratio = math.sqrt(np.mean(0.8 ** (-2 * (t // 2))))
    np.testing.assert_allclose(falling / constant, ratio, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain-sync", "plain-async"])
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_poisson_batches_of_the_plain_rule_are_calibrated(guarantee, name):
    write = writer(name, 2, fading="none")
    exposed = analysis([20, 20, 30, 20, 5, 20], "poisson")  # agent 4 has only one batch: no sampling
    deviation = calibrate(write, exposed, guarantee, np.full(6, 1.0), DELTA).deviation
    found = account(write(deviation), exposed, DELTA, guarantee=guarantee).answer(guarantee)
    assert 1 - 1e-6 <= found.epsilon.max() <= 1
    assert found.epsilon.min() >= 1 - 2e-3  # also for an agent with more records and a smaller rate


def test_poisson_batches_need_less_noise_than_public_batches_of_the_same_size():
    deviation = [
        calibrate(
            writer("plain-sync", 3, fading="none"), exposed, "worst-case", np.full(6, 1.0), DELTA
        ).deviation[0]
        for exposed in (analysis([100] * 6, "poisson"), analysis([5] * 6))
    ]
    assert deviation[0] < 0.5 * deviation[1]


def test_only_the_result_of_the_search_can_cause_a_warning():
    """udp warns above ε = 7.97: for the result of such a budget, but not for larger ε tried on the way."""
    exposed = analysis([20] * 6, calibration="udp")
    write = writer("plain-sync", decay=0.8)
    calibrate(write, exposed, "claimed", np.full(6, 0.1), DELTA)  # warnings are errors in these tests
    with pytest.warns(PrivacyWarning, match="claims epsilon=9 at") as said:
        calibrate(write, exposed, "claimed", np.full(6, 9.0), DELTA)
    assert len(said) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["top-sync", "top-async"])
@pytest.mark.parametrize("guarantee", ["view", "adaptive", "worst-case"])
def test_poisson_batches_with_reused_noise_are_calibrated(name, guarantee):
    """The minimum of two answers: every round without amplification, and the amplified worst case."""
    write, exposed = writer(name, 2, fading="none"), analysis([20] * 6, "poisson")
    deviation = calibrate(write, exposed, guarantee, np.full(6, 1.0), DELTA).deviation
    found = account(write(deviation), exposed, DELTA, guarantee=guarantee)
    assert 1 - 1e-6 <= found.answer(guarantee).largest <= 1


@pytest.mark.parametrize("guarantee", ["view", "adaptive", "worst-case"])
def test_messages_without_own_noise_cannot_be_calibrated(guarantee):
    write = writer("top-sync", alpha=0.0, graph=topology.ring(6))
    with pytest.raises(NotCovered, match=f"No amount of noise gives a finite {guarantee} epsilon: agents 0"):
        calibrate(write, analysis([20] * 6), guarantee, np.full(6, 1.0), DELTA)


def test_plans_without_readers_cannot_be_calibrated_to_the_view():
    """Two agents of which one is always offline never meet: no view exists to which noise could be fitted."""
    schedule = schedules.schedule(np.ones(4), np.ones(4), "gradient")
    pair, exposed = topology.complete(2), analysis([20] * 2)
    for protocol in (PlainAsynchronous(0.5, offline=0.5), TopAsynchronous(0.5, offline=0.5)):
        with pytest.raises(NotCovered, match="No agent reads"):
            calibrate(
                lambda d, p=protocol: p.plan(pair, schedule, d, 0), exposed, "view", np.full(2, 1.0), DELTA
            )


def test_agents_without_readers_still_get_noise():
    """In a single round some agents have no readers; with individual budgets they still get noise."""
    write, exposed = writer("top-async", 1), analysis([20] * 6)
    assert (view(write(np.ones(6)), exposed.exposure(), owners="all").worst() == 0).any()
    epsilon = np.array(BUDGETS["own budgets"][0])
    deviation = calibrate(write, exposed, "view", epsilon, DELTA).deviation
    assert (deviation > 0).all()
    assert (account(write(deviation), exposed, DELTA, ["view"]).view.epsilon <= epsilon).all()


bad = st.one_of(st.floats(max_value=0.0), st.just(math.nan), st.just(math.inf))


@given(epsilon=bad, guarantee=st.sampled_from(GUARANTEES))
def test_invalid_budgets_are_rejected(epsilon, guarantee):
    with pytest.raises(PrivacyError, match="Expected a finite epsilon"):
        calibrate(writer("plain-sync"), analysis([20] * 6), guarantee, np.full(6, epsilon), DELTA)


@given(
    delta=st.one_of(st.floats(max_value=0.0), st.floats(min_value=1.0), st.just(math.nan)),
    guarantee=st.sampled_from(GUARANTEES),
)
def test_invalid_deltas_are_rejected(delta, guarantee):
    with pytest.raises(PrivacyError, match="Expected 0 < delta < 1"):
        calibrate(writer("plain-sync"), analysis([20] * 6), guarantee, np.full(6, 1.0), delta)
    with pytest.raises(PrivacyError, match="Expected 0 < delta < 1"):
        account(writer("plain-sync")(np.ones(6)), analysis([20] * 6), delta)


@given(noise=st.one_of(st.floats(max_value=0.0, exclude_max=True), st.just(math.nan), st.just(math.inf)))
def test_invalid_noise_is_rejected_before_a_plan_is_written(noise):
    with pytest.raises(ValueError, match="Expected finite noise deviations >= 0, got"):
        writer("top-sync")(np.full(6, noise))
    with pytest.raises(PlanError, match="Expected a finite noise factor >= 0"):
        writer("top-sync")(np.ones(6)).noise_scaled(noise)


@given(clip=st.one_of(st.floats(max_value=0.0), st.just(math.nan), st.just(math.inf)))
def test_invalid_clips_are_rejected(clip):
    with pytest.raises(PrivacyError, match="Expected a finite clip"):
        analysis([20] * 6, clip=clip)
    with pytest.raises(PrivacyError, match="Expected a finite clip"):
        side_by_side(1.0, DELTA, 10, 20, clip=clip)


def test_unknown_names_are_rejected():
    with pytest.raises(PrivacyError, match="Expected calibration to be one of tight, "):
        analysis([20] * 6, calibration="loose")
    with pytest.raises(InputError, match=r"Expected adjacency out of .*, got .neighbours."):
        analysis([20] * 6, adjacency="neighbours").exposure()
    with pytest.raises(PrivacyError, match="guarantee to be one of claimed, view, adaptive, worst-case"):
        calibrate(writer("plain-sync"), analysis([20] * 6), "none", np.full(6, 1.0), DELTA)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_budgets_and_records_for_other_numbers_of_agents_are_rejected(guarantee):
    with pytest.raises(PrivacyError, match="Expected one epsilon for each of 6 agents, got 5"):
        calibrate(writer("plain-sync"), analysis([20] * 6), guarantee, np.full(5, 1.0), DELTA)
    # Plans for six agents, records of five, or of one, which numpy would broadcast silently.
    for agents in (5, 1):
        with pytest.raises(PrivacyError, match=f"plan's 6 agents, got one for {agents}"):
            calibrate(
                lambda d: writer("plain-sync")(np.ones(6)),
                analysis([20] * agents),
                guarantee,
                np.full(agents, 1.0),
                DELTA,
            )


def test_steps_of_zero_have_no_published_analysis():
    plan = writer("plain-sync")(np.ones(6))
    still = replace(plan, rate=np.where(np.arange(plan.releases) == 2, 0.0, plan.rate))
    with pytest.raises(NotCovered, match="a step of 0"):
        noise_multipliers(still, analysis([20] * 6).exposure())


@pytest.mark.parametrize("decay", [0.7, 0.8, 0.9])
def test_noise_multipliers_within_a_period_are_exactly_equal(decay):
    """λγ/λ does not always equal γ: rounding must not look like growing noise, which theorem1 rejects."""
    plan = writer("plain-sync", 40, decay=decay, period=3)(np.ones(6))
    assert (np.diff(plan.scale / plan.rate) > 0).any()
    exposed = analysis([20] * 6, clip=1.7)
    z = noise_multipliers(plan, exposed.exposure())
    assert (np.diff(z, axis=0) <= 0).all()
    assert len(np.unique(z[:, 0])) == 14
    np.testing.assert_allclose(z, (plan.scale / plan.rate)[:, None] * 20 / np.full(6, 1.7), rtol=1e-12)
