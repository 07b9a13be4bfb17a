"""Runs with canaries, and for each canary a score: the best linear statistic of what the observer saw.

`execute` runs the plan with the same engine, noise, batches and gradients as in any run. It yields the rows,
gradients and draws of each round, restricted to the canaries' coordinates.

Given everything seen before, each number that the observer sees is Gaussian with a variance that does not
depend on data. The *innovation* of a round is what the observer sees minus its expectation. Once whitened
(`privacy.observers`), it consists of noise and of the contributions of the canaries that are present. The
score of a canary is the sum over rounds of its contribution times the innovation. In units of its standard
deviation, the score is N(μ, 1) if the canary is present and N(0, 1) if not, with the μ that follows from the
plan. `findings` derives bounds from the scores.

**Guarantees.** The scores use the rows that the observer receives or makes, the draws that it knows, and the
gradients of all agents without the canaries. They do not use the coins. Noise that the observer knows is
subtracted at the strength that the plan states, unless the rows show another strength (`_fit`). The scores
may use the gradients, because in differential privacy an observer knows all other records, and an observer
that sees the estimates knows the points at which the gradients were taken. An observer that does not see the
estimates gets the gradients too. This is the assumption of the `view` answer, which treats gradients as fixed
inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from topdp.audit.audit_observer import Observer
from topdp.audit.canaries import AuditError, Canaries, CanarySelection
from topdp.audit.noise_checks import PlantedColumn
from topdp.audit.planted_records import PlantedRecords, Probe
from topdp.base.array_types import Bools, Floats, Indices, Ints
from topdp.data.batch_selection import Selection
from topdp.plan import Plan, Round
from topdp.plan.noise_key import NoiseKey
from topdp.privacy.observers.gram_matrix import SHIFT_ROUNDING
from topdp.privacy.observers.observer_filter import FilteredRound, filtered_rounds, seen_rows, unknown_draws
from topdp.runs.assembly import Assembly
from topdp.simulator.engine import Engine, Intervention
from topdp.simulator.simulated_noise import Draws, SimulatedDraws

NOISELESS_RESOLUTION = 1e-4  # larger than rounding errors, smaller than any noise
"""The standard deviation assumed for a row without noise, as a share of the largest change in that row."""


UNPLANNED_STRENGTH = 5.0
"""How many of its standard deviations the strength of known noise may differ from the plan without a fit."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ObservedRound:
    """The rows, gradients and draws of one round, restricted to the parameters to which canaries point.

    The scores use only the rows that the observer sees. `noise_checks` uses everything.
    """

    rows: Floats  # [rows of the plan, canaries]; NaN for rows that were not made
    gradients: Floats  # [agents, canaries]: mean gradients of the round, without canaries
    draws: Callable[[int], Floats]  # returns a draw [canaries]; called only for draws that the observer knows
    added: Floats  # [canaries]: what the canaries added to the owner's mean gradient
    planted: PlantedColumn | None = None


@dataclass(frozen=True, kw_only=True)
class Shift:
    """One round as the observer sees it, and the whitened contribution of a canary in each column."""

    sight: FilteredRound
    fresh: Floats  # [fresh rows, columns]: contributions to rows with noise of their own
    leaks: Ints  # the null rows (positions in `sight.null`) that show a contribution without noise
    bare: Floats  # [leaks, columns]: contributions to these rows
    unit: Floats  # [leaks]: the assumed standard deviation by which `bare` was divided


def shifts(observer: Observer, owner: int, sensitivity: float, signs: Floats) -> Iterator[Shift]:
    """Yield a `Shift` for each round.

    `signs` [releases, columns]: the change that a canary of each column causes in the owner's mean gradient
    of each release, in units of `sensitivity`.
    """
    S = np.zeros((0, signs.shape[1]))
    # An attacker may ignore rounding; a statistic that is not quite the best is still a valid test.
    rounds = filtered_rounds(observer.plan, observer.coalition, observer.public, trust_null_rows=True)
    for sight, sign in zip(rounds, signs, strict=True):
        step = np.where(sight.owner == owner, sight.step, 0.0) * sensitivity
        # S ← W S + step; D is what the observer sees of S; S ← S - K D (Kalman 1960).
        S = np.asarray(sight.mix @ S) + step[:, None] * sign
        D = sight.inverse @ S[sight.fresh]
        rest = S[sight.null] - sight.null_weights @ S[sight.fresh]
        size = sight.null_size[:, None] * sensitivity + np.abs(sight.null_weights) @ np.abs(S[sight.fresh])
        rest[np.abs(rest) <= SHIFT_ROUNDING * size] = 0.0
        leaks = np.flatnonzero(rest.any(axis=1))
        unit = NOISELESS_RESOLUTION * np.abs(rest[leaks]).max(axis=1, initial=0.0)
        yield Shift(sight=sight, fresh=D, leaks=leaks, bare=rest[leaks] / unit[:, None], unit=unit)
        S = S[: sight.kept] - sight.gain.T @ D


def information(observer: Observer, owner: int, sensitivity: float, signs: Floats) -> Floats:
    """Return μ² of a canary in each column of `signs`."""
    total = np.zeros(signs.shape[1])
    for shift in shifts(observer, owner, sensitivity, signs):
        total += (shift.fresh**2).sum(axis=0) + (shift.bare**2).sum(axis=0)
    return total


def canary_scores(
    observer: Observer,
    owner: int,
    sensitivity: float,
    rounds: Iterable[ObservedRound],
    *,
    signs: Floats,
    column: Ints,
    start: Floats,
) -> Floats:
    """Return the scores [canaries], in units of the standard deviation that follows from the plan.

    `column` [canaries]: the column of `signs` of each canary. `start` [canaries]: the public initial row.
    """
    plan = observer.plan
    visible = seen_rows(plan, observer.coalition, observer.public)
    knows = ~unknown_draws(plan, observer.coalition)
    before = np.broadcast_to(start, (plan.rows, len(column)))
    total, variance = np.zeros(len(column)), np.zeros(signs.shape[1])
    all_shifts = shifts(observer, owner, sensitivity, signs)
    for r, (shift, observed) in enumerate(zip(all_shifts, rounds, strict=True)):
        sight = shift.sight
        expected = _expected(plan[r], plan.owner, sight.rows, observed, before, knows)
        new = observed.rows[sight.rows] - expected
        _fit(new[sight.kept :], _known_noise(plan, r, observer, observed, before))
        innovation = sight.inverse @ new[sight.fresh]
        exact = new[sight.null[shift.leaks]] - sight.null_weights[shift.leaks] @ new[sight.fresh]
        for part, whitened in ((shift.fresh, innovation), (shift.bare, exact / shift.unit[:, None])):
            variance += (part**2).sum(axis=0)
            total += (part[:, column] * whitened).sum(axis=0)
        before = np.full(observed.rows.shape, np.nan)
        before[sight.rows[: sight.kept]] = expected[: sight.kept] + sight.gain.T @ innovation
        before[visible[r]] = observed.rows[visible[r]]
    deviation = np.sqrt(variance)[column]
    return np.asarray(np.divide(total, deviation, out=np.zeros_like(deviation), where=deviation > 0))


def _expected(
    this: Round, owner: Indices, rows: Ints, observed: ObservedRound, before: Floats, knows: Bools
) -> Floats:
    """Return the expectation of `rows`, given what the observer has seen, [rows, canaries].

    `owner` [rows of the plan]: who makes each row. `before` [rows of the plan, canaries]: the rows of the
    previous round that the observer saw, and expectations of the others. `knows` [draws]: whether the
    observer knows a draw.
    """
    expected = this.step[rows][:, None] * observed.gradients[owner[rows]]
    for source, weight in zip(this.source[rows].T, this.weight[rows].T, strict=True):
        used = (source >= 0) & (weight != 0)
        expected[used] += weight[used, None] * before[source[used]]
    # Add the draws that the observer shares with the agent that made the row.
    draw, std = this.draw[rows], this.std[rows]
    for live, entry in np.argwhere((draw >= 0) & (std != 0) & knows[draw]):
        expected[live] += std[live, entry] * observed.draws(int(draw[live, entry]))
    return np.asarray(expected)


def _known_noise(plan: Plan, r: int, observer: Observer, observed: ObservedRound, before: Floats) -> Floats:
    """Return the noise of round `r` that the observer knows, [vectors, canaries].

    It knows the noise in its own rows, and each draw that it shares with the agent of another row.
    """
    this, own = plan[r], observer.coalition[plan.owner]
    used = (this.draw >= 0) & (this.std != 0) & this.exists[:, None]
    nothing = np.zeros(plan.draws, bool)
    rows = np.flatnonzero(own & used.any(axis=1))
    noise = observed.rows[rows] - _expected(this, plan.owner, rows, observed, before, nothing)
    numbers = np.unique(this.draw[~own][used[~own]])
    shared = numbers[~unknown_draws(plan, observer.coalition)[numbers]]
    return np.array([*noise, *(observed.draws(int(number)) for number in shared)]).reshape(-1, noise.shape[1])


def _fit(new: Floats, known: Floats) -> None:
    """Subtract from each row of `new` the `known` noise that is still in it, at the fitted strength.

    Noise whose strength differs from the plan by less than chance allows is not fitted. So in a correct run
    scores are exactly normal, except with a probability of about one in a million for each row.
    """
    lengths = [np.sqrt((part**2).sum(axis=1, keepdims=True)) for part in (new, known)]
    unit, others = (
        part / np.where(size > 0, size, 1.0) for part, size in zip((new, known), lengths, strict=True)
    )
    cosine = unit @ others.T
    deviations = np.abs(cosine) * np.sqrt(new.shape[1] / np.maximum(1 - cosine**2, 1e-12))
    for row, far in zip(new, deviations > UNPLANNED_STRENGTH, strict=True):
        if far.any():
            row -= known[far].T @ np.linalg.lstsq(known[far].T, row, rcond=None)[0]


def execute(
    parts: Assembly,
    plan: Plan,
    canaries: Canaries,
    signs: Floats,
    seed: int,
    noise: Draws | None = None,
    planted: PlantedRecords | None = None,
) -> Iterator[ObservedRound]:
    """Execute `plan` with canaries, and yield what happened in each round.

    `seed` determines the order of cycles and random layers. Noise and samples are new, unless the run has a
    noise seed, to which `seed` is then added. `noise`: other draws.
    """
    noise_seed = parts.run.config.noise_seed
    key = NoiseKey.fresh() if noise_seed is None else NoiseKey.of_seed(noise_seed + seed)
    noise = noise or SimulatedDraws(key, plan.draws, plan.releases)
    clip, batches = parts.run.config.privacy.clip, parts.run.batches
    coordinates = torch.from_numpy(canaries.coordinates).to(parts.device)
    shards = parts.shards if planted is None else planted.planted_in(parts.shards)
    shards = shards.to(parts.device, parts.flat.dtype)
    probe = None if planted is None else Probe(plan, planted, shards)
    gradients: list[Floats] = []

    def plant(round: int, selection: Selection, sums: Tensor) -> None:
        assert isinstance(selection, CanarySelection)
        divisor = selection.divisor.to(sums)[:, None]
        gradients[:] = [_numbers(sums[:, coordinates] / divisor)]
        if probe is not None:
            probe.expect(sums, selection)
        added = torch.zeros_like(sums[0])
        canaries.add(added, clip, signs[round], selection.used)
        sums[canaries.owner] += added
        added = added[coordinates] / divisor[canaries.owner]
        gradients.append(_numbers(added))
        if probe is not None:
            probe.add(added, coordinates)

    def draw(number: int, round: int) -> Floats:
        if parts.device.type != "cpu":
            raise AuditError("Expected a CPU, got a GPU, which cannot return draws. Use --device cpu.")
        row = torch.empty(parts.flat.dimension, dtype=parts.flat.dtype)
        return _numbers(noise.fill(row, round, number)[coordinates])

    engine = Engine(
        plan,
        parts.gradients,
        shards,
        batches,
        seed=seed,
        device=parts.device,
        draws=noise,
        select=lambda round, device: canaries.select(batches, seed, round, device, key),
        intervention=Intervention(plant=plant, every_row=True),
    )
    state = engine.start(parts.start)
    for round in range(plan.releases):
        if probe is not None:
            probe.begin(round, state.rows, engine.estimates(state)[canaries.owner])
        state = engine.advance(state)
        rows = np.full((plan.rows, len(canaries)), np.nan)
        rows[plan.exists[round]] = _numbers(state.rows[:, coordinates])
        column = None if probe is None else probe.column(round, state.rows)
        yield ObservedRound(
            rows=rows,
            gradients=gradients[0],
            draws=partial(draw, round=round),
            added=gradients[1],
            planted=column,
        )


def _numbers(tensor: Tensor) -> Floats:
    return np.asarray(tensor.detach().double().cpu().numpy())
