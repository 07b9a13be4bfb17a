"""Tests that lower bounds on ε hold with the stated probability: by exact distributions and by simulation."""

import numpy as np
import pytest
from scipy.stats import binom, nct

from topdp.audit.findings import gaussian, guesses_for, guessing, largest_excluded, probability_bound
from topdp.privacy.basics.gaussian import epsilon_of


@pytest.mark.parametrize("count", [40, 100, 1000])
@pytest.mark.parametrize("error", [0.0025, 0.0125, 0.05, 0.125])
def test_the_bound_on_the_distance_never_exceeds_its_exact_quantile(count, error):
    """At the returned noncentrality, a t as large as the observed one has probability at most `error`."""
    present = np.arange(count) % 2 == 0
    for shift in (0.6, 1.0, 3.0, 10.0, 100.0):
        scores = np.random.default_rng(3).normal(size=count) + shift * present
        found = gaussian(scores, present, error)
        width = np.sqrt(4 / count)
        t = found.estimate / width
        exact = nct.sf(t, count - 2, found.lower / width)
        assert found.lower < 0 or 0.4 * error < exact <= error


def test_the_bound_on_the_distance_holds_as_often_as_stated():
    generator, error, runs, mu = np.random.default_rng(0), 0.1, 4000, 0.9
    wrong = 0
    for _ in range(runs):
        present = generator.integers(0, 2, 120) == 1
        scores = 3.0 * (generator.normal(size=120) + mu * present) - 1.0  # location and scale do not matter
        wrong += gaussian(scores, present, error).lower > mu
    assert wrong / runs < error + 3 * np.sqrt(error / runs)
    assert wrong / runs > error / 2


def test_too_few_absent_canaries_give_the_bound_0():
    assert gaussian(np.arange(5.0), np.ones(5, bool), 0.05).lower == 0.0


def test_correct_guesses_are_as_rare_as_the_binomial_distribution_states():
    for guesses, right, epsilon in ((40, 30, 0.7), (500, 499, 3.0), (8, 8, 0.0)):
        q = 1 / (1 + np.exp(-epsilon))
        assert probability_bound(1000, guesses, right, epsilon, 0.0) == pytest.approx(
            binom.sf(right - 1, guesses, q)
        )
    # The contribution of δ by its definition: 2mδ·max_i P[v - i <= B < v]/i.
    q, most = 1 / (1 + np.exp(-0.7)), 0.0
    for i in range(1, 31):
        most = max(most, (binom.cdf(29, 40, q) - binom.cdf(29 - i, 40, q)) / i)
    with_delta = probability_bound(1000, 40, 30, 0.7, 1e-5)
    assert with_delta == pytest.approx(binom.sf(29, 40, q) + 2 * 1000 * 1e-5 * most)


def test_more_correct_guesses_give_a_larger_bound_and_chance_gives_none():
    found = [largest_excluded(500, 60, right, 1e-5, 0.05) for right in range(30, 61)]
    assert found[0] == 0.0 and found == sorted(found)
    assert probability_bound(500, 60, 55, largest_excluded(500, 60, 55, 1e-5, 0.05), 1e-5) == pytest.approx(
        0.05, rel=1e-4
    )


def test_the_bound_from_guesses_holds_for_randomised_response():
    """The theorem is tight for it: each coin is reported correctly with probability e^ε/(1 + e^ε)."""
    generator, epsilon, error, runs = np.random.default_rng(1), 1.0, 0.1, 1000
    wrong = 0
    for _ in range(runs):
        present = generator.integers(0, 2, 200) == 1
        reported = present ^ (generator.random(200) > 1 / (1 + np.exp(-epsilon)))
        wrong += guessing(reported + generator.random(200) / 2, present, 200, 1e-9, error) > epsilon
    assert error / 3 < wrong / runs < error + 3 * np.sqrt(error / runs)


def test_the_number_of_guesses_is_fixed_in_advance_and_good():
    mu, delta, error = 0.92, 1e-5, 0.0125
    count = guesses_for(1000, mu, delta, error)
    assert 10 < count < 300
    generator, at, everywhere = np.random.default_rng(2), [], []
    for _ in range(30):
        present = generator.integers(0, 2, 1000) == 1
        scores = generator.normal(size=1000) + mu * present
        at.append(guessing(scores, present, count, delta, error))
        everywhere.append(guessing(scores, present, 1000, delta, error))
    assert np.mean(at) > 1.3 * np.mean(everywhere)
    assert np.mean(at) < epsilon_of(mu, delta)
