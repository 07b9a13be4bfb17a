"""Canaries: records that are easy to recognise, which replace some of one agent's own records.

A canary's clipped gradient has length C and points along one parameter, its *coordinate*. Each canary has its
own coordinate, so that canaries are orthogonal and their noise is independent. A fair coin decides whether a
canary is present; the observer has to guess the coin. There are two kinds, because a fault may hide from one
of them. An *aimed* canary has, in every round, the sign with which this observer recognises it best. A
*turning* canary changes its sign every time that it is used, which exposes noise that is reused.

The *residue class* of a record is the first round that uses the record. With `cycle` batches, a record is
used in the rounds that are congruent to its residue class modulo the period. With other batches there is only
one class, 0. A *column* of canaries consists of those of one kind and one residue class.

`canary_scores` computes the observer's score of each canary.

If the person is the unit of protection, a canary replaces a person with all of its records; a *record* below
is a person.

**Guarantees.** A canary takes the place of one record. It is used when the batches use that record, and its
gradient is divided by the divisor of the batch. So a coin changes the agent's mean gradient by exactly the
sensitivity that is accounted for: C/b (`add-remove`: present or not) or 2C/b (`replace-one`: C in one
direction or the other).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from topdp.base.array_types import Floats, Ints
from topdp.data import batch_selection
from topdp.errors import InputError
from topdp.plan import Batches, stream
from topdp.plan.noise_key import NoiseKey

CANARY_KINDS = ("aimed", "turning")
DEFAULT_CANARIES = 1000
MIN_CANARIES = 40
FREE_RECORDS = 100
"""By default, canaries leave so many records of the owner free for `planted_records`; at most a tenth."""


class AuditError(InputError):
    """An audit that is impossible as requested, or files of an audit that cannot be used."""


def signs(aim: Floats, period: int) -> Floats:
    """Return the sign of each column of canaries in each round, [releases, kinds · classes].

    The sign is 0 in rounds that do not use the column. `aim` [releases]: the sign of the aimed canaries in
    each round. `period`: the number of residue classes.

    >>> signs(np.ones(4), period=2).astype(int).tolist()  # aimed in even and odd rounds, turning likewise
    [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, -1, 0], [0, 1, 0, -1]]
    """
    rounds = np.arange(len(aim))
    used = rounds[:, None] % period == np.arange(period)
    turning = np.where(rounds // period % 2 == 0, 1.0, -1.0)
    return np.concatenate([used * aim[:, None], used * turning[:, None]], axis=1)


@dataclass(frozen=True, eq=False, kw_only=True)
class Canaries:
    """The canaries of one agent, with their coins. Each array has one element per canary."""

    owner: int
    records: Ints  # the record that each canary replaces
    coordinates: Ints  # the parameter along which each canary points
    column: Ints  # each canary's column of `signs`: its kind and residue class
    push: Floats  # the signed length of its gradient in units of the clip: 1 if present, otherwise 0 or -1

    def __len__(self) -> int:
        return len(self.records)

    @property
    def present(self) -> Ints:
        """For each canary, whether its coin made it present. The observer has to guess this."""
        return np.asarray(self.push > 0)

    def among(self, records: Ints) -> Ints:
        """Return, for each of the owner's `records`, the canary that replaces it, or -1 if none does."""
        canary = np.full(max(records.max(initial=-1), self.records.max(initial=-1)) + 1, -1)
        canary[self.records] = np.arange(len(self))
        return np.asarray(canary[records])

    def select(
        self, batches: Sequence[Batches], seed: int, round: int, device: torch.device, key: NoiseKey
    ) -> CanarySelection:
        """Return the records and the canaries that `round` uses. Replaced records have the weight 0."""
        selection = batch_selection.select(batches, seed, round, device, key)
        weights = selection.weights
        if weights is None:
            weights = torch.ones(len(batches), max(own.records for own in batches), device=device)
        drawn = weights[self.owner].cpu().numpy() > 0
        records = selection.indices
        canaries = self.among(np.arange(len(drawn)) if records is None else records[self.owner].cpu().numpy())
        weights = weights.clone()
        weights[self.owner, torch.from_numpy(canaries >= 0).to(device)] = 0.0
        return CanarySelection(records, weights, selection.divisor, canaries[drawn & (canaries >= 0)])

    def add(self, gradient: Tensor, clip: float, sign: Floats, used: Ints) -> None:
        """Add the clipped gradients of the canaries in `used` to the owner's `gradient` [d]."""
        pushes = clip * self.push[used] * sign[self.column[used]]
        gradient[torch.from_numpy(self.coordinates[used]).to(gradient.device)] += torch.from_numpy(pushes).to(
            gradient
        )


@dataclass(frozen=True, eq=False)
class CanarySelection(batch_selection.Selection):
    """The records that a round uses, and the canaries that it uses."""

    used: Ints  # the numbers of the canaries


def plant_canaries(
    owner: int,
    batches: Sequence[Batches],
    worth: Floats,
    *,
    count: int,
    dimension: int,
    replace_one: bool,
    seed: int,
    order: int,
) -> Canaries:
    """Return canaries that replace `count` records of `owner`; aimed and turning canaries alternate.

    The replaced records are those whose residue class has the largest `worth`. `worth` [classes]: the μ² of a
    canary in each residue class. `replace_one`: whether the coin flips the sign of a canary; otherwise it
    decides whether the canary is present. `seed` determines coordinates and coins. `order`: the seed of the
    order of `cycle` batches.
    """
    residue = _residue_classes(owner, batches, order, len(worth))
    usable = _usable(residue, worth)
    records = usable[np.argsort(-worth[residue[usable]], kind="stable")][:count]
    random = stream(seed, "audit")
    coordinates = random.permutation(dimension)[:count]
    kind = np.arange(count) % len(CANARY_KINDS)
    push = np.where(random.integers(0, 2, count), 1.0, -1.0 if replace_one else 0.0)
    return Canaries(
        owner=owner,
        records=records,
        coordinates=coordinates,
        column=kind * len(worth) + residue[records],
        push=push,
    )


def canary_count(
    requested: int | None, owner: int, batches: Sequence[Batches], worth: Floats, dimension: int, seed: int
) -> int:
    """Return the number of canaries: `requested`, or by default as many as fit, up to 1,000.

    Raise AuditError if `requested` is more than fit, or if the number is too small for an audit.
    """
    records = len(_usable(_residue_classes(owner, batches, seed, len(worth)), worth))
    limit = min(records, dimension)
    reason = f"Agent {owner} has {records} usable records, and the model has {dimension} parameters."
    spare = max(MIN_CANARIES, records - min(FREE_RECORDS, records // 10))
    count = min(DEFAULT_CANARIES, limit, spare) if requested is None else requested
    if count > limit:
        raise AuditError(
            f"--canaries: expected at most {limit}, got {count}. Each canary needs a record and a parameter "
            f"of its own. {reason}"
        )
    if count < MIN_CANARIES:
        raise AuditError(
            f"--canaries: expected at least {MIN_CANARIES}, got {count}, which prove nothing. {reason}"
        )
    return count


def _residue_classes(owner: int, batches: Sequence[Batches], seed: int, classes: int) -> Ints:
    """Return for each record the number of the round, within a cycle, that uses it [records].

    The number is -1 if no round uses the record. With full or Poisson batches, all are 0.
    """
    if batches[owner].period == 1:
        return np.zeros(batches[owner].records, np.int64)
    residue = np.full(batches[owner].records, -1)
    for round in range(classes):
        selection = batch_selection.select(batches, seed, round)
        assert selection.indices is not None and selection.weights is not None
        residue[selection.indices[owner][selection.weights[owner] > 0].numpy()] = round
    return residue


def _usable(residue: Ints, worth: Floats) -> Ints:
    """Return the records that are used in rounds from which the observer learns something about them."""
    return np.flatnonzero((residue >= 0) & (worth[residue] > 0))
