"""A person at several agents: the joint loss is an upper bound, is reached, and keeps within the budget."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from topdp import topology
from topdp.plan import Full, Poisson, Schedule
from topdp.privacy import Analysis, Answer, account
from topdp.privacy.basics.gaussian import epsilon_of, mu_of
from topdp.privacy.basics.privacy_loss import SampledLoss
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.joint_loss import joint_answer, joint_mu, share_of_budget
from topdp.protocols import Correlated
from topdp.runs.config import ConfigError, parse
from topdp.runs.planning import coalition_account, plan_and_account
from topdp.runs.resolve import resolve_outline
from topdp.runs.run_outline import RunOutline

AGENTS, CLIP = 4, 100.0


def correlated(pair_noise, releases=3):
    steps = Schedule(rate=np.full(releases, 0.1), noise=np.full(releases, 0.1))
    protocol = Correlated(secrets="all", pair_noise=pair_noise, gossip=0)
    return protocol.plan(topology.complete(AGENTS), steps, np.full(AGENTS, 5.0), seed=0)


def exact_mu(plan, owners, observer, sensitivity):
    """μ of a change of several owners at once, to an agent that reads every estimate: dense linear algebra.

    Rows of a release differ from known rows by fresh noise and gradients, so releases add up.
    """
    total = 0.0
    for r, release in enumerate(plan):
        rows = [i for i in range(plan.agents) if i != observer]
        noise = np.zeros((plan.agents, plan.draws))
        for i in range(plan.agents):
            for draw, std in zip(release.draw[i], release.std[i], strict=True):
                if draw >= 0 and observer not in plan.known_by[draw]:
                    noise[i, draw] += std
        inverse = np.linalg.inv((noise @ noise.T)[np.ix_(rows, rows)])
        best = 0.0
        for signs in product([-1, 1], repeat=len(owners)):
            change = np.zeros(plan.agents)
            change[list(owners)] = plan.rate[r] * sensitivity * np.array(signs)
            best = max(best, float(change[rows] @ inverse @ change[rows]))
        total += best
    return total**0.5


@pytest.mark.parametrize("sites", [2, 3])
@pytest.mark.parametrize("pair_noise", [0.5, 30.0])
def test_the_joint_loss_bounds_every_set_of_agents_and_pair_noise_reaches_it(sites, pair_noise):
    plan = correlated(pair_noise)
    sensitivity = CLIP / 100
    alone, joint = (
        account(
            plan,
            Analysis("tight", (Full(100),) * AGENTS, CLIP, unit="person", sites=many),
            1e-5,
            ["adaptive"],
        ).answer("adaptive")
        for many in (1, sites)
    )
    largest = 0.0
    for observer in range(AGENTS):
        for owners in combinations([i for i in range(AGENTS) if i != observer], sites):
            exact = exact_mu(plan, owners, observer, sensitivity)
            single = [exact_mu(plan, (owner,), observer, sensitivity) for owner in owners]
            assert all(mu <= alone.mu[owner] * (1 + 1e-9) for mu, owner in zip(single, owners, strict=True))
            assert all(exact <= joint.mu[owner] * (1 + 1e-9) for owner in owners)
            largest = max(largest, exact)
    assert largest > alone.mu.max() * 1.4  # more than one agent's loss: the joint loss is needed
    if pair_noise == 30.0 and sites == 2:
        assert largest > 0.98 * joint.mu.max()  # changes of both agents add up
    np.testing.assert_allclose(joint.epsilon, epsilon_of(joint.mu, 1e-5))
    assert (joint.epsilon > alone.epsilon).all()


def test_the_agents_with_the_largest_losses_count_beside_an_agent():
    mu = np.array([0.5, 0.1, 0.4, 0.4])
    by_definition = [
        max(mu[i] + sum(others) for others in combinations(np.delete(mu, i), 2)) for i in range(4)
    ]
    np.testing.assert_allclose(joint_mu(mu, 3), by_definition, rtol=1e-8)
    assert (joint_mu(mu, 3) >= by_definition).all()
    assert np.isinf(joint_mu(np.array([0.5, np.inf]), 2)).all()


@pytest.mark.parametrize("sites", [2, 5])
def test_shares_of_a_budget_together_stay_within_it(sites):
    epsilon, delta = np.array([0.1, 1.0, 8.0]), np.array([1e-5, 1e-6, 1e-3])
    share = share_of_budget(epsilon, delta, sites)
    joint = sites * mu_of(share, delta)
    assert (epsilon_of(joint, delta) <= epsilon).all()
    assert (epsilon_of(joint * 1.0001, delta) > epsilon).all()


def test_losses_without_mu_are_refused_and_samples_have_no_amplification():
    plan = correlated(0.5)
    full, sampled = (
        account(
            plan, Analysis("tight", (batches,) * AGENTS, CLIP, unit="person", sites=2), 1e-5, ["adaptive"]
        )
        for batches in (Full(10), Poisson(100, 10))
    )
    np.testing.assert_allclose(sampled.adaptive.mu, full.adaptive.mu)
    with pytest.raises(NotCovered, match="only for Gaussian losses"):
        joint_answer(Answer(np.ones(2), losses=(SampledLoss(0.1, ((1.0, 3),)),) * 2), 2, np.full(2, 1e-5))
    with pytest.raises(NotCovered, match="only for Gaussian losses"):
        joint_answer(Answer(np.ones(2)), 2, np.full(2, 1e-5))


# Configurations


def resolved(*, counts=(20, 5, 9, 30), **privacy):
    tree = {
        "rounds": 6,
        "topology": {"kind": "complete", "agents": 4},
        "method": {"name": "correlated"},
        "privacy": {"unit": "person", "epsilon": 2.0, **privacy},
    }
    return resolve_outline(RunOutline.of(parse(tree, "test")), counts)


@pytest.mark.parametrize("guarantee", ["adaptive", "worst-case", "view"])
@pytest.mark.parametrize("sites", [1, 2, 4])
def test_calibrated_runs_keep_within_the_budget_of_a_person(guarantee, sites):
    _, found = plan_and_account(resolved(guarantee=guarantee, sites_per_person=sites))
    epsilon = found.answer(guarantee).epsilon
    assert (1 - 1e-5) * 2.0 < epsilon.max() <= 2.0
    assert found.summary()["unit"] == "person"


def test_more_sites_need_more_noise():
    plans = [plan_and_account(resolved(sites_per_person=sites))[0] for sites in (1, 2, 4)]
    first, second, fourth = (plan.full_scale.max() for plan in plans)
    np.testing.assert_allclose([second / first, fourth / first], [2, 4], rtol=1e-5)


@pytest.mark.parametrize(
    ("privacy", "data", "words"),
    [
        ({}, {"batch": {"poisson": 3}}, "no account of several agents covers Poisson"),
        ({"guarantee": "claimed"}, {}, "no published analysis covers a person at several"),
        ({"epsilon": [1.0, 2.0, 2.0, 2.0]}, {}, "different budgets"),
    ],
)
def test_what_has_no_account_is_refused_by_name(privacy, data, words):
    tree = {
        "topology": {"kind": "complete", "agents": 4},
        "privacy": {"unit": "person", "sites_per_person": 2, **privacy},
        "data": data,
    }
    with pytest.raises(ConfigError, match=words):
        RunOutline.of(parse(tree, "test"))
    with pytest.raises(ConfigError, match='needs unit = "person"'):
        parse({"privacy": {"sites_per_person": 2}}, "test")


def test_coalitions_beside_a_person_at_several_agents_are_refused():
    run = resolved(sites_per_person=2)
    plan, found = plan_and_account(run)
    with pytest.raises(ValueError, match=r"privacy\.colluders"):
        coalition_account(plan, found, 2, 0)
