"""Who meets whom in Algorithm 2: never two agents of which one would show the other the noise it reuses."""

from __future__ import annotations

import numpy as np
import pytest

from topdp import topology
from topdp.errors import InputError
from topdp.protocols._asynchronous import draw_pairs
from topdp.runs import config

NOBODY = -1


def meetings_with_reused_noise(pairs):
    """Return in how many exchanges an agent shows an estimate made with the row of that very partner."""
    mixed_in = np.full(pairs.partner.shape[1], NOBODY)
    count = 0
    for partner, online in zip(pairs.partner, pairs.online, strict=True):
        count += int(((partner != NOBODY) & (partner == mixed_in)).sum())
        mixed_in = np.where(online, partner, mixed_in)  # who sits out keeps its estimate
    return count


@pytest.mark.parametrize(
    ("agents", "offline", "seed"), [(30, 0.1, 0), (10, 0.3, 1), (6, 0.5, 2), (3, 0.34, 3)]
)
def test_no_agent_shows_the_noise_it_reuses_to_the_agent_that_made_it(agents, offline, seed):
    graph = topology.complete(agents) if agents < 10 else topology.small_world(agents, 4, seed=seed)
    pairs = draw_pairs(graph, 1500, offline, seed)
    assert (pairs.partner != NOBODY).sum() > 200
    assert meetings_with_reused_noise(pairs) == 0
    counted_by_rounds = draw_pairs(graph, 1500, offline, seed, "next-round")
    assert meetings_with_reused_noise(counted_by_rounds) > 0


def test_partners_are_mutual_online_and_not_the_same_twice_in_a_row():
    graph = topology.ring(12)
    partner, online = draw_pairs(graph, 1200, 0.25, seed=4)  # more than one chunk of rounds
    rounds, agents = np.nonzero(partner != NOBODY)
    others = partner[rounds, agents]
    assert (partner[rounds, others] == agents).all() and online[rounds, agents].all()
    assert {tuple(sorted(pair)) for pair in zip(agents, others, strict=True)} <= set(
        map(tuple, graph.edges.tolist())
    )
    assert not ((partner[1:] == partner[:-1]) & (partner[1:] != NOBODY)).any()


def test_without_absence_both_rules_draw_the_same_pairs():
    graph = topology.complete(7)
    both = [draw_pairs(graph, 300, 0.0, 5, rule).partner for rule in ("after-new-row", "next-round")]
    assert (both[0] == both[1]).all()


def test_an_unknown_rule_is_refused():
    with pytest.raises(InputError, match="Expected rematch to be after-new-row or next-round, got 'never'"):
        draw_pairs(topology.ring(4), 3, 0.1, 0, "never")


def test_a_stored_run_in_pairs_keeps_the_rule_under_which_it_was_written():
    old = {"method": {"name": "top", "mode": "async"}}
    assert config.parse_stored(old, "config.toml").method.rematch == "next-round"
    assert config.parse(old).method.rematch == "after-new-row"
    new = {"method": {"name": "top", "mode": "async", "rematch": "after-new-row"}}
    assert config.parse_stored(new, "config.toml").method.rematch == "after-new-row"
