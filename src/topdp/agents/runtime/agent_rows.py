"""The rows of one agent: its part of a plan, and the arithmetic that makes its rows, as the simulator does.

A round of one agent needs its own rows of the round before, the rows that came in, its own clipped gradient
and its own draws; nothing of anybody else. How rows travel, what they cost and when a round closes are other
files' business.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import final

import numpy as np
import torch
from torch import Tensor

from topdp.agents.runtime.agent_draws import AgentDraws
from topdp.agents.runtime.agent_hooks import AgentHooks
from topdp.agents.runtime.exact_gradients import ExactGradients
from topdp.agents.runtime.row_sums import mixed, noised, stepped
from topdp.data.batch_selection import select
from topdp.errors import InputError
from topdp.plan import Capability, Plan, PlanError, ReleaseKind, unsupported
from topdp.plan.batches import Batches, Cycle
from topdp.plan.plan import NOBODY
from topdp.simulator.adaptive_step import adaptive_step
from topdp.simulator.robust_mixing import robust_mean

logger = logging.getLogger("topdp.agents")


def supports(plan: Plan) -> str | None:
    """None, or what agents do not execute: their rows lie on another grid, and none may be left out."""
    return unsupported(plan, {Capability.ADAPTIVE_STEPS, Capability.ROBUST_MIXING, Capability.SHARED_DRAWS})


@dataclass(frozen=True)
class PlanPart:
    """What one agent does in a plan: the rows it makes, sends and reads in every round."""

    plan: Plan
    agent: int

    def __post_init__(self) -> None:
        if reason := supports(self.plan):
            raise PlanError(f"Expected a plan that agents can execute, got one with {reason}.")
        _ = self.partner
        for r in range(self.plan.releases):
            there = {self.agent: set(self.made(r - 1))} if r else {}
            there |= {sender: {row} for sender, row in self.read(r - 1).items()} if r else {}
            for row in self.made(r) if r else []:
                for source, _ in self.sources(r, row):
                    if source not in there.get(int(self.plan.owner[source]), ()):
                        raise PlanError(
                            f"Row {row} of round {r} needs row {source}, which its owner never reads."
                        )

    @cached_property
    def partner(self) -> dict[int, int]:
        """{draw: the agent that it is shared with}, of all draws of this agent that it shares."""
        found: dict[int, int] = {}
        mine = self.plan.draw.values[:, self.plan.owner == self.agent]
        for draw in np.unique(mine[mine >= 0]).tolist():
            knows = set(self.plan.known_by[draw].tolist()) - {NOBODY}
            if self.agent not in knows or len(knows) > 2:
                raise PlanError(
                    f"Expected every draw of agent {self.agent} to be its own or shared with one other agent,"
                    f" got draw {draw}, which is known by {sorted(knows) or 'nobody'}."
                )
            for other in knows - {self.agent}:
                found[draw] = other
        return found

    def shared(self, round: int) -> list[tuple[int, int, float]]:
        """(row, draw, deviation) of every shared draw that enters a row of this agent in `round`."""
        this = self.plan[round]
        return [
            (row, draw, std)
            for row in self.made(round)
            for draw, std in zip(this.draw[row].tolist(), this.std[row].tolist(), strict=True)
            if draw in self.partner and std
        ]

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

    @property
    def reported(self) -> int:
        """The row that the agent's owner is given at the end."""
        return self.agent if self.plan.reported is None else int(self.plan.reported[self.agent])

    def rounds_from(self, sender: int) -> list[int]:
        """The rounds in which `sender` sends to this agent."""
        return [round for round, read in enumerate(self._read) if sender in read]


@final
class AgentGradients:
    """The agent's mean clipped gradient, on its own records.

    **Guarantees.** The order of cyclic batches follows from the manifest's seed: it need not be secret, since
    it counts as known; and it is fixed before round 0, and the same after every restart. Accounts hold for
    that only: a record that moved to another place in the cycle would be used more often than they say.
    """

    def __init__(
        self,
        exact: ExactGradients,
        records: tuple[Tensor, Tensor],
        batches: tuple[Batches, ...],
        agent: int,
        seed: int,
        draws: AgentDraws,
        hooks: AgentHooks,
    ) -> None:
        """`batches`: those of all agents, as the manifest says. `seed`: the manifest's."""
        self.hooks = hooks
        self.exact, self.batches, self.agent, self.seed, self.draws = exact, batches, agent, seed, draws
        self.inputs, self.targets = records
        if len(self.inputs) != batches[agent].records:
            raise InputError(
                f"Expected {batches[agent].records} records, as the manifest says, got {len(self.inputs)}: "
                "the noise is calibrated for that number."
            )
        if self.inputs.is_floating_point():
            self.inputs = self.inputs.to(exact.kind)
        self._weights: Tensor | None = None
        self._set_aside()

    def mean(self, round: int, estimate: Tensor) -> Tensor:
        """[d] in float64: the clipped gradients of this round's records, summed, over the batch's divisor."""
        return self.hooks.mean_gradient(
            round, self._chosen(round), lambda chosen: self._mean_of(round, chosen, estimate)
        )

    def _mean_of(self, round: int, chosen: Tensor | None, estimate: Tensor) -> Tensor:
        inputs, targets, weights = self.inputs, self.targets, self._weights
        if chosen is not None:
            inputs, targets = inputs[chosen], targets[chosen]
            weights = None if weights is None else weights[chosen]
        if not len(inputs):
            return torch.zeros_like(estimate, dtype=torch.float64)  # a sample may be empty
        total, ignored = self.exact.sum(estimate, inputs, targets, weights)
        self._tell_the_owner(round, ignored)
        return total.div_(self.batches[self.agent].divisor)

    def _set_aside(self) -> None:
        """Records on which model or loss raises count as zero; another, of weight 0, is in the place of each.

        So that how the others are computed, and rounded, does not depend on whether there are such.
        """
        failing = self.exact.failing(self.inputs, self.targets)
        if not failing.any() or failing.all():
            return
        stand_in = int((~failing).nonzero()[0])
        where = failing.reshape(-1, *(1 for _ in self.inputs.shape[1:]))
        self.inputs = torch.where(where, self.inputs[stand_in], self.inputs)
        where = failing.reshape(-1, *(1 for _ in self.targets.shape[1:]))
        self.targets = torch.where(where, self.targets[stand_in], self.targets)
        self._weights = (~failing).double()
        logger.warning(
            "%d records count as zero: the model or the loss fails on them.",
            int(failing.sum()),
            extra={"agent": self.agent, "event": "ignored"},
        )

    def order(self, key: bytes) -> str | None:
        """What tells whether records come in the same order again; None where the order does not matter.

        Under `key`, because a plain digest would tell whoever knows all records but one what that one is.
        """
        mine = self.batches[self.agent]
        if not isinstance(mine, Cycle):
            return None
        found = hmac.new(key, digestmod="sha256")
        for round in range(mine.period):
            chosen = self._chosen(round)
            for values in (self.inputs[chosen], self.targets[chosen]):
                found.update(f"{round} {values.dtype} {tuple(values.shape)}".encode())
                found.update(values.numpy().tobytes())
        return found.hexdigest()

    def _chosen(self, round: int) -> Tensor | None:
        """Which records `round` uses; None: all of them."""
        mine = self.batches[self.agent]
        if mine.sampled:
            return self.draws.sample(self.batches, self.agent, round)
        if not isinstance(mine, Cycle):
            return None
        turn = select(self.batches, self.seed, round)
        assert turn.indices is not None and turn.weights is not None
        return turn.indices[self.agent][turn.weights[self.agent] > 0]

    def _tell_the_owner(self, round: int, ignored: int) -> None:
        """In the agent's own log, which stays where the data are: nothing that is sent depends on it."""
        if ignored:
            logger.warning(
                "%d records counted as zero in round %d: the model gives no finite gradient for them.",
                ignored,
                round,
                extra={"agent": self.agent, "event": "ignored", "round": round},
            )


@dataclass(frozen=True)
class RowChanges:
    """What is different from the plan in the rows of a round, because somebody is gone."""

    left_out: frozenset[int] = frozenset()  # draws that do not enter
    taken_back: tuple[tuple[int, int, int, float], ...] = ()  # (row, round, draw, deviation) of earlier ones


AS_PLANNED = RowChanges()


def make(
    part: PlanPart,
    round: int,
    own: Mapping[int, Tensor],
    received: Mapping[int, Tensor],
    gradients: AgentGradients | None,
    draws: AgentDraws,
    changed: RowChanges = AS_PLANNED,
) -> dict[int, Tensor]:
    """The agent's rows of `round`. Before round 0, `own` holds the public start as its estimate.

    `gradients` None: the agent's data do not enter, and are not read; all else is as in any round.

    A source that did not arrive is replaced by the agent's own estimate of the round before. That changes no
    draw of its own, so what the worst case counts stays as it is.
    """
    if part.plan.kinds[round] is ReleaseKind.ADAPTIVE:
        return _adaptive(part, round, own)
    this, estimate = part.plan[round], own[part.agent]
    before = {**received, **own} if round else {}
    gradient: Tensor | None = None
    rows: dict[int, Tensor] = {}
    for row in part.made(round):
        target = _mix(part, round, row, before, estimate)
        if this.step[row] and gradients is not None:
            if gradient is None:
                gradient = gradients.mean(round, estimate)
            target = stepped(target, gradient, float(this.step[row]))
        noise = [
            (std, round, draw)
            for draw, std in zip(this.draw[row].tolist(), this.std[row].tolist(), strict=True)
            if draw >= 0 and std and draw not in changed.left_out
        ]
        noise += [(-std, then, draw) for of, then, draw, std in changed.taken_back if of == row]
        rows[row] = noised(target, partial(_add, draws, noise), [n[0] for n in noise], estimate.dtype)
    return rows


def _add(draws: AgentDraws, noise: list[tuple[float, int, int]], row: Tensor) -> None:
    for std, round, draw in noise:
        draws.add(row, std, round, draw)


def _mix(part: PlanPart, round: int, row: int, before: Mapping[int, Tensor], instead: Tensor) -> Tensor:
    """What the agent's row is made of before its gradient and noise, in float64; others' rows by the rule.

    What a robust rule makes of rows is rounded as they are: it reads no data, and any function will do.
    """
    sources, robust = part.sources(round, row), part.plan.robust
    if robust is None:
        return mixed(sources, before, instead)
    owner = part.plan.owner
    target = mixed([one for one in sources if owner[one[0]] == part.agent], before, instead)
    others = [
        (before.get(source, instead), weight) for source, weight in sources if owner[source] != part.agent
    ]
    if others:
        rows, weights = zip(*others, strict=True)
        received = torch.stack(rows)[None]
        target += robust_mean(robust, instead[None], received, received.new_tensor(weights)[None])[0]
    return target


def _adaptive(part: PlanPart, round: int, own: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """The rows of an adaptive release: made of the agent's own, and sent to nobody.

    Who takes up a run in the middle of a round has not kept where that began: it counts as begun there.
    """
    assert part.plan.adaptive is not None
    sources = part.plan.source[round][part.agent, : 1 + part.plan.adaptive.memories].tolist()
    own = {sources[1]: own[part.agent], **own}
    made = zip(sources, adaptive_step(part.plan, round, [own[row] for row in sources]), strict=True)
    return {row: own[row] for row in part.made(round)} | dict(made)


def kept(part: PlanPart, round: int, rows: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """What of `rows` is needed later: the estimate, what is reported, and any other row that enters again."""
    again = {part.agent, part.reported}
    if round + 1 < part.plan.releases:
        again |= {source for row in part.made(round + 1) for source, _ in part.sources(round + 1, row)}
    return {row: value for row, value in rows.items() if row in again}
