"""Schedules: the step size and the noise along the rounds, the same for all agents.

T rounds make T + 1 releases: round 0 is the release before the loop, and uses the values of t = 0.

**Guarantees.** None by itself: a schedule is part of the plan, and every account includes it. It depends on
settings only; a curvature must be chosen without access to private data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topdp.base.array_types import Floats
from topdp.errors import InputError


@dataclass(frozen=True)
class Schedule:
    """Step size λ and noise scale of every release; both [T+1].

    >>> import numpy as np
    >>> Schedule(rate=np.full(21, 0.5), noise=np.full(21, 0.5)).releases
    21
    """

    rate: Floats
    noise: Floats

    @property
    def releases(self) -> int:
        return len(self.rate)


def learning_rates(
    initial: float,
    rounds: int,
    fading: str,
    rounds_per_epoch: int = 1,
    factor: float = 0.5,
    period: int | None = None,
) -> Floats:
    """Return [T+1]: the step sizes λ_t of the releases of T `rounds`.

    `fading` is one of `none`: constant. `linear`: falls to 1/T of its initial value. `cosine`: half a wave,
    to sin²(π/2T) of it. `step`: multiplied by `factor` after each `period` of rounds, or each third of them.
    `sqrt-epoch`: λ/√(1 + epoch), our reading of the paper's "fading learning rate", whose formula it does not
    give.

    >>> learning_rates(1.0, rounds=4, fading="linear").tolist()
    [1.0, 1.0, 0.75, 0.5, 0.25]
    """
    t = _time(rounds)
    if fading == "none":
        return np.full(rounds + 1, float(initial))
    if fading == "linear":
        return initial * (1.0 - t / max(rounds, 1))
    if fading == "cosine":
        # λ(1 + cos(πt/T))/2 without the cancellation at the end
        return np.asarray(initial * np.sin(np.pi * (rounds - t) / (2 * max(rounds, 1))) ** 2)
    if fading == "sqrt-epoch":
        return initial / np.sqrt(1.0 + t // rounds_per_epoch)
    if fading == "step":
        rates = initial * step_decay(factor, max(1, rounds // 3) if period is None else period, rounds)
        if not (rates > 0).all():
            raise InputError(
                f"Expected steps > 0 in all {rounds} rounds, got 0 after {np.flatnonzero(rates)[-1]}. "
                "Use a longer fading_period or a larger fading_factor."
            )
        return np.asarray(rates)
    raise InputError(f"Expected fading to be one of {', '.join(FADING_KINDS)}, got {fading!r}.")


FADING_KINDS = ("none", "linear", "cosine", "sqrt-epoch", "step")


def warmed_up(rate: Floats, warmup: int) -> Floats:
    """Return `rate` with steps that grow to their full size in the first `warmup` rounds.

    >>> warmed_up(learning_rates(1.0, rounds=4, fading="none"), 3).tolist()
    [0.25, 0.25, 0.5, 0.75, 1.0]
    """
    if not 0 <= warmup < len(rate):
        raise InputError(f"Expected a warm-up of 0 to {len(rate) - 1} rounds, got {warmup}.")
    return np.asarray(rate * np.minimum((_time(len(rate) - 1) + 1) / (warmup + 1), 1.0))


def step_decay(factor: float, period: int, rounds: int) -> Floats:
    """Return [T+1]: γ^⌊t/period⌋, the decay of the noise, for the releases of T `rounds`.

    The paper does not charge for this decay. At a fixed clip it costs privacy (docs/privacy.md), and the
    accountant includes it.

    >>> step_decay(0.5, period=2, rounds=4).tolist()
    [1.0, 1.0, 1.0, 0.5, 0.5]
    """
    if not 0 < factor <= 1:
        raise InputError(f"Expected 0 < decay factor <= 1, got {factor}.")
    if period < 1:
        raise InputError(f"Expected decay period >= 1 round, got {period}.")
    # Eq. (6b): σ_t = σ_0 γ^⌊t/period⌋
    return np.power(float(factor), _time(rounds) // period)


def power_of_rate(rate: Floats, exponent: float) -> Floats:
    """Return [T+1]: σ_t ∝ λ_t^-exponent, the noise on gradients relative to equal noise of the same loss.

    The noise of all rounds leaves Σ q_t σ_t² at the end, with q_t = λ_t² for a flat loss, where no earlier
    noise is contracted. At a given privacy loss, Σ 1/σ_t², this is least for σ_t² ∝ q_t^-½: exponent ½, which
    leaves ¾ of the variance of equal noise if λ falls linearly. Exponent 0 is equal noise, exponent 1 equal
    noise on the estimate.

    The mean of 1/σ_t² is 1: with full batches and fresh noise, a σ means the same privacy at every exponent.

    >>> power_of_rate(learning_rates(1.0, rounds=4, fading="linear"), 0.5).round(3).tolist()
    [0.837, 0.837, 0.966, 1.183, 1.673]
    """
    if not -MAX_RATE_EXPONENT <= exponent <= MAX_RATE_EXPONENT:
        raise InputError(
            f"Expected an exponent from -{MAX_RATE_EXPONENT:g} to {MAX_RATE_EXPONENT:g}, got {exponent}."
        )
    return _as_costly_as_equal(-exponent * np.log(_relative(rate)))


def for_curvature(rate: Floats, curvature: float | Sequence[float]) -> Floats:
    """Return [T+1]: the σ_t that leave the least noise after descent on a quadratic loss of this curvature.

    A step along a direction of curvature h multiplies earlier noise by 1 - λh: early noise is forgotten, and
    early rounds may have more of it. Scaled as `power_of_rate`, which is its limit for h → 0.

    Where noise is forgotten completely (λh = 1, or long before the end) the optimum would be infinite noise.
    So q_t is at least 10⁻⁸ of its maximum: no round has more than 100 times the noise that `power_of_rate`
    gives it relative to the least forgotten round.

    >>> for_curvature(learning_rates(0.5, rounds=4, fading="none"), 1.0).round(3).tolist()
    [2.49, 1.761, 1.245, 0.88, 0.622]
    """
    curvatures = np.atleast_1d(np.asarray(curvature, float))
    if curvatures.ndim != 1 or not len(curvatures) or not (np.isfinite(curvatures) & (curvatures > 0)).all():
        raise InputError(f"Expected a curvature, or a list of them, finite and > 0, got {curvature}.")
    log_rate = np.log(_relative(rate))
    # q_t = Σ_k h_k λ_t² Π_{s>t} (1 - λ_s h_k)², in logarithms; σ_t² ∝ q_t^-½
    remembered = np.full(len(rate), -np.inf)
    for h in curvatures:
        with np.errstate(divide="ignore"):
            shrunk = 2.0 * np.log(np.abs(1.0 - rate * h))
        after = np.append(np.cumsum(shrunk[:0:-1])[::-1], 0.0)
        remembered = np.logaddexp(remembered, np.log(h) + after)
    return _as_costly_as_equal(
        -0.5 * log_rate - 0.25 * np.maximum(remembered - remembered.max(), np.log(MIN_REMEMBERED_SHARE))
    )


MAX_RATE_EXPONENT = 2.0
MIN_REMEMBERED_SHARE = 1e-8  # of the maximum of q_t, for noise that is forgotten


def schedule(rate: Floats, along: Floats, noise_on: str) -> Schedule:
    """Return the schedule with noise inside the step (`gradient`: -λ(ḡ + noise)) or added to the estimate.

    `rate` [T+1]: the step sizes. `along` [T+1]: the noise of each release, on the gradient or on the estimate
    as `noise_on` states, per unit of an agent's full-scale standard deviation. The paper prints `estimate`.

    >>> rates, equal = learning_rates(0.5, 2, "none"), step_decay(1.0, 1, 2)
    >>> schedule(rates, equal, "gradient").noise.tolist(), schedule(rates, equal, "estimate").noise.tolist()
    ([0.5, 0.5, 0.5], [1.0, 1.0, 1.0])
    """
    if noise_on == "gradient":
        return Schedule(rate, rate * along)
    if noise_on == "estimate":
        return Schedule(rate, np.array(along))
    raise InputError(f"Expected noise_on to be 'gradient' or 'estimate', got {noise_on!r}.")


def _relative(rate: Floats) -> Floats:
    """Return λ_t over its maximum: only ratios matter, and their products cannot overflow."""
    rate = np.asarray(rate, float)
    if not (np.isfinite(rate) & (rate > 0)).all():
        raise InputError("Expected finite steps > 0 in every round, because they determine the noise.")
    return np.asarray(rate / rate.max())


def _as_costly_as_equal(log_noise: Floats) -> Floats:
    """Return exp(log_noise), scaled so that the mean of 1/σ_t² is 1."""
    relative = np.exp(log_noise - log_noise.min())
    return np.asarray(relative * np.sqrt(np.mean(relative**-2)))


def _time(rounds: int) -> Floats:
    """Return [T+1]: the t of each release; the release before the loop has the t of the first round."""
    return np.maximum(np.arange(rounds + 1, dtype=np.float64) - 1.0, 0.0)
