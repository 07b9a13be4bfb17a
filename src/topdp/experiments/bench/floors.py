"""The time of each part of a round, beside its floor: the least time this machine could need for it.

A floor is an amount of work divided by a rate of this machine. The rates are measured in the same turns as
the parts. Multiplications are divided by the rate of the fastest matrix product that fits into the cache,
bytes by the bandwidth of a copy that does not fit, and draws by the rate of the generator alone. A part may
be faster than its memory floor if its rows stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor

from topdp.experiments.bench.bench_job import BenchData, BenchJob, Turns, bench_plan, take_turns, topdp_round
from topdp.learning.gradients import ClippedGradients
from topdp.plan.noise_key import NoiseKey
from topdp.simulator import normal_draws
from topdp.simulator.row_mixing import CpuMixer, RowWork
from topdp.simulator.simulated_noise import SimulatedDraws

CACHED_DRAW_NUMBERS = 1 << 17
"""The length of a draw that fits into the cache."""

MATRIX_SIDES = (256, 512, 1024)
COPY_NUMBERS = 1 << 25
"""The length of a copy that fits into no cache: it reads 128 MiB and writes as much."""


@dataclass(frozen=True)
class RoundPart:
    """The seconds of one part of a round, and its floor in seconds."""

    part: str
    seconds: float
    floor: float
    because: str  # the amounts from which the floor follows


@dataclass(frozen=True)
class Rates:
    """The best rates of this machine, per second."""

    multiplications: float  # each with an addition
    bytes: float
    draws: float


def multiplications(job: BenchJob) -> int:
    """Return the number of multiplications in a round of the job's network, which has two weight matrices.

    It counts the forward pass, the gradients of both matrices, and the backward pass through the second
    matrix.
    """
    first, second = job.inputs * job.hidden, job.hidden * job.classes
    return job.agents * job.batch * (2 * first + 3 * second)


def traffic(job: BenchJob) -> tuple[int, int]:
    """Return the bytes that (gradients, mixing) must read and write if nothing stays in a cache."""
    rows, records = 4 * job.agents * job.parameters, 4 * job.agents * job.batch * job.inputs
    gradients = 2 * rows + 2 * records  # rows read, sums written; records read forward and for the sums
    mixing = (job.degree + 3) * rows  # own row, other rows and sums read; new rows written
    return gradients, mixing


def measure_parts(job: BenchJob, data: BenchData, turns: int) -> tuple[list[RoundPart], Rates, float]:
    """Return the parts of a round, the rates behind their floors, and the seconds of a whole round."""
    clipped = ClippedGradients(job.network(), job.clip)
    sums, out = torch.zeros_like(data.rows), torch.empty_like(data.rows)
    z, noise = (
        np.zeros(job.parameters, np.float32),
        SimulatedDraws(NoiseKey.fresh(), job.agents, job.rounds + 1),
    )
    mixing = CpuMixer(bench_plan(job, data, 0.0), noise)

    def draws() -> None:
        for agent in range(job.agents):
            normal_draws.add(noise.keys[0], 1, agent, np.float32(1), z)

    times = take_turns(
        {
            "round": topdp_round(job, data, job.noise_multiplier),
            "gradients": lambda: clipped.clipped_sum(
                data.rows, data.inputs, data.targets, out=sums, fresh=True
            ),
            "noise": draws,
            "mixing": lambda: mixing(RowWork(round=1, before=data.rows, gradient=sums, out=out)),
            **_floor_tasks(),
        },
        turns,
    )
    rates = _rates(times)
    gradient_bytes, mixing_bytes = traffic(job)
    products, numbers = multiplications(job), job.agents * job.parameters
    floors = {
        "gradients": (
            products / rates.multiplications + gradient_bytes / rates.bytes,
            f"{2 * products / 1e9:.2f} GFLOP, {gradient_bytes / 1e6:.0f} MB",
        ),
        "noise": (numbers / rates.draws, f"{numbers / 1e6:.2f} M draws"),
        "mixing": (mixing_bytes / rates.bytes, f"{mixing_bytes / 1e6:.0f} MB"),
    }
    parts = [RoundPart(name, times.best(name), *floor) for name, floor in floors.items()]
    return parts, rates, times.best("round")


def _floor_tasks() -> dict[str, Callable[[], object]]:
    """Return the tasks whose times give the rates of this machine."""
    source, target = torch.ones(COPY_NUMBERS), torch.empty(COPY_NUMBERS)
    row, key = np.zeros(CACHED_DRAW_NUMBERS, np.float32), np.ones(8, np.uint32)
    tasks: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(source),
        "draw": lambda: normal_draws.add(key, 0, 0, np.float32(1), row),
    }
    for (name, multiply), side in product(_PRODUCTS.items(), MATRIX_SIDES):
        square = torch.rand(side, side)
        tasks[f"{name} {side}"] = partial(multiply, square)
    return tasks


def _torch_product(square: Tensor) -> Tensor:
    return square @ square.mT


def _onednn_product(square: Tensor) -> Tensor:
    """Multiply with oneDNN, which torch contains but does not choose. It is faster on some processors."""
    if not torch._C._has_mkldnn:
        return _torch_product(square)
    result: Tensor = torch.ops.mkldnn._linear_pointwise.default(square, square, None, "none", [], "")
    return result


_PRODUCTS = {"torch": _torch_product, "oneDNN": _onednn_product}
"""The faster of the two defines the machine's rate of multiplications."""


def _rates(times: Turns) -> Rates:
    return Rates(
        max(side**3 / times.best(f"{name} {side}") for name, side in product(_PRODUCTS, MATRIX_SIDES)),
        2 * 4 * COPY_NUMBERS / times.best("copy"),
        CACHED_DRAW_NUMBERS / times.best("draw"),
    )
