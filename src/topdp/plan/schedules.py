"""Schedules: the step size and the noise of each round, the same for all agents.

T rounds make T + 1 releases: round 0 is the release before the paper's loop, and uses the values of t = 0.

**Guarantees.** None by itself: a schedule is part of the plan, and every account includes it. A schedule
depends on settings only. A curvature must be chosen without access to private data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topdp.base.array_types import Floats
from topdp.errors import InputError


@dataclass(frozen=True)
class Schedule:
    """The step size λ (`rate` [T+1]) and the noise scale (`noise` [T+1]) of every release.

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
    """Return the step sizes λ_t [T+1] of all releases, for T = `rounds`.

    `fading` is the name of the rule by which the step size falls from `initial`. `none`: it is constant.
    `linear`: it falls linearly to 1/T of `initial`. `cosine`: it follows half a cosine wave, and falls to
    sin²(π/2T) of `initial`. `step`: it is multiplied by `factor` after every `period` rounds (by default, a
    third of all rounds). `sqrt-epoch`: it is `initial`/√(1 + epoch), which is our reading of the paper's
    "fading learning rate"; the paper gives no formula.

    >>> learning_rates(1.0, rounds=4, fading="linear").tolist()
    [1.0, 1.0, 0.75, 0.5, 0.25]
    """
    t = _time(rounds)
    if fading == "none":
        return np.full(rounds + 1, float(initial))
    if fading == "linear":
        return initial * (1.0 - t / max(rounds, 1))
    if fading == "cosine":
        # λ(1 + cos(πt/T))/2, written without the cancellation near t = T
        return np.asarray(initial * np.sin(np.pi * (rounds - t) / (2 * max(rounds, 1))) ** 2)
    if fading == "sqrt-epoch":
        return initial / np.sqrt(1.0 + t // rounds_per_epoch)
    if fading == "step":
        rates = initial * step_decay(factor, max(1, rounds // 3) if period is None else period, rounds)
        if not (rates > 0).all():
            raise InputError(
                f"Expected step sizes > 0 in all {rounds} rounds, got 0 after round "
                f"{np.flatnonzero(rates)[-1]}. Use a longer fading_period or a larger fading_factor."
            )
        return np.asarray(rates)
    raise InputError(f"Expected fading to be one of {', '.join(FADING_KINDS)}, got {fading!r}.")


FADING_KINDS = ("none", "linear", "cosine", "sqrt-epoch", "step")


def warmed_up(rate: Floats, warmup: int) -> Floats:
    """Return `rate`, multiplied by factors that grow linearly to 1 during the first `warmup` rounds.

    >>> warmed_up(learning_rates(1.0, rounds=4, fading="none"), 3).tolist()
    [0.25, 0.25, 0.5, 0.75, 1.0]
    """
    if not 0 <= warmup < len(rate):
        raise InputError(f"Expected a warm-up of 0 to {len(rate) - 1} rounds, got {warmup}.")
    return np.asarray(rate * np.minimum((_time(len(rate) - 1) + 1) / (warmup + 1), 1.0))


def step_decay(factor: float, period: int, rounds: int) -> Floats:
    """Return the decay of the noise, γ^⌊t/period⌋ [T+1], for T = `rounds` and γ = `factor`.

    The paper does not account for this decay. At a fixed clip it costs privacy (docs/privacy.md), and our
    accountants include it.

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
    """Return the noise on gradients σ_t [T+1], which is proportional to λ_t^-exponent, with λ_t = `rate`.

    The noise of all rounds leaves the variance Σ q_t σ_t² at the end. For a flat training loss, which does
    not contract earlier noise, q_t = λ_t². At a given privacy loss, Σ 1/σ_t², the variance is least for
    σ_t² ∝ q_t^-½, which is the exponent ½. If λ falls linearly, it is then ¾ of the variance of equal noise.
    The exponent 0 gives equal noise on gradients, and the exponent 1 gives equal noise on estimates.

    The result is scaled so that the mean of 1/σ_t² is 1. With full batches and fresh noise, a standard
    deviation therefore means the same privacy at every exponent.

    >>> power_of_rate(learning_rates(1.0, rounds=4, fading="linear"), 0.5).round(3).tolist()
    [0.837, 0.837, 0.966, 1.183, 1.673]
    """
    if not -MAX_RATE_EXPONENT <= exponent <= MAX_RATE_EXPONENT:
        raise InputError(
            f"Expected an exponent from -{MAX_RATE_EXPONENT:g} to {MAX_RATE_EXPONENT:g}, got {exponent}."
        )
    return _as_costly_as_equal(-exponent * np.log(_relative(rate)))


def for_curvature(rate: Floats, curvature: float | Sequence[float]) -> Floats:
    """Return the σ_t [T+1] that leave the least noise after descent on a quadratic loss of this curvature.

    `curvature`: one value h, or a list of values, one for each direction. A step along a direction of
    curvature h multiplies earlier noise by 1 - λh. Later steps therefore reduce early noise, and early rounds
    may have more noise. The result is scaled as in `power_of_rate`. For h → 0 it approaches the result of
    `power_of_rate` with the exponent ½.

    If later steps remove the noise of a round completely (λh = 1, or long before the end), the optimum for
    that round would be infinite noise. So the factor of later contraction in q_t is at least 10⁻⁸ of its
    maximum. Hence no round has more than 100 times the noise that `power_of_rate` gives it, relative to the
    round whose noise is contracted least.

    >>> for_curvature(learning_rates(0.5, rounds=4, fading="none"), 1.0).round(3).tolist()
    [2.49, 1.761, 1.245, 0.88, 0.622]
    """
    curvatures = np.atleast_1d(np.asarray(curvature, float))
    if curvatures.ndim != 1 or not len(curvatures) or not (np.isfinite(curvatures) & (curvatures > 0)).all():
        raise InputError(f"Expected a curvature that is finite and > 0, or a list of such, got {curvature}.")
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
MIN_REMEMBERED_SHARE = 1e-8  # of the largest contraction factor in q_t, for noise that later steps remove


def schedule(rate: Floats, along: Floats, noise_on: str) -> Schedule:
    """Return the schedule with noise on the gradient or on the estimate, as `noise_on` states.

    With `gradient`, the noise is inside the step: -λ(ḡ + noise). With `estimate`, the noise is added to the
    estimate, as the paper prints it. `rate` [T+1]: the step sizes. `along` [T+1]: the noise of each release,
    per unit of an agent's full-scale standard deviation.

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
    """Return λ_t divided by its maximum. Only ratios matter, and products of these cannot overflow.

    Raise InputError if a step size is not finite or not above 0.
    """
    rate = np.asarray(rate, float)
    invalid = rate[~(np.isfinite(rate) & (rate > 0))]
    if invalid.size:
        raise InputError(f"Expected finite step sizes > 0, because they set the noise, got {invalid[0]}.")
    return np.asarray(rate / rate.max())


def _as_costly_as_equal(log_noise: Floats) -> Floats:
    """Return exp(log_noise), scaled so that the mean of 1/σ_t² is 1."""
    relative = np.exp(log_noise - log_noise.min())
    return np.asarray(relative * np.sqrt(np.mean(relative**-2)))


def _time(rounds: int) -> Floats:
    """Return the t of each release [T+1]; the release before the loop has the same t as the first round."""
    return np.maximum(np.arange(rounds + 1, dtype=np.float64) - 1.0, 0.0)
