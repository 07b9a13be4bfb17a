"""The search for noise, on losses in closed form: every agent reaches its budget after few accounts."""

from __future__ import annotations

import numpy as np
import pytest

from topdp.privacy import _noise_search as search
from topdp.privacy._noise_search import BUDGET_TOLERANCE, balance


class Coupled:
    """1/μ² is a weighted sum of noise variances, by `weights` [agent, agent with noise]; counts its calls."""

    def __init__(self, weights: np.ndarray, budget: np.ndarray) -> None:
        self.weights, self.budget, self.asked = weights, budget, 0

    def __call__(self, noise: np.ndarray) -> np.ndarray:
        self.asked += 1
        with np.errstate(divide="ignore"):
            return 1 / np.sqrt(self.weights @ noise**2) / self.budget


def neighbours(agents: int, share: float) -> np.ndarray:
    """Weights on a ring: 1 for an agent's own noise, `share` for that of its two neighbours."""
    around = np.roll(np.eye(agents), 1, axis=1) + np.roll(np.eye(agents), -1, axis=1)
    return np.eye(agents) + share * around


BUDGETS = np.exp(np.random.default_rng(0).normal(0, 0.3, 8))


@pytest.mark.parametrize("share", [-0.2, 0.0, 0.2, 0.4])
def test_every_agent_reaches_its_budget(share):
    """Even if neighbours' noise reduces the own noise, as in a worst case with reused noise."""
    account = Coupled(neighbours(8, share), BUDGETS)
    found = balance([account], least=0.1 / BUDGETS)
    assert (found.noise > 0.1 / BUDGETS).all()
    np.testing.assert_allclose(found.excess, found.excess.max(), rtol=2 * BUDGET_TOLERANCE)
    np.testing.assert_array_equal(account(found.noise), found.excess)


@pytest.mark.parametrize(("off", "most"), [(0.05, 4), (0.3, 8)])
def test_the_search_corrects_an_inexact_model_with_few_accounts(off, most):
    rng = np.random.default_rng(1)
    weights = neighbours(8, 0.3)
    account = Coupled(weights, BUDGETS)
    model = Coupled(weights * np.exp(off * rng.normal(size=(8, 8))), BUDGETS * np.exp(rng.normal(size=8)))
    found = balance([model, account], least=0.1 / BUDGETS)
    np.testing.assert_allclose(found.excess, found.excess.max(), rtol=2 * BUDGET_TOLERANCE)
    assert account.asked <= most < model.asked


def test_an_agent_that_others_hide_keeps_the_least_noise():
    weights = np.array([[1.0, 1.0], [0.0, 1.0]])  # agent 1 hides agent 0, which needs a tenth of the noise
    found = balance([Coupled(weights, np.array([10.0, 1.0]))], least=np.array([0.05, 0.01]))
    np.testing.assert_allclose(found.noise * found.excess.max(), [0.05, 1.0], rtol=1e-3)
    assert found.excess[0] < 0.2 * found.excess[1]


def test_an_agent_without_readers_keeps_the_least_noise():
    weights = np.array([[1.0, 0.0], [0.0, 1.0]])

    def account(noise: np.ndarray) -> np.ndarray:
        return Coupled(weights, np.ones(2))(noise) * [1.0, 0.0]

    found = balance([account], least=np.array([0.1, 0.3]))
    assert found.noise[1] == 0.3 and found.excess[1] == 0


@pytest.mark.parametrize("models", [1, 2])
def test_the_search_stays_where_losses_are_finite(models):
    """The loss is infinite if one agent has at least twice the noise of the other."""

    def account(noise: np.ndarray) -> np.ndarray:
        left = noise**2 - 0.25 * noise[::-1] ** 2
        return np.where(left > 0, 1 / np.sqrt(np.maximum(left, 1e-300)), np.inf) / np.array([1.0, 4.0])

    quick = account if models == 1 else Coupled(np.eye(2), np.array([1.0, 4.0]))  # a model that is finite
    found = balance([quick, account], least=np.array([0.5, 0.125]))
    assert np.isfinite(found.excess).all()


def test_a_loss_that_is_infinite_for_all_noise_is_returned_as_infinite():
    found = balance([lambda noise: np.full(2, np.inf)], least=np.array([1.0, 2.0]))
    np.testing.assert_array_equal(found.noise, [2.0, 2.0])
    assert np.isinf(found.excess).all()


def test_a_search_that_does_not_converge_returns_the_most_balanced_noise(monkeypatch):
    monkeypatch.setattr(search, "MAX_ACCOUNTS", 4)
    rng = np.random.default_rng(0)
    said = []

    def restless(noise: np.ndarray) -> np.ndarray:
        said.append(Coupled(np.eye(8), BUDGETS)(noise) * np.exp(0.3 * rng.normal(size=8)))
        return said[-1]

    told: list[np.ndarray] = []
    found = balance([Coupled(np.eye(8), BUDGETS), restless], np.full(8, 1e-3), told.append)
    assert len(said) == len(told) == 4
    spread = [excess.max() / excess.min() for excess in said]
    assert found.excess.max() / found.excess.min() == min(spread)
