"""Canaries: records made to be recognised, which replace some of one agent's own records.

A canary's clipped gradient has length C and points along one parameter, so that canaries are orthogonal and
their noise is independent. A fair coin decides whether each canary is present; the observer has to guess the
coin. There are two kinds, because a fault may hide from one of them. *Aimed* canaries push, round by round,
in the direction that this observer sees best. *Turning* canaries change their sign every time, which exposes
noise that is reused.

`canary_scores` computes an observer's scores of them.

**Guarantees.** A canary takes the place of one record, is used when the batches use that record, and is
divided by what they divide by. So a coin changes the agent's mean gradient by exactly the sensitivity that
is accounted for: C/b (`add-remove`: present or not) or 2C/b (`replace-one`: C in one direction or the other).
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

CANARY_KINDS = ("aimed", "turning")
DEFAULT_CANARIES = 1000
MIN_CANARIES = 40


class AuditError(InputError):
    """An audit that is impossible as requested."""


def signs(aim: Floats, period: int) -> Floats:
    """Return the sign of each kind and residue class in each round, [releases, kinds · classes].

    `aim` [releases]: the sign of the aimed canaries in each round.

    >>> signs(np.ones(4), period=2).astype(int).tolist()  # aimed in even and odd rounds, turning likewise
    [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, -1, 0], [0, 1, 0, -1]]
    """
    rounds = np.arange(len(aim))
    used = rounds[:, None] % period == np.arange(period)
    turning = np.where(rounds // period % 2 == 0, 1.0, -1.0)
    return np.concatenate([used * aim[:, None], used * turning[:, None]], axis=1)


@dataclass(frozen=True, eq=False, kw_only=True)
class Canaries:
    """The canaries of one agent, with their coins; arrays have one entry per canary."""

    owner: int
    records: Ints  # the records that they replace
    coordinates: Ints  # the parameter along which each canary points
    column: Ints  # each canary's column of `signs`: its kind and residue class
    push: Floats  # the length of its gradient in units of the clip, according to its coin

    def __len__(self) -> int:
        return len(self.records)

    @property
    def present(self) -> Ints:
        """The coins, which the observer has to guess."""
        return np.asarray(self.push > 0)

    def among(self, records: Ints) -> Ints:
        """Return for each of the owner's `records` the canary that replaces it, or -1."""
        canary = np.full(max(records.max(initial=-1), self.records.max(initial=-1)) + 1, -1)
        canary[self.records] = np.arange(len(self))
        return np.asarray(canary[records])

    def select(
        self, batches: Sequence[Batches], seed: int, round: int, device: torch.device
    ) -> CanarySelection:
        """Return the records that `round` uses, without the replaced ones, and the canaries that it uses."""
        selection = batch_selection.select(batches, seed, round, device)
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
    """The records of a round, and the canaries among them."""

    used: Ints


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
    """Replace `count` records of `owner`, those of largest `worth`, by aimed and turning canaries in turn.

    `worth` [classes]: the μ² of a canary by residue class of the rounds that use its record.
    `replace_one`: the coin flips the sign of a canary; otherwise it decides whether the canary is
    present. `order`: the seed of the order of cyclic batches.
    """
    place = _residue_classes(owner, batches, order, len(worth))
    usable = _usable(place, worth)
    records = usable[np.argsort(-worth[place[usable]], kind="stable")][:count]
    random = stream(seed, "audit")
    coordinates = random.permutation(dimension)[:count]
    kind = np.arange(count) % len(CANARY_KINDS)
    push = np.where(random.integers(0, 2, count), 1.0, -1.0 if replace_one else 0.0)
    return Canaries(
        owner=owner,
        records=records,
        coordinates=coordinates,
        column=kind * len(worth) + place[records],
        push=push,
    )


def canary_count(
    requested: int | None, owner: int, batches: Sequence[Batches], worth: Floats, dimension: int, seed: int
) -> int:
    """Return the number of canaries: `requested`, or by default as many as fit up to 1,000.

    Raise AuditError if they do not fit.
    """
    records = len(_usable(_residue_classes(owner, batches, seed, len(worth)), worth))
    limit = min(records, dimension)
    reason = f"agent {owner} has {records} records that are used, and the model has {dimension} parameters"
    count = min(DEFAULT_CANARIES, limit) if requested is None else requested
    if count > limit:
        raise AuditError(
            f"--canaries: expected at most {limit}, got {count}. Each replaces a record and uses a parameter "
            f"of its own; {reason}."
        )
    if count < MIN_CANARIES:
        raise AuditError(
            f"--canaries: expected at least {MIN_CANARIES}, got {count}. Fewer prove nothing; {reason}."
        )
    return count


def _residue_classes(owner: int, batches: Sequence[Batches], seed: int, classes: int) -> Ints:
    """Return the first round that uses each record, [records]; -1 if none does.

    0 where every round uses all records, or random ones.
    """
    if batches[owner].period == 1:
        return np.zeros(batches[owner].records, np.int64)
    place = np.full(batches[owner].records, -1)
    for round in range(classes):
        selection = batch_selection.select(batches, seed, round)
        assert selection.indices is not None and selection.weights is not None
        place[selection.indices[owner][selection.weights[owner] > 0].numpy()] = round
    return place


def _usable(place: Ints, worth: Floats) -> Ints:
    """Return the records used in rounds that carry information."""
    return np.flatnonzero((place >= 0) & (worth[place] > 0))
