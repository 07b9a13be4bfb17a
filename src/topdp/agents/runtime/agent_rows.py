"""The rows of one agent: its part of a plan, and the arithmetic that makes its rows as the simulator does.

A round needs the agent's own rows of the round before, the rows that came in, its own clipped gradient and
its own draws. How rows travel, what they cost and when a round closes is decided elsewhere. The simulator
adds up in the type of the model, because it shows its rows to nobody.

**Guarantees.** Nothing that depends on data is rounded to the type of the model before it has its noise: one
unit in the last place of a large row could otherwise exceed what a record may move it. What remains is
rounding in float64, which `row_guards` bounds. All numbers of a row with noise are multiples of a public step
far below its deviation: so none shows single digits of a draw, whatever cancels (docs/privacy.md, "Noise has
finitely many digits").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from topdp.agents.agreement.hidden_rows import grid_step as grid_of
from topdp.agents.runtime.agent_draws import AgentDraws
from topdp.agents.runtime.agent_gradients import AgentGradients
from topdp.plan import Capability, Plan, PlanError, ReleaseKind, unsupported
from topdp.plan.plan import NOBODY

NORM_MARGIN = 1e-6  # relative: how far below the largest norm a shortened row lies

Adds = Callable[[Tensor], None]
"""Adds noise to a row of float64, in place."""


def supports(plan: Plan) -> str | None:
    """Return None, or why agents cannot execute the plan: their rows lie on another grid, and all rows are
    needed.
    """
    return unsupported(plan, {Capability.ADAPTIVE_STEPS, Capability.ROBUST_MIXING, Capability.SHARED_DRAWS})


@dataclass(frozen=True)
class PlanPart:
    """The part of a plan that one agent executes: the rows it makes, sends and reads in every round."""

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
        """{draw: the agent that it is shared with}, for all draws that this agent shares."""
        partners: dict[int, int] = {}
        mine = self.plan.draw.values[:, self.plan.owner == self.agent]
        for draw in np.unique(mine[mine >= 0]).tolist():
            knows = set(self.plan.known_by[draw].tolist()) - {NOBODY}
            if self.agent not in knows or len(knows) > 2:
                raise PlanError(
                    f"Expected every draw of agent {self.agent} to be its own or shared with one other agent,"
                    f" got draw {draw}, which is known by {sorted(knows) or 'nobody'}."
                )
            for other in knows - {self.agent}:
                partners[draw] = other
        return partners

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
        """The rows that the agent makes in `round`."""
        mine = (self.plan.owner == self.agent) & self.plan.exists[round]
        return [int(row) for row in np.flatnonzero(mine)]

    def sources(self, round: int, row: int) -> list[tuple[int, float]]:
        """The rows of the round before that enter `row`, with their weights."""
        pairs = zip(self.plan.source[round][row].tolist(), self.plan.weight[round][row].tolist(), strict=True)
        return [(source, weight) for source, weight in pairs if source >= 0 and weight]

    def sent(self, round: int) -> dict[int, int]:
        """{receiver: the row it is sent}"""
        rows: dict[int, int] = {}
        for row in self.made(round):
            for receiver in self.plan.readers[round][row].tolist():
                if receiver >= 0 and receiver != self.agent:
                    if receiver in rows:
                        raise PlanError(f"Expected one row for agent {receiver} in round {round}, got two.")
                    rows[receiver] = row
        return rows

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
        """The row that the owner of the agent gets at the end."""
        return self.agent if self.plan.reported is None else int(self.plan.reported[self.agent])

    def rounds_from(self, sender: int) -> list[int]:
        """The rounds in which `sender` sends to this agent."""
        return [round for round, read in enumerate(self._read) if sender in read]


@dataclass(frozen=True)
class RowChanges:
    """How the rows of a round differ from the plan because an agent has departed."""

    left_out: frozenset[int] = frozenset()  # draws that do not enter
    taken_back: tuple[tuple[int, int, int, float], ...] = ()  # (row, round, draw, deviation) of earlier ones


AS_PLANNED = RowChanges()


def mixed(parts: Iterable[tuple[int, float]], before: Mapping[int, Tensor], instead: Tensor) -> Tensor:
    """Σ weight · row in float64, in the order of the simulator; `instead` replaces a row that did not
    arrive.
    """
    target = torch.zeros_like(instead, dtype=torch.float64)
    for source, weight in parts:
        target.add_(before.get(source, instead).double(), alpha=weight)
    return target


def stepped(mix: Tensor, gradient: Tensor, step: float) -> Tensor:
    """`mix` plus the step of a gradient, both float64: the one sum of them that is rounded before noise."""
    return mix.add_(gradient, alpha=step)


def noised(row: Tensor, add: Adds, deviations: Sequence[float], dtype: torch.dtype) -> Tensor:
    """`row` with its noise, on the grid of the least of its `deviations`, in the type that leaves.

    The noise is summed first, so rounding the whole is a function of the exact sum, however many draws it
    has.
    """
    smallest = min((abs(deviation) for deviation in deviations if deviation), default=0.0)
    if not smallest:
        return row.to(dtype)
    noise = torch.zeros_like(row)
    add(noise)
    grid = grid_of(smallest)
    return row.add_(noise).div_(grid).round_().mul_(grid).to(dtype)


def within(row: Tensor, largest_norm: float) -> Tensor:
    """`row`, shortened if its norm exceeds `largest_norm`; otherwise the same object.

    A function of a row that has its noise. Rounding the result again must not bring it back above the bound.

    >>> within(torch.tensor([3.0, 4.0]), 5.1).tolist(), within(torch.tensor([30.0, 40.0]), 5.0).norm() < 5
    ([3.0, 4.0], tensor(True))
    """
    norm = float(torch.linalg.vector_norm(row.double()))
    if not norm > largest_norm:
        return row
    return (row.double() * ((1 - NORM_MARGIN) * largest_norm / norm)).to(row.dtype)


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

    `gradients` None: the agent's data do not enter and are not read; all else is as in any round.

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
    """Return the agent's row before its gradient and noise, in float64.

    A robust rule mixes the rows of others; it reads no data, so any function of rows is allowed.
    """
    sources, robust = part.sources(round, row), part.plan.robust
    if robust is None:
        return mixed(sources, before, instead)
    from topdp.simulator.robust_mixing import robust_mean

    owner = part.plan.owner
    target = mixed([entry for entry in sources if owner[entry[0]] == part.agent], before, instead)
    others = [
        (before.get(source, instead), weight) for source, weight in sources if owner[source] != part.agent
    ]
    if others:
        rows, weights = zip(*others, strict=True)
        received = torch.stack(rows)[None]
        target += robust_mean(robust, instead[None], received, received.new_tensor(weights)[None])[0]
    return target


def _adaptive(part: PlanPart, round: int, own: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """The rows of an adaptive release: made of the agent's own rows, and sent to nobody.

    An agent that takes up a run in the middle of a round did not keep where that round began: it counts as
    begun there.
    """
    from topdp.simulator.adaptive_step import adaptive_step

    assert part.plan.adaptive is not None
    sources = part.plan.source[round][part.agent, : 1 + part.plan.adaptive.memories].tolist()
    own = {sources[1]: own[part.agent], **own}
    stepped_rows = zip(sources, adaptive_step(part.plan, round, [own[row] for row in sources]), strict=True)
    return {row: own[row] for row in part.made(round)} | dict(stepped_rows)


def kept(part: PlanPart, round: int, rows: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """The rows that are needed later: the estimate, what is reported, and rows that enter again."""
    again = {part.agent, part.reported}
    if round + 1 < part.plan.releases:
        again |= {source for row in part.made(round + 1) for source, _ in part.sources(round + 1, row)}
    return {row: value for row, value in rows.items() if row in again}
