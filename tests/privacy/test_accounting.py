"""Accounts with all answers: finite numbers, infinite losses, and reasons for answers that are refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from builders import AVERAGING, WITH_VIEW
from topdp import topology
from topdp.base.number_text import rounded_up
from topdp.plan import Batches, Cycle, Full, Plan, Poisson, prune, schedules
from topdp.privacy.accounting import Account
from topdp.privacy.accounting import account as account_of
from topdp.privacy.answers import ANSWERS, Status
from topdp.privacy.basics.gaussian import epsilon_of, mu_of
from topdp.privacy.basics.privacy_loss import sampled_loss
from topdp.privacy.basics.refusals import PrivacyError
from topdp.privacy.observers.view import view
from topdp.privacy.published.claims import Analysis
from topdp.privacy.query import Query

GRAPH = topology.ring(6)
DELTA = 1e-5
NAMES = ("claimed", "view", "adaptive", "outsider", "worst_case")


def account(plan: Plan, analysis: Analysis, delta: float, **options: object) -> Account:
    """The account with all answers on request."""
    return account_of(plan, analysis, delta, answers=("view", "adaptive", "outsider"), **options)


def plan(name: str, noise: float | list[float] = 1.0, alpha: float = 0.4, rounds: int = 5) -> Plan:
    rates = schedules.learning_rates(0.3, rounds, "linear")
    schedule = schedules.schedule(rates, np.ones(rounds + 1), "gradient")
    return WITH_VIEW[name](alpha).plan(GRAPH, schedule, np.broadcast_to(noise, 6), seed=1)


def analysis(batches: Batches | None = None, agents: int = 6, **options: object) -> Analysis:
    settings = {"calibration": "tight", "clip": 2.0, **options}
    return Analysis(batches=(batches or Full(20),) * agents, **settings)


def strict_json(found: Account) -> dict:
    """The JSON as a strict parser reads it, without NaN and Infinity."""
    return json.loads(json.dumps(found.details(), allow_nan=False))


@pytest.mark.parametrize("name", WITH_VIEW)
def test_an_account_has_all_answers_for_every_agent(name):
    found = account(plan(name), analysis(), DELTA)
    said = [one for one in NAMES if one != "claimed" or name not in AVERAGING]
    assert [found.answers[one].epsilon.shape for one in said] == [(6,)] * len(said)
    assert (found.view.epsilon <= found.adaptive.epsilon * (1 + 1e-9)).all()
    assert (found.adaptive.epsilon <= found.worst_case.epsilon * (1 + 1e-9)).all()
    assert (found.outsider.epsilon <= found.worst_case.epsilon * (1 + 1e-9)).all()
    details = strict_json(found)
    for key in said:
        assert details["epsilon"][key] == found.answers[key].largest == max(details["epsilon_per_agent"][key])
    assert details.get("reasons", {}).keys() == set(NAMES) - set(said) and "warnings" not in details
    assert set(details["assumptions"]) == set(NAMES)
    # Every pair has a μ, null for an agent's own data; ε follows from the largest μ.
    assert details["pairs"]["view"]["observers"] == [[i] for i in range(6)]
    mu = np.array(details["pairs"]["view"]["mu"], float)
    assert np.isnan(np.diag(mu)).all() and np.isfinite(mu[~np.eye(6, dtype=bool)]).all()
    np.testing.assert_allclose(epsilon_of(np.nanmax(mu, axis=1), DELTA), found.view.epsilon, rtol=1e-12)
    assert (np.nan_to_num(np.array(details["pairs"]["view"]["mu_aligned"], float)) <= np.nan_to_num(mu)).all()
    assert details["sensitivity"] == [0.1] * 6 and details["batches"] == [{"kind": "full", "size": None}]
    for key in said:
        np.testing.assert_allclose(
            epsilon_of(np.array(details["mu_per_agent"][key]), DELTA), found.answers[key].epsilon, rtol=1e-9
        )
        assert details["mu"][key] == max(details["mu_per_agent"][key])
    most = details["sees_most"]["view"]
    assert [mu[i, J[0]] for i, J in enumerate(most)] == np.nanmax(mu, axis=1).tolist()


def test_only_requested_answers_are_computed(monkeypatch):
    from topdp.privacy.answers import _adaptive, _outsider, _view

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("computed unasked")

    for module, name in ((_view, "view"), (_adaptive.adaptive, "adaptive"), (_outsider, "outsider")):
        monkeypatch.setattr(module, name, fail)
    found = account_of(plan("top-sync"), analysis(), DELTA, guarantee="worst-case")
    statuses = {key: str(answer.status) for key, answer in found.answers.items()}
    assert statuses == {kind.key: "not asked" if kind.on_request else "finite" for kind in ANSWERS.values()}
    details = strict_json(found)
    assert details["epsilon"]["view"] is None and details["status"]["view"] == "not asked"
    assert list(details["epsilon_per_agent"]) == ["claimed", "worst_case"] == list(details["assumptions"])
    assert "reasons" not in details and found.view.status is Status.NOT_ASKED
    with pytest.raises(AssertionError, match="unasked"):
        account_of(plan("top-sync"), analysis(), DELTA, guarantee="adaptive")


@pytest.mark.parametrize("wrong", ["claimed", "worst_case", "views", ""])
def test_unknown_answers_are_rejected(wrong):
    with pytest.raises(PrivacyError, match=f"among view, adaptive, outsider, got '{wrong}'"):
        account_of(plan("top-sync"), analysis(), DELTA, answers=[wrong])


@pytest.mark.parametrize("colluders", [-1, 6, 7, 1.5, True])
def test_invalid_numbers_of_colluders_are_rejected(colluders):
    with pytest.raises(PrivacyError, match="colluders from 0 to 5"):
        account_of(plan("top-sync"), analysis(), DELTA, query=Query(colluders=colluders))


def test_more_colluders_never_learn_less():
    found = [
        account_of(plan("top-sync"), analysis(), DELTA, answers=["adaptive"], query=Query(colluders=c))
        for c in range(6)
    ]
    epsilon = np.array([one.adaptive.epsilon for one in found])
    assert (np.diff(epsilon, axis=0) >= -1e-12).all() and (epsilon[1] > epsilon[0]).all()
    np.testing.assert_allclose(epsilon[5], found[0].worst_case.epsilon, rtol=1e-9)
    assert [len(one.adaptive.observers[0]) for one in found] == [0, 1, 2, 3, 4, 5]


def test_power_is_that_of_the_optimal_attack():
    """The Neyman-Pearson test of N(0, 1) against N(μ, 1), by simulation of both."""
    found = account(plan("top-sync"), analysis(), DELTA)
    noise = np.random.default_rng(0).standard_normal(200_000)
    for share in (0.01, 0.05):
        threshold = np.quantile(noise, 1 - share)
        for answer in found.answers.values():
            expected = [(noise + mu > threshold).mean() for mu in answer.mu]
            np.testing.assert_allclose(answer.power(share), expected, atol=4e-3)


def test_power_under_poisson_sampling_is_an_upper_bound():
    """For one release of a Poisson sample: the power of the exact likelihood-ratio test, by quadrature."""
    from scipy.stats import norm

    z, rate = 1.0, 0.25
    loss = sampled_loss(np.array([z]), rate)
    grid = np.linspace(-12, 14, 400_001)
    without, within = norm.pdf(grid, 0, z), (1 - rate) * norm.pdf(grid, 0, z) + rate * norm.pdf(grid, 1, z)
    for share in (0.01, 0.05):
        reject = grid > norm.ppf(1 - share) * z  # the likelihood ratio increases with the release
        exact = float((within * reject).sum() * (grid[1] - grid[0]))
        assert without.sum() * (grid[1] - grid[0]) == pytest.approx(1, abs=1e-3)
        assert exact <= loss.power(share) <= 1.6 * exact


def test_the_claim_of_the_plain_rule_is_true():
    """With full noise in every release, the tight claim equals the worst case, and no view is larger."""
    found = account(plan("plain-sync"), analysis(), DELTA)
    expected = epsilon_of(np.sqrt(6) * 0.1, DELTA)
    np.testing.assert_allclose(found.claimed.epsilon, expected, rtol=1e-9)
    np.testing.assert_allclose(found.worst_case.epsilon, expected, rtol=1e-9)
    np.testing.assert_allclose(found.adaptive.epsilon, expected, rtol=1e-9)
    assert found.view.largest <= expected * (1 + 1e-9)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_only_the_claim_ignores_the_reduction_of_noise(mode):
    plain, top = (account(plan(f"{kind}-{mode}"), analysis(), DELTA) for kind in ("plain", "top"))
    np.testing.assert_array_equal(top.claimed.epsilon, plain.claimed.epsilon)
    assert top.view.largest > plain.view.largest
    assert top.worst_case.largest > plain.worst_case.largest


def test_replace_one_doubles_mu():
    one, two = (
        account(plan("top-sync"), analysis(adjacency=adjacency), DELTA)
        for adjacency in ("add-remove", "replace-one")
    )
    for key in NAMES:
        ratio = mu_of(two.answers[key].epsilon, DELTA) / mu_of(one.answers[key].epsilon, DELTA)
        np.testing.assert_allclose(ratio, 2, rtol=1e-9)


def test_infinite_answers_are_null_in_json_with_a_reason():
    details = strict_json(account(plan("top-sync", 0.0), analysis(), DELTA))
    assert details["epsilon"] == dict.fromkeys(NAMES)
    assert details["epsilon_per_agent"] == {key: [None] * 6 for key in NAMES}
    assert all(details["reasons"][key].startswith("What agents 0, 1, 2, 3, 4, ... ") for key in NAMES)
    assert details["pairs"]["view"]["mu"][0][1] is None


def test_one_agent_without_noise_makes_the_largest_epsilon_infinite():
    found = account(plan("plain-sync", [1, 1, 0, 1, 1, 1]), analysis(), DELTA)
    details = strict_json(found)
    for key in NAMES:
        assert details["epsilon"][key] is None
        assert [e is None for e in details["epsilon_per_agent"][key]] == [i == 2 for i in range(6)]
        assert details["reasons"][key].startswith("What agents 2 send is not hidden by noise. Use")


def test_messages_without_own_noise_have_a_finite_claim_but_infinite_answers():
    found = account(plan("top-sync", alpha=0.0), analysis(), DELTA)
    assert found.claimed.largest == pytest.approx(epsilon_of(np.sqrt(6) * 0.1, DELTA))
    assert all(found.answers[key].largest is None for key in NAMES[1:])
    assert set(found.summary()["reasons"]) == set(NAMES[1:])


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_poisson_samples_with_reused_noise_cost_the_least_of_two_bounds(mode):
    """The bounds: the record is used in every round; and the amplified worst case."""
    made, samples = plan(f"top-{mode}", rounds=4), analysis(Poisson(20, 5))
    found, every = account(made, samples, DELTA), account(made, analysis(Full(5)), DELTA)
    for key in NAMES[1:]:
        expected = np.minimum(every.answers[key].epsilon, found.worst_case.epsilon)
        np.testing.assert_allclose(found.answers[key].epsilon, expected, rtol=1e-12)
        np.testing.assert_allclose(found.answers[key].mu, every.answers[key].mu, rtol=1e-12)
    assert "reasons" not in strict_json(found)


def test_without_an_amplified_answer_every_round_counts():
    """Noise is far too small for a loss distribution; the answer without amplification exists."""
    found = account_of(plan("plain-sync", 1e-5, rounds=1), analysis(Poisson(20, 5)), DELTA)
    every = account_of(plan("plain-sync", 1e-5, rounds=1), analysis(Full(5)), DELTA)
    np.testing.assert_array_equal(found.worst_case.epsilon, every.worst_case.epsilon)


def test_all_answers_cover_poisson_samples_of_the_plain_rule():
    found = account(plan("plain-sync", rounds=1), analysis(Poisson(20, 5)), DELTA)
    details = strict_json(found)
    assert all(details["epsilon"][key] > 0 for key in NAMES) and "reasons" not in details
    assert details["epsilon"]["view"] <= details["epsilon"]["adaptive"] == details["epsilon"]["worst_case"]


def test_poisson_samples_under_replace_one_are_not_amplified():
    found, every = (
        account(plan("plain-sync", rounds=1), analysis(how, adjacency="replace-one"), DELTA)
        for how in (Poisson(20, 5), Full(5))
    )
    assert found.claimed.epsilon is None and "add-remove" in found.summary()["reasons"]["claimed"]
    for key in NAMES[1:]:
        np.testing.assert_array_equal(found.answers[key].epsilon, every.answers[key].epsilon)


def test_plans_of_unpublished_protocols_have_no_claim():
    found = account(replace(plan("plain-sync"), protocol="custom"), analysis(), DELTA)
    assert found.summary()["reasons"] == {
        "claimed": "No published analysis covers plans of protocol 'custom'."
    }
    assert found.view.largest > 0


def test_all_answers_refuse_a_pruned_plan():
    found = account(prune(plan("top-sync")), analysis(), DELTA)
    assert [found.answers[key].largest for key in NAMES] == [None] * 5
    assert all("pruned plan lacks rows" in reason for reason in found.summary()["reasons"].values())


@pytest.mark.parametrize("agents", [1, 5, 7])
def test_an_exposure_for_another_number_of_agents_is_rejected(agents):
    with pytest.raises(
        PrivacyError, match=f"Expected an exposure for the plan's 6 agents, got one for {agents}"
    ):
        account(plan("top-sync"), analysis(agents=agents), DELTA)


def test_false_claims_have_a_warning_with_the_true_epsilon():
    found = account(plan("plain-sync", 0.05), analysis(calibration="udp"), DELTA)
    warning, large = found.summary()["warnings"]
    assert "Calibration 'udp' claims epsilon=" in warning and "exactly epsilon=" in warning
    assert "is larger than 10: one record can make what others see" in large
    assert found.claimed.largest < found.worst_case.largest


def test_a_large_epsilon_has_a_warning_if_the_account_relies_on_it():
    """The worst case exceeds 10, `adaptive` does not."""
    made = plan("top-sync", 0.2)
    with_all = account(made, analysis(), DELTA)
    assert with_all.adaptive.largest < 10 < with_all.worst_case.largest
    assert "warnings" not in with_all.summary()
    for found in (
        account_of(made, analysis(), DELTA),
        account(made, analysis(), DELTA, guarantee="worst-case"),
    ):
        (warning,) = found.summary()["warnings"]
        assert warning.startswith(f"epsilon {rounded_up(with_all.worst_case.largest)} is larger than 10: ")


def test_a_given_view_is_not_computed_again():
    made, exposed = plan("top-sync"), analysis()
    seen = view(made.noise_scaled(2.0), exposed.exposure(), owners="all")
    found = account(made, exposed, DELTA, guarantee="view", known=seen)
    assert found.views["view"] is seen
    np.testing.assert_allclose(found.view.epsilon, epsilon_of(seen.worst(), DELTA), rtol=1e-12)


def test_cyclic_batches_count_the_worst_position_in_the_cycle():
    """11 releases in a cycle of 4: a record is in 3 or 2 of them."""
    found = account(plan("plain-sync", rounds=10), analysis(Cycle(20, 5)), DELTA)
    expected = epsilon_of(np.sqrt(3) * 2.0 / 5, DELTA)
    np.testing.assert_allclose(found.claimed.epsilon, expected, rtol=1e-9)
    np.testing.assert_allclose(found.worst_case.epsilon, expected, rtol=1e-9)
    assert strict_json(found)["batches"] == [{"kind": "cycle", "size": 5}]


@pytest.mark.parametrize(
    ("made", "of"),
    [
        (lambda: plan("top-sync"), lambda: analysis()),
        (lambda: plan("plain-sync", [1, 1, 0, 1, 1, 1]), lambda: analysis()),
        (lambda: plan("top-sync", rounds=1), lambda: analysis(Poisson(20, 5))),
        (lambda: plan("plain-sync", rounds=1), lambda: analysis(Poisson(20, 5))),
        (lambda: replace(plan("plain-sync"), protocol="custom"), lambda: analysis()),
    ],
    ids=["finite", "infinite", "reused", "sampled", "no claim"],
)
def test_an_account_is_unchanged_by_writing_and_reading(made, of):
    found = account(made(), of(), DELTA, guarantee="view")
    details = found.details()
    read = Account.from_details(strict_json(found), of())
    assert {**read.details(), "pairs": None} == {**details, "pairs": None}
    assert {name: answer.status for name, answer in read.answers.items()} == {
        name: answer.status for name, answer in found.answers.items()
    }
    for name, seen in read.views.items():
        np.testing.assert_array_equal(seen.upper, found.views[name].upper)
        np.testing.assert_array_equal(seen.lower, found.views[name].lower)
        np.testing.assert_array_equal(seen.epsilon(DELTA), found.views[name].epsilon(DELTA))
    assert set(read.views) == (set() if of().exposure().sampled else {"view", "adaptive", "outsider"})


def test_an_account_written_before_an_answer_existed_can_be_read():
    details = strict_json(account_of(plan("top-sync"), analysis(), DELTA, answers=["view"]))
    for part in ("epsilon", "mu", "status"):
        del details[part]["outsider"]
    read = Account.from_details(details, analysis())
    assert all("outsider" not in read.summary()[part] for part in ("epsilon", "mu", "status"))
    assert read.outsider.status is Status.NOT_ASKED and read.view.largest == details["epsilon"]["view"]
