"""Who shares a secret with whom: pairs of agents that can draw the same noise. A secret needs no link.

**Guarantees.** Where the graph of secrets stays connected without any `colluders` agents, each of the others
is hidden by the noise of all the others. Where it does not, some agent has nothing but its own, or that of a
few: such graphs are refused by `expect_uncut`, with a degree that would do.
"""

from __future__ import annotations

from typing import Literal, get_args

import networkx as nx

from topdp.errors import InputError
from topdp.plan.arrays import Ints
from topdp.plan.checks import expect_count
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
    degree = expect_degree(degree, n)
    if kind == "all" or degree == n - 1:
        return complete(n).edges
    return regular(n, degree, seed).edges


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


def expect_uncut(pairs: Ints, agents: int, colluders: int, kind: str) -> None:
    """Refuses secrets that `colluders` agents can cut: the rest must hang together without any of them."""
    graph = nx.Graph([(int(i), int(j)) for i, j in pairs])
    graph.add_nodes_from(range(agents))
    alone = [agent for agent in range(agents) if not graph.degree(agent)]
    if alone:
        raise InputError(f"Expected a partner for every agent, got none for agent {alone[0]}.")
    left = agents - colluders
    if left <= 1:
        return  # one agent against all others has its own noise alone, whatever it shares
    if min(dict(graph.degree).values()) > colluders and nx.node_connectivity(graph) > colluders:
        return
    weakest = min(graph, key=graph.degree)
    least = colluders + 1 + (colluders + 1) * agents % 2
    way = (
        'secrets = "all"'
        if least >= agents - 1
        else f'secrets = "regular" with secrets_degree of at least {least}'
    )
    raise InputError(
        f"Expected secrets that {colluders} colluding agents cannot cut, got {kind!r} ones, where agent "
        f"{weakest} has {graph.degree(weakest)} partners: without them nobody's noise but its own would hide "
        f"it. Use {way}, or fewer colluders."
    )
