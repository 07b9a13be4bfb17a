"""Averaging steps: Metropolis weights, and their Chebyshev polynomial against its three-term recursion."""

from __future__ import annotations

import numpy as np
import pytest

from builders import GRAPHS, constant_schedule
from topdp import topology
from topdp.errors import InputError
from topdp.plan import NOBODY
from topdp.protocols import Correlated, Dsgd, Muffliato, averaging
from topdp.protocols.averaging import (
    MAX_GOSSIP_STEPS,
    expect_gossip,
    metropolis,
    mixing_roots,
    mixing_sources,
)

SLOW = {"long ring": topology.ring(100), "long path": topology.tree(60)}
every_graph = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS.keys())


def mixing_steps(graph, K, chebyshev=True):
    """The averaging steps as matrices [n, n], computed only from the roots."""
    W = metropolis(graph)
    if not chebyshev or K < 2:
        return [W] * K
    roots = mixing_roots(np.asarray(np.linalg.eigvalsh(W), np.float64), K)
    return [(W - root * np.eye(len(W))) / (1.0 - root) for root in roots]


def product(steps: list[np.ndarray]) -> np.ndarray:
    whole = np.eye(len(steps[0]))
    for step in steps:
        whole = step @ whole
    return whole


@every_graph
def test_metropolis_weights_equal_the_formula(graph):
    """W_ij = 1/(1 + max(d_i, d_j)), pair by pair; symmetric, rows sum to one, no negative weight."""
    W, degree = metropolis(graph), graph.adjacency.sum(axis=1)
    for i in range(graph.agents):
        for j in range(graph.agents):
            if i != j:
                linked = 1 / (1 + max(degree[i], degree[j])) if graph.adjacency[i, j] else 0
                assert W[i, j] == pytest.approx(linked, rel=1e-15)
    np.testing.assert_allclose(W.sum(axis=1), 1, rtol=1e-14)
    np.testing.assert_array_equal(W, W.T)
    assert (W >= 0).all() and (W.diagonal() > 0).all()


@every_graph
@pytest.mark.parametrize("K", [1, 2, 3, 4, 7, 12])
def test_the_product_of_all_steps_is_the_chebyshev_polynomial(graph, K):
    """T_k+1(x) = 2x·T_k(x) - T_k-1(x), of W mapped so that its spectrum without 1 becomes [-1, 1]."""
    W, n = metropolis(graph), graph.agents
    steps = mixing_steps(graph, K)
    assert len(steps) == K
    if K == 1:
        np.testing.assert_array_equal(steps[0], W)
        return
    values = np.linalg.eigvalsh(W)[:-1]
    low, high = values[0], values[-1]
    # The ends are rounded outwards by 1 to 2 millionths, so that the polynomials nearly agree.
    low, high = low - 1.5e-6, high + 1.5e-6
    X, at_one = (2 * W - (low + high) * np.eye(n)) / (high - low), (2 - low - high) / (high - low)
    before, now, t_before, t = np.eye(n), X, 1.0, at_one
    for _ in range(K - 1):
        before, now = now, 2 * X @ now - before
        t_before, t = t, 2 * at_one * t - t_before
    np.testing.assert_allclose(product(steps), now / t, atol=2e-4)


@pytest.mark.parametrize("graph", [*GRAPHS.values(), *SLOW.values()], ids=[*GRAPHS, *SLOW])
@pytest.mark.parametrize("K", [2, 4, 8, MAX_GOSSIP_STEPS])
def test_no_polynomial_of_the_same_degree_averages_better(graph, K):
    """1/T_K at the average is the optimum; plain steps are worse, and every step keeps the average."""
    W = metropolis(graph)
    low, high = np.linalg.eigvalsh(W)[[0, -2]]
    best = 1 / np.cosh(K * np.arccosh((2 - low - high) / max(high - low, 1e-9)))
    steps = mixing_steps(graph, K)
    left = np.linalg.norm(product(steps) - 1 / graph.agents, 2)
    assert left <= 1.01 * best + 3e-5 * K**2
    assert left < np.linalg.norm(np.linalg.matrix_power(W, K) - 1 / graph.agents, 2) + 1e-5
    for step in steps:
        np.testing.assert_allclose(step.sum(axis=0), 1, atol=1e-9)
        np.testing.assert_allclose(step.sum(axis=1), 1, atol=1e-9)


@pytest.mark.parametrize("graph", [*GRAPHS.values(), *SLOW.values()], ids=[*GRAPHS, *SLOW])
@pytest.mark.parametrize("K", [2, 4, 8])
def test_with_up_to_8_steps_disagreement_never_exceeds_its_start(graph, K):
    steps = mixing_steps(graph, K)
    for last in range(1, K + 1):
        assert np.linalg.norm(product(steps[:last]) - 1 / graph.agents, 2) < 1 + 1e-9


@pytest.mark.parametrize("graph", [*GRAPHS.values(), *SLOW.values()], ids=[*GRAPHS, *SLOW])
@pytest.mark.parametrize("K", [8, 16, MAX_GOSSIP_STEPS])
def test_rounding_errors_in_float32_stay_small(graph, K):
    """Rows are float32. Roots in ascending order would give errors of 2.2 where differences are 0.2."""
    rows = np.random.default_rng(0).normal(size=(graph.agents, 200))
    exact, rounded = rows, rows.astype(np.float32)
    for step in mixing_steps(graph, K):
        exact, rounded = step @ exact, step.astype(np.float32) @ rounded
    assert np.abs(rounded - exact).max() < 1e-3
    # The average is kept, too.
    assert np.abs(rounded.mean(axis=0) - rows.mean(axis=0)).max() < 2e-5


@pytest.mark.parametrize("protocol", [Correlated(degree=4), Muffliato(), Muffliato(chebyshev=False)])
def test_writing_a_plan_twice_gives_the_same_digest(protocol):
    def digest() -> str:
        graph = topology.random(9, 0.4, 2)
        return protocol.plan(graph, constant_schedule(3), np.linspace(1, 2, 9), 7).digest()

    assert digest() == digest()


def test_rounded_ends_of_the_spectrum_do_not_depend_on_the_machine():
    """Libraries differ in the last digits of eigenvalues; plans must not."""
    sides = np.kron(np.array([[0, 1], [1, 0]]), np.ones((127, 127)))
    graph = topology.Topology("bipartite", sides.astype(bool))  # eigenvalues are multiples of 1/128
    steps = mixing_steps(graph, 5)
    real = np.linalg.eigvalsh
    for shift in (-3e-15, 3e-15):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("numpy.linalg.eigvalsh", lambda W, shift=shift: real(W) + shift)
            np.testing.assert_array_equal(mixing_steps(graph, 5), steps)


@every_graph
@pytest.mark.parametrize("K", [1, 4])
def test_mixing_sources_equal_the_dense_matrix_bit_for_bit(graph, K, monkeypatch):
    """So plans keep the digests of versions that used dense matrices; also with an iterative eigensolver."""
    monkeypatch.setattr(averaging, "WEIGHT_CHUNK_ROWS", 5)
    dense = mixing_steps(graph, K)
    for limit in (averaging.MAX_DENSE_AGENTS, 4):
        monkeypatch.setattr(averaging, "MAX_DENSE_AGENTS", limit)
        for W, (source, weight) in zip(dense, mixing_sources(graph, K), strict=True):
            near = np.concatenate([np.arange(graph.agents)[:, None], graph.neighbours], axis=1)
            of_matrix = np.where(near >= 0, W[np.arange(graph.agents)[:, None], near], 0.0)
            np.testing.assert_array_equal(weight, of_matrix)
            np.testing.assert_array_equal(source, np.where(of_matrix == 0, NOBODY, near))


@every_graph
@pytest.mark.parametrize("K", [0, 1, 3])
@pytest.mark.parametrize("chebyshev", [True, False])
def test_a_round_is_one_gradient_release_and_k_averaging_steps(graph, K, chebyshev):
    n, T = graph.agents, 2
    plan = Muffliato(K, chebyshev).plan(graph, constant_schedule(T, rate=0.5), np.ones(n), 0)
    assert plan.releases == (T + 1) * (K + 1)
    W, mixes = metropolis(graph), mixing_steps(graph, K, chebyshev)
    for r, this in enumerate(plan):
        step = r % (K + 1)
        dense = np.zeros((n, n))
        for i in range(n):
            for source, weight in zip(this.source[i], this.weight[i], strict=True):
                dense[i, source] += weight if source >= 0 else 0.0
        expected = mixes[step - 1] if step else (np.eye(n) if K else W)
        np.testing.assert_allclose(dense, expected, atol=1e-15)
        assert (plan.rate[r] > 0, plan.carries[r].all(), plan.scale[r] > 0) == (step == 0,) * 3
        assert step == 0 or not (plan.carries[r].any() or plan.rate[r] or (this.draw >= 0).any())
        sent = step < K or K == 0  # the next gradient is computed at the last row, which is not sent
        for i in range(n):
            readers = set(this.readers[i][this.readers[i] != NOBODY].tolist())
            assert readers == (set(np.flatnonzero(graph.adjacency[i]).tolist()) if sent else set())


def test_muffliato_without_averaging_steps_is_dsgd():
    graph, schedule = GRAPHS["random"], constant_schedule(3)
    one, other = (p.plan(graph, schedule, np.ones(12), 0) for p in (Dsgd(), Muffliato(0)))
    for a, b in zip(one, other, strict=True):
        for x, y in zip(vars(a).values(), vars(b).values(), strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (-1, "Expected gossip >= 0, got -1"),
        (
            MAX_GOSSIP_STEPS + 1,
            f"at most {MAX_GOSSIP_STEPS} steps between two gradients, got {MAX_GOSSIP_STEPS + 1}",
        ),
        (1.5, "gossip.*1.5"),
        (True, "gossip.*True"),
    ],
)
def test_invalid_numbers_of_averaging_steps_are_rejected(steps, said):
    for make in (expect_gossip, Muffliato, lambda gossip: Correlated(gossip=gossip)):
        with pytest.raises(InputError, match=said):
            make(steps)
