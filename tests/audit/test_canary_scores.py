"""Tests that canary scores are as informative as the account states, and use only what is seen."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kstest
from subjects import Audited, sections, subject

from builders import SETTINGS, cyclic_pairs
from topdp.audit import AuditRequest
from topdp.audit.audit_observer import SEES, Observer
from topdp.audit.canaries import CANARY_KINDS, signs
from topdp.audit.canary_scores import canary_scores, execute, information
from topdp.privacy.observers.gram_matrix import grams
from topdp.simulator import fused_rows

# Every protocol once, and protocols with reused or shared noise under every view.
SEEN = sorted({*cyclic_pairs(SETTINGS, SEES, 1), *cyclic_pairs(["top-sync", "correlated"], SEES, 3)})


@pytest.mark.parametrize(("protocol", "sees"), SEEN)
def test_the_information_of_canaries_agrees_with_the_accountants_gram_matrix(protocol, sees):
    _, plan, _ = subject(**sections(protocol))
    observer = Observer(plan, (1,), sees)
    (M,) = grams(plan, observer.coalition, np.array([0]), observer.public)
    for period in (1, 3):
        U = signs(observer.aim(0, period), period)
        expected = 0.25 * np.einsum("rc,rs,sc->c", U, M, U)
        found = information(observer, 0, 0.5, U)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "sees"), SEEN)
def test_scores_are_normal_with_the_mean_that_the_plan_predicts(protocol, sees):
    made = Audited.of(AuditRequest(observer="1", owner=0, sees=sees), **sections(protocol))
    found = [made.run(seed) for seed in range(8)]
    for kind in CANARY_KINDS:
        of_kind = [one.kinds[kind] for one in found]
        left = np.concatenate([one.scores - one.mu * one.present for one in of_kind])
        assert kstest(left, "norm").pvalue > 1e-3


def test_under_replace_one_the_distance_counts_as_twice_as_large():
    made = Audited.of(privacy={"adjacency": "replace-one"})
    found = made.run(0)
    assert found.mu == pytest.approx(0.9249, abs=1e-3)  # ε = 4
    for kind in found.kinds.values():
        left = kind.scores - kind.mu * (kind.present - 0.5)
        assert kstest(left, "norm").pvalue > 1e-3


def test_scores_do_not_depend_on_rows_that_the_observer_does_not_see():
    """Rows that it does not receive may have any values; rows that it receives may not."""
    made = Audited.of(AuditRequest(observer="1", owner=0, sees="received"), **sections("top-sync"))
    audit, canaries = made.audit, made.audit.plant(0, order=0)
    rounds = list(execute(made.parts, made.plan, canaries, audit.signs, 0))
    start = made.parts.start[canaries.coordinates].double().numpy()

    def scored(spoil):
        spoilt = []
        for r, seen in enumerate(rounds):
            rows = seen.rows.copy()
            rows[spoil(r)] = np.nan
            spoilt.append(replace(seen, rows=rows))
        return canary_scores(
            audit.observer, 0, 1 / 160, spoilt, signs=audit.signs, column=canaries.column, start=start
        )

    def unseen(r):
        reads = (made.plan.readers[r] == 1).any(axis=1) | (made.plan.owner == 1)
        return ~reads

    np.testing.assert_array_equal(scored(unseen), scored(lambda r: np.zeros(made.plan.rows, bool)))
    assert unseen(3).sum() > 5
    assert np.isnan(scored(lambda r: ~unseen(r))).all()


def test_draws_that_the_observer_knows_are_subtracted():
    """Agent 1 also knows every draw of agent 2, so these draws hide nothing from it."""
    parts, plan, found = subject(**sections("top-sync"))
    known = np.concatenate([plan.known_by, np.full((plan.draws, 1), -1, plan.known_by.dtype)], axis=1)
    known[plan.known_by[:, 0] == 2, 1] = 1
    shared = replace(plan, known_by=known)
    asked = AuditRequest(observer="1", owner=0)
    alone, sharing = (Audited.given(asked, parts, one, found) for one in (plan, shared))
    assert sharing.audit.worth[0] > 1.02 * alone.audit.worth[0]
    for seed in range(4):
        for kind in sharing.run(seed).kinds.values():
            assert kstest(kind.scores - kind.mu * kind.present, "norm").pvalue > 1e-3


def test_without_noise_every_canary_is_detected():
    made = Audited.of(method={"name": "no-noise"})
    for kind in made.run(0).kinds.values():
        assert kind.scores[kind.present].min() > kind.scores[~kind.present].max()


def test_noise_that_differs_from_the_plan_shows_in_the_spread(monkeypatch):
    real = fused_rows.make

    def with_half_the_noise(*given):
        *others, std, rounded = given
        real(*others, std / 2, rounded)

    monkeypatch.setattr(fused_rows, "make", with_half_the_noise)
    found = Audited.of().run(0)
    for kind in found.kinds.values():
        assert kind.scores[~kind.present].std() == pytest.approx(0.5, rel=0.3)
        assert kind.gaussian.estimate > 1.3 * kind.mu
