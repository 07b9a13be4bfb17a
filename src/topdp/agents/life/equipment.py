"""What one agent computes with: its part of the plan, its gradients, its draws, the meter of its budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from topdp.agents.life.budget import Meter, meter
from topdp.agents.life.draws import AgentDraws, SeededDraws, SystemDraws
from topdp.agents.life.rehearsal import Rehearsal
from topdp.agents.life.rows import Gradients, Part
from topdp.agents.life.sums import expect_fine, rounded_share
from topdp.agents.terms.manifest import Manifest
from topdp.agents.terms.setup import Setup
from topdp.audit.recording import Planted
from topdp.data.featured import of_records
from topdp.data.progress import Progress
from topdp.learning.gradients import clipped
from topdp.learning.models import FlatModel
from topdp.runs.assembly import expect_fitting
from topdp.settings import build
from topdp.settings.config import ConfigError


@dataclass(frozen=True)
class Rehearse:
    """Canaries that all agents were given, and the state folder in which this one takes notes."""

    planted: Planted
    state: Path


@dataclass(frozen=True)
class Equipment:
    """What an agent computes with."""

    setup: Setup
    part: Part
    start: Tensor  # the public start row
    gradients: Gradients
    draws: AgentDraws
    meter: Meter
    epsilon: float  # the agent's budget
    order: str | None  # the records in the order of cyclic batches; the same after every restart
    asked: float | None = None  # the budget that this start asked for; None: that of earlier starts, if any
    in_thread: bool = False  # compute beside the event loop, so that links stay alive

    @property
    def manifest(self) -> Manifest:
        return self.setup.manifest

    @property
    def name(self) -> str:
        return self.manifest.names[self.part.agent]


def equip(
    setup: Setup,
    agent: int,
    records: tuple[Tensor, Tensor],
    classes: int | None,
    seeded: bool = False,
    epsilon: float | None = None,
    in_thread: bool = False,
    key: bytes = b"",
    rehearsal: Rehearse | None = None,
    progress: Progress | None = None,
) -> Equipment:
    """What `agent` computes with. `epsilon`: a budget of its own, below the manifest's.

    `records` are its own, as they are; the manifest says what features of them the model sees.
    `key`: a secret of the agent, the same after every restart, under which `order` is written down.
    `rehearsal`: canaries, and where to note what comes of them.
    """
    config, rules = setup.manifest.config, setup.manifest.rules
    privacy = config.privacy
    granted = setup.budget(agent)
    if epsilon is not None and not (math.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"--epsilon: expected a finite number > 0, got {epsilon}.")
    if epsilon is not None and epsilon > granted:
        raise ConfigError(
            f"--epsilon: expected at most {granted:.6g}, the budget that the manifest grants "
            f"{setup.manifest.names[agent]}, got {epsilon:.6g}: one's own budget can only be smaller."
        )
    inputs, targets = records
    inputs = of_records(inputs, build.features(config), setup.manifest.names[agent], progress)
    task = build.task(config)
    targets = task.targets(targets, setup.manifest.names[agent])
    flat = FlatModel(setup.model(tuple(inputs.shape[1:]), task.outputs(targets, classes)))
    expect_fitting(flat, task, inputs[:1], targets[:1], classes)
    analysis = build.analysis(config, setup.counts)
    part = Part(setup.plan, agent)
    draws = (
        SeededDraws(config.seed, setup.plan, flat.dtype) if seeded else SystemDraws(frozenset(part.partner))
    )
    start = flat.flatten()
    rehearsed = None
    if rehearsal is not None:
        planted, state = rehearsal.planted, rehearsal.state
        rehearsed = Rehearsal(planted, setup.plan, agent, privacy.clip, start, state)
    gradients = Gradients(
        clipped.ClippedGradients(flat, privacy.clip, task.loss, privacy.clipping),
        (inputs, targets),
        analysis.batches,
        agent,
        config.seed,
        draws,
        rehearsed,
    )
    gauge = meter(
        setup.plan,
        analysis,
        agent,
        privacy.delta,
        privacy.guarantee,
        not rules.goes_on,
        setup.coalition,
        privacy.patient,
    )
    longest = privacy.clip * analysis.batches[agent].records / analysis.batches[agent].divisor
    moved = gauge.spending.sensitivity
    share = rounded_share(setup.plan, agent, gauge.planned, moved, longest, rules.largest_norm)
    expect_fine(share, rules.largest_norm)
    return Equipment(
        setup=setup,
        part=part,
        start=start,
        gradients=gradients,
        draws=draws,
        meter=gauge,
        epsilon=granted if epsilon is None else epsilon,
        asked=epsilon,
        order=gradients.order(key),
        in_thread=in_thread,
    )
