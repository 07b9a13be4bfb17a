"""The graph of a run as JSON for a page: names, positions and edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from topdp.base.array_types import Floats, Ints
from topdp.errors import TopdpError
from topdp.plan import Plan
from topdp.runs.planning import graph_of_run
from topdp.runs.run_folder import RunFolder, RunFolderError
from topdp.topology import Topology, TopologyError, from_edges
from topdp.views.pictures.graph_picture import layout

MAX_DRAWN_AGENTS = 500
"""With more agents, a page shows only one agent and its neighbours, and needs no positions."""


MAX_LINKS_FILE_BYTES = 50_000_000


def graph_of(folder: RunFolder, plan: Plan) -> tuple[Topology | None, list[str]]:
    """Return (graph of the plan, notes for the page).

    The graph is that of the configuration, with its names of agents, if it contains all edges of the plan.
    Otherwise the graph consists of the edges of the plan, and agents are numbered. The graph is None if the
    plan has only one agent, or if the edges of the plan have to be used but do not connect all agents.
    """
    if plan.agents == 1:
        return None, []
    links = links_of(plan)
    graph = _configured_graph(folder, plan.agents)
    if graph is not None and graph.agents == plan.agents and graph.adjacency[tuple(links.T)].all():
        return graph, []
    notes = ["Names and edges of agents come from the plan; the graph's file is missing or was changed."]
    try:
        return from_edges(links, plan.agents), notes
    except TopologyError:  # a user's own plan need not be connected
        return None, notes


def _configured_graph(folder: RunFolder, agents: int) -> Topology | None:
    """Return the graph of the configuration, or None if its file is missing, too large or unreadable.

    Raise RunFolderError if the configuration has another number of agents than `agents`, that of the plan.
    """
    topology = folder.config.topology
    if topology.kind == "file":  # a plain file only: reading a pipe would never end
        paths = (folder.path / str(topology.path), Path(str(topology.path)))
        file = next((path for path in paths if path.is_file()), None)
        if file is None or file.stat().st_size > MAX_LINKS_FILE_BYTES:
            return None
    elif topology.agents != agents:
        raise RunFolderError(
            f"Expected {agents} agents in config.toml of {folder.path}, as in plan.npz, but got "
            f"{topology.agents}. The files were changed or are damaged."
        )
    try:
        return graph_of_run(folder.config, folder.path)
    except (TopdpError, OSError):
        return None


def links_of(plan: Plan) -> Ints:
    """Return the pairs of agents of which one reads rows of the other: [links, 2], sorted, each pair once."""
    readers = plan.readers.values  # [kinds, m, q]
    owner = np.broadcast_to(np.asarray(plan.owner)[None, :, None], readers.shape)
    seen = (readers >= 0) & (readers != owner)
    pairs = np.stack([owner[seen], readers[seen]], axis=1).astype(np.int64)
    return np.unique(np.sort(pairs, axis=1), axis=0)


def drawn(agents: int, graph: Topology | None, mu: Floats | None, epsilon: Floats | None) -> dict[str, Any]:
    """Return the graph as JSON.

    If `mu` and `epsilon` [owner, observer] are not None, each edge is listed in both directions. The values
    of the edge from i to j bound what j learns about i's records; null means infinite.
    """
    labels = None if graph is None else graph.labels
    edges = np.zeros((0, 2), np.int64) if graph is None else graph.edges
    if mu is not None:
        edges = np.concatenate([edges, edges[:, ::-1]])
    positions = np.zeros((1, 2)) if agents == 1 else None
    if graph and 1 < agents <= MAX_DRAWN_AGENTS:
        positions = layout(graph)
    return {
        "agents": agents,
        "names": [str(agent) for agent in range(agents)] if labels is None else list(labels),
        "positions": None if positions is None else positions.round(4).tolist(),
        "links": {
            "from": edges[:, 0].tolist(),
            "to": edges[:, 1].tolist(),
            "mu": None if mu is None else _numbers(mu, edges),
            "epsilon": None if epsilon is None else _numbers(epsilon, edges),
        },
    }


def _numbers(values: Floats, edges: Ints) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values[edges[:, 0], edges[:, 1]]]
