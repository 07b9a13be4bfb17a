"""Planted records: copies of one real record with a long gradient, so that an audit also tests clipping.

Canaries are gradients: they do not pass through the model, the loss and the clipping. Planted records do.
They replace some of the owner's records that no canary replaces, and are used whenever these would be. Their
clipped gradient is computed here from its definition, without the code that is audited. `noise_checks`
compares it with what the owner's rows contain along its direction.

A model with random layers, or one that depends on more than its row and the record, has no gradient that can
be predicted. Then there are no planted records.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from topdp.audit.noise_checks import Columns, PlantedColumn
from topdp.base.array_types import Floats, Ints
from topdp.data import Shards
from topdp.data.batch_selection import Selection
from topdp.learning.gradients import ClippedGradients
from topdp.learning.gradients.clipping_rules import NORMALISATION_GAMMA, layer_of
from topdp.plan import Plan

PLANTED_RECORDS = 50
"""The most planted records. More would show the same faults, and disturb the run more."""

EXAMINED_RECORDS = 16
INPUT_SCALES = (1.0, 4.0, 16.0, 64.0)
"""The records of the owner, and the factors of their inputs, from which one is chosen."""

WANTED_LENGTH = 8.0
"""The wanted length of its gradient, in clips. The model learns a record with a longer one more quickly."""

SHORTEST = 1e-6  # of the clip; along shorter gradients there is nothing to test


@dataclass(frozen=True, eq=False, kw_only=True)
class PlantedRecords:
    """Copies of the record (`input`, `target`) in the `places` of the owner's records."""

    owner: int
    places: Ints  # ascending
    shares: Floats  # of each place: 1, or 1/r for the r records of a person
    input: Tensor
    target: Tensor
    gradients: ClippedGradients

    @property
    def clip(self) -> float:
        return self.gradients.clip

    def planted_in(self, shards: Shards) -> Shards:
        """Return `shards` with the planted records."""
        inputs, targets = shards.inputs.clone(), shards.targets.clone()
        inputs[self.owner, self.places], targets[self.owner, self.places] = self.input, self.target
        return replace(shards, inputs=inputs, targets=targets)

    def clipped_gradient(self, row: Tensor) -> Tensor:
        """Return the clipped gradient of a planted record at the parameters in `row`, in float64 [d]."""
        return _clipped(_gradient(self.gradients, row, self.input, self.target), self.gradients)

    def count(self, selection: Selection) -> float:
        """Return how many planted records (or persons) the `selection` of a round uses."""
        used = self._records(selection)[(self._at(selection) & (self._weights(selection) > 0)).cpu().numpy()]
        return float(self.shares[np.searchsorted(self.places, used)].sum())

    def without(self, selection: Selection, row: Tensor, shards: Shards) -> Tensor:
        """Return the owner's sum [d] of the clipped gradients of all other records of the `selection`.

        It is computed by the code that is audited, because all other records are given.
        """
        weights = self._weights(selection) * ~self._at(selection)
        inputs, targets = shards.inputs[self.owner], shards.targets[self.owner]
        if selection.indices is not None:
            chosen = selection.indices[self.owner]
            inputs, targets = inputs[chosen], targets[chosen]
        return self.gradients.clipped_sum(row[None], inputs[None], targets[None], weights[None])[0]

    def _weights(self, selection: Selection) -> Tensor:
        assert selection.weights is not None  # canaries have the weight 0
        return selection.weights[self.owner]

    def _at(self, selection: Selection) -> Tensor:
        """Return for each record of the `selection` whether it is planted."""
        planted = np.isin(self._records(selection), self.places)
        return torch.from_numpy(planted).to(selection.divisor.device)

    def _records(self, selection: Selection) -> Ints:
        """Return the number of each record of the `selection`."""
        if selection.indices is None:
            return np.arange(len(self._weights(selection)))
        return selection.indices[self.owner].cpu().numpy()


class Probe:
    """The numbers of one release after the other along the clipped gradient of the planted records."""

    def __init__(self, plan: Plan, planted: PlantedRecords, shards: Shards) -> None:
        """`shards`: with the planted records, on the device of the run."""
        self.plan, self.planted, self.shards = plan, planted, shards
        self._expected: Tensor | None = None

    def begin(self, release: int, rows: Tensor, row: Tensor) -> None:
        """Begin a release. `rows`: those of the previous release; `row`: the owner's estimate among them."""
        gradient = self.planted.clipped_gradient(row)
        self._length = float(gradient.norm())
        if self._length < SHORTEST * self.planted.clip:
            gradient, self._length = torch.zeros_like(gradient), 1.0
        self._row, self._direction = row.clone(), (gradient / self._length).to(rows)
        self._before = self._along(release - 1, rows)
        self._expected = None

    def expect(self, sums: Tensor, selection: Selection) -> None:
        """Note the mean gradients that enter the rows if clipping is right. `sums`: without canaries."""
        owner, count = self.planted.owner, self.planted.count(selection)
        expected = sums @ self._direction
        others = self.planted.without(selection, self._row, self.shards)
        expected[owner] = others @ self._direction + count * self._length
        self._expected = (expected / selection.divisor.to(sums)).double().cpu()
        self._planned = count * self._length / float(selection.divisor[owner])

    def add(self, added: Tensor, coordinates: Tensor) -> None:
        """Note what the canaries added to the owner's mean gradient at their `coordinates`."""
        assert self._expected is not None
        self._expected[self.planted.owner] += float(added @ self._direction[coordinates])

    def column(self, release: int, rows: Tensor) -> PlantedColumn | None:
        """Return the column of a release that made `rows`; None if it used no planted record."""
        if self._expected is None or not self._planned or not self._direction.any():
            return None
        columns = Columns(self._before, self._along(release, rows), self._expected.numpy()[:, None])
        return PlantedColumn(columns, self._planned)

    def _along(self, release: int, rows: Tensor) -> Floats:
        numbers = (rows @ self._direction).double().cpu().numpy()
        column = np.full((self.plan.rows, 1), np.nan)
        if release < 0:
            column[:] = numbers[0]  # all rows start equal
        else:
            column[self.plan.exists[release], 0] = numbers
        return column


def plant_records(
    gradients: ClippedGradients, shards: Shards, start: Tensor, owner: int, free: Ints
) -> PlantedRecords | None:
    """Return planted records in at most half of the `free` records (or persons) of `owner`.

    If all records were equal, clipping their mean could not be told from clipping each. Return None if there
    are none, or if no gradient at `start` can be predicted and is longer than the clip.
    """
    places = free[: min(PLANTED_RECORDS, len(free) // 2)]
    if not len(places):
        return None
    shares = np.ones(len(places))
    if shards.person_records is not None:  # a planted person has copies in place of all of its records
        sizes = shards.person_records.sizes(owner)[places]
        records = shards.person_records.records_of(owner, places)
        order = np.argsort(records)
        places, shares = records[order], np.repeat(1 / sizes, sizes)[order]
    best, best_distance = None, math.log(WANTED_LENGTH)
    for x, y in _candidates(shards, owner):
        with suppress(Exception):  # a model may fail on a record, and then another one is planted
            first, again = (_gradient(gradients, start, x, y, seed) for seed in range(2))
            distance = abs(math.log(float(first.norm()) / gradients.clip / WANTED_LENGTH))
            if torch.equal(first, again) and distance < best_distance:
                best, best_distance = (x, y), distance
    if best is None:
        return None
    return PlantedRecords(
        owner=owner, places=places, shares=shares, input=best[0], target=best[1], gradients=gradients
    )


def _candidates(shards: Shards, owner: int) -> Iterator[tuple[Tensor, Tensor]]:
    scales = INPUT_SCALES if shards.inputs.is_floating_point() else (1,)
    for record in range(min(EXAMINED_RECORDS, shards.counts[owner])):
        for scale in scales:
            yield shards.inputs[owner, record] * scale, shards.targets[owner, record]


def _gradient(gradients: ClippedGradients, row: Tensor, x: Tensor, y: Tensor, seed: int = 0) -> Tensor:
    """Return the gradient of one record by torch, in float64 [d]. `seed`: of random layers."""
    row = row.detach().double().requires_grad_()
    module = copy.deepcopy(gradients.flat.module).to(device=row.device, dtype=row.dtype)
    x, y = (part.to(row.device, row.dtype if part.is_floating_point() else None) for part in (x, y))
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.default_generator.manual_seed(seed)
        outputs = functional_call(module, gradients.flat.named(row), (x[None],))
        loss = gradients.loss(outputs, y[None]).sum()
        return torch.autograd.grad(loss, row)[0]


def _clipped(gradient: Tensor, rules: ClippedGradients) -> Tensor:
    """Return the gradient clipped as its definition states (`clipping_rules`)."""
    clip = rules.clip
    if rules.clipping == "normalised":
        return gradient * (clip / (float(gradient.norm()) + NORMALISATION_GAMMA))
    groups: dict[str, list[Tensor]] = {}
    for slot in rules.flat.slots:
        name = layer_of(slot) if rules.clipping == "per-layer" else ""
        groups.setdefault(name, []).append(torch.arange(slot.start, slot.stop))
    clipped = gradient.clone()
    for parts in groups.values():
        at = torch.cat(parts)
        clipped[at] *= min(1.0, clip / math.sqrt(len(groups)) / float(gradient[at].norm().clamp_min(1e-300)))
    return clipped
