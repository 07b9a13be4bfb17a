"""Executes a plan on data: all rows of all agents, on one device, or of those agents that are held here.

The engine knows plans, gradients and shards, and nothing of methods, budgets or files. State goes in and
comes out; what to evaluate, print or save in between is for the caller (run.py). Rows of agents that are held
elsewhere come by `Fetch` (ranks/).
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

from topdp.base.array_types import Ints
from topdp.data import batch_selection
from topdp.data.shards import Shards
from topdp.errors import InputError, TopdpError
from topdp.learning.gradients import ClippedGradients, DivergedError
from topdp.learning.gradients.gradient_inputs import divergence_error
from topdp.learning.gradients.path_check import draws_dropout
from topdp.learning.metrics import Metric
from topdp.learning.tasks import Task
from topdp.plan import Plan, ReleaseKind, prune
from topdp.plan.batches import Batches, Full
from topdp.plan.random_streams import stream
from topdp.simulator.adaptive_step import adaptive_step
from topdp.simulator.evaluation import Evaluation, evaluate
from topdp.simulator.robust_mixing import RobustRows, own_part
from topdp.simulator.row_layout import Layout
from topdp.simulator.row_mixing import RowByRow, Work
from topdp.simulator.simulated_noise import Draws, Noise

LARGEST_STD = 1e30
AT_ONCE = 1 << 26  # numbers of gradients in memory at once, where agents are many
ALIGN = {"cpu": 16, "cuda": 32}  # numbers
"""Where rows begin: matrix products on a CPU differ in their last digits with that, and so would an agent's
row with how many others stand before it; the matrix units of a GPU like it."""

ROUNDED = {"bfloat16": torch.bfloat16}
"""What `Plan.rounded` names. torch rounds to nearest, ties to even."""

EVERYBODY = slice(None)

Select = Callable[[int, torch.device], batch_selection.Selection]
"""(round, device) -> the records of all agents in that round."""

Plant = Callable[[int, batch_selection.Selection, Tensor], None]
"""(round, its records, sums of clipped gradients [agents, d]): may add to the sums, as records would."""

Tamper = Callable[[int, Tensor, Ints], None]
"""(round, rows that were made [rows, d], their owners): may change rows before anybody reads them."""


Fetch = Callable[[int, Tensor], Callable[[], None]]
"""(round, rows of the round before, and behind them room for guests): begins to send and to fetch; what it
returns waits until the guests are there."""


class WrongReplayError(TopdpError):
    """A recorded round (stretches.py) was right at first, and then was not what the engine makes of it."""


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

    With a `layout`, shards and batches are those of the agents that it holds here, and `fetch` brings what
    their rows are mixed of; the numbers of agents in plans stay what they are. Gradients of many agents are
    taken for some of them at a time (`AT_ONCE`).

    Where the plan says `rounded`, rows are kept in fewer bits: what is computed is computed as ever, in
    float32, and a row is rounded once, when it is put where it is kept. Rows are widened for some agents at a
    time, so that nothing in memory is as large as all of them in float32.

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
        layout: Layout | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        held = plan.agents if layout is None else len(layout.agents)
        if shards.agents * copies != held:
            raise InputError(f"Expected shards for {held} agents, got {shards.agents * copies}.")
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
        if not self.plan.exists[:, : plan.agents].all():
            raise InputError(
                "Expected a plan in which every agent has an estimate in every round, got another."
            )
        self.layout = layout or Layout(self.plan)
        if self.layout.plan is not self.plan:
            raise InputError("Expected the layout of the pruned plan that is executed, got another's.")
        self._kept_as = gradients.flat.dtype if plan.rounded is None else ROUNDED[plan.rounded]
        if plan.rounded is not None and tamper is not None:
            raise InputError("Expected rows that are not rounded where agents are hostile, got others.")
        self.gradients = gradients
        self.device = torch.device(device)
        self.shards = _in_the_models_type(shards, gradients.flat.dtype).to(self.device)
        self.seed = seed
        self.batches = tuple(batches)
        self.metrics = Task.of(gradients.loss).metrics if metrics is None else tuple(metrics)
        self._copies = copies
        self._select = select or partial(batch_selection.select, tuple(batches), seed)
        self._plant, self._tamper, self._hostile = plant, tamper, list(hostile)
        self._random_layers = any(map(draws_dropout, gradients.flat.module.modules()))
        self._fetch = fetch
        self._held = held
        self._capacity = self.layout.capacity
        self._buffers: list[Tensor] = []
        self._written: list[int | None] = [
            None,
            None,
        ]  # releases made when all in a buffer was; None: not all
        self._sums: Tensor | None = None
        self._wide: Tensor | None = None
        noise = noise or Noise(seed, plan.draws, plan.releases)
        self._mix = _mixer(self.plan, noise, self.device, self.layout)

    def start(self, start: Tensor) -> State:
        """The state before round 0: the public start, one row [d] for all agents or [agents, d]."""
        return State(0, self._aligned(start.detach().expand(self._held, -1), self._kept_as))

    def resume(self, releases: int, rows: Tensor) -> State:
        """The state that an interrupted run had left behind."""
        if not 0 <= releases <= self.plan.releases:
            raise InputError(f"Expected 0 to {self.plan.releases} releases, got {releases}.")
        shape = (len(self.layout.made(releases - 1)), self.gradients.flat.dimension)
        if rows.shape != shape:
            raise InputError(
                f"Expected rows of shape {shape} after {releases} releases, got {tuple(rows.shape)}."
            )
        if releases and rows.dtype != self._kept_as:  # rounded or not is in the plan, and in its account
            raise InputError(
                f"Expected rows of {self._kept_as}, as this plan keeps them, got {rows.dtype}: they are of "
                "another run."
            )
        return State(releases, self._aligned(rows, self._kept_as))

    def estimates(self, state: State) -> Tensor:
        """[agents, d], as they are kept"""
        return state.rows[: self._held]

    def reported(self, state: State) -> Tensor:
        """[agents, d]: what users are shown; the estimates, unless the plan has averages of them."""
        if self.plan.reported is None or state.releases == 0:
            return self.estimates(state)
        place = self.layout.place_made(state.releases - 1)[self.plan.reported[self.layout.agents]]
        return self._aligned(state.rows[torch.from_numpy(place)], self._kept_as)

    def advance(self, state: State) -> State:
        """Makes the next release."""
        r = state.releases
        if self.plan.kinds[r] is ReleaseKind.ADAPTIVE:
            return self._adaptive_release(state)
        made = self.layout.made(r)
        out = self._place(r, len(made))
        before, arrive = self._with_guests(state)
        # Rounds that mix alone read no data; whatever stands for their gradients is not read either.
        if not self.plan.carries[r].any():
            self._make(Work(r, before, before, out), arrive)
            return self._sent(State(r + 1, out))
        chosen = self._select(r, self.device)
        whose = self.layout.place_of[self.plan.owner[made]]
        for some in self._turns():
            only = None if some == EVERYBODY else np.flatnonzero((whose >= some.start) & (whose < some.stop))
            gradient = self._mean_gradients(state, chosen, some, self._room_in(out))
            self._make(Work(r, before, gradient, out, only, some.start or 0), arrive)
        return self._sent(State(r + 1, out))

    def _turns(self) -> list[slice]:
        """Agents whose gradients are taken together; all, where something needs to see all of them."""
        rounded = self.plan.rounded is not None
        count = at_once(self.gradients.flat.dimension, rounded)
        together = self._copies > 1 or self._random_layers or self._plant is not None
        if together or (self.device.type != "cpu" and not rounded) or count >= self._held:
            return [EVERYBODY]
        return [slice(first, first + count) for first in range(0, self._held, count)]

    def _with_guests(self, state: State) -> tuple[Tensor, Callable[[], None]]:
        """The rows of the round before with room for guests behind them, and how to wait for those."""
        r = state.releases
        if self._fetch is None:
            return state.rows, lambda: None
        count = len(state.rows)
        room = self._buffer(r - 1)[: count + sum(len(rows) for _, rows in self.layout.arriving(r))]
        if room.data_ptr() != state.rows.data_ptr():  # a start, or of a checkpoint
            room[:count] = state.rows
        return room, self._fetch(r, room)

    def _make(self, work: Work, arrive: Callable[[], None]) -> None:
        """Rows that need no guests are made while those are on their way."""
        if self._fetch is None or self.device.type != "cpu":
            arrive()
            self._mix(work)
            return
        waits = self.layout.needs_guests(work.round)[self.layout.made(work.round)]
        only = np.arange(len(waits)) if work.only is None else work.only
        self._mix(work._replace(only=only[~waits[only]]))
        arrive()
        self._mix(work._replace(only=only[waits[only]]))

    def _adaptive_release(self, state: State) -> State:
        """New estimates by a non-linear optimiser: no data, no noise, nothing to mix."""
        assert self.plan.adaptive is not None
        r = state.releases
        place, made = self.layout.place(r), self.layout.made(r)
        out = self._place(r, len(made))
        out.copy_(state.rows[torch.from_numpy(place[made])])  # other rows stay as they are
        columns = self.plan.source[r][self.layout.agents, : 1 + self.plan.adaptive.memories].T
        position = self.layout.place_made(r)
        before = [state.rows[torch.from_numpy(place[rows])] for rows in columns]
        for rows, value in zip(columns, adaptive_step(self.plan, r, before), strict=True):
            if self.plan.exists[r][rows].all():  # a pruned plan lacks what is not needed again
                out[torch.from_numpy(position[rows])] = value
        return self._sent(State(r + 1, out))

    def _sent(self, state: State) -> State:
        """What is there to be read: with the rows that hostile agents show instead of theirs."""
        if self._tamper is not None:
            round = state.releases - 1
            self._tamper(round, state.rows, self.plan.owner[self.plan.exists[round]].astype(np.int64))
        self._written[(state.releases - 1) % 2] = state.releases
        return state

    def holds(self, state: State) -> bool:
        """Whether its rows are what they were: later ones may stand there, or parts of them."""
        for buffer, releases in zip(self._buffers, self._written, strict=False):
            if buffer.data_ptr() == state.rows.data_ptr():
                return releases == state.releases
        return True

    def evaluate(self, state: State) -> Evaluation:
        """Loss and metrics of each agent on the common test set; NaN of hostile ones."""
        inputs, targets = self.shards.test_inputs, self.shards.test_targets
        if inputs is None or targets is None:
            raise InputError("Expected shards with a test set, got none: pass test=(inputs, targets).")
        rows = self.reported(state)
        if len(rows) == 1 < self.plan.agents:  # as in `_add_gradients`
            rows = self._aligned(rows.repeat(2, 1))
            twice = evaluate(self.gradients, self.metrics, rows, inputs, targets)
            return Evaluation(twice.loss[:1], {name: values[:1] for name, values in twice.metrics.items()})
        some = at_once(self.gradients.flat.dimension, True) if self.plan.rounded is not None else None
        found = evaluate(self.gradients, self.metrics, rows, inputs, targets, self._widened, some)
        for values in (found.loss, *found.metrics.values()) if self._hostile else ():
            values[self._hostile] = np.nan
        return found

    def _room_in(self, out: Tensor) -> Tensor | None:
        """Where estimates will stand, if gradients may stand there until then: no memory of their own."""
        alone = self._fetch is None and self.device.type == "cpu" and self.plan.rounded is None
        return out[: self._held] if alone else None

    def _mean_gradients(
        self,
        state: State,
        chosen: batch_selection.Selection,
        some: slice = EVERYBODY,
        room: Tensor | None = None,
    ) -> Tensor:
        """Sum of clipped gradients of the `chosen` records, over the divisor that fixes sensitivity.

        Of all agents, or of `some` of them; in `room` [agents, d], if there is some.
        """
        rows = self._widened(self.estimates(state)[some])
        inputs, targets = self.shards.inputs[some], self.shards.targets[some]
        weights = None if chosen.weights is None else chosen.weights[some]
        if chosen.indices is not None:
            agent = torch.arange(len(inputs), device=self.device)[:, None]
            inputs, targets = inputs[agent, chosen.indices[some]], targets[agent, chosen.indices[some]]
        divisor = chosen.divisor[some].to(rows)[:, None]
        if self._plant is None:  # as weights of records: one pass over all sums less
            weights = (divisor.new_ones(()) if weights is None else weights) / divisor
            weights = weights.expand(-1, targets.shape[1])
        count = len(rows)
        if self._copies == 1 and count == 1 < self.plan.agents:
            # Products of one agent alone are rounded otherwise than those of several side by side.
            rows = self._aligned(rows.repeat(2, 1))
            inputs, targets = torch.cat([inputs, inputs]), torch.cat([targets, targets])
            weights = None if weights is None else torch.cat([weights, weights])
        if room is not None and len(rows) == count:
            total = room[some]
        else:
            if self._sums is None or len(self._sums) < len(rows):
                self._sums = self._rows(torch.empty, len(rows))
            total = self._sums[: len(rows)]
        try:
            with self._dropout_of(state.releases):
                self.gradients.clipped_sum(
                    rows, inputs, targets, weights, out=total, copies=self._copies, fresh=True
                )
        except DivergedError as error:
            raise self._named(state, error) from error
        if self._plant is None:
            return total[:count]
        self._plant(state.releases, chosen, total)
        return total[:count].div_(divisor)

    def _named(self, state: State, error: DivergedError) -> DivergedError:
        """The same, with the numbers that agents have in the plan."""
        norms = torch.linalg.vector_norm(self.estimates(state), dim=1, dtype=self.gradients.flat.dtype)
        bad = torch.nonzero(~torch.isfinite(norms)).flatten().cpu().numpy()
        return divergence_error(self.layout.agents[bad].tolist()) if self._copies == 1 else error

    def _dropout_of(self, round: int) -> AbstractContextManager[None]:
        """Random layers draw from torch's global generators: named by the round too, and given back."""
        if not self._random_layers:
            return nullcontext()
        return _seeded(int(stream(self.seed, "layers", round).integers(2**63)), self.device)

    def forget_buffers(self) -> None:
        """Gives back the memory of rows that no state holds; where it goes on, it takes some again."""
        self._buffers, self._written = [], [None, None]

    def _place(self, round: int, made: int) -> Tensor:
        """For the rows of `round`; what stood there is given up."""
        out = self._buffer(round)[:made]
        self._written[round % 2] = None
        return out

    def _buffer(self, round: int) -> Tensor:
        if not self._buffers:
            self._buffers = [self._rows(torch.empty, self._capacity, self._kept_as) for _ in range(2)]
        return self._buffers[round % 2]

    def _aligned(self, rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A copy, in which rows begin where they should."""
        return self._rows(torch.empty, len(rows), dtype).copy_(rows)

    def _widened(self, rows: Tensor) -> Tensor:
        """The same numbers in the model's type; of rounded rows, in a place that the next call overwrites."""
        if self.plan.rounded is None:
            return rows
        if self._wide is None or len(self._wide) < len(rows):
            self._wide = self._rows(torch.empty, len(rows))
        return self._wide[: len(rows)].copy_(rows)

    def _rows(self, make: Callable[..., Tensor], count: int, dtype: torch.dtype | None = None) -> Tensor:
        """[count, d], in the model's type unless another is named; rows begin at multiples of `ALIGN`."""
        flat = self.gradients.flat
        align = ALIGN[self.device.type]
        width = -(-flat.dimension // align) * align
        return make(count, width, dtype=dtype or flat.dtype, device=self.device)[:, : flat.dimension]


def at_once(dimension: int, rounded: bool) -> int:
    """Agents whose gradients are taken together, where there are many; beside them stand widened rows."""
    return max(2, AT_ONCE // (2 if rounded else 1) // dimension)


def _mixer(plan: Plan, noise: Draws, device: torch.device, layout: Layout) -> Callable[[Work], None]:
    """The function that makes the rows of a round on `device`."""
    if plan.robust is not None:
        return RobustRows(plan, _mixer(own_part(plan), noise, device, layout), layout)
    if device.type == "cuda" and find_spec("triton") is not None:
        from topdp.simulator.row_mixing_cuda import Fused

        return Fused(plan, noise, device, layout)
    return RowByRow(plan, noise, layout)


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
