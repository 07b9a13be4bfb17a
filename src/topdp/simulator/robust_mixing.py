"""The arithmetic of robust rules on received rows, for the simulator and for agents.

`plan.robust_rules` defines the rules. `row_mixing` adds the owner's own rows, gradients and noise with their
weights, as in every plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from topdp.base.array_types import Floats, Ints
from topdp.plan import PerRound, Plan, Robust
from topdp.simulator.row_layout import RowLayout
from topdp.simulator.row_mixing import RowWork

MAX_RECEIVED_NUMBERS = {"cpu": 1 << 22, "cuda": 1 << 27}  # numbers of received rows in one tensor


def robust_mean(robust: Robust, own: Tensor, received: Tensor, weight: Tensor) -> Tensor:
    """Return [g, d] the term that the received rows contribute to g rows under the robust rule.

    `own` [g, d]: the owners' own rows; `received` [g, k, d]: the rows that each of them received, with
    weights `weight` [g, k].

    >>> import torch
    >>> own, others = torch.zeros(1, 2), torch.tensor([[[1.0, 0.0], [0.0, 1.0], [90.0, 90.0]]])
    >>> third = torch.full((1, 3), 1 / 3)
    >>> robust_mean(Robust("clipped"), own, others, third).sum(dim=1).round().tolist()
    [1.0]
    >>> robust_mean(Robust("trimmed"), own, others, third).tolist()
    [[0.5, 0.5]]
    >>> robust_mean(Robust("nearest"), own, others, third).isclose(torch.tensor(1 / 3)).all().item()
    True
    """
    k = received.shape[1]
    spared = robust.spared(k)
    if robust.rule == "trimmed":
        rows = torch.cat([own[:, None], received], dim=1)
        return _trimmed_mean(rows, spared) * weight.sum(dim=1, keepdim=True)
    distance = torch.linalg.vector_norm(received - own[:, None], dim=2)  # [g, k]
    # A row that is not finite counts as infinitely far away.
    distance = torch.where(distance.isfinite(), distance, torch.inf)
    if robust.rule == "nearest":
        nearest = _nearest(distance, k - spared)
        share = weight.sum(dim=1, keepdim=True) / (1 + k - spared)
        return _weighted(nearest * share, received) + share * own
    radius = torch.full_like(distance[:, :1], robust.radius or 0.0)
    if robust.radius is None:
        radius = distance.kthvalue(k - spared, dim=1, keepdim=True).values
    # x + min(1, τ/‖x_j - x‖)(x_j - x); He, Karimireddy and Jaggi 2022, Eq. 4
    factor = torch.where(distance > radius, radius / distance, 1.0)
    factor = torch.where(factor.isfinite(), factor, 0.0) * weight
    return _weighted(factor, received) + (weight - factor).sum(dim=1, keepdim=True) * own


def _trimmed_mean(rows: Tensor, spared: int) -> Tensor:
    """Return [g, d] the mean of `rows` [g, k, d] over k, without the `spared` largest and the `spared`
    smallest numbers of each coordinate.
    """
    if not spared:
        return rows.mean(dim=1)
    # Bubble sort of all coordinates at once: the largest numbers move to the end, the smallest to the start.
    rows = torch.nan_to_num(rows, nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    lines = list(rows.unbind(dim=1))
    for done in range(spared):
        last = len(lines) - 1 - done
        for at in (*range(done, last), *range(last - 2, done - 1, -1)):
            first, second = lines[at], lines[at + 1]
            lines[at], lines[at + 1] = torch.minimum(first, second), torch.maximum(first, second)
    return torch.stack(lines[spared : len(lines) - spared]).mean(dim=0)


def _nearest(distance: Tensor, count: int) -> Tensor:
    """Return [g, k] with 1 for each row that is among the `count` nearest, and 0 for all others."""
    nearest = torch.zeros_like(distance)
    if count:
        nearest.scatter_(1, distance.topk(count, dim=1, largest=False).indices, 1.0)
    return nearest


def _weighted(weight: Tensor, rows: Tensor) -> Tensor:
    """Return Σ_k weight·row [g, d]; rows of weight 0 may contain any values, even NaN."""
    if not rows.isfinite().all():
        rows = torch.where((weight != 0)[:, :, None], rows, 0.0)
    return torch.bmm(weight[:, None], rows)[:, 0]


class RobustMixer:
    """A mixer that makes rows with a robust rule.

    `mix` makes the sum of own rows, gradients and noise; this class adds the received rows.
    """

    def __init__(self, plan: Plan, mix: Callable[[RowWork], None], layout: RowLayout | None = None) -> None:
        assert plan.robust is not None
        self.plan, self.robust, self.mix = plan, plan.robust, mix
        self.layout = layout or RowLayout(plan)

    def __call__(self, work: RowWork) -> None:
        self.mix(work)
        device = work.out.device
        for at, index, weight, own in self._groups(work.round, work.only):
            count = max(1, MAX_RECEIVED_NUMBERS[device.type] // (index.shape[1] * work.out.shape[1]))
            for start in range(0, len(at), count):
                some = slice(start, start + count)
                rows = work.before[torch.from_numpy(index[some]).to(device)]
                centre = work.before[torch.from_numpy(own[some]).to(device)]
                weights = torch.from_numpy(weight[some]).to(device, work.out.dtype)
                work.out[torch.from_numpy(at[some]).to(device)] += robust_mean(
                    self.robust, centre, rows, weights
                )

    def _groups(self, round: int, only: Ints | None) -> Iterator[tuple[Ints, Ints, Floats, Ints]]:
        """Yield groups of rows with equally many received rows.

        Each group is (places of the rows, places of their sources, weights, places of their owners). `only`:
        the places of the rows to make; None means all.
        """
        plan, made, place = self.plan, self.layout.made(round), self.layout.place(round)
        position = np.full(plan.rows, -1)
        position[made] = np.arange(len(made))
        filled = np.isin(position, only) if only is not None else position >= 0
        received = plan.received(round) & filled[:, None]
        counts = received.sum(axis=1)
        for k in np.unique(counts[counts > 0]).tolist():
            rows = np.flatnonzero(counts == k)
            slot = np.argsort(~received[rows], axis=1, kind="stable")[:, :k]  # in the order of the plan
            source = np.take_along_axis(plan.source[round][rows], slot, axis=1)
            weight = np.take_along_axis(plan.weight[round][rows], slot, axis=1)
            yield position[rows], place[source], weight, place[plan.owner[rows]]


def own_part(plan: Plan) -> Plan:
    """Return the linear part of a robust plan: the same plan with weight 0 for received rows."""
    kinds = np.stack([plan.source.which, plan.weight.which])
    _, first, which = np.unique(kinds, axis=1, return_index=True, return_inverse=True)
    weights = np.stack([np.where(plan.received(r), 0.0, plan.weight[r]) for r in first.tolist()])
    return replace(plan, weight=PerRound(weights, which.reshape(-1).astype(np.int32)), robust=None)
