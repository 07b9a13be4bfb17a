"""The rows of one agent: its part of a plan, and the arithmetic that makes its rows, as the simulator does.

A round of one agent needs its own rows of the round before, the rows that came in, its own clipped gradient
and its own draws; nothing of anybody else. How rows travel, what they cost and when a round closes are other
files' business.
"""

from __future__ import annotations

import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch
from torch import Tensor

from topdp.data.selection import select
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients
from topdp.plan import Plan, PlanError
from topdp.plan.batches import Batches
from topdp.simulator.draws import Noise

logger = logging.getLogger("topdp.agents")


class AgentDraws(ABC):
    """Standard normal draws of one agent."""

    seeded: bool

    @abstractmethod
    def fill(self, out: Tensor, round: int, draw: int) -> Tensor:
        """`out` becomes draw number `draw` of `round`."""


@final
class SystemDraws(AgentDraws):
    """Noise nobody can repeat: a generator with 256 bits of state from the operating system.

    torch's CPU generator takes only 32 bits of a seed, which can be searched through: not used here.
    """

    seeded = False

    def __init__(self) -> None:
        self._generator = np.random.Generator(np.random.PCG64DXSM(secrets.randbits(256)))

    def fill(self, out: Tensor, round: int, draw: int) -> Tensor:
        dtype = np.float32 if out.dtype == torch.float32 else np.float64
        return out.copy_(torch.from_numpy(self._generator.standard_normal(len(out), dtype=dtype)))


@final
class SeededDraws(AgentDraws):
    """The simulator's draws, for tests only: who knows the seed can subtract the noise."""

    seeded = True

    def __init__(self, seed: int, plan: Plan) -> None:
        self._noise, self._generator = Noise(seed, plan.draws, plan.releases), torch.Generator()

    def fill(self, out: Tensor, round: int, draw: int) -> Tensor:
        return self._noise.fill(out, round, draw, self._generator)


@dataclass(frozen=True)
class Part:
    """What one agent does in a plan: the rows it makes, sends and reads in every round."""

    plan: Plan
    agent: int

    def __post_init__(self) -> None:
        if self.plan.pruned:
            raise PlanError("A pruned plan lacks rows that are sent: agents execute whole plans.")
        shared = self.plan.known_by[np.unique(self.plan.draw.values[self.plan.draw.values >= 0])]
        if ((shared >= 0).sum(axis=1) > 1).any():
            raise PlanError("Expected every draw to be known by one agent: agents share no draws.")
        for r in range(self.plan.releases):
            there = {self.agent: set(self.made(r - 1))} if r else {}
            there |= {sender: {row} for sender, row in self.read(r - 1).items()} if r else {}
            for row in self.made(r) if r else []:
                for source, _ in self.sources(r, row):
                    if source not in there.get(int(self.plan.owner[source]), ()):
                        raise PlanError(
                            f"Row {row} of round {r} needs row {source}, which its owner never reads."
                        )

    def made(self, round: int) -> list[int]:
        """The rows that the agent makes."""
        mine = (self.plan.owner == self.agent) & self.plan.exists[round]
        return [int(row) for row in np.flatnonzero(mine)]

    def sources(self, round: int, row: int) -> list[tuple[int, float]]:
        """The rows of the round before that enter `row`, with their weights."""
        pairs = zip(self.plan.source[round][row].tolist(), self.plan.weight[round][row].tolist(), strict=True)
        return [(source, weight) for source, weight in pairs if source >= 0 and weight]

    def sent(self, round: int) -> dict[int, int]:
        """{receiver: the row it is sent}"""
        found: dict[int, int] = {}
        for row in self.made(round):
            for receiver in self.plan.readers[round][row].tolist():
                if receiver >= 0 and receiver != self.agent:
                    if receiver in found:
                        raise PlanError(f"Expected one row for agent {receiver} in round {round}, got two.")
                    found[receiver] = row
        return found

    def read(self, round: int) -> dict[int, int]:
        """{sender: the row that it sends to this agent}"""
        return self._read[round]

    @cached_property
    def _read(self) -> list[dict[int, int]]:
        to_me = (self.plan.readers.values == self.agent).any(axis=-1)[self.plan.readers.which]
        to_me &= self.plan.exists & (self.plan.owner != self.agent)
        rounds: list[dict[int, int]] = [{} for _ in range(self.plan.releases)]
        for round, row in zip(*(index.tolist() for index in np.nonzero(to_me)), strict=True):
            rounds[round][int(self.plan.owner[row])] = row
        return rounds

    def rounds_from(self, sender: int) -> list[int]:
        """The rounds in which `sender` sends to this agent."""
        return [round for round, read in enumerate(self._read) if sender in read]


@final
class Gradients:
    """The agent's mean clipped gradient, on its own records."""

    def __init__(
        self,
        clipped: ClippedGradients,
        records: tuple[Tensor, Tensor],
        batches: tuple[Batches, ...],
        agent: int,
        seed: int | None,
    ) -> None:
        """`batches`: those of all agents, as the manifest says. `seed` None: what is drawn is secret."""
        self.clipped, self.batches, self.agent = clipped, batches, agent
        self.inputs, self.labels = records
        if len(self.inputs) != batches[agent].records:
            raise InputError(
                f"Expected {batches[agent].records} records, as the manifest says, got {len(self.inputs)}: "
                "the noise is calibrated for that number."
            )
        if self.inputs.is_floating_point():
            self.inputs = self.inputs.to(clipped.flat.dtype)
        # Poisson batches hide records only from those who cannot repeat the draw.
        self.seed = secrets.randbits(63) if seed is None else seed

    def mean(self, round: int, estimate: Tensor) -> Tensor:
        """[d]: the clipped gradients of this round's records, summed, over the divisor of the batch."""
        chosen = select(self.batches, self.seed, round)
        i, held = self.agent, len(self.inputs)
        inputs, labels, weights = self.inputs[None], self.labels[None], None
        if chosen.indices is not None:
            inputs, labels = inputs[:, chosen.indices[i]], labels[:, chosen.indices[i]]
        if chosen.weights is not None:
            weights = chosen.weights[i : i + 1, : inputs.shape[1]]
        assert chosen.indices is not None or inputs.shape[1] == held
        total, statistics = self.clipped.clipped_sum_and_statistics(
            estimate[None].contiguous(), inputs, labels, weights
        )
        self._tell_the_owner(round, int(statistics.ignored[0]))
        return total[0].div_(float(chosen.divisor[i]))

    def _tell_the_owner(self, round: int, ignored: int) -> None:
        """In the agent's own log, which stays where the data are: nothing that is sent depends on it."""
        if ignored:
            logger.warning(
                "%d records counted as zero in round %d: the model gives no finite gradient for them.",
                ignored,
                round,
                extra={"agent": self.agent, "event": "ignored", "round": round},
            )


def mixed(parts: list[tuple[int, float]], before: Mapping[int, Tensor], instead: Tensor) -> Tensor:
    """Σ weight · row, in the simulator's order; a row that is not there is replaced by `instead`."""
    target = torch.zeros_like(instead)
    for source, weight in parts:
        target.add_(before.get(source, instead), alpha=weight)
    return target


def make(
    part: Part,
    round: int,
    own: Mapping[int, Tensor],
    received: Mapping[int, Tensor],
    gradients: Gradients,
    draws: AgentDraws,
) -> dict[int, Tensor]:
    """The agent's rows of `round`. Before round 0, `own` holds the public start as its estimate.

    A source that did not arrive is replaced by the agent's own estimate of the round before. That changes no
    draw of its own, so what the worst case counts stays as it is.
    """
    this, estimate = part.plan[round], own[part.agent]
    before = {**received, **own} if round else {}
    gradient: Tensor | None = None
    z = torch.empty_like(estimate)
    rows: dict[int, Tensor] = {}
    for row in part.made(round):
        target = mixed(part.sources(round, row), before, estimate)
        if this.step[row]:
            if gradient is None:
                gradient = gradients.mean(round, estimate)
            target.add_(gradient, alpha=float(this.step[row]))
        for draw, std in zip(this.draw[row].tolist(), this.std[row].tolist(), strict=True):
            if draw >= 0 and std:
                target.add_(draws.fill(z, round, draw), alpha=std)
        rows[row] = target
    return rows


def rest(
    part: Part, round: int, own: Mapping[int, Tensor], received: Mapping[int, Tensor]
) -> dict[int, Tensor]:
    """The estimate of an agent that sends no more: it mixes what it reads, and its data enter no longer."""
    before = {**received, **own} if round else {}
    return {part.agent: mixed(part.sources(round, part.agent), before, own[part.agent])}


def kept(part: Part, round: int, rows: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """What of `rows` the next round needs: the estimate, and any other row that enters again."""
    again = {part.agent}
    if round + 1 < part.plan.releases:
        again |= {source for row in part.made(round + 1) for source, _ in part.sources(round + 1, row)}
    return {row: value for row, value in rows.items() if row in again}
