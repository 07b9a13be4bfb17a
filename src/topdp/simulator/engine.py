"""Executes a plan on data: all rows of all agents, on one device.

The engine knows plans, gradients and shards, and nothing of methods, budgets or files. State goes in and
comes out; what to evaluate, print or save in between is for the caller (run.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from topdp.data import selection
from topdp.data.shards import Shards
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients
from topdp.learning.gradients.check import drops
from topdp.learning.metrics import Metric
from topdp.learning.tasks import Task
from topdp.plan import Plan, prune
from topdp.plan.arrays import Ints
from topdp.plan.batches import Batches, Full
from topdp.plan.streams import stream
from topdp.simulator.adam import adam_step
from topdp.simulator.draws import Draws, Noise
from topdp.simulator.evaluation import Evaluation, evaluate
from topdp.simulator.mixing import RowByRow, Work, slots
from topdp.simulator.robust_mixing import RobustRows, own_part

LARGEST_STD = 1e30

Select = Callable[[int, torch.device], selection.Selection]
"""(round, device) -> the records of all agents in that round."""

Plant = Callable[[int, selection.Selection, Tensor], None]
"""(round, its records, sums of clipped gradients [agents, d]): may add to the sums, as records would."""

Tamper = Callable[[int, Tensor, Ints], None]
"""(round, rows that were made [rows, d], their owners): may change rows before anybody reads them."""


class State(NamedTuple):
    """Where a run stands: releases made, and the rows of the last of them, in the order of their numbers.

    The rows live in one of two buffers that take turns: a state is valid until the engine has advanced twice.
    """

    releases: int
    rows: Tensor


class Engine:
    """Runs `plan` on `shards`, with one of `batches` for each agent. The same seed on the same device gives
    the same bits; `noise` and `select`, where given, are whose draws and records they are instead of the
    seed's. `plant` adds records that are no data: the canaries of an audit. With `copies` of the shards'
    agents in the plan, one after the other, all copies of an agent have its records; all of them, each round.
    `metrics` are what `evaluate` reports beside the loss; None: those that are usual for it. `tamper` is what
    the `hostile` agents do to their rows; those agents are not evaluated.

    Only rows on which some later estimate depends are made (`plan.prune`); the statistics are the same.
    `every_row` makes those too that are only read, for an audit of their readers.
    """

    def __init__(
        self,
        plan: Plan,
        gradients: ClippedGradients,
        shards: Shards,
        batches: Sequence[Batches],
        seed: int,
        device: torch.device | str = "cpu",
        noise: Draws | None = None,
        select: Select | None = None,
        plant: Plant | None = None,
        every_row: bool = False,
        copies: int = 1,
        metrics: Sequence[Metric] | None = None,
        tamper: Tamper | None = None,
        hostile: Sequence[int] = (),
    ) -> None:
        if shards.agents * copies != plan.agents:
            raise InputError(f"Expected shards for {plan.agents} agents, got {shards.agents * copies}.")
        if copies > 1 and not all(isinstance(one, Full) for one in batches):
            raise InputError("Expected full batches where several runs share their records, got others.")
        if [one.records for one in batches] != list(shards.counts) * copies:
            raise InputError(
                f"Expected batches of the records that agents hold, {list(shards.counts)}, got batches of "
                f"{[one.records for one in batches]}: noise is calibrated for those."
            )
        if np.abs(plan.std.values).max(initial=0) * plan.scale.max() > LARGEST_STD:
            raise InputError(
                f"Expected noise below {LARGEST_STD:g} in float32: use a smaller sigma, clip or rate."
            )
        self.plan = plan if plan.pruned or every_row else prune(plan)
        self.gradients = gradients
        self.device = torch.device(device)
        self.shards = _in_the_models_type(shards, gradients.flat.dtype).to(self.device)
        self.seed = seed
        self.metrics = Task.of(gradients.loss).metrics if metrics is None else tuple(metrics)
        self._copies = copies
        self._select = select or partial(selection.select, tuple(batches), seed)
        self._plant, self._tamper, self._hostile = plant, tamper, list(hostile)
        self._random_layers = any(map(drops, gradients.flat.module.modules()))
        self._capacity = int(self.plan.exists.sum(axis=1).max())
        self._buffers: list[Tensor] = []
        self._sums: Tensor | None = None
        self._divisors = {one.divisor for one in batches} if select is None else set()
        self._mix = _mixer(self.plan, noise or Noise(seed, plan.draws, plan.releases), self.device)

    def start(self, start: Tensor) -> State:
        """The state before round 0: the public start, one row [d] for all agents or [agents, d]."""
        return State(0, start.detach().to(self.device).expand(self.plan.agents, -1).clone())

    def resume(self, releases: int, rows: Tensor) -> State:
        """The state that an interrupted run had left behind."""
        if not 0 <= releases <= self.plan.releases:
            raise InputError(f"Expected 0 to {self.plan.releases} releases, got {releases}.")
        expected = self.plan.agents if releases == 0 else int(self.plan.exists[releases - 1].sum())
        shape = (expected, self.gradients.flat.dimension)
        if rows.shape != shape:
            raise InputError(
                f"Expected rows of shape {shape} after {releases} releases, got {tuple(rows.shape)}."
            )
        return State(releases, rows.to(self.device))

    def estimates(self, state: State) -> Tensor:
        """[agents, d]"""
        return state.rows[: self.plan.agents]

    def reported(self, state: State) -> Tensor:
        """[agents, d]: what users are shown; the estimates, unless the plan has averages of them."""
        if self.plan.reported is None or state.releases == 0:
            return self.estimates(state)
        return state.rows[torch.from_numpy(slots(self.plan, state.releases)[self.plan.reported])]

    def advance(self, state: State) -> State:
        """Makes the next release."""
        r = state.releases
        if self.plan.adjusts is not None and self.plan.adjusts[r]:
            return self._adjusted(state)
        made = int(self.plan.exists[r].sum())
        out = self._buffer(r)[:made]
        # Rounds that mix alone read no data; whatever stands for their gradients is not read either.
        if not self.plan.carries[r].any():
            self._mix(Work(r, state.rows, self.estimates(state), out))
        elif (step := self._one_step(r)) is not None:
            self._mix(Work(r, state.rows, None, out))
            self._add_gradients(state, out[: self.plan.agents], step)
        else:
            self._mix(Work(r, state.rows, self._mean_gradients(state), out))
        return self._sent(State(r + 1, out))

    def _adjusted(self, state: State) -> State:
        """Where Adam makes new estimates of rows that are there: no data, no noise, nothing to mix."""
        r, n = state.releases, self.plan.agents
        place, made = slots(self.plan, r), np.flatnonzero(self.plan.exists[r])
        out = self._buffer(r)[: len(made)]
        out.copy_(state.rows[torch.from_numpy(place[made])])  # what Adam leaves alone stays as it is
        four = self.plan.source[r][:n, :4]
        position = np.cumsum(self.plan.exists[r]) - 1
        before = [state.rows[torch.from_numpy(place[rows])] for rows in four.T]
        for rows, value in zip(four.T, adam_step(self.plan, r, before), strict=True):
            if self.plan.exists[r][rows].all():  # a pruned plan lacks what is not needed again
                out[torch.from_numpy(position[rows])] = value
        return self._sent(State(r + 1, out))

    def _sent(self, state: State) -> State:
        """What is there to be read: with the rows that hostile agents show instead of theirs."""
        if self._tamper is not None:
            round = state.releases - 1
            self._tamper(round, state.rows, self.plan.owner[self.plan.exists[round]].astype(np.int64))
        return state

    def evaluate(self, state: State) -> Evaluation:
        """Loss and metrics of each agent on the common test set; NaN of hostile ones."""
        inputs, targets = self.shards.test_inputs, self.shards.test_targets
        if inputs is None or targets is None:
            raise InputError("Expected shards with a test set, got none: pass test=(inputs, targets).")
        found = evaluate(self.gradients, self.metrics, self.reported(state), inputs, targets)
        for values in (found.loss, *found.metrics.values()) if self._hostile else ():
            values[self._hostile] = np.nan
        return found

    def _mean_gradients(self, state: State) -> Tensor:
        """Sum of clipped gradients of the records of this round, over the divisor that fixes sensitivity."""
        if self._sums is None:
            self._sums = self._rows(torch.empty, self.plan.agents)
        total = self._sums
        chosen = self._add_gradients(state, total, fresh=True)
        if self._plant is not None:
            self._plant(state.releases, chosen, total)
        return total.div_(chosen.divisor.to(total)[:, None])

    def _add_gradients(
        self, state: State, out: Tensor, step: float = 1.0, fresh: bool = False
    ) -> selection.Selection:
        """`out` [agents, d] gets step times the sums of clipped gradients of the records of this round."""
        chosen = self._select(state.releases, self.device)
        inputs, targets = self.shards.inputs, self.shards.targets
        if chosen.indices is not None:
            agent = torch.arange(len(inputs), device=self.device)[:, None]
            inputs, targets = inputs[agent, chosen.indices], targets[agent, chosen.indices]
        rows, weights = self.estimates(state), chosen.weights
        with self._dropout_of(state.releases):
            self.gradients.clipped_sum(
                rows, inputs, targets, weights, out=out, scale=step, copies=self._copies, fresh=fresh
            )
        return chosen

    def _one_step(self, round: int) -> float | None:
        """Where gradients can be added to rows in place, and take no memory of their own: by what factor.

        So where each agent's estimate carries its gradient, no other row does, and all steps are equal.
        """
        n, divisors = self.plan.agents, self._divisors
        if self.device.type != "cpu" or self._plant is not None or len(divisors) != 1:
            return None
        if self.plan.adjusts is not None:
            return None  # Adam divides by small changes: agents, who add up in another order, would differ
        steps = np.unique(-self.plan.rate[round] * self.plan.carries[round][:n])
        if len(steps) > 1 or self.plan.carries[round][n:].any():
            return None
        return float(steps[0]) / min(divisors)

    def _dropout_of(self, round: int) -> AbstractContextManager[None]:
        """Random layers draw from torch's global generators: named by the round too, and given back."""
        if not self._random_layers:
            return nullcontext()
        return _seeded(int(stream(self.seed, "layers", round).integers(2**63)), self.device)

    def _buffer(self, round: int) -> Tensor:
        if not self._buffers:
            self._buffers = [self._rows(torch.empty, self._capacity) for _ in range(2)]
        return self._buffers[round % 2]

    def _rows(self, make: Callable[..., Tensor], count: int) -> Tensor:
        """[count, d]; on a GPU every row begins where its matrix units like to begin."""
        flat = self.gradients.flat
        align = 32 if self.device.type == "cuda" else 1
        width = -(-flat.dimension // align) * align
        return make(count, width, dtype=flat.dtype, device=self.device)[:, : flat.dimension]


def _mixer(plan: Plan, noise: Draws, device: torch.device) -> Callable[[Work], None]:
    """The function that makes the rows of a round on `device`."""
    if plan.robust is not None:
        return RobustRows(plan, _mixer(own_part(plan), noise, device))
    if device.type == "cuda" and find_spec("triton") is not None:
        from topdp.simulator.mixing_cuda import Fused

        return Fused(plan, noise, device)
    return RowByRow(plan, noise, device)


def _in_the_models_type(shards: Shards, dtype: torch.dtype) -> Shards:
    """Real numbers in the type of the parameters; whole ones, such as tokens and labels, as they are."""

    def typed(values: Tensor) -> Tensor:
        return values.to(dtype) if values.is_floating_point() else values

    shards = replace(shards, inputs=typed(shards.inputs), targets=typed(shards.targets))
    if shards.test_inputs is None or shards.test_targets is None:
        return shards
    return replace(shards, test_inputs=typed(shards.test_inputs), test_targets=typed(shards.test_targets))


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield
