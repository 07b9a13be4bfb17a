"""Claims if noise stands on the estimate, as the paper prints it: Theorem 1's σ is not multiplied by λ."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest

from topdp import topology
from topdp.plan import Batches, Cycle, Full, Plan, Poisson, schedules
from topdp.privacy.accounting import account
from topdp.privacy.answers import guarantee_kind
from topdp.privacy.basics import gaussian
from topdp.privacy.basics.refusals import NotCovered, PrivacyWarning
from topdp.privacy.budget_excess import Writer
from topdp.privacy.noise_calibration import calibrate
from topdp.privacy.published.calibrations import CALIBRATIONS
from topdp.privacy.published.claims import Analysis
from topdp.privacy.spending_curve import spending
from topdp.protocols import PlainSynchronous, TopSynchronous
from topdp.runs.config import RunConfig, read
from topdp.runs.planning import plan_and_account
from topdp.runs.resolve import resolve

CLIP, DELTA, ROUNDS = 2.0, 1e-5, 40
RECORDS = (2000, 500, 2000, 900, 40, 2000)
BUDGETS = np.array([1.0, 1.0, 0.25, 4.0, 2.0, 1.0])


def writer(
    initial: float = 0.05,
    fading: str = "linear",
    decay: float = 1.0,
    noise_on: str = "estimate",
    protocol: type[PlainSynchronous | TopSynchronous] = TopSynchronous,
) -> Writer:
    rates = schedules.learning_rates(initial, ROUNDS, fading)
    steps = schedules.schedule(rates, schedules.step_decay(decay, 7, ROUNDS), noise_on)

    def write(deviation: np.ndarray) -> Plan:
        return protocol(0.4).plan(topology.ring(6), steps, deviation, seed=1)

    return write


def analysis(calibration: str = "theorem1", batch: int | None = None, **options: object) -> Analysis:
    batches: tuple[Batches, ...] = tuple(Cycle(n, batch) if batch else Full(n) for n in RECORDS)
    return Analysis(calibration, batches, CLIP, **{"noise_on_estimate": True, **options})


def printed_sigma(epsilon: np.ndarray) -> np.ndarray:
    # Theorem 1, with T + 1 releases
    root = math.sqrt((ROUNDS + 1) * math.log(1 / DELTA) * math.log(1.25 / DELTA))
    return np.asarray(8 * root / (epsilon * np.array(RECORDS)))


@pytest.mark.parametrize("batch", [None, 20])
@pytest.mark.parametrize("decay", [1.0, 0.8])
@pytest.mark.parametrize(("adjacency", "factor"), [("add-remove", 1), ("replace-one", 2)])
def test_theorem1_states_the_printed_noise_of_each_agent(batch, decay, adjacency, factor):
    """With falling steps, other budgets and other numbers of records; the claim is the budget again."""
    exposed, write = analysis(batch=batch, adjacency=adjacency), writer(decay=decay)
    noise = calibrate(write, exposed, "claimed", BUDGETS, DELTA).deviation
    np.testing.assert_allclose(noise, factor * printed_sigma(BUDGETS) * CLIP, rtol=1e-8)
    plan = write(noise)
    rows = plan.std.values[plan.std.which[1]].max(axis=1)  # full-scale rows of the first round
    np.testing.assert_allclose(plan.scale[1] * rows[:6], noise)  # added as it is, not λ times it
    found = account(plan, exposed, DELTA, guarantee="claimed")
    np.testing.assert_allclose(found.claimed.epsilon, BUDGETS, rtol=1e-8)
    assert (found.claimed.epsilon <= BUDGETS).all() and not found.warnings


def test_the_other_answers_are_those_of_the_plan():
    """They do not depend on what the claim counts."""
    exposed, write = analysis(), writer()
    plan = write(calibrate(write, exposed, "claimed", BUDGETS, DELTA).deviation)
    counted = replace(exposed, calibration="tight", noise_on_estimate=False)
    given, expected = (account(plan, a, DELTA, ["view", "adaptive"]) for a in (exposed, counted))
    for name in ("view", "adaptive", "worst_case"):
        np.testing.assert_array_equal(given.answers[name].epsilon, expected.answers[name].epsilon)
        assert given.answers[name].largest > 0


@pytest.mark.parametrize("calibration", [name for name in CALIBRATIONS if name != "theorem1"])
def test_every_other_calibration_counts_the_step(calibration):
    exposed, write = analysis(calibration), writer()
    noise = calibrate(write, exposed, "claimed", BUDGETS, DELTA).deviation
    inside = replace(exposed, noise_on_estimate=False)
    np.testing.assert_array_equal(noise, calibrate(write, inside, "claimed", BUDGETS, DELTA).deviation)
    plan = write(noise)
    assert exposed.claim(plan, DELTA)[0].tolist() == inside.claim(plan, DELTA)[0].tolist()
    assert exposed.facts() == inside.facts()
    true = account(writer(protocol=PlainSynchronous)(noise), exposed, DELTA).worst_case.epsilon
    assert (true <= BUDGETS * (1 + 1e-9)).all()
    if calibration == "tight":
        np.testing.assert_allclose(true, BUDGETS, rtol=1e-6)


def test_noise_on_gradients_is_claimed_as_before():
    exposed, write = analysis(), writer(noise_on="gradient")
    inside = replace(exposed, noise_on_estimate=False)
    noise = calibrate(write, inside, "claimed", BUDGETS, DELTA).deviation
    np.testing.assert_allclose(noise, printed_sigma(BUDGETS) * CLIP, rtol=1e-12)
    with pytest.raises(NotCovered, match="this noise grows"):  # without the flag, λ counts
        calibrate(writer(), inside, "claimed", BUDGETS, DELTA)


def test_steps_that_are_so_large_that_the_claim_is_false_give_a_warning():
    exposed, write = analysis(), writer(initial=40.0, fading="none", protocol=PlainSynchronous)
    with pytest.warns(PrivacyWarning, match="'theorem1' claims epsilon=1 .* are exactly epsilon="):
        noise = calibrate(write, exposed, "claimed", np.ones(6), DELTA).deviation
    found = account(write(noise), exposed, DELTA, guarantee="claimed")
    true = gaussian.epsilon_of(40.0 * math.sqrt(ROUNDS + 1) / (printed_sigma(np.ones(1))[0] * 2000), DELTA)
    assert true > 1.5 and found.worst_case.largest == pytest.approx(true, rel=1e-6)
    assert len(found.warnings) == 1 and f"exactly epsilon={true:.6g}" in found.warnings[0]
    small = writer(initial=20.0, fading="none", protocol=PlainSynchronous)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        calibrate(small, exposed, "claimed", np.ones(6), DELTA)


def test_warnings_are_about_the_steps_that_are_made():
    """Without steps, batches of one would need more noise; steps of .05 make the claim true."""
    exposed = analysis(batch=1)
    with pytest.warns(PrivacyWarning, match="theorem1"):
        CALIBRATIONS["theorem1"].calibrate(1.0, DELTA, ROUNDS + 1, Cycle(2000, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        calibrate(writer(fading="none"), exposed, "claimed", np.ones(6), DELTA)


def test_poisson_batches_are_refused_without_a_number_for_other_steps():
    exposed = Analysis("theorem1", tuple(Poisson(n, 1) for n in RECORDS), CLIP, noise_on_estimate=True)
    with pytest.raises(NotCovered, match="Calibration 'theorem1' with Poisson batches") as refusal:
        calibrate(writer(), exposed, "claimed", np.ones(6), DELTA)
    assert "exactly" not in str(refusal.value)
    found = account(writer()(np.ones(6)), exposed, DELTA)
    assert found.claimed.status == "refused" and found.worst_case.largest is not None


def test_the_spending_curve_ends_at_the_claim():
    exposed, write = analysis(), writer()
    plan = write(calibrate(write, exposed, "claimed", BUDGETS, DELTA).deviation)
    for owner, budget in enumerate(BUDGETS):
        curve = spending(plan, exposed, owner, DELTA).curve("claimed")
        made = np.arange(1, ROUNDS + 2)
        np.testing.assert_allclose(curve, budget * np.sqrt(made / (ROUNDS + 1)), rtol=1e-8)
        assert curve[-1] <= budget


def literal(*changes: str) -> RunConfig:
    return read(
        preset="paper-mnist-sync",
        changes=[
            "method.noise_on=estimate",
            "method.calibration=theorem1",
            "privacy.guarantee=claimed",
            "data.records=2000",
            *changes,
        ],
    )


@pytest.mark.parametrize(("rounds", "sigma"), [(20, 0.21307), (250, 0.73664)])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_printed_run_is_accounted(rounds, sigma, mode):
    """MNIST with 30 agents at ε = 1; before, the noise was λ times as large, or the run was refused."""
    config = literal(f"rounds={rounds}", f"method.mode={mode}")
    run = resolve(config)
    plan, found = plan_and_account(run)
    np.testing.assert_allclose(plan.full_scale / config.privacy.clip, sigma, rtol=2e-5)
    assert plan.scale.tolist() == [1.0] * (rounds + 1) and run.analysis.noise_on_estimate
    assert found.claimed.largest == pytest.approx(1) and found.claimed.largest <= 1
    assert 0 < found.worst_case.largest < 0.3 and guarantee_kind("claimed").name == found.guarantee
    assert found.details()["noise_on"] == "estimate"


def test_the_claim_of_a_stated_sigma_is_the_printed_one():
    _, found = plan_and_account(resolve(literal("rounds=250", "privacy.sigma=0.36832")))
    assert found.claimed.largest == pytest.approx(2, rel=2e-5)
