"""`topdp.linear_regression`: least squares with a ridge, from sufficient statistics in one release.

With x̃ = (x, 1), the least-squares weights follow from the means of x̃x̃ᵀ (the Gram matrix) and of x̃y. Both
are one vector per record, of which `aggregate` releases the mean. A record whose vector is longer than the
bound counts less, with one factor for both parts, so the fit is a weighted least-squares fit.

Noise makes a Gram matrix indefinite, and its inverse amplifies noise. So negative eigenvalues are set to 0,
and the ridge is added to all of them. By default it is half the expected largest eigenvalue of the noise:
with less, a direction in which records hardly vary may get a large weight from noise alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from topdp.base.array_types import Floats
from topdp.data import Shards
from topdp.errors import DataError, InputError
from topdp.runs.statistics.aggregate import Aggregate, aggregate_vectors, expect_no_persons
from topdp.runs.user_training import expect_shards
from topdp.topology import Topology

# Chosen on made-up tables and on `diabetes`, at ε = 1 (docs/guides/statistics.md): the square of a number in
# [-1, 1] up to which a record counts in full, and the ridge over the largest eigenvalue of the noise.
COUNTED_SQUARE = 1 / 6
RIDGE_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class LinearFit:
    """The linear function of a private regression.

    >>> import torch, topdp
    >>> x = 2 * torch.rand(5, 4000, 2) - 1
    >>> shards = topdp.Shards.from_arrays([(part, 0.5 * part[:, 0] - 0.25) for part in x])
    >>> fit = topdp.linear_regression(shards, topdp.topology.ring(5), epsilon=5.0)
    >>> fit.weights.shape, fit.predict([[1.0, 0.0]]).shape, fit.r2(x[0], 0.5 * x[0, :, 0] - 0.25) > 0.95
    ((2, 1), (1,), True)
    """

    weights: Floats
    """[inputs, targets]"""
    intercept: Floats
    """[targets]"""
    ridge: float
    """The number that was added to the eigenvalues of the mean of x̃x̃ᵀ."""
    aggregate: Aggregate = field(repr=False)

    def predict(self, inputs: ArrayLike) -> Floats:
        """Return the predictions for `inputs` [records, ...]: [records], or [records, targets] of several."""
        x = np.asarray(inputs, float)
        x = x.reshape(len(x), -1)
        if x.shape[1] != len(self.weights):
            raise InputError(f"Expected records of {len(self.weights)} numbers, got {x.shape[1]}.")
        predictions = x @ self.weights + self.intercept
        return np.asarray(predictions[:, 0] if self.weights.shape[1] == 1 else predictions)

    def r2(self, inputs: ArrayLike, targets: ArrayLike) -> float:
        """Return 1 - (squared error) / (squared distance of the targets from their mean); 1 is perfect."""
        y = np.asarray(targets, float)
        return float(1 - np.square(y - self.predict(inputs)).sum() / np.square(y - y.mean(0)).sum())


def linear_regression(
    shards: Shards,
    topology: Topology | nx.Graph | str | Path | None = None,
    *,
    square_bound: float | None = None,
    target_bound: float = 0.5,
    ridge: float | str = "auto",
    **release: Any,
) -> LinearFit:
    """Return a private least-squares fit of the targets to the inputs, from one release.

    `square_bound`: the squared norm of (inputs, 1) up to which a record counts in full, from public
    knowledge; None: 1 + d/6 for d inputs in [-1, 1], as a schema scales them. `target_bound`: likewise for
    the norm of the target. `ridge`: the number to add to the eigenvalues of the mean of x̃x̃ᵀ; "auto": half
    the expected largest eigenvalue of its noise. `topology` and the other arguments are those of
    `topdp.aggregate`.

    >>> import torch, topdp
    >>> x = 2 * torch.rand(3, 2000, 4) - 1
    >>> shards = topdp.Shards.from_arrays([(part, part.mean(1)) for part in x])
    >>> fit = topdp.linear_regression(shards, topdp.topology.complete(3), epsilon=3.0)
    >>> fit.aggregate.plan.rounds, fit.weights.shape, fit.ridge > 0
    (0, (4, 1), True)
    """
    expect_shards(shards)
    expect_no_persons(shards)
    if shards.targets.dim() > 3 or not shards.inputs.is_floating_point():
        raise DataError(
            "Expected inputs that are numbers, and one or several numbers as target, got inputs of type "
            f"{shards.inputs.dtype} and targets of shape {tuple(shards.targets.shape[2:])}."
        )
    if not (ridge == "auto" or (isinstance(ridge, int | float) and math.isfinite(ridge) and ridge >= 0)):
        raise InputError(f'Expected ridge to be "auto" or a finite number >= 0, got {ridge!r}.')
    width = math.prod(shards.inputs.shape[2:]) + 1
    square = 1 + (width - 1) * COUNTED_SQUARE if square_bound is None else float(square_bound)
    for name, value in (("square_bound", square), ("target_bound", float(target_bound))):
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"Expected a finite {name} > 0, got {value}.")
    factor = math.sqrt(square) / float(
        target_bound
    )  # both parts of the vector then have the same largest norm
    released = aggregate_vectors(
        [_statistics(*part, factor) for part in _records(shards)],
        topology,
        bound=math.sqrt(2) * square,
        **release,
    )
    upper = np.triu_indices(width)
    gram = np.zeros((width, width))
    gram[upper] = released.mean[: len(upper[0])] / np.where(upper[0] == upper[1], 1, math.sqrt(2))
    gram = gram + np.triu(gram, 1).T
    products = released.mean[len(upper[0]) :].reshape(width, -1) / factor
    added = RIDGE_SHARE * noise_eigenvalue(released.deviation, width) if ridge == "auto" else float(ridge)
    values, vectors = np.linalg.eigh(gram)
    raised = np.maximum(values, 0) + added
    usable = raised > 0
    inverse = (vectors[:, usable] / raised[usable]) @ vectors[:, usable].T
    solution = inverse @ products
    return LinearFit(weights=solution[:-1], intercept=solution[-1], ridge=added, aggregate=released)


def noise_eigenvalue(deviation: float, width: int) -> float:
    """Return about the largest eigenvalue of the noise of a Gram matrix [width, width].

    The noise has the standard deviation `deviation` on the diagonal, and `deviation`/√2 beside it.

    >>> round(noise_eigenvalue(0.1, 50), 2)
    1.0
    """
    return deviation * math.sqrt(2 * width)


def _records(shards: Shards) -> Sequence[tuple[Tensor, Tensor]]:
    """Return inputs [records, numbers] and targets [records, targets] of each agent."""
    return [
        (
            shards.inputs[agent, :count].double().reshape(count, -1),
            shards.targets[agent, :count].double().reshape(count, -1),
        )
        for agent, count in enumerate(shards.counts)
    ]


def _statistics(inputs: Tensor, targets: Tensor, factor: float) -> Tensor:
    """Return for each record the upper triangle of x̃x̃ᵀ, with √2 beside the diagonal, and `factor`·x̃y.

    The norm of the triangle is then |x̃|².
    """
    x = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=torch.float64)], 1)
    row, column = np.triu_indices(x.shape[1])
    scale = torch.where(torch.from_numpy(row == column), 1.0, math.sqrt(2)).double()
    products = (x[:, :, None] * targets[:, None, :]).flatten(1)
    return torch.cat([x[:, row] * x[:, column] * scale, factor * products], 1)
