"""The engine: executes a plan on data, on one device, for all agents or for those of one rank.

The engine uses plans, gradients and shards. Its callers handle methods, budgets and files, and decide what to
evaluate, print or save between releases. A `Fetch` function receives the rows of agents on other ranks
(ranks/).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from topdp.base.array_types import Ints
from topdp.data import batch_selection
from topdp.data.person_records import PersonRecords
from topdp.data.shards import Shards
from topdp.errors import InputError, TopdpError
from topdp.learning.gradients import ClippedGradients, DivergedError
from topdp.learning.gradients.gradient_checks import divergence_error
from topdp.learning.gradients.path_check import draws_dropout
from topdp.learning.gradients.record_streams import seeded_streams
from topdp.learning.metrics import Metric
from topdp.learning.tasks import Task
from topdp.plan import Capability, Plan, ReleaseKind, prune
from topdp.plan.batches import Batches, Full
from topdp.plan.noise_key import NoiseKey
from topdp.plan.random_streams import stream
from topdp.simulator.adaptive_step import adaptive_step
from topdp.simulator.evaluation import Evaluation, evaluate
from topdp.simulator.robust_mixing import RobustMixer, own_part
from topdp.simulator.row_buffers import RowBuffers
from topdp.simulator.row_layout import RowLayout
from topdp.simulator.row_mixing import CpuMixer, RowWork
from topdp.simulator.simulated_noise import Draws, SimulatedDraws
from topdp.simulator.simulation import Simulation, State

MAX_NOISE_STD = 1e30
# The largest number of gradient entries in memory at a time, if there are many agents.
MAX_GRADIENT_NUMBERS = 1 << 26

ALL_AGENTS = slice(None)

# (round, device) -> the records that all agents use in the round, or the persons if these are the unit.
Select = Callable[[int, torch.device], batch_selection.Selection]

# (round, records of the round, sums of clipped gradients [agents, d]) -> None. The function may add clipped
# gradients to the sums.
Plant = Callable[[int, batch_selection.Selection, Tensor], None]

# (round, rows that were made [rows, d], their owners) -> None. The function may change rows before any agent
# reads them.
Tamper = Callable[[int, Tensor, Ints], None]

# (round, rows of the previous round, followed by space for the guests of `row_layout`) -> a function that
# waits for the guests. The call itself starts to send and to receive rows.
Fetch = Callable[[int, Tensor], Callable[[], None]]


class WrongReplayError(TopdpError):
    """An error for a recorded round (cuda_replay.py) that first matched the engine, and later did not."""


@dataclass(frozen=True)
class Intervention:
    """What audits and simulated attacks change in a simulation.

    `plant` adds the gradients of records that are not data: the canaries of an audit. `tamper` changes the
    rows of the `hostile` agents, which are not evaluated. `every_row`: also make the rows that no later
    estimate needs, for an audit in which the readers of such rows are observers.
    """

    plant: Plant | None = None
    tamper: Tamper | None = None
    hostile: tuple[int, ...] = ()
    every_row: bool = False


def supports(plan: Plan, tampered: bool = False) -> str | None:
    """Return None if an engine can execute `plan`, and otherwise the reason why it cannot.

    `tampered`: whether hostile agents change rows, which they cannot do in a plan that rounds rows.
    """
    if tampered and Capability.ROUNDED_ROWS in plan.needs:
        return f"{plan.needs[Capability.ROUNDED_ROWS]}, of which none is rounded if agents are hostile"
    if np.abs(plan.std.values).max(initial=0) * plan.scale.max() > MAX_NOISE_STD:
        return f"noise above {MAX_NOISE_STD:g}, which float32 cannot hold: use a smaller sigma, clip or rate"
    if not plan.exists[:, : plan.agents].all():
        return "agents without an estimate in some round"
    return None


class Engine(Simulation):
    """A simulation that executes `plan` on `shards` in one process; `batches` has one entry for each agent.

    The same seed and key on the same device give the same bits. The public `seed` determines the order of
    cycles and the masks of random layers; the secret `key` determines noise and Poisson batches. If it is
    None, it is new. `draws` and `select` replace the noise and the records. With `copies`, the plan contains
    the agents of `shards` several times, one copy of all agents after the other. All copies of an agent have
    its records and use all of them in each round. If `metrics` is None, the defaults for the loss are used.

    With a `layout`, shards and batches are those of the agents on this rank. `fetch` then receives the rows
    of other agents from which rows of these agents are mixed. Agents have the same numbers as in the plan. If
    there are many agents, gradients are computed for some agents at a time (`MAX_GRADIENT_NUMBERS`).

    If the plan rounds rows, they are computed in float32 and rounded once, when they are stored. They are
    converted back to float32 for some agents at a time, so that no tensor is as large as all rows in float32.

    Only rows on which a later estimate depends are made (`plan.prune`); the statistics are the same.

    `mixer`, `buffers`, `select`, `held`, `copies` and `mean_gradients` are for `CudaReplay`, which makes the
    same rounds in another way. Run loops use only the methods of `Simulation`.
    """

    def __init__(
        self,
        plan: Plan,
        gradients: ClippedGradients,
        shards: Shards,
        batches: Sequence[Batches],
        *,
        seed: int,
        key: NoiseKey | None = None,
        device: torch.device | str = "cpu",
        draws: Draws | None = None,
        select: Select | None = None,
        intervention: Intervention | None = None,
        copies: int = 1,
        metrics: Sequence[Metric] | None = None,
        layout: RowLayout | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        self.intervention = intervention or Intervention()
        # The number of agents whose rows this process makes.
        self.held = plan.agents if layout is None else len(layout.agents)
        if shards.agents * copies != self.held:
            raise InputError(f"Expected shards for {self.held} agents, got {shards.agents * copies}.")
        if copies > 1 and not all(isinstance(strategy, Full) for strategy in batches):
            raise InputError("Expected full batches if several runs share their records, got other batches.")
        if [strategy.records for strategy in batches] != list(shards.unit_counts) * copies:
            units = "records" if shards.persons is None else "persons"
            raise InputError(
                f"Expected batches of the {units} that agents hold, {list(shards.unit_counts)}, got batches "
                f"of {[strategy.records for strategy in batches]} {units}, for which noise is calibrated."
            )
        self.plan = plan if plan.pruned or self.intervention.every_row else prune(plan)
        if reason := supports(self.plan, self.intervention.tamper is not None):
            raise InputError(f"Expected a plan that can be simulated, got {reason}.")
        self.layout = layout or RowLayout(self.plan)
        if self.layout.plan is not self.plan:
            raise InputError("Expected the layout of the pruned plan that is executed, got another plan's.")
        self.gradients = gradients
        self.device = torch.device(device)
        self.shards = shards.to(self.device, gradients.flat.dtype)
        self.has_test_records = self.shards.test_inputs is not None
        self.seed = seed
        self.batches = tuple(batches)
        self.metrics = Task.of(gradients.loss).metrics if metrics is None else tuple(metrics)
        self.copies = copies
        key = key or NoiseKey.fresh()
        self.select = select or partial(batch_selection.select, tuple(batches), seed, key=key)
        if shards.person_records is not None:
            self.select = partial(_records_of_persons, self.select, shards.person_records)
        self.random_layers = any(map(draws_dropout, gradients.flat.module.modules()))
        self.fetch = fetch
        self.buffers = RowBuffers(self.layout.capacity, gradients.flat, plan.rounded, self.device)
        self._sums: Tensor | None = None
        self._wide: Tensor | None = None
        draws = draws or SimulatedDraws(key, plan.draws, plan.releases)
        self.mixer = _mixer(self.plan, draws, self.device, self.layout)

    def start(self, start: Tensor) -> State:
        return State(0, self.buffers.copy_of(start.detach().expand(self.held, -1), self.buffers.stored))

    def resume(self, releases: int, rows: Tensor) -> State:
        if not 0 <= releases <= self.plan.releases:
            raise InputError(f"Expected 0 to {self.plan.releases} releases, got {releases}.")
        shape = (len(self.layout.made(releases - 1)), self.gradients.flat.dimension)
        if rows.shape != shape:
            raise InputError(
                f"Expected rows of shape {shape} after {releases} releases, got {tuple(rows.shape)}."
            )
        if releases and rows.dtype != self.buffers.stored:  # the account of the plan assumes its rounding
            raise InputError(
                f"Expected rows of {self.buffers.stored}, as this plan stores them, got {rows.dtype}. "
                "Resume from a checkpoint of this plan."
            )
        return State(releases, self.buffers.copy_of(rows, self.buffers.stored))

    def estimates(self, state: State) -> Tensor:
        """Return the estimates [agents, d], in the number type in which rows are stored."""
        return state.rows[: self.held]

    def reported(self, state: State) -> Tensor:
        if self.plan.reported is None or state.releases == 0:
            return self.estimates(state)
        position = self.layout.place_made(state.releases - 1)[self.plan.reported[self.layout.agents]]
        return self.buffers.copy_of(state.rows[torch.from_numpy(position)], self.buffers.stored)

    def advance(self, state: State, at_most: int = 1) -> State:
        """Return the state after the next release. This engine makes only one release per call."""
        r = state.releases
        if self.plan.kinds[r] is ReleaseKind.ADAPTIVE:
            return self._adaptive_release(state)
        made = self.layout.made(r)
        out = self.buffers.begin(r, len(made))
        before, wait_for_guests = self._with_guests(state)
        # Releases without gradients read no records. `gradient` is then any tensor, which no mixer reads.
        if not self.plan.carries[r].any():
            self._make(RowWork(round=r, before=before, gradient=before, out=out), wait_for_guests)
            return self._complete(State(r + 1, out))
        chosen = self.select(r, self.device)
        owners = self.layout.place_of[self.plan.owner[made]]
        # On a CPU, gradients can be stored in the rows of the estimates until the estimates are made.
        free = self.fetch is None and self.device.type == "cpu" and self.plan.rounded is None
        space = out[: self.held] if free else None
        for agents in self._passes():
            only = None
            if agents != ALL_AGENTS:
                only = np.flatnonzero((owners >= agents.start) & (owners < agents.stop))
            gradient = self.mean_gradients(state, chosen, agents, space)
            self._make(
                RowWork(
                    round=r, before=before, gradient=gradient, out=out, only=only, first=agents.start or 0
                ),
                wait_for_guests,
            )
        return self._complete(State(r + 1, out))

    def _passes(self) -> list[slice]:
        """Return the groups of agents whose gradients are computed together."""
        rounded = self.plan.rounded is not None
        count = agents_per_pass(self.gradients.flat.dimension, rounded)
        inseparable = self.copies > 1 or self.random_layers or self.intervention.plant is not None
        if inseparable or (self.device.type != "cpu" and not rounded) or count >= self.held:
            return [ALL_AGENTS]
        return [slice(first, first + count) for first in range(0, self.held, count)]

    def _with_guests(self, state: State) -> tuple[Tensor, Callable[[], None]]:
        """Return the rows of the previous round followed by space for guests, and a function that waits until
        the guests have arrived there.
        """
        r = state.releases
        if self.fetch is None:
            return state.rows, lambda: None
        count = len(state.rows)
        rows = self.buffers.of(r - 1)[: count + sum(len(rows) for _, rows in self.layout.arriving(r))]
        if rows.data_ptr() != state.rows.data_ptr():  # the rows are starts, or come from a checkpoint
            rows[:count] = state.rows
        return rows, self.fetch(r, rows)

    def _make(self, work: RowWork, wait_for_guests: Callable[[], None]) -> None:
        """Make the rows of a release. On a CPU, rows that need no guests are made before guests arrive."""
        if self.fetch is None or self.device.type != "cpu":
            wait_for_guests()
            self.mixer(work)
            return
        waits = self.layout.needs_guests(work.round)[self.layout.made(work.round)]
        only = np.arange(len(waits)) if work.only is None else work.only
        self.mixer(replace(work, only=only[~waits[only]]))
        wait_for_guests()
        self.mixer(replace(work, only=only[waits[only]]))

    def _adaptive_release(self, state: State) -> State:
        """Return the state after an adaptive step, which uses no records, no noise and no mixing."""
        assert self.plan.adaptive is not None
        r = state.releases
        place, made = self.layout.place(r), self.layout.made(r)
        out = self.buffers.begin(r, len(made))
        out.copy_(state.rows[torch.from_numpy(place[made])])  # rows that the step does not make do not change
        columns = self.plan.source[r][self.layout.agents, : 1 + self.plan.adaptive.memories].T
        position = self.layout.place_made(r)
        before = [state.rows[torch.from_numpy(place[rows])] for rows in columns]
        for rows, value in zip(columns, adaptive_step(self.plan, r, before), strict=True):
            if self.plan.exists[r][rows].all():  # a pruned plan lacks rows that no later release needs
                out[torch.from_numpy(position[rows])] = value
        return self._complete(State(r + 1, out))

    def _complete(self, state: State) -> State:
        """Let hostile agents change their rows, mark the rows as complete, and return the state."""
        if self.intervention.tamper is not None:
            round = state.releases - 1
            owners = self.plan.owner[self.plan.exists[round]].astype(np.int64)
            self.intervention.tamper(round, state.rows, owners)
        self.buffers.complete(state.releases)
        return state

    def holds(self, state: State) -> bool:
        return self.buffers.holds(state)

    def release_buffers(self) -> None:
        self.buffers.release()

    def evaluate(self, state: State) -> Evaluation:
        """Return loss and metrics of each agent on the common test records; NaN for hostile agents."""
        inputs, targets = self.shards.test_inputs, self.shards.test_targets
        if inputs is None or targets is None:
            raise InputError("Expected shards with a test set, got none. Pass test=(inputs, targets).")
        rows = self.reported(state)
        if len(rows) == 1 < self.plan.agents:  # for the reason in `mean_gradients`
            rows = self.buffers.copy_of(rows.repeat(2, 1))
            twice = evaluate(self.gradients, self.metrics, rows, inputs, targets)
            return Evaluation(twice.loss[:1], {name: values[:1] for name, values in twice.metrics.items()})
        count = agents_per_pass(self.gradients.flat.dimension, True) if self.plan.rounded else None
        evaluation = evaluate(self.gradients, self.metrics, rows, inputs, targets, self._widened, count)
        if self.intervention.hostile:
            for values in (evaluation.loss, *evaluation.metrics.values()):
                values[list(self.intervention.hostile)] = np.nan
        return evaluation

    def mean_gradients(
        self,
        state: State,
        chosen: batch_selection.Selection,
        agents: slice = ALL_AGENTS,
        space: Tensor | None = None,
    ) -> Tensor:
        """Return the mean gradients of `agents`: sums of clipped gradients of the `chosen` records, divided
        by the divisor of the sensitivity.

        If `space` [agents, d] is given, the result is stored there. Raise DivergedError, with the numbers of
        the agents in the plan, if parameters are not finite.
        """
        rows = self._widened(self.estimates(state)[agents])
        inputs, targets = self.shards.inputs[agents], self.shards.targets[agents]
        weights = None if chosen.weights is None else chosen.weights[agents]
        if chosen.indices is not None:
            agent = torch.arange(len(inputs), device=self.device)[:, None]
            inputs, targets = inputs[agent, chosen.indices[agents]], targets[agent, chosen.indices[agents]]
        divisor = chosen.divisor[agents].to(rows)[:, None]
        plant = self.intervention.plant
        if plant is None:  # divide the weights of records instead of the sums, which saves a pass over memory
            weights = (divisor.new_ones(()) if weights is None else weights) / divisor
            weights = weights.expand(-1, targets.shape[1])
        count = len(rows)
        if self.copies == 1 and count == 1 < self.plan.agents:
            # Matrix products of a single agent are rounded differently from those of several.
            rows = self.buffers.copy_of(rows.repeat(2, 1))
            inputs, targets = torch.cat([inputs, inputs]), torch.cat([targets, targets])
            weights = None if weights is None else torch.cat([weights, weights])
        if space is not None and len(rows) == count:
            total = space[agents]
        else:
            if self._sums is None or len(self._sums) < len(rows):
                self._sums = self.buffers.empty(len(rows))
            total = self._sums[: len(rows)]
        try:
            with self._layer_randomness(state.releases, agents):
                self.gradients.clipped_sum(
                    rows, inputs, targets, weights, out=total, copies=self.copies, fresh=True
                )
        except DivergedError as error:
            if self.copies > 1:
                raise
            norms = torch.linalg.vector_norm(self.estimates(state), dim=1, dtype=self.gradients.flat.dtype)
            bad = torch.nonzero(~torch.isfinite(norms)).flatten().cpu().numpy()
            raise divergence_error(self.layout.agents[bad].tolist()) from error
        if plant is None:
            return total[:count]
        plant(state.releases, chosen, total)
        return total[:count].div_(divisor)

    def _layer_randomness(self, round: int, agents: slice) -> AbstractContextManager[None]:
        """Return a context in which the random numbers of models follow from the seed, round and agents."""
        if not self.gradients.may_draw:
            return nullcontext()
        return seeded_streams(int(stream(self.seed, "layers", round, agents.start or 0).integers(2**62)))

    def _widened(self, rows: Tensor) -> Tensor:
        """Return the same numbers in the model's number type.

        If rows are rounded, the result is in memory that the next call overwrites.
        """
        if self.plan.rounded is None:
            return rows
        if self._wide is None or len(self._wide) < len(rows):
            self._wide = self.buffers.empty(len(rows))
        return self._wide[: len(rows)].copy_(rows)


def _records_of_persons(
    select: Select, persons: PersonRecords, round: int, device: torch.device
) -> batch_selection.Selection:
    return persons.of_selection(select(round, device))


def agents_per_pass(dimension: int, rounded: bool) -> int:
    """Return for how many agents gradients are computed together.

    `dimension`: numbers per row; `rounded`: whether the rows are rounded, so that each also needs a copy in
    float32.
    """
    return max(2, MAX_GRADIENT_NUMBERS // (2 if rounded else 1) // dimension)


def _mixer(plan: Plan, draws: Draws, device: torch.device, layout: RowLayout) -> Callable[[RowWork], None]:
    """Return the function that makes the rows of a round on `device`."""
    if plan.robust is not None:
        return RobustMixer(plan, _mixer(own_part(plan), draws, device, layout), layout)
    if device.type == "cuda" and find_spec("triton") is not None:
        from topdp.simulator.row_mixing_cuda import CudaMixer

        return CudaMixer(plan, draws, device, layout)
    return CpuMixer(plan, draws, layout)
