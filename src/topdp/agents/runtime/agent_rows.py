"""The rows of one agent: its part of a plan, and the arithmetic that makes its rows as the simulator does.

A round needs the agent's own rows of the previous round, the rows that arrived, its own clipped gradient and
its own draws. Other modules decide how rows travel, what they cost and when a round ends. The simulator adds
in the type of the model, because it shows its rows to nobody.

**Guarantees.** No value that depends on data is rounded to the type of the model before it has its noise: one
unit in the last place of a large row could otherwise exceed what a record may move it. Only rounding in
float64 remains, which `row_guards` bounds. All numbers of a row with noise are multiples of a public step far
below its deviation, so no number shows single digits of a draw, whatever cancels (docs/privacy.md, "Noise has
finitely many digits").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from topdp.agents.agreement.hidden_rows import grid_step as grid_of
from topdp.agents.agreement.run_setup import supports
from topdp.agents.runtime.agent_draws import AgentDraws
from topdp.agents.runtime.agent_gradients import AgentGradients
from topdp.plan import Plan, PlanError, ReleaseKind
from topdp.plan.plan import NOBODY

NORM_MARGIN = 1e-6  # relative: how far below the largest norm a shortened row is


@dataclass(frozen=True)
class PlanPart:
    """The part of a plan that one agent executes: the rows that it makes, sends and reads in every round."""

    plan: Plan
    agent: int

    def __post_init__(self) -> None:
        if reason := supports(self.plan):
            raise PlanError(f"Expected a plan that agents can execute, got one with {reason}.")
        _ = self.partner
        for r in range(1, self.plan.releases):
            available = {self.agent: set(self.own_rows(r - 1))}
            available |= {sender: {row} for sender, row in self.read_rows[r - 1].items()}
            for row in self.own_rows(r):
                for source, _ in self.sources(r, row):
                    if source not in available.get(int(self.plan.owner[source]), ()):
                        raise PlanError(
                            f"Row {row} of round {r} needs row {source}, which the owner of row {row} "
                            "never receives."
                        )

    @cached_property
    def partner(self) -> dict[int, int]:
        """Map each draw that this agent shares to the agent that it is shared with."""
        partners: dict[int, int] = {}
        draws = self.plan.draw.values[:, self.plan.owner == self.agent]
        for draw in np.unique(draws[draws >= 0]).tolist():
            knows = set(self.plan.known_by[draw].tolist()) - {NOBODY}
            if self.agent not in knows or len(knows) > 2:
                raise PlanError(
                    f"Expected every draw of agent {self.agent} to be its own or shared with one other agent,"
                    f" got draw {draw}, which is known by {sorted(knows) or 'nobody'}."
                )
            for other in knows - {self.agent}:
                partners[draw] = other
        return partners

    def draws(self, round: int, row: int) -> list[tuple[int, float]]:
        """Return (draw, deviation) of every draw that enters `row` in `round`."""
        deviations = self.plan.std[round][row] * self.plan.scale[round]
        pairs = zip(self.plan.draw[round][row].tolist(), deviations.tolist(), strict=True)
        return [(draw, std) for draw, std in pairs if draw >= 0 and std]

    def shared_in(self, round: int) -> list[tuple[int, int, float]]:
        """Return (row, draw, deviation) of every shared draw that enters a row of this agent in `round`."""
        rows = self.own_rows(round)
        return [(row, *pair) for row in rows for pair in self.draws(round, row) if pair[0] in self.partner]

    def own_rows(self, round: int) -> list[int]:
        """Return the rows that the agent makes in `round`."""
        owned = (self.plan.owner == self.agent) & self.plan.exists[round]
        return [int(row) for row in np.flatnonzero(owned)]

    def sources(self, round: int, row: int) -> list[tuple[int, float]]:
        """Return the rows of the previous round that enter `row`, with their weights."""
        pairs = zip(self.plan.source[round][row].tolist(), self.plan.weight[round][row].tolist(), strict=True)
        return [(source, weight) for source, weight in pairs if source >= 0 and weight]

    def sent_rows(self, round: int) -> dict[int, int]:
        """Map each receiver to the row that this agent sends to it."""
        rows: dict[int, int] = {}
        for row in self.own_rows(round):
            for receiver in self.plan.readers[round][row].tolist():
                if receiver >= 0 and receiver != self.agent:
                    if receiver in rows:
                        raise PlanError(f"Expected one row for agent {receiver} in round {round}, got two.")
                    rows[receiver] = row
        return rows

    @cached_property
    def read_rows(self) -> list[dict[int, int]]:
        """[releases] the rows that this agent reads in each round, by sender."""
        is_read = (self.plan.readers.values == self.agent).any(axis=-1)[self.plan.readers.which]
        is_read &= self.plan.exists & (self.plan.owner != self.agent)
        rounds: list[dict[int, int]] = [{} for _ in range(self.plan.releases)]
        for round, row in zip(*(index.tolist() for index in np.nonzero(is_read)), strict=True):
            rounds[round][int(self.plan.owner[row])] = row
        return rounds

    @property
    def reported(self) -> int:
        """The row that the agent's owner gets at the end."""
        return self.agent if self.plan.reported is None else int(self.plan.reported[self.agent])

    def rounds_from(self, sender: int) -> list[int]:
        """Return the rounds in which `sender` sends to this agent."""
        return [round for round, rows in enumerate(self.read_rows) if sender in rows]


@dataclass(frozen=True)
class RowChanges:
    """How the rows of a round differ from the plan because an agent has departed."""

    left_out: frozenset[int] = frozenset()  # draws that do not enter
    taken_back: tuple[tuple[int, int, int, float], ...] = ()  # (row, round, draw, deviation) of earlier draws


AS_PLANNED = RowChanges()


def mix_rows(parts: Iterable[tuple[int, float]], before: Mapping[int, Tensor], substitute: Tensor) -> Tensor:
    """Return Σ weight · row in float64, in the order of the simulator.

    `parts`: (row, weight). `before` holds the rows; `substitute` replaces a row that did not arrive.
    """
    target = torch.zeros_like(substitute, dtype=torch.float64)
    for source, weight in parts:
        target.add_(before.get(source, substitute).double(), alpha=weight)
    return target


def add_noise(
    row: Tensor, draws: AgentDraws, noise: Sequence[tuple[float, int, int]], dtype: torch.dtype
) -> Tensor:
    """Return `row` with its noise, on the grid of the smallest deviation, in the type `dtype`.

    `row` is in float64. `noise`: (deviation, round, draw). The noise is summed first, so the rounded result
    is a function of the exact sum, however many draws it has.
    """
    smallest = min((abs(std) for std, *_ in noise if std), default=0.0)
    if not smallest:
        return row.to(dtype)
    total = torch.zeros_like(row)
    for std, round, draw in noise:
        draws.add(total, std, round, draw)
    grid = grid_of(smallest)
    return row.add_(total).div_(grid).round_().mul_(grid).to(dtype)


def shorten(row: Tensor, largest_norm: float) -> Tensor:
    """Return `row`, shortened if its norm exceeds `largest_norm`; otherwise the same object.

    Call it on rows that have their noise. Rounding the result again does not bring it above the bound.

    >>> shorten(torch.tensor([3.0, 4.0]), 5.1).tolist(), shorten(torch.tensor([30.0, 40.0]), 5.0).norm() < 5
    ([3.0, 4.0], tensor(True))
    """
    norm = float(torch.linalg.vector_norm(row.double()))
    if not norm > largest_norm:
        return row
    return (row.double() * ((1 - NORM_MARGIN) * largest_norm / norm)).to(row.dtype)


def make_rows(
    part: PlanPart,
    round: int,
    own: Mapping[int, Tensor],
    received: Mapping[int, Tensor],
    gradients: AgentGradients | None,
    draws: AgentDraws,
    changes: RowChanges = AS_PLANNED,
) -> dict[int, Tensor]:
    """Return the agent's rows of `round`. Before round 0, `own` holds the public start as its estimate.

    If `gradients` is None, the agent's data are not read and do not enter; all else is as in any round. A
    source that did not arrive is replaced by the agent's own estimate of the previous round. That changes no
    draw of the agent, so its worst case stays the same.
    """
    if part.plan.kinds[round] is ReleaseKind.ADAPTIVE:
        return _adaptive_rows(part, round, own)
    release, estimate = part.plan[round], own[part.agent]
    before = {**received, **own} if round else {}
    gradient: Tensor | None = None
    rows: dict[int, Tensor] = {}
    for row in part.own_rows(round):
        target = _mix_sources(part, round, row, before, estimate)
        if release.step[row] and gradients is not None:
            if gradient is None:
                gradient = gradients.mean(round, estimate)
            # The sum is rounded once, in float64, before the noise.
            target.add_(gradient, alpha=float(release.step[row]))
        noise = [(std, round, draw) for draw, std in part.draws(round, row) if draw not in changes.left_out]
        noise += [(-std, earlier, draw) for of, earlier, draw, std in changes.taken_back if of == row]
        rows[row] = add_noise(target, draws, noise, estimate.dtype)
    return rows


def _mix_sources(
    part: PlanPart, round: int, row: int, before: Mapping[int, Tensor], substitute: Tensor
) -> Tensor:
    """Return the agent's row before its gradient and noise, in float64.

    A robust rule mixes the rows of other agents; it reads no data, so any function of rows is allowed.
    """
    sources, robust = part.sources(round, row), part.plan.robust
    if robust is None:
        return mix_rows(sources, before, substitute)
    from topdp.simulator.robust_mixing import robust_mean

    owner = part.plan.owner
    target = mix_rows([pair for pair in sources if owner[pair[0]] == part.agent], before, substitute)
    others = [
        (before.get(source, substitute), weight) for source, weight in sources if owner[source] != part.agent
    ]
    if others:
        rows, weights = zip(*others, strict=True)
        received = torch.stack(rows)[None]
        target += robust_mean(robust, substitute[None], received, received.new_tensor(weights)[None])[0]
    return target


def _adaptive_rows(part: PlanPart, round: int, own: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Return the rows of an adaptive step: made of the agent's own rows, and sent to nobody.

    An agent that rejoins a run in the middle of a round did not store the row with which that round began; it
    uses its estimate in place of that row.
    """
    from topdp.simulator.adaptive_step import adaptive_step

    assert part.plan.adaptive is not None
    sources = part.plan.source[round][part.agent, : 1 + part.plan.adaptive.memories].tolist()
    own = {sources[1]: own[part.agent], **own}
    stepped = zip(sources, adaptive_step(part.plan, round, [own[row] for row in sources]), strict=True)
    return {row: own[row] for row in part.own_rows(round)} | dict(stepped)


def rows_needed_later(part: PlanPart, round: int, rows: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Return the rows needed after `round`: the estimate, the reported row, and sources of later rows."""
    needed = {part.agent, part.reported}
    if round + 1 < part.plan.releases:
        later = part.own_rows(round + 1)
        needed |= {source for row in later for source, _ in part.sources(round + 1, row)}
    return {row: value for row, value in rows.items() if row in needed}
