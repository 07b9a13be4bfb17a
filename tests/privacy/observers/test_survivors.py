"""Departed agents: what is learned about them and about the others, compared with dense matrices."""

import itertools

import numpy as np
import pytest

from topdp import topology
from topdp.plan import Schedule
from topdp.privacy import exposure
from topdp.privacy.observers.adaptive import most_learned
from topdp.privacy.observers.survivors import (
    RECALLED_ROUNDS,
    RESERVED_RELEASES,
    most_learned_since,
    survivors,
    with_reserve,
)
from topdp.privacy.query import Query
from topdp.protocols import Correlated, PlainSynchronous


def plan_of(own, secrets="all", degree=4, pair_noise=2.0, gossip=1, releases=4):
    steps = Schedule(rate=np.ones(releases), noise=np.linspace(1.0, 1.5, releases))
    protocol = Correlated(secrets=secrets, degree=degree, pair_noise=pair_noise, gossip=gossip)
    return protocol.plan(topology.complete(len(own)), steps, np.asarray(own, float), seed=0)


def dense(plan, round, owner, known):
    """1/z² for the agents in `known`, which see all rows and know their own draws."""
    rows = [i for i in range(plan.agents) if i not in known]
    noise = np.zeros((len(rows), plan.draws))
    for at, row in enumerate(rows):
        for draw, std in zip(plan[round].draw[row], plan[round].std[row], strict=True):
            if draw >= 0 and not set(plan.known_by[draw].tolist()) & set(known):
                noise[at, draw] += std
    step = np.array([plan[round].step[owner] if row == owner else 0.0 for row in rows])
    return float(step @ np.linalg.inv(noise @ noise.T) @ step)


@pytest.mark.parametrize("colluders", [0, 1, 2])
@pytest.mark.parametrize("gone", [{2: 0}, {2: 4}, {2: 2, 5: 4}, {0: 2, 1: 2}])
@pytest.mark.parametrize("secrets", ["all", "regular"])
def test_a_departed_agent_counts_as_a_colluder_from_its_round_on(colluders, gone, secrets):
    plan = plan_of([1.0, 1.5, 1.0, 0.7, 1.2, 1.0, 0.9], secrets)
    for owner in (3, 6):
        found = most_learned_since(plan, owner, gone, Query(colluders=colluders))
        for r in range(plan.releases):
            out = {agent for agent, first in gone.items() if first <= r}
            others = [k for k in range(7) if k != owner and k not in out]
            worst = (
                max(dense(plan, r, owner, {*out, *J}) for J in itertools.combinations(others, colluders))
                if plan.rate[r]
                else 0.0
            )
            assert found[r] == pytest.approx(worst, rel=1e-9), (owner, r)


def test_without_remaining_partners_the_worst_case_applies():
    plan = plan_of([1.0, 2.0, 1.0])
    assert most_learned_since(plan, 1, {0: 0, 2: 0}, Query(colluders=1))[0] == pytest.approx(0.25, rel=1e-9)
    assert most_learned_since(plan, 1, {0: 0}, Query(colluders=1))[0] == pytest.approx(0.25, rel=1e-9)


def test_the_plan_of_the_remaining_agents_has_their_releases():
    plan = plan_of(np.ones(5))
    left = survivors(plan, {1, 3})
    assert left.agents == 3 and (left.exists == plan.exists[:, [0, 2, 4]]).all()
    np.testing.assert_allclose(
        most_learned(left, Query(colluders=0))[:, 1],
        most_learned_since(plan, 2, {1: 0, 3: 0}, Query(colluders=0)),
    )


def taken_back(generator, n, rounds, windows):
    """(M of the departed agent, whose rows were all seen; 1/z² of each of its releases alone).

    `windows` {partner: (the round in which it takes noise back, the rounds whose noise it takes back)}.
    """
    own = generator.uniform(0.5, 1.5, n)
    scale = np.sort(generator.uniform(0.5, 1.0, rounds))[:: generator.choice([1, -1])]
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n) if j == i + 1 or generator.random() < 0.7]
    strength, spy = generator.uniform(0.3, 5.0), n - 1
    rows = [i for i in range(n) if i != spy]
    kept = [k for k, ends in enumerate(pairs) if spy not in ends]
    draws = n + len(pairs)
    B = np.zeros((rounds * len(rows), rounds * draws))
    for t in range(rounds):
        for at, i in enumerate(rows):
            B[t * len(rows) + at, t * draws + i] = own[i] * scale[t]
        for k in kept:
            for end, sign in zip(pairs[k], (1, -1), strict=True):
                B[t * len(rows) + rows.index(end), t * draws + n + k] = sign * strength * scale[t]
    alone = B.copy()
    for k in kept:
        i, j = pairs[k]
        if i != 0 or j not in windows:
            continue
        r, back = windows[j]
        for t in range(r, rounds):
            B[t * len(rows) + rows.index(j), t * draws + n + k] = 0.0  # omitted from this round on
        for t in back:
            share = min(1.0, scale[r] / scale[t])
            B[r * len(rows) + rows.index(j), t * draws + n + k] = share * strength * scale[t]
    A = np.zeros((rounds * len(rows), rounds))
    for t in range(rounds):
        A[t * len(rows), t] = 1.0
    M = A.T @ np.linalg.inv(B @ B.T) @ A
    each = (A.T @ np.linalg.inv(alone @ alone.T) @ A).diagonal()
    return M, each


@pytest.mark.parametrize("seed", range(40))
def test_taking_noise_back_reveals_no_more_than_the_reserve(seed):
    """Each partner takes back two previous rounds, in any round; the departed agent's rows were all seen."""
    generator = np.random.default_rng(seed)
    n, rounds = int(generator.integers(3, 8)), 6
    together = int(generator.integers(1, rounds))
    windows = {}
    for partner in range(1, n - 1):
        r = together if seed % 2 else int(generator.integers(1, rounds))
        windows[partner] = (r, range(max(0, r - RECALLED_ROUNDS), r))
    M, each = taken_back(generator, n, rounds, windows)
    worst = max(np.array(u) @ M @ np.array(u) for u in itertools.product((1, -1), repeat=rounds))
    assert worst <= (each.sum() + RESERVED_RELEASES * each.max()) * (1 + 1e-9)


def test_taking_back_one_round_reveals_more_but_at_most_twice_as_much():
    generator = np.random.default_rng(0)
    found = [taken_back(generator, 8, 2, {k: (1, range(1)) for k in range(1, 7)}) for _ in range(20)]
    ratio = np.array([M[0, 0] / each[0] for M, each in found])
    assert (ratio > 1.1).all() and ratio.max() > 1.6 and (ratio <= 2).all()


def test_a_little_more_noise_pays_for_the_reserve():
    plan, exposed = plan_of(np.ones(6), releases=100), exposure(6, sensitivity=1.0)
    factor = with_reserve(plan, exposed)
    assert 1 < factor < 1.05
    more = plan.noise_scaled(factor)
    before, after = most_learned(plan)[:, 0], most_learned(more)[:, 0]
    assert after.sum() + RESERVED_RELEASES * after.max() == pytest.approx(before.sum(), rel=1e-9)
    plain = PlainSynchronous(0.5).plan(
        topology.ring(4), Schedule(rate=np.ones(3), noise=np.ones(3)), np.ones(4), seed=0
    )
    assert with_reserve(plain, exposure(4, sensitivity=1.0)) == 1.0
