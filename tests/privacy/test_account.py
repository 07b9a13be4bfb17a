"""The three answers side by side: numbers where there are any, and in words what is infinite or refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from builders import PROTOCOLS
from topdp import topology
from topdp.plan import Batches, Cycle, Full, Plan, Poisson, prune, schedules
from topdp.privacy.account import Account, account
from topdp.privacy.basics.checks import PrivacyError
from topdp.privacy.basics.gaussian import epsilon_of, mu_of
from topdp.privacy.observers.view import view
from topdp.privacy.published.claims import Analysis

GRAPH = topology.ring(6)
DELTA = 1e-5
NAMES = ("claimed", "view", "worst_case")


def plan(name: str, noise: float | list[float] = 1.0, alpha: float = 0.4, rounds: int = 5) -> Plan:
    rates = schedules.learning_rates(0.3, rounds, "linear")
    schedule = schedules.schedule(rates, np.ones(rounds + 1), "gradient")
    return PROTOCOLS[name](alpha).plan(GRAPH, schedule, np.broadcast_to(noise, 6), seed=1)


def analysis(batches: Batches | None = None, agents: int = 6, **options: object) -> Analysis:
    settings = {"calibration": "tight", "clip": 2.0, **options}
    return Analysis(batches=(batches or Full(20),) * agents, **settings)


def strict_json(found: Account) -> dict:
    """What a strict reader of the JSON gets: no NaN, no Infinity."""
    return json.loads(json.dumps(found.details(), allow_nan=False))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_three_answers_for_every_agent(name):
    found = account(plan(name), analysis(), DELTA)
    assert [answer.epsilon.shape for answer in found.answers.values()] == [(6,)] * 3
    assert (found.view.epsilon <= found.worst_case.epsilon * (1 + 1e-9)).all()
    details = strict_json(found)
    for key in NAMES:
        assert details["epsilon"][key] == found.answers[key].largest == max(details["epsilon_per_agent"][key])
    assert "reasons" not in details and "warnings" not in details
    assert set(details["assumptions"]) == set(NAMES)
    # μ is said for every pair, null for an agent's own data; ε follows from the largest.
    mu = np.array(details["mu_view"], float)
    assert np.isnan(np.diag(mu)).all() and np.isfinite(mu[~np.eye(6, dtype=bool)]).all()
    np.testing.assert_allclose(epsilon_of(np.nanmax(mu, axis=1), DELTA), found.view.epsilon, rtol=1e-12)
    assert (np.nan_to_num(np.array(details["mu_view_aligned"], float)) <= np.nan_to_num(mu)).all()
    assert details["sensitivity"] == [0.1] * 6 and details["participation"] == ["in every round"]


def test_the_plain_rule_claims_what_it_is():
    """Full noise in every release: the tight claim is what all others together learn, and one never more."""
    found = account(plan("plain-sync"), analysis(), DELTA)
    expected = epsilon_of(np.sqrt(6) * 0.1, DELTA)
    np.testing.assert_allclose(found.claimed.epsilon, expected, rtol=1e-9)
    np.testing.assert_allclose(found.worst_case.epsilon, expected, rtol=1e-9)
    assert found.view.largest <= expected * (1 + 1e-9)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_saved_noise_is_free_in_the_claim_only(mode):
    plain, top = (account(plan(f"{kind}-{mode}"), analysis(), DELTA) for kind in ("plain", "top"))
    np.testing.assert_array_equal(top.claimed.epsilon, plain.claimed.epsilon)
    assert top.view.largest > plain.view.largest
    assert top.worst_case.largest > plain.worst_case.largest


def test_replacing_a_record_moves_twice_as_far():
    one, two = (
        account(plan("top-sync"), analysis(adjacency=adjacency), DELTA)
        for adjacency in ("add-remove", "replace-one")
    )
    for key in NAMES:
        ratio = mu_of(two.answers[key].epsilon, DELTA) / mu_of(one.answers[key].epsilon, DELTA)
        np.testing.assert_allclose(ratio, 2, rtol=1e-9)


def test_infinite_is_said_and_never_a_number():
    details = strict_json(account(plan("top-sync", 0.0), analysis(), DELTA))
    assert details["epsilon"] == dict.fromkeys(NAMES)
    assert details["epsilon_per_agent"] == {key: [None] * 6 for key in NAMES}
    assert all(
        details["reasons"][key].startswith("Infinite: what agents 0, 1, 2, 3, 4, ... ") for key in NAMES
    )
    assert details["mu_view"][0][1] is None


def test_one_agent_without_noise_makes_the_largest_infinite():
    found = account(plan("plain-sync", [1, 1, 0, 1, 1, 1]), analysis(), DELTA)
    details = strict_json(found)
    for key in NAMES:
        assert details["epsilon"][key] is None
        assert [e is None for e in details["epsilon_per_agent"][key]] == [i == 2 for i in range(6)]
        assert details["reasons"][key] == "Infinite: what agents 2 send is not hidden by noise."


def test_messages_without_noise_of_their_own_are_claimed_to_be_private_and_are_not():
    found = account(plan("top-sync", alpha=0.0), analysis(), DELTA)
    assert found.claimed.largest == pytest.approx(epsilon_of(np.sqrt(6) * 0.1, DELTA))
    assert found.view.largest is None and found.worst_case.largest is None
    assert set(found.summary()["reasons"]) == {"view", "worst_case"}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_poisson_samples_with_reused_noise_are_refused_by_the_view(mode):
    found = account(plan(f"top-{mode}", rounds=1), analysis(Poisson(20, 5)), DELTA)
    details = strict_json(found)
    assert found.seen is None and details["mu_view"] is None
    assert details["epsilon"]["view"] is None and details["epsilon_per_agent"]["view"] is None
    assert list(details["reasons"]) == ["view"]
    assert "Poisson samples in a plan that reuses noise" in details["reasons"]["view"]
    assert details["epsilon"]["worst_case"] > 0 and details["epsilon"]["claimed"] > 0


def test_poisson_samples_of_the_plain_rule_are_answered_three_times():
    found = account(plan("plain-sync", rounds=1), analysis(Poisson(20, 5)), DELTA)
    details = strict_json(found)
    assert all(details["epsilon"][key] > 0 for key in NAMES) and "reasons" not in details
    assert details["epsilon"]["view"] == details["epsilon"]["worst_case"]
    assert details["mu_view"] == [[None] * 6] * 6  # a sample has no μ


def test_poisson_samples_under_replace_one_are_refused_by_all():
    found = account(plan("plain-sync", rounds=1), analysis(Poisson(20, 5), adjacency="replace-one"), DELTA)
    assert [found.answers[key].epsilon for key in NAMES] == [None] * 3
    assert all("add-remove" in reason for reason in found.summary()["reasons"].values())


def test_plans_that_no_paper_describes_have_no_claim():
    found = account(replace(plan("plain-sync"), protocol="custom"), analysis(), DELTA)
    assert found.summary()["reasons"] == {
        "claimed": "No published analysis covers plans of protocol 'custom'."
    }
    assert found.view.largest > 0


def test_a_pruned_plan_is_refused_by_all():
    found = account(prune(plan("top-sync")), analysis(), DELTA)
    assert [found.answers[key].largest for key in NAMES] == [None] * 3
    assert all("pruned plan lacks rows" in reason for reason in found.summary()["reasons"].values())


@pytest.mark.parametrize("agents", [1, 5, 7])
def test_plans_of_other_agents_are_refused(agents):
    with pytest.raises(
        PrivacyError, match=f"Expected an exposure for the plan's 6 agents, got one for {agents}"
    ):
        account(plan("top-sync"), analysis(agents=agents), DELTA)


def test_claims_that_are_false_come_with_the_true_number():
    found = account(plan("plain-sync", 0.05), analysis(calibration="udp"), DELTA)
    (warning,) = found.summary()["warnings"]
    assert "Calibration 'udp' claims epsilon=" in warning and "exactly epsilon=" in warning
    assert found.claimed.largest < found.worst_case.largest


def test_a_view_that_is_handed_over_is_not_computed_again():
    made, exposed = plan("top-sync"), analysis()
    seen = view(made.noise_scaled(2.0), exposed.exposure(), owners="all")
    found = account(made, exposed, DELTA, seen)
    assert found.seen is seen
    np.testing.assert_allclose(found.view.epsilon, epsilon_of(seen.worst(), DELTA), rtol=1e-12)


def test_cycles_count_the_worst_place_in_the_cycle():
    """11 releases in a cycle of 4: a record is in 3 of them, or in 2."""
    found = account(plan("plain-sync", rounds=10), analysis(Cycle(20, 5)), DELTA)
    expected = epsilon_of(np.sqrt(3) * 2.0 / 5, DELTA)
    np.testing.assert_allclose(found.claimed.epsilon, expected, rtol=1e-9)
    np.testing.assert_allclose(found.worst_case.epsilon, expected, rtol=1e-9)
    assert strict_json(found)["participation"] == ["once in 4 rounds"]


@pytest.mark.parametrize(
    ("made", "of"),
    [
        (lambda: plan("top-sync"), lambda: analysis()),
        (lambda: plan("plain-sync", [1, 1, 0, 1, 1, 1]), lambda: analysis()),
        (lambda: plan("top-sync", rounds=1), lambda: analysis(Poisson(20, 5))),
        (lambda: plan("plain-sync", rounds=1), lambda: analysis(Poisson(20, 5))),
        (lambda: replace(plan("plain-sync"), protocol="custom"), lambda: analysis()),
    ],
    ids=["finite", "infinite", "refused", "sampled", "no claim"],
)
def test_an_account_is_read_as_it_was_written(made, of):
    found = account(made(), of(), DELTA, guarantee="view")
    details = found.details()
    read = Account.from_details(strict_json(found), of())
    assert {**read.details(), "mu_view": None, "mu_view_aligned": None} == {
        **details, "mu_view": None, "mu_view_aligned": None,
    }  # fmt: skip
    assert {name: answer.status for name, answer in read.answers.items()} == {
        name: answer.status for name, answer in found.answers.items()
    }
    if read.seen is not None:
        np.testing.assert_array_equal(read.seen.upper, found.seen.upper)
        np.testing.assert_array_equal(read.seen.lower, found.seen.lower)
        np.testing.assert_array_equal(read.seen.epsilon(DELTA), found.seen.epsilon(DELTA))
