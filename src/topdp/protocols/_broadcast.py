"""Plans in which agents broadcast one row to all neighbours: a noised step, then averaging steps.

Shared by `dsgd`, `muffliato` and `correlated`. A round has K + 1 releases: one in which every row carries its
owner's gradient with noise, and K that only mix. The rows of the last one are not sent, because the next step
begins with them. With K = 0 the noised step itself mixes.

Agents mix the rows that they broadcast, never a copy of their own row without its noise. So all estimates are
functions of broadcast rows, and an observer of every link sees every row.
"""

from __future__ import annotations

import numpy as np

from topdp.base.array_types import Floats, Indices
from topdp.plan import NOBODY, PerRound, Plan
from topdp.plan.schedules import Schedule
from topdp.protocols.averaging import expect_gossip, metropolis_sources, mixing_sources, own_sources
from topdp.topology import Topology


def broadcast_plan(
    protocol: str,
    topology: Topology,
    schedule: Schedule,
    *,
    noise: tuple[Indices, Floats, Indices],
    gossip: int = 0,
    chebyshev: bool = False,
) -> Plan:
    """Return the plan. `noise`: draws and deviations of each row [n, v] in a noised step; `known_by` [draws,
    u].
    """
    draw, std, known_by = noise
    n, each = topology.agents, 1 + expect_gossip(gossip)
    own = np.arange(n)
    first = own_sources(topology) if gossip else metropolis_sources(topology)
    mixes = mixing_sources(topology, gossip, chebyshev)
    source, weight = (np.stack(parts) for parts in zip(first, *mixes, strict=True))
    sent, unsent = np.array(topology.neighbours), np.full_like(topology.neighbours, NOBODY)

    def each_step(kinds: np.ndarray) -> PerRound:
        return PerRound(kinds, np.tile(np.arange(each, dtype=np.int32), schedule.releases))

    def step_then(of_step: np.ndarray, between: np.ndarray) -> PerRound:
        kinds = np.stack([of_step, between]) if gossip else of_step[None]
        which = np.tile(np.minimum(np.arange(each), 1).astype(np.int32), schedule.releases)
        return PerRound(kinds, which)

    def on_steps(values: Floats) -> Floats:
        spread = np.zeros((schedule.releases, each))
        spread[:, 0] = values
        return spread.reshape(-1)

    return Plan(
        agents=n,
        owner=own,
        source=each_step(source),
        weight=each_step(weight),
        carries=step_then(np.ones(n, bool), np.zeros(n, bool)),
        rate=on_steps(schedule.rate),
        draw=step_then(draw, np.full_like(draw, NOBODY)),
        std=step_then(std, np.zeros_like(std)),
        scale=on_steps(schedule.noise),
        known_by=known_by,
        readers=each_step(np.stack([sent] * max(each - 1, 1) + [unsent] * min(gossip, 1))),
        protocol=protocol,
    )


def own_noise(deviation: Floats) -> tuple[Indices, Floats, Indices]:
    """Return the noise of `broadcast_plan` with one draw for every agent, which no other agent knows."""
    own = np.arange(len(deviation))[:, None]
    return own, deviation[:, None], own
