"""Canaries: records made to be found, in the place of some of one agent's own.

A canary's clipped gradient has length C and points along one parameter, so that canaries are orthogonal and
no two of them share a number of noise. A fair coin decides of each whether it is there: that is what an
observer has to guess. Two kinds, because a fault may hide from one of them: *aimed* canaries push, round by
round, the way in which this observer sees them best; *turning* ones change their sign every time, and see
noise that comes back.

Not for what an observer makes of it: `scores`.

**Guarantees.** A canary takes the place of one record, is used when the batches use that record, and is
divided by what they divide by. So a coin changes the agent's mean gradient by exactly the sensitivity that
is accounted for, C/b (`add-remove`: there or not) or 2C/b (`replace-one`: C one way or the other).
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

KINDS = ("aimed", "turning")
USUAL = 1000
FEWEST = 40


class AuditError(InputError):
    """An audit that cannot be made as asked: says what was expected, what came and what to do."""


def signs(aim: Floats, period: int) -> Floats:
    """[releases, kinds · classes]: how a canary of each kind and residue class pushes in each round.

    `aim` [releases]: how the aimed ones push in each round.

    >>> signs(np.ones(4), period=2).astype(int).tolist()  # aimed in even and odd rounds, turning likewise
    [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, -1, 0], [0, 1, 0, -1]]
    """
    rounds = np.arange(len(aim))
    used = rounds[:, None] % period == np.arange(period)
    turning = np.where(rounds // period % 2 == 0, 1.0, -1.0)
    return np.concatenate([used * aim[:, None], used * turning[:, None]], axis=1)


@dataclass(frozen=True, eq=False)
class Canaries:
    """Where they are and which of them are there; one entry a canary."""

    owner: int
    records: Ints  # whose place they take
    coordinates: Ints  # the parameter along which they point
    column: Ints  # of `signs`: kind and residue class
    push: Floats  # in units of the clip: what the coin made of it

    def __len__(self) -> int:
        return len(self.records)

    @property
    def there(self) -> Ints:
        """What the observer has to guess."""
        return np.asarray(self.push > 0)

    def among(self, records: Ints) -> Ints:
        """For each of the owner's `records`, which canary stands in its place; -1 for none."""
        canary = np.full(max(records.max(initial=-1), self.records.max(initial=-1)) + 1, -1)
        canary[self.records] = np.arange(len(self))
        return np.asarray(canary[records])

    def select(self, batches: Sequence[Batches], seed: int, round: int, device: torch.device) -> Chosen:
        """The records of a round, without those whose place is taken: and which canaries are used."""
        chosen = batch_selection.select(batches, seed, round, device)
        whole = chosen.weights
        if whole is None:
            whole = torch.ones(len(batches), max(one.records for one in batches), device=device)
        weights, drawn = whole.clone(), whole[self.owner].cpu().numpy() > 0
        at = np.arange(len(drawn)) if chosen.indices is None else chosen.indices[self.owner].cpu().numpy()
        standing = self.among(at)
        weights[self.owner, torch.from_numpy(standing >= 0).to(device)] = 0.0
        return Chosen(chosen.indices, weights, chosen.divisor, standing[drawn & (standing >= 0)])

    def add(self, gradient: Tensor, clip: float, sign: Floats, used: Ints) -> None:
        """Adds the clipped gradients of those that are `used` to the owner's `gradient` [d]."""
        pushed = clip * self.push[used] * sign[self.column[used]]
        gradient[torch.from_numpy(self.coordinates[used]).to(gradient.device)] += torch.from_numpy(pushed).to(
            gradient
        )


@dataclass(frozen=True, eq=False)
class Chosen(batch_selection.Selection):
    """The records of a round, and the canaries that stand among them."""

    used: Ints


def planted(
    owner: int,
    batches: Sequence[Batches],
    worth: Floats,
    count: int,
    dimension: int,
    replaced: bool,
    seed: int,
    order: int,
) -> Canaries:
    """`count` canaries in the shard of `owner`, half of them aimed, in the places that are `worth` most.

    `worth` [classes]: by residue class of the rounds in which a record is used. `replaced`: a coin turns a
    canary round, instead of leaving it away. `order`: the seed of the order of cyclic batches.
    """
    place = _classes(owner, batches, order, len(worth))
    usable = _usable(place, worth)
    records = usable[np.argsort(-worth[place[usable]], kind="stable")][:count]
    random = stream(seed, "audit")
    coordinates = random.permutation(dimension)[:count]
    kind = np.arange(count) % len(KINDS)
    push = np.where(random.integers(0, 2, count), 1.0, -1.0 if replaced else 0.0)
    return Canaries(owner, records, coordinates, kind * len(worth) + place[records], push)


def expect_room(
    asked: int | None, owner: int, batches: Sequence[Batches], worth: Floats, dimension: int, seed: int
) -> int:
    """How many canaries there are to be; refused where they do not fit."""
    records = len(_usable(_classes(owner, batches, seed, len(worth)), worth))
    most = min(records, dimension)
    there = f"agent {owner} has {records} records that are used, and the model {dimension} parameters"
    if asked is None:
        asked = min(USUAL, most)
    if asked > most:
        raise AuditError(
            f"--canaries: expected at most {most}, got {asked}: each takes the place of a record and has a "
            f"parameter of its own; {there}."
        )
    if asked < FEWEST:
        raise AuditError(
            f"--canaries: expected at least {FEWEST}, got {asked}: from fewer nothing follows; {there}."
        )
    return asked


def _classes(owner: int, batches: Sequence[Batches], seed: int, classes: int) -> Ints:
    """[records]: the first round that uses each; -1: none. 0 where that is every round, or by chance."""
    if batches[owner].period == 1:
        return np.zeros(batches[owner].records, np.int64)
    place = np.full(batches[owner].records, -1)
    for round in range(classes):
        chosen = batch_selection.select(batches, seed, round)
        assert chosen.indices is not None and chosen.weights is not None
        place[chosen.indices[owner][chosen.weights[owner] > 0].numpy()] = round
    return place


def _usable(place: Ints, worth: Floats) -> Ints:
    """Records that are used in rounds that tell anything."""
    return np.flatnonzero((place >= 0) & (worth[place] > 0))
