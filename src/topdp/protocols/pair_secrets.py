"""Pair secrets: which agents share a secret, and so make the same draws. A secret does not require an edge.

**Guarantees.** If the graph of secrets stays connected after the removal of any `colluders` agents, each
remaining agent is hidden by the noise of all remaining agents. Otherwise some agent is hidden only by its own
noise, or by the noise of a few agents. `expect_uncut` refuses such graphs, and names a degree that is large
enough.
"""

from __future__ import annotations

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
    """Return the pairs [pairs, 2] of agents i < j that share a secret, in lexicographic order.

    `kind` is `regular` (each agent shares secrets with `degree` agents, in a random graph), `all` (every two
    agents share a secret) or `links` (neighbours in `topology` share a secret).

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


@lru_cache(maxsize=64)  # the choice of settings draws the same graph many times
def _regular(degree: int, agents: int, seed: int) -> Ints:
    return complete(agents).edges if degree == agents - 1 else regular(agents, degree, seed).edges


def expect_degree(degree: int, agents: int) -> int:
    """Return the number of agents with which every agent shares a secret.

    This is `degree`, or agents - 1 if `degree` is larger. Raise InputError if no such connected graph exists.
    """
    degree = expect_count("secrets_degree", degree)
    if degree >= agents:
        return agents - 1
    if agents * degree % 2:
        raise InputError(
            f"Expected an even secrets_degree * agents, got {degree} * {agents}. Use {degree + 1}."
        )
    if degree == 1 and agents > 2:
        raise InputError(f"Expected secrets_degree >= 2, got 1. {agents} agents in pairs are not connected.")
    return degree


def expect_uncut(pairs: Ints, agents: int, colluders: int, kind: str, seed: int) -> None:
    """Raise InputError if the removal of some `colluders` agents disconnects the graph of secrets.

    The message names settings that suffice. `kind` is the kind of the given graph for the message; `seed` is
    that of `secret_pairs`.
    """
    partners = np.bincount(pairs.reshape(-1), minlength=agents)
    if not partners.all() and agents > 1:
        raise InputError(f"Expected a secret for every agent, got none for agent {partners.argmin()}.")
    if stays_connected(pairs, agents, colluders):
        return
    weakest = int(partners.argmin())
    degrees = [
        degree for degree in range(colluders + 1, agents - 1) if degree > 1 and degree * agents % 2 == 0
    ]
    sufficient = (k for k in degrees if stays_connected(_regular(k, agents, seed), agents, colluders))
    least = next(sufficient, agents - 1)
    remedy = (
        'secrets = "all"' if least == agents - 1 else f'secrets = "regular" with secrets_degree = {least}'
    )
    weakness = "only the noise of a few agents would hide some agent"
    if partners[weakest] <= colluders:
        sharing = f"all agents that share a secret with it ({partners[weakest]}) collude"
        weakness = f"only its own noise hides agent {weakest} if {sharing}"
    raise InputError(
        f"Expected a graph of secrets that stays connected without any {colluders} of {agents} agents, got "
        f"secrets = {kind!r}, in which {weakness}. Use {remedy}, or fewer colluders."
    )


def stays_connected(pairs: Ints, agents: int, colluders: int) -> bool:
    """Return whether the graph of `pairs` stays connected after the removal of any `colluders` agents.

    >>> from topdp import topology
    >>> ring = topology.ring(5).edges
    >>> [stays_connected(ring, agents=5, colluders=c) for c in (0, 1, 2, 3, 4)]
    [True, True, False, False, True]
    """
    if agents - colluders <= 1:
        return True  # one agent is always connected; against all others, only own noise protects it
    if np.bincount(pairs.reshape(-1), minlength=agents).min() <= colluders:
        return False
    weights = np.zeros((agents, agents))
    weights[pairs[:, 0], pairs[:, 1]] = weights[pairs[:, 1], pairs[:, 0]] = 1.0
    second = np.linalg.eigvalsh(np.diag(weights.sum(axis=1)) - weights)[1]
    # The vertex connectivity is at least the second eigenvalue of the Laplacian (Fiedler 1973).
    return bool(second > colluders + 1e-6) or _is_uncut(pairs, colluders)


def _is_uncut(pairs: Ints, colluders: int) -> bool:
    """Return whether the graph stays connected after the removal of any `colluders` agents, by exact methods.

    For at most one colluder by a search, for more by flows between agents (Esfahanian, Hakimi 1984).
    """
    import networkx as nx  # slow to import, and rarely needed, because the eigenvalue nearly always decides

    graph = nx.Graph(pairs.tolist())
    if colluders < 2:
        return bool(nx.is_biconnected(graph) if colluders else nx.is_connected(graph))
    return bool(nx.node_connectivity(graph) > colluders)
