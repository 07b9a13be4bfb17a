"""Plans in which agents share draws, written by hand: noise and gradients, then rounds that mix only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from history import federation

from topdp import topology
from topdp.plan import PerRound, Plan


def metropolis(graph):
    """[n, n]: symmetric weights whose rows sum to one."""
    adjacency = np.asarray(graph.adjacency, float)
    degree = adjacency.sum(axis=1)
    W = adjacency / (1 + np.maximum(degree[:, None], degree))
    return W + np.diag(1 - W.sum(axis=1))


def plan_of(graph, secrets, rounds, own=1.0, pair=2.0, gossip=0, rate=0.1, decay=1.0) -> Plan:
    """`secrets`: pairs i < j that share a draw. `gossip`: how many rounds mix only after each that does not.

    The last of them is not sent. The noise of gradient round t is `rate`·`decay`^t times `own` and `pair`.
    """
    n, R = graph.agents, (rounds + 1) * (gossip + 1)
    W = metropolis(graph)
    source = np.tile(np.arange(n), (n, 1))
    first = np.full((n, n), -1)
    first[:, 0] = np.arange(n)
    noisy = np.arange(R) % (gossip + 1) == 0
    mixes = np.arange(R) > 0 if gossip == 0 else ~noisy
    alone = np.zeros((n, n))
    alone[:, 0] = 1.0
    draws = [[(i, own)] for i in range(n)]
    for k, (i, j) in enumerate(secrets):
        draws[i].append((n + k, pair))
        draws[j].append((n + k, -pair))
    width = max(map(len, draws))
    draw, std = np.full((n, width), -1), np.zeros((n, width))
    for i, each in enumerate(draws):
        for v, (number, deviation) in enumerate(each):
            draw[i, v], std[i, v] = number, deviation
    readers = np.full((n, n), -1)
    for i in range(n):
        near = np.flatnonzero(graph.adjacency[i])
        readers[i, : len(near)] = near
    sent = np.arange(R) % (gossip + 1) != gossip if gossip else np.ones(R, bool)
    rates = np.where(noisy, rate * decay ** (np.arange(R) // (gossip + 1)), 0.0)
    two = noisy.astype(np.int32)
    return Plan(
        agents=n,
        owner=np.arange(n),
        source=PerRound(np.stack([first, source]), mixes.astype(np.int32)),
        weight=PerRound(np.stack([alone, W]), mixes.astype(np.int32)),
        carries=PerRound(np.stack([np.zeros(n, bool), np.ones(n, bool)]), two),
        rate=rates,
        draw=PerRound(np.stack([np.full_like(draw, -1), draw]), two),
        std=PerRound(np.stack([np.zeros_like(std), std]), two),
        scale=rates.copy(),
        known_by=np.array([[i, -1] for i in range(n)] + [list(pair) for pair in secrets]),
        readers=PerRound(np.stack([np.full_like(readers, -1), readers]), sent.astype(np.int32)),
        protocol="shared draws, by hand",
    )


def everybody(n):
    """Secrets between all pairs."""
    return [(i, j) for i in range(n) for j in range(i + 1, n)]


def sharing(
    folder, *changes, graph=None, secrets=None, rounds=4, gossip=0, own=None, pair=2.0, decay=1.0, **how
):
    """A federation whose agents execute such a plan; `own` None: what just fits a budget of ε = 1."""
    graph = graph or topology.ring(6)
    secrets = everybody(graph.agents) if secrets is None else secrets
    made = federation(
        folder, "privacy.colluders=1", *changes, graph=graph, rounds=rounds, guarantee="adaptive", **how
    )
    scale = 1.0 if own is None else own
    plan = plan_of(graph, secrets, rounds, scale, scale * pair, gossip, decay=decay)
    made.setup = replace(made.setup, plan=plan)
    return made
