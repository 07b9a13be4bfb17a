"""Poisson-sampled Gaussian releases, computed with dp-accounting: loss distributions and Rényi curves.

Full and cyclic batches have closed forms in `gaussian`.

**Guarantees.** The adjacency is `add-remove`, and the sensitivity is one clipped gradient. Every release has
fresh noise, and a fresh, secret coin for each record. Both functions return upper bounds. Many different
noise multipliers are grouped, and each group counts with its least noise multiplier. This errs on the private
side, by about a hundredth of the noise.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from topdp.base.array_types import Floats
from topdp.privacy.basics.refusals import NotCovered

# dp-accounting raises a Fourier transform to the T-th power. On full batches, for which δ is known exactly,
# rounding then lost up to 3.4e-17·T of δ (μ from 0.1 to 3, T up to 1e5). Six times this amount is subtracted
# from δ beforehand.
_FOURIER_LOSS = 2e-16
# Orders from 11 on are integers, for which the divergence is a finite sum. Fewer orders make the result less
# tight, never less private.
_ORDERS = np.array(
    [1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [int(64 * 1.1**k) for k in range(38)],
    dtype=float,
)

# If there are more distinct noise multipliers than this, `grouped` groups them, with this tolerance.
MAX_UNGROUPED, GROUP_TOLERANCE = 64, 0.02


def loss_distribution_epsilon(noise_multipliers: Floats, delta: float, rate: float) -> float:
    """Return ε at δ by the composed privacy loss distribution (Doroshenko et al. 2022, arXiv:2207.04380).

    `noise_multipliers`: one value for each release. `rate`: the probability of a record to be sampled. Raise
    NotCovered if the distributions are too coarse for δ, or cannot represent so little noise.
    """
    from dp_accounting.pld import privacy_loss_distribution

    releases = len(noise_multipliers)
    slack = _FOURIER_LOSS * releases
    if slack > delta / 100:
        raise NotCovered(
            f"Loss distributions of {releases} sampled releases are exact to {slack:.0e}: too coarse for "
            f"delta={delta:g}. Take delta >= {100 * slack:.0e}, or the calibration 'optimal'."
        )
    interval = _interval(noise_multipliers, rate)
    total = privacy_loss_distribution.identity(value_discretization_interval=interval)
    try:
        with np.errstate(all="ignore"):
            for z, count in grouped(noise_multipliers):
                total = total.compose(_one_release(float(z), interval, rate).self_compose(int(count)))
            epsilon = float(total.get_epsilon_for_delta(delta - slack))
    except OverflowError:
        epsilon = math.nan
    if math.isnan(epsilon):
        least = float(np.min(noise_multipliers))
        raise NotCovered(f"Loss distributions of sampled releases cannot hold noise multiplier {least:g}.")
    return max(epsilon, 0.0)


@lru_cache(maxsize=MAX_UNGROUPED)  # ledgers compose the same release again in every round
def _one_release(z: float, interval: float, rate: float) -> Any:
    """Return the privacy loss distribution of one sampled release, on a grid with spacing `interval`."""
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        z, value_discretization_interval=interval, sampling_prob=rate
    )


def renyi_curve(noise_multipliers: Floats, rate: float) -> tuple[Floats, Floats]:
    """Return Rényi orders, and the divergence of the composition at each (Mironov, Talwar, Zhang 2019).

    `noise_multipliers`: one value for each release. `rate`: the probability of a record to be sampled.
    """
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(_ORDERS)
    with _quiet(), np.errstate(all="ignore"):
        for z, count in grouped(noise_multipliers):
            event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(float(z)))
            accountant.compose(event, int(count))
    curve = np.asarray(accountant.rdp, dtype=np.float64)
    # A negative divergence is the result of rounding in the series. Such an order is not used.
    return _ORDERS, np.where(curve >= 0, curve, np.inf)


def grouped(noise_multipliers: Floats) -> list[tuple[float, int]]:
    """Return pairs (noise multiplier, number of releases), in ascending order.

    If there are many distinct values, similar values are grouped, and the least value stands for its group.
    Each value needs a separate loss distribution, so noise that changes in every round would take hours.

    The least value makes the Σ 1/z² of a group too large. A group ends when this error would exceed (2%)² of
    the Σ 1/z² of all releases. Noise that follows linearly falling steps makes about fifty groups.
    """
    distinct, counts = np.unique(noise_multipliers, return_counts=True)
    if len(distinct) <= MAX_UNGROUPED:
        return list(zip(distinct.tolist(), counts.tolist(), strict=True))
    information = distinct**-2.0
    allowed = GROUP_TOLERANCE**2 * float(information @ counts)
    groups: list[tuple[float, int]] = []
    start, excess = 0, 0.0
    for at in range(1, len(distinct)):
        excess += float((information[start] - information[at]) * counts[at])
        if excess > allowed:
            groups.append((float(distinct[start]), int(counts[start:at].sum())))
            start, excess = at, 0.0
    return [*groups, (float(distinct[start]), int(counts[start:].sum()))]


def _interval(noise_multipliers: Floats, rate: float) -> float:
    """Return the spacing of the grid of losses: small compared with the spread of one release's loss.

    It is large enough for the grid to remain affordable.
    """
    z = float(np.min(noise_multipliers))
    span = 10 / z + 1 / (2 * z * z)
    spread = min(rate * math.sqrt(math.expm1(min(1 / (z * z), 700.0))), span)
    releases = len(noise_multipliers)
    total = releases * min(math.log1p(spread * spread), span) + 12 * math.sqrt(releases) * spread + span
    return max(min(spread / 30, span / 5e3), span / 1e5, total / 1e7)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence dp-accounting's log about orders that it skips, because `renyi_curve` does not use them."""
    logger = logging.getLogger("absl")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
