"""What one agent computes with: its part of the plan, its gradients, its draws, the meter of its budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from topdp.agents.life.budget import Meter, meter
from topdp.agents.life.rows import Draws, Gradients, Part, SeededDraws, SystemDraws
from topdp.agents.terms.setup import Setup
from topdp.learning.gradients import clipped
from topdp.learning.models import FlatModel
from topdp.settings import build
from topdp.settings.config import ConfigError


@dataclass(frozen=True)
class Equipment:
    """What an agent computes with."""

    part: Part
    names: tuple[str, ...]
    start: Tensor  # the public start row
    gradients: Gradients
    draws: Draws
    meter: Meter
    epsilon: float  # the agent's budget
    goes_on: bool  # the manifest's rule for silent neighbours
    idle_timeout: float
    in_thread: bool = False  # compute beside the event loop, so that links stay alive


def equip(
    setup: Setup,
    agent: int,
    records: tuple[Tensor, Tensor],
    classes: int,
    seeded: bool = False,
    epsilon: float | None = None,
    in_thread: bool = False,
) -> Equipment:
    """What `agent` computes with. `epsilon`: a budget of its own, below the manifest's."""
    config, privacy = setup.config, setup.config.privacy
    granted = setup.budget(agent)
    if epsilon is not None and not (math.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"--epsilon: expected a finite number > 0, got {epsilon}.")
    flat = FlatModel(setup.model(tuple(records[0].shape[1:]), classes))
    analysis = build.analysis(config, setup.counts)
    gradients = Gradients(
        clipped.ClippedGradients(flat, privacy.clip),
        records,
        analysis.batches,
        agent,
        config.seed if seeded else None,
    )
    return Equipment(
        part=Part(setup.plan, agent),
        names=setup.names,
        start=flat.flatten(),
        gradients=gradients,
        draws=SeededDraws(config.seed, setup.plan) if seeded else SystemDraws(),
        meter=meter(setup.plan, analysis, agent, privacy.delta, privacy.guarantee, not setup.goes_on),
        epsilon=granted if epsilon is None else min(epsilon, granted),
        goes_on=setup.goes_on,
        idle_timeout=setup.idle_timeout,
        in_thread=in_thread,
    )
