"""Who shares a secret with whom: pairs of agents that can draw the same noise. A secret needs no link.

**Guarantees.** Where the graph of secrets stays connected without any `colluders` agents, each of the others
is hidden by the noise of all the others. Where it does not, some agent has nothing but its own, or that of a
few: such graphs are refused by `expect_uncut`, with a degree that would do.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Literal, get_args

import numpy as np

from topdp.base.array_types import Ints
from topdp.base.number_checks import expect_count
from topdp.errors import InputError
from topdp.topology import Topology, complete, regular

Secrets = Literal["regular", "all", "links"]
SECRETS: tuple[str, ...] = get_args(Secrets)


def secret_pairs(kind: str, topology: Topology, degree: int, seed: int) -> Ints:
    """[pairs, 2]: i < j share a secret, in lexicographic order.

    `regular`: a random graph in which each agent has `degree` partners. `all`: every two agents. `links`: the
    graph of the links.

    >>> from topdp import topology
    >>> secret_pairs("links", topology.ring(4), degree=8, seed=0).tolist()
    [[0, 1], [0, 3], [1, 2], [2, 3]]
    >>> len(secret_pairs("all", topology.ring(4), degree=8, seed=0))
    6
    """
    n = topology.agents
    if kind not in SECRETS:
        raise InputError(f"Expected secrets to be one of {', '.join(SECRETS)}, got {kind!r}.")
    if kind == "links":
        return topology.edges
    return complete(n).edges if kind == "all" else _regular(expect_degree(degree, n), n, seed)


@lru_cache(maxsize=64)  # it is drawn many times while settings are chosen
def _regular(degree: int, agents: int, seed: int) -> Ints:
    return complete(agents).edges if degree == agents - 1 else regular(agents, degree, seed).edges


def expect_degree(degree: int, agents: int) -> int:
    """Partners of every agent, if there can be so many."""
    degree = expect_count("secrets_degree", degree)
    if degree >= agents:
        return agents - 1  # more partners than others: all of them
    if agents * degree % 2:
        raise InputError(
            f"Expected secrets_degree * agents to be even, got {degree} * {agents}: take {degree + 1}."
        )
    if degree == 1 and agents > 2:
        raise InputError(f"Expected secrets_degree >= 2, got 1: {agents} agents in pairs are not connected.")
    return degree


def expect_uncut(pairs: Ints, agents: int, colluders: int, kind: str, seed: int) -> None:
    """Refuses secrets that `colluders` agents can cut: the rest must hang together without any of them."""
    partners = np.bincount(pairs.reshape(-1), minlength=agents)
    if not partners.all() and agents > 1:
        raise InputError(f"Expected a partner for every agent, got none for agent {partners.argmin()}.")
    if hangs_together(pairs, agents, colluders):
        return
    weakest = int(partners.argmin())
    degrees = [
        degree for degree in range(colluders + 1, agents - 1) if degree > 1 and degree * agents % 2 == 0
    ]
    would_do = (k for k in degrees if hangs_together(_regular(k, agents, seed), agents, colluders))
    least = next(would_do, agents - 1)
    way = 'secrets = "all"' if least == agents - 1 else f'secrets = "regular" with secrets_degree = {least}'
    where = "some agents would be hidden by a few others alone"
    if partners[weakest] <= colluders:
        where = f"agent {weakest} has {partners[weakest]}: if they collude, its own noise alone hides it"
    raise InputError(
        f"Expected partners such that no {colluders} of {agents} agents can cut the rest apart, got "
        f"secrets = {kind!r}, where {where}. Use {way}, or fewer colluders."
    )


def hangs_together(pairs: Ints, agents: int, colluders: int) -> bool:
    """Whether no `colluders` agents, taken out, leave others of whom some are not connected.

    >>> from topdp import topology
    >>> ring = topology.ring(5).edges
    >>> [hangs_together(ring, agents=5, colluders=c) for c in (0, 1, 2, 3, 4)]
    [True, True, False, False, True]
    """
    if agents - colluders <= 1:
        return True  # one agent against all others has its own noise alone, whatever it shares
    if np.bincount(pairs.reshape(-1), minlength=agents).min() <= colluders:
        return False
    weights = np.zeros((agents, agents))
    weights[pairs[:, 0], pairs[:, 1]] = weights[pairs[:, 1], pairs[:, 0]] = 1.0
    second = np.linalg.eigvalsh(np.diag(weights.sum(axis=1)) - weights)[1]
    # As many agents as the second eigenvalue of the Laplacian says are needed to cut a graph (Fiedler 1973).
    return bool(second > colluders + 1e-6) or _uncut(pairs, colluders)


def _uncut(pairs: Ints, colluders: int) -> bool:
    """By flows from an agent with the fewest partners, and between its partners (Esfahanian, Hakimi 1984)."""
    import networkx as nx  # slow to import, and rarely needed: the eigenvalue nearly always says it
    from networkx.algorithms.connectivity import build_auxiliary_node_connectivity, local_node_connectivity
    from networkx.algorithms.flow import build_residual_network

    graph = nx.Graph(pairs.tolist())
    if colluders < 2:
        return bool(nx.is_biconnected(graph) if colluders else nx.is_connected(graph))
    weakest = min(graph, key=graph.degree)
    auxiliary = build_auxiliary_node_connectivity(graph)
    common = {"auxiliary": auxiliary, "residual": build_residual_network(auxiliary, "capacity")}
    ends = itertools.chain(
        ((weakest, other) for other in set(graph) - set(graph[weakest]) - {weakest}),
        ((one, other) for one, other in itertools.combinations(graph[weakest], 2) if other not in graph[one]),
    )
    return all(
        local_node_connectivity(graph, *pair, cutoff=colluders + 1, **common) > colluders for pair in ends
    )
