"""What each part of a round costs, beside its floor: what this machine cannot do faster.

Floors are measured in the same turns as the parts: multiplications over the rate of a matrix product that
fits into the cache, by whoever is fastest, bytes over the bandwidth of a copy that does not, draws over the
rate of the generator when it does nothing else. A part may stand below a floor of memory where its rows stay
in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product as all_of
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topdp.base.progress import Progress, silent
from topdp.experiments.bench.bench_job import Data, Job, engine_of, plan_of
from topdp.experiments.bench.turn_timing import Turns, take_turns
from topdp.simulator import normal_draws
from topdp.simulator.row_mixing import RowByRow, Work
from topdp.simulator.simulated_noise import Noise

DRAWN = 1 << 17
"""Numbers in a draw that fits into the cache."""

SIDES = (256, 512, 1024)
COPIED = 1 << 25
"""Numbers in a copy that leaves no cache as it was: 128 MiB, and as much again."""


@dataclass(frozen=True)
class Part:
    """Seconds of one part of a round, and the least that they could be."""

    name: str
    seconds: float
    floor: float
    because: str

    def to_json(self) -> dict[str, Any]:
        return {"part": self.name, "seconds": self.seconds, "floor": self.floor, "because": self.because}


@dataclass(frozen=True)
class Rates:
    """What this machine does in a second, at best."""

    multiplications: float  # each with its addition
    bytes: float
    draws: float


def multiplications(job: Job) -> int:
    """Of one round: forwards, the gradients of both matrices, and back through the second one."""
    first, second = job.inputs * job.hidden, job.hidden * job.classes
    return job.agents * job.batch * (2 * first + 3 * second)


def traffic(job: Job) -> tuple[int, int]:
    """Bytes that gradients and mixing read and write at least, where nothing stays in a cache."""
    rows, records = 4 * job.agents * job.parameters, 4 * job.agents * job.batch * job.inputs
    gradients = 2 * rows + 2 * records  # rows read, sums written; records forwards and for the sums
    mixing = (job.degree + 3) * rows  # own row, those of others and the sums read, new ones written
    return gradients, mixing


def parts_of(
    job: Job, data: Data, turns: int, progress: Progress = silent
) -> tuple[list[Part], Rates, float]:
    """The parts of a round, the rates behind their floors, and the seconds of a whole one."""
    engine = engine_of(job, data, job.noise_multiplier)
    state = engine.resume(0, data.rows.clone())
    sums, out = torch.zeros_like(data.rows), torch.empty_like(data.rows)
    z, noise = np.zeros(job.parameters, np.float32), Noise(0, job.agents, job.rounds + 1)
    quiet = RowByRow(plan_of(job, data, 0.0), noise)

    def whole() -> None:
        nonlocal state
        state = engine.advance(state._replace(releases=state.releases % job.rounds))

    def gradients() -> None:
        engine.gradients.clipped_sum(data.rows, data.inputs, data.targets, out=sums, fresh=True)

    def draws() -> None:
        for seed in noise.seeds(1, np.arange(job.agents)):
            normal_draws.add(seed, np.float32(1), z)

    timed = take_turns(
        {
            "round": whole,
            "gradients": gradients,
            "noise": draws,
            "mixing": lambda: quiet(Work(1, data.rows, sums, out)),
            **_machine(),
        },
        turns,
        progress,
    )
    rates = _rates(timed)
    read, mixed = traffic(job)
    found = [
        Part(
            "gradients",
            timed.best("gradients"),
            multiplications(job) / rates.multiplications + read / rates.bytes,
            f"{2 * multiplications(job) / 1e9:.2f} GFLOP, {read / 1e6:.0f} MB",
        ),
        Part(
            "noise",
            timed.best("noise"),
            job.agents * job.parameters / rates.draws,
            f"{job.agents * job.parameters / 1e6:.2f} M draws",
        ),
        Part("mixing", timed.best("mixing"), mixed / rates.bytes, f"{mixed / 1e6:.0f} MB"),
    ]
    return found, rates, timed.best("round")


def _machine() -> dict[str, Callable[[], object]]:
    """What the floors are made of."""
    one, other = torch.ones(COPIED), torch.empty(COPIED)
    found: dict[str, Callable[[], object]] = {
        "copy": lambda: other.copy_(one),
    }
    drawn, seed = np.zeros(DRAWN, np.float32), np.ones(2, np.uint64)
    found["draw"] = lambda: normal_draws.add(seed, np.float32(1), drawn)
    for (name, product), side in all_of(_PRODUCTS.items(), SIDES):
        square = torch.rand(side, side)
        found[f"{name} {side}"] = partial(product, square)
    return found


def _of_torch(square: Tensor) -> Tensor:
    return square @ square.mT


def _of_onednn(square: Tensor) -> Tensor:
    """In torch too, and on some processors faster than what torch takes."""
    if not torch._C._has_mkldnn:
        return _of_torch(square)
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(square, square, None, "none", [], "")
    return product


_PRODUCTS = {"torch": _of_torch, "oneDNN": _of_onednn}
"""Whoever is fastest says what the machine can do."""


def _rates(timed: Turns) -> Rates:
    return Rates(
        max(side**3 / timed.best(f"{name} {side}") for name, side in all_of(_PRODUCTS, SIDES)),
        2 * 4 * COPIED / timed.best("copy"),
        DRAWN / timed.best("draw"),
    )
