"""Tests that the checks of a run find every listed break, and flag correct runs as rarely as they state."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from subjects import Audited, subject

from topdp.audit import AuditRequest, canary_scores
from topdp.audit.noise_checks import CHECK_NAMES, FALSE_FLAGS, Columns, NoiseChecks, PlantedColumn

PLACE = Path(__file__).parents[2] / "benchmarks" / "audit_breaks.py"
LIMIT = FALSE_FLAGS / len(CHECK_NAMES)

# What must find each break: a check, or a bound above the proved ε.
FOUND_BY = {
    "all noise halved": {"spread", "bound"},
    "pair noise that does not cancel": {"spread"},
    "one draw used by all agents": {"independence", "bound"},
    "no noise in one agent's rows": {"spread"},
    "draws reused in the next round": {"independence", "bound"},
    "draws reused in every round": {"independence", "bound"},
    "clip twice as long": {"records"},
    "no clipping": {"records"},
    "only the mean is clipped": {"records"},
}


@pytest.fixture(scope="module")
def breaks():
    specification = importlib.util.spec_from_file_location("audit_breaks", PLACE)
    script = importlib.util.module_from_spec(specification)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "audit_breaks", script)  # dataclasses look their module up
        specification.loader.exec_module(script)
        yield script


@pytest.fixture(scope="module")
def subjects(breaks):
    made = {}
    return lambda method: made.setdefault(method, breaks.Subject.of(method))


def names(finding):
    bound = {"bound"} if "proved" in finding.exceeds else set()
    return bound | {check.name for check in finding.deviations}


def caught(breaks, subjects, name, seeds):
    cases = [one for one in breaks.BREAKS if one.name == name]
    assert cases
    for case in cases:
        found = subjects(case.method).findings(seeds, case.fault)
        assert sum(each.flagged for each in found) >= 0.9 * seeds
        assert sum(FOUND_BY[name] <= names(each) for each in found) >= 0.9 * seeds, case.method
        assert all("follow its plan" in each.verdict for each in found if each.deviations)


@pytest.mark.parametrize("name", FOUND_BY)
def test_a_break_is_caught(breaks, subjects, name):
    caught(breaks, subjects, name, 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FOUND_BY)
def test_a_break_is_caught_in_nine_of_ten_seeds(breaks, subjects, name):
    caught(breaks, subjects, name, 10)


def test_the_benchmark_tries_every_break(breaks):
    assert {one.name for one in breaks.BREAKS} == set(FOUND_BY)


def test_noise_of_half_the_strength_is_fitted_by_an_observer_that_knows_a_part_of_it(
    breaks, subjects, monkeypatch
):
    """Without a fit, the observer subtracts twice its own noise, which hides the canaries."""
    one = subjects("correlated")
    fitted = one.findings(1, breaks.HALVED)[0]
    assert fitted.lower > 1.5 * fitted.proved
    correct = one.findings(1)[0]
    monkeypatch.setattr(canary_scores, "UNPLANNED_STRENGTH", np.inf)
    assert one.findings(1, breaks.HALVED)[0].lower < 0.5 * fitted.proved
    for kind, same in one.findings(1)[0].kinds.items():  # a correct run needs no fit
        np.testing.assert_array_equal(same.scores, correct.kinds[kind].scores)


def checked(plan, factor=1.0, shift=0.0, columns=200, seed=0, planted=None, exact=0.0):
    """The checks of rows made from noise as the plan states, but scaled and shifted."""
    random, checks = np.random.default_rng(seed), NoiseChecks(plan, 0)
    before = np.zeros((plan.rows, columns))
    for r in range(plan.releases):
        this, draws = plan[r], random.normal(size=(plan.draws, columns))
        noise = (np.where(this.draw >= 0, this.std, 0.0)[..., None] * draws[this.draw]).sum(axis=1)
        mixed = (np.where(this.source >= 0, this.weight, 0.0)[..., None] * before[this.source]).sum(axis=1)
        rows = mixed + factor * noise + shift * np.abs(this.std).max() + exact
        gradients = np.zeros((plan.agents, columns))
        column = None
        if planted is not None:
            part = Columns(before[:, :1], rows[:, :1] + planted * this.step[:, None], gradients[:, :1])
            column = PlantedColumn(part, 1.0)
        checks.add(r, Columns(before, rows, gradients), np.zeros(columns), column)
        before = rows
    return {check.name: check for check in checks.results()}


@pytest.fixture(scope="module")
def plan():
    return subject(rounds=4, method={"name": "top"})[1]


def test_chances_of_correct_noise_are_those_of_exact_tests(plan):
    """Bonferroni divides evenly, so p-values times the number of tests are uniform only near 0."""
    found = [checked(plan, seed=seed) for seed in range(300)]
    for name in ("spread", "mean", "independence"):
        chances = np.array([each[name].p for each in found])
        for level in (0.05, 0.2):
            assert level / 4 < np.mean(chances < level) < level + 3 * np.sqrt(level / 300)
        assert found[0][name].planned == float(name == "spread")


@pytest.mark.parametrize("method", ["correlated", "muffliato", "top"])
def test_wrong_spread_mean_and_rest_are_flagged_and_right_ones_are_not(method):
    plan = subject(rounds=4, method={"name": method})[1]
    assert not any(check.flagged for check in checked(plan).values())
    for factor in (0.7, 1.3, 0.0):
        spread = checked(plan, factor=factor)["spread"]
        assert spread.flagged and spread.found == pytest.approx(factor, abs=0.3)
    assert checked(plan, shift=0.3)["mean"].flagged
    if method != "top":  # averaging makes rows without noise
        assert checked(plan, exact=1.0)["exact rows"].flagged
        assert checked(plan)["exact rows"].found < 1e-12


def test_small_noise_that_float32_cannot_resolve_is_not_tested(plan):
    checks, columns = NoiseChecks(plan, 0), np.full((plan.rows, 50), 1e9)
    checks.add(0, Columns(columns, columns, np.zeros((plan.agents, 50))), np.zeros(50))
    assert "spread" not in {check.name for check in checks.results()}


def test_planted_lengths_are_tested_with_a_bound_that_holds_for_any_lengths(plan):
    assert checked(plan, planted=0.0)["records"].p > LIMIT
    assert checked(plan, planted=1e3)["records"].flagged
    # Lengths chosen to deceive: 1 until the noise looks unusual, and then 0.
    random, wrong, runs, level = np.random.default_rng(1), 0, 400, 0.05
    for _ in range(runs):
        checks = NoiseChecks(plan, 0)
        for z in random.normal(size=300):
            checks._add_strength("records", np.ones(1), np.array([z]))
            if checks._strength_check("records").p < level:
                wrong += 1
                break
    assert wrong / runs < level


def test_a_correct_run_gives_unsuspicious_numbers():
    made = Audited.of(AuditRequest(canaries=100), rounds=4, records=140, method={"name": "top"})
    found = [made.run(seed) for seed in range(8)]
    assert not any(each.deviations for each in found)
    spreads = [next(check.found for check in each.checks if check.name == "spread") for each in found]
    assert 0.5 < min(spreads) <= max(spreads) < 1.5
