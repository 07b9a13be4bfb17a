"""Every row of Top-DP plans against Algorithms 1 and 2 of the paper, executed line by line (`paper_walks`).

The random choices are read off the plan. A walk with these choices must be possible, and must give the same
rows: the same weight of x_0 and of every gradient and draw of noise so far, for the same readers.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from graphlib import TopologicalSorter

import numpy as np
import pytest
from scipy.stats import chi2

from paper_walks import (
    CoverChoices,
    PairChoices,
    PaperInputs,
    PaperRelease,
    Terms,
    algorithm_1,
    algorithm_2,
    search,
)
from topdp import topology
from topdp.plan import learning_rates, schedule, step_decay
from topdp.protocols import PlainAsynchronous, PlainSynchronous, TopAsynchronous, TopSynchronous

FIGURE_2 = topology.from_edges([(0, 1), (0, 2), (0, 3), (0, 4), (1, 4)])  # A_0 .. A_4 of the paper's example
GRAPHS = {
    "pair": topology.complete(2),
    "path": topology.from_edges([(0, 1), (1, 2)]),
    "leaf": topology.from_edges([(0, 1), (1, 2), (2, 0), (2, 3)]),
    "figure-2": FIGURE_2,
    "ring-3": topology.ring(3),
    "ring-4": topology.ring(4),
    "ring-7": topology.ring(7),
    "star-1": topology.star(6, hubs=1),
    "star-2": topology.star(8, hubs=2),
    "star-all": topology.star(7, hubs=2, attach="all"),
    "tree": topology.tree(8),
    "mesh": topology.mesh(9),
    "complete": topology.complete(5),
    "grid": topology.grid(8),
    "random-sparse": topology.random(9, 0.3, 1),
    "random": topology.random(7, 0.5, 2),
    "random-dense": topology.random(8, 0.7, 3),
}
SETTINGS = {
    "printed": {"alpha": 0.5, "own_share": 0.0, "noise_on": "estimate", "fading": "none"},
    "fading": {"alpha": 0.2, "own_share": 0.0, "noise_on": "estimate", "fading": "sqrt-epoch"},
    "default": {"alpha": 0.25, "own_share": 1.0, "noise_on": "gradient", "fading": "linear"},
    "shared": {"alpha": 0.7, "own_share": 0.4, "noise_on": "gradient", "fading": "sqrt-epoch"},
    "equal": {"alpha": 0.1, "own_share": 1.0, "noise_on": "gradient", "fading": "none", "equal": True},
    "received row alone": {"alpha": 0.0, "own_share": 1.0, "noise_on": "gradient", "fading": "none"},
    "own row alone": {"alpha": 1.0, "own_share": 0.0, "noise_on": "estimate", "fading": "linear"},
    "plain": {"alpha": 0.4, "own_share": 1.0, "noise_on": "estimate", "fading": "linear", "reuses": False},
}
every_graph = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS.keys())
every_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())


def inputs(graph, rounds, seed, equal=False, **setting):
    """Return the inputs. Unless noise is `equal`, every agent has another σ, and often σ_i < (1-α)σ_k."""
    spread = 0.0 if equal else 0.7
    return PaperInputs(
        neighbours=[frozenset(np.flatnonzero(row).tolist()) for row in graph.adjacency],
        sigma=np.exp(np.random.default_rng(seed).normal(0, spread, graph.agents)),
        clip=4.0,
        rate=0.3,
        rounds_per_epoch=3,
        gamma=0.8,
        period=2,
        T=rounds,
        **setting,
    )


def written(protocol, graph, p, seed):
    rates = learning_rates(p.rate, p.T, p.fading, p.rounds_per_epoch)
    noise = schedule(rates, step_decay(p.gamma, p.period, p.T), p.noise_on)
    return protocol.plan(graph, noise, p.sigma * p.clip, seed)


def present(indices):
    return [index for index in np.asarray(indices).tolist() if index >= 0]


def released(plan, terms):
    """Yield what the rows of `plan` are sums of, release by release."""
    before = dict.fromkeys(range(plan.rows), terms.start)
    for r in range(plan.releases):
        this, now, sent, used = plan[r], {}, {}, set()
        for row in np.flatnonzero(this.exists).tolist():
            i, readers = int(plan.owner[row]), present(this.readers[row])
            assert row < plan.agents or len(readers) == 1  # a message has one receiver
            target = i if row < plan.agents else readers[0]
            now[row] = this.step[row] * terms.gradient(i, r)
            for source, weight in zip(this.source[row].tolist(), this.weight[row].tolist(), strict=True):
                if source >= 0:
                    now[row] = now[row] + weight * before[source]
            draws = [
                (draw, std) for draw, std in zip(this.draw[row], this.std[row], strict=True) if draw >= 0
            ]
            assert len(draws) <= 1
            for draw, std in draws:
                assert draw not in used and present(plan.known_by[draw]) == [i]  # fresh, and i's secret
                used.add(draw)
                now[row] = now[row] + std * terms.noise(i, target, r)
            for j in readers:
                assert (i, j) not in sent
                sent[i, j] = now[row]
        yield PaperRelease({i: now[i] for i in range(plan.agents)}, sent)
        before = now


def received_from(plan, this, row):
    """Return the agent whose row is mixed into `row`; None if there is none."""
    others = {int(plan.owner[s]) for s in present(this.source[row])} - {int(plan.owner[row])}
    assert len(others) <= 1
    return others.pop() if others else None


def cover_choices(plan, p, r):
    """Return the choices of Algorithm 1 in release r. Raise CycleError if no order of the k gives them."""
    this, serves = plan[r], {}
    for row in np.flatnonzero(this.exists).tolist():
        if row >= plan.agents:
            (j,) = present(this.readers[row])
            serves[int(plan.owner[row]), j] = received_from(plan, this, row)
    orders = {}
    for i in p.agents:
        first: dict[int, set[int]] = {k: set() for k in p.neighbours[i]}  # the k' that come before k
        for j in p.neighbours[i]:
            for k in p.N_except(i, j):
                if k != serves[i, j]:  # k would serve j too
                    first[k].add(serves[i, j])
        orders[i] = list(TopologicalSorter(first).static_order())
    partners = {i: received_from(plan, this, i) for i in p.agents}
    return CoverChoices(orders, partners), serves


def pair_choices(plan, p, r):
    """Return the choices of Algorithm 2 in release r."""
    this = plan[r]
    partner = {i: j for i in p.agents if (j := received_from(plan, this, i)) is not None}
    pairs = [(i, j) for i, j in partner.items() if i < j or partner.get(j) != i]
    return PairChoices(np.flatnonzero(this.step).tolist(), pairs)


def compare(plan, walk, terms):
    """Assert that the plan has the rows and readers of the walk; return the number of rows."""
    rows = 0
    for planned, walked in itertools.zip_longest(released(plan, terms), walk):
        assert planned.estimates.keys() == walked.estimates.keys()
        assert planned.sent.keys() == walked.sent.keys()
        for ours, paper in ((planned.estimates, walked.estimates), (planned.sent, walked.sent)):
            if paper:
                expected = np.stack([paper[key] for key in ours])
                np.testing.assert_allclose(np.stack(list(ours.values())), expected, rtol=1e-9, atol=1e-12)
        rows += len(walked.estimates) + len(walked.serves)
    assert rows == plan.exists.sum()
    return rows


def compare_algorithm_1(graph, rounds, seed, width=0, **setting):
    p = inputs(graph, rounds, seed, **setting)
    protocol = TopSynchronous(p.alpha, p.own_share) if p.reuses else PlainSynchronous(p.alpha)
    plan = written(protocol, graph, p, seed)
    read = [cover_choices(plan, p, r) for r in range(1, plan.releases)]
    terms = Terms(graph.agents, rounds + 1, width)
    walk = list(algorithm_1(p, terms, [choices for choices, _ in read]))
    assert [release.serves for release in walk[1:]] == [serves for _, serves in read]
    return compare(plan, walk, terms)


def compare_algorithm_2(graph, rounds, seed, offline, rematch, width=0, **setting):
    p = inputs(graph, rounds, seed, **setting)
    share = [p.own_share] if p.reuses else []
    protocol = (TopAsynchronous if p.reuses else PlainAsynchronous)(p.alpha, offline, *share, rematch=rematch)
    plan = written(protocol, graph, p, seed)
    choices = [pair_choices(plan, p, r) for r in range(1, plan.releases)]
    assert {graph.agents - len(c.online) for c in choices} == {round(offline * graph.agents)}
    terms = Terms(graph.agents, rounds + 1, width)
    return compare(plan, algorithm_2(p, terms, choices, rematch), terms)


@every_graph
@every_setting
def test_plans_have_the_rows_of_algorithm_1(graph, setting):
    for seed in (0, 1, 2):
        compare_algorithm_1(graph, 7, seed, **setting)


@every_graph
@every_setting
@pytest.mark.parametrize("rematch", ["after-new-row", "next-round"])
def test_plans_have_the_rows_of_algorithm_2(graph, setting, rematch):
    for seed, offline in enumerate((0.0, 0.1, 0.3, 0.5)):
        compare_algorithm_2(graph, 12, seed, offline, rematch, **setting)


def test_long_plans_have_the_rows_of_the_algorithms():
    """Plans are drawn in chunks of 512 rounds (Algorithm 1) and 1024 rounds (Algorithm 2)."""
    setting = SETTINGS["shared"]
    compare_algorithm_1(FIGURE_2, 520, 5, width=4, **setting)
    compare_algorithm_2(topology.complete(5), 1032, 5, 0.3, "after-new-row", width=4, **setting)


def test_the_neighbour_sets_are_those_of_the_papers_example():
    """The paper lists them below its Fig. 2."""
    p = inputs(FIGURE_2, 1, 0, **SETTINGS["printed"])
    assert [p.N_except(0, j) for j in (1, 2, 3, 4)] == [{2, 3}, {1, 3, 4}, {1, 2, 4}, {2, 3}]


def expect_frequencies(observed, probability):
    """Assert by a chi-square test, whose margin is wide, that observed counts have these probabilities."""
    assert observed.keys() <= probability.keys()
    total = sum(observed.values())
    assert total * min(probability.values()) > 5
    chi_square = sum((observed[x] - total * q) ** 2 / (total * q) for x, q in probability.items())
    assert chi2.sf(chi_square, max(1, len(probability) - 1)) > 1e-6


@pytest.mark.parametrize(
    ("graph", "i"), [(FIGURE_2, 0), (GRAPHS["star-1"], 0), (GRAPHS["leaf"], 2), (GRAPHS["random"], 1)]
)
def test_choices_are_as_likely_as_in_algorithm_1(graph, i):
    """Every order of the neighbours is equally likely, and so is every j*, whatever the order."""
    one = inputs(graph, 1, 0, **SETTINGS["printed"])
    terms, N = Terms(graph.agents, 2), one.neighbours
    served = Counter()
    for order in itertools.permutations(N[i]):
        choices = CoverChoices({**dict(enumerate(N)), i: order}, {a: min(N[a]) for a in one.agents})
        _, release = algorithm_1(one, terms, [choices])
        served[frozenset((j, k) for (a, j), k in release.serves.items() if a == i)] += 1
    orders, degree = math.factorial(len(N[i])), len(N[i])
    probability = {(s, j): c / orders / degree for s, c in served.items() for j in N[i]}

    p = inputs(graph, 3000, 0, **SETTINGS["printed"])
    plan = written(TopSynchronous(p.alpha), graph, p, seed=1)
    observed, partners = Counter(), []
    rows = [row for row in range(plan.agents, plan.rows) if plan.owner[row] == i]
    for r in range(1, plan.releases):
        this = plan[r]
        serves = frozenset((present(this.readers[m])[0], received_from(plan, this, m)) for m in rows)
        partners.append([received_from(plan, this, a) for a in (i, min(N[i]))])
        observed[serves, partners[-1][0]] += 1
    expect_frequencies(observed, probability)

    # j* of consecutive rounds, and of neighbours in one round, are independent
    mine = [a for a, _ in partners]
    both = {(a, b): 1 / degree**2 for a in N[i] for b in N[i]}
    expect_frequencies(Counter(itertools.pairwise(mine)), both)
    product = {(a, b): 1 / degree / len(N[min(N[i])]) for a in N[i] for b in N[min(N[i])]}
    expect_frequencies(Counter(map(tuple, partners)), product)


def pair_probabilities(N, last, online, waiting, partner):
    """Yield the pairs of every possible search with its probability: agents ask one after the other.

    `waiting`: the agents that have not asked yet, any of which may be the next; `partner`: who is taken.
    """
    askers = waiting - partner.keys()
    if not askers:
        yield frozenset(frozenset(pair) for pair in partner.items()), 1.0
    for i in askers:
        free = {j for j in N[i] & online - partner.keys() if last[i] != j and last[j] != i}
        for j in free or {None}:
            pair = {} if j is None else {i: j, j: i}
            for pairs, q in pair_probabilities(N, last, online, askers - {i}, {**partner, **pair}):
                yield pairs, q / len(askers) / max(1, len(free))


@pytest.mark.parametrize("offline", [0.0, 0.2])
def test_pairs_are_as_likely_as_in_a_random_search(offline):
    graph, rounds = topology.from_edges([(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 4)]), 2500
    p = inputs(graph, rounds, 0, **SETTINGS["printed"])
    plan = written(TopAsynchronous(p.alpha, offline), graph, p, seed=2)
    last, known = dict.fromkeys(p.agents), {}
    deviation, variance, absent = Counter(), Counter(), Counter()
    for r in range(1, plan.releases):
        chosen = pair_choices(plan, p, r)
        state = (frozenset(chosen.online), tuple(last.items()))
        if state not in known:
            known[state] = Counter()
            for pairs, q in pair_probabilities(p.neighbours, last, state[0], state[0], {}):
                known[state][pairs] += q
        found = frozenset(map(frozenset, chosen.pairs))
        for pairs, q in known[state].items():
            deviation[pairs] += (pairs == found) - q
            variance[pairs] += q * (1 - q)
        absent[frozenset(set(p.agents) - state[0])] += 1
        partner = search(p.neighbours, last, chosen)
        last |= {i: partner.get(i) for i in chosen.online}
    assert sum(v > 20 for v in variance.values()) > 4
    for pairs, v in variance.items():
        assert abs(deviation[pairs]) < 5 * math.sqrt(v) + 1e-9, pairs
    groups = list(itertools.combinations(p.agents, round(offline * graph.agents)))
    expect_frequencies(absent, {frozenset(group): 1 / len(groups) for group in groups})
