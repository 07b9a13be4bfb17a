"""The batch computation that follows hidden rows, compared with the filter for one observer at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from builders import constant_schedule
from topdp import topology as graphs
from topdp.plan import NOBODY, PerRound, Plan
from topdp.privacy import adaptive, exposure, worst_case
from topdp.privacy.observers._mu_bounds import bracket, bracket_band
from topdp.privacy.observers._neighbourhoods import neighbourhood_bound
from topdp.privacy.observers._reader_layout import ReaderQuestion, RowFlow, UnsuitedError, lay_out
from topdp.privacy.observers._reader_tracking import ChangeTracker
from topdp.privacy.observers.gram_matrix import grams
from topdp.privacy.observers.observer_filter import Public
from topdp.protocols import TopSynchronous

GRAPHS = {
    "random": graphs.random(8, 0.4, 1),
    "ring": graphs.ring(7),
    "star": graphs.star(7, hubs=2),
    "tree": graphs.tree(9),
}


def tracked(*arguments, **options):
    return ChangeTracker(*arguments, **options).all()


def plan_of(graph, rounds=24, alpha=0.25, seed=0):
    noise = np.geomspace(0.3, 3.0, graph.agents)
    return TopSynchronous(alpha).plan(graph, constant_schedule(rounds), noise, seed)


def whole(band):
    """M, from its band."""
    R = len(band.values)
    M = np.zeros((R, R))
    for r in range(R):
        width = min(band.values.shape[1], R - r)
        M[r, r : r + width] = M[r : r + width, r] = band.values[r, :width]
    return M


def asked(plan, J):
    ways = RowFlow(plan)
    owners = np.array([i for i in range(plan.agents) if i not in J])
    return owners, lay_out(ways, [ReaderQuestion(J, owners, np.flatnonzero(ways.secret))])


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("J", [(0,), (1, 4), ()])
def test_bands_and_sums_equal_those_of_the_filter(name, J):
    plan = plan_of(GRAPHS[name])
    owners, layout = asked(plan, J)
    periods = np.resize([1, 2, 3], (1, len(owners)))
    (told,) = tracked(layout, periods)
    oracle = grams(plan, np.isin(np.arange(plan.agents), J), owners, Public.ESTIMATES)
    for M, band, sums, period in zip(oracle, told.bands, told.aligned, periods[0], strict=True):
        np.testing.assert_allclose(whole(band), M, atol=1e-9 * M.max())
        assert bracket_band(band)[1] >= bracket(M)[1] * (1 - 1e-9)
        for place in range(period):
            rounds = slice(place, None, period)
            assert sums[place] == pytest.approx(M[rounds, rounds].sum(), rel=1e-9)


@pytest.mark.parametrize("longest", [1, 3, 8])
def test_changes_that_are_not_followed_widen_the_bounds(longest):
    """The error is on the private side, and becomes smaller the longer a change is followed."""
    plan = plan_of(graphs.regular(10, 3, 2), rounds=40, alpha=0.1)
    _, layout = asked(plan, (0,))
    (short,), (full,) = tracked(layout, None, longest, owners=9), tracked(layout, None, owners=9)
    (longer,) = tracked(layout, None, longest + 8, owners=9)
    for less, more, all_of_it in zip(short.bands, longer.bands, full.bands, strict=True):
        assert bracket_band(less)[1] >= bracket_band(all_of_it)[1]
        assert bracket_band(less)[0] <= bracket_band(all_of_it)[0]
        assert more.rest.sum() < less.rest.sum()


def test_a_batch_gives_the_same_answers_as_its_questions_one_by_one():
    plan = plan_of(GRAPHS["random"])
    ways, hidden = RowFlow(plan), np.arange(plan.agents, plan.rows)
    questions = [ReaderQuestion((j,), np.array([i]), hidden) for j, i in [(0, 1), (3, 2), (7, 0)]]
    together = tracked(lay_out(ways, questions), None)
    for question, one in zip(questions, together, strict=True):
        (alone,) = tracked(lay_out(ways, [question]), None)
        np.testing.assert_allclose(whole(one.bands[0]), whole(alone.bands[0]), rtol=1e-12, atol=1e-15)


def test_unsuitable_plans_are_rejected_with_the_reason():
    plan = plan_of(GRAPHS["ring"])
    twice = plan.draw.values.copy()
    twice[:, 8] = twice[:, 7]
    with pytest.raises(UnsuitedError, match="two rows"):
        RowFlow(replace(plan, draw=PerRound(twice, plan.draw.which)))
    silent = plan.std.values.copy()
    silent[:, 9] = 0.0
    ways = RowFlow(replace(plan, std=PerRound(silent, plan.std.which)))
    with pytest.raises(UnsuitedError, match="no noise"):
        lay_out(ways, [ReaderQuestion((0,), np.arange(1, 7), np.arange(7, plan.rows))])
    source = np.array(plan.source.values)
    source[2:, 7:, 0] = np.roll(np.arange(7, plan.rows), 5)  # messages that mix two messages
    with pytest.raises(UnsuitedError, match="from two hidden rows"):
        ways = RowFlow(replace(plan, source=PerRound(source, plan.source.which)))
        lay_out(ways, [ReaderQuestion((0,), np.arange(1, 7), np.arange(7, plan.rows))])


def of_one_loud_row(deviation, rounds=6, agents=3):
    """Agents whose hidden rows, with noise 1, all come from one row with noise of a large deviation."""
    n = agents + 2  # one that makes the loud row, and one observer
    rows, loud = n + 1 + agents, n
    mine = np.arange(loud + 1, rows)
    source, std = np.full((rounds, rows, 1), NOBODY), np.ones((rounds, rows, 1))
    source[:, :n, 0], source[:, loud, 0] = np.arange(n), n - 1
    source[0, mine, 0], source[1, mine, 0], source[2:, mine, 0] = np.arange(agents), loud, mine
    source[2:, :agents, 0] = mine
    std[0, loud:] = deviation
    carries = np.ones((rounds, rows), bool)
    carries[:, loud], carries[0, mine] = False, False
    owner = np.concatenate([np.arange(n), [n - 1], np.arange(agents)])
    return Plan(
        agents=n,
        owner=owner,
        source=PerRound.each(source),
        weight=PerRound.same(np.ones((rows, 1)), rounds),
        carries=PerRound.each(carries),
        rate=np.ones(rounds),
        draw=PerRound.same(np.arange(rows)[:, None], rounds),
        std=PerRound.each(std),
        scale=np.ones(rounds),
        known_by=owner[:, None].copy(),
        readers=PerRound.same(np.full((rows, 1), NOBODY), rounds),
    )


@pytest.mark.parametrize("deviation", [1e3, 1e4, 1e5])
def test_hidden_rows_with_large_common_noise_keep_their_precision(deviation):
    """Beside noise common to all of them, their own noise is a small difference of large numbers."""
    plan = of_one_loud_row(deviation)
    looks = plan.agents - 2
    owners, layout = asked(plan, (looks,))
    (told,) = tracked(layout, None, owners=len(owners))
    oracle = grams(plan, np.arange(plan.agents) == looks, owners, Public.ESTIMATES)
    for M, band in zip(oracle, told.bands, strict=True):
        exact = bracket(M)[0]
        assert exact * (1 - 1e-7) <= bracket_band(band)[1] <= exact * (1 + 5e-12 * deviation**2 + 1e-6)


@pytest.mark.parametrize("deviation", [1e8, 1e12])
def test_own_noise_lost_in_rounding_gives_at_most_the_worst_case(deviation):
    plan = of_one_loud_row(deviation)
    exposed = exposure(plan.agents, 1.0)
    found, most = adaptive(plan, exposed), worst_case(plan, exposed).mu
    assert (found.worst() <= most * (1 + 1e-12)).all()
    assert (found.worst()[:3] > 2.5).all()  # 2.565 in exact fractions
    nearby = neighbourhood_bound(RowFlow(plan), exposed)
    assert (nearby.worst() >= found.worst() * (1 - 1e-12)).all()
    _, layout = asked(plan, (plan.agents - 2,))
    with pytest.raises(UnsuitedError, match="rounding"):
        tracked(layout, None, owners=plan.agents - 1)
