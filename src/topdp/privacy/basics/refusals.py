"""The errors of the privacy package, and the checks of ε and δ.

`PrivacyError` means that the input is invalid. `NotCovered` means that the input is valid, but that no
analysis in topdp covers it. `PrivacyWarning` means that a number is returned although the method's own claim
is false.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from topdp.base.array_types import Floats
from topdp.errors import InputError


class PrivacyError(InputError):
    """Input for which a privacy statement has no meaning.

    >>> from topdp.privacy import epsilon_of
    >>> epsilon_of(0.5, delta=1.0)
    Traceback (most recent call last):
        ...
    topdp.privacy.basics.refusals.PrivacyError: Expected 0 < delta < 1, got 1.0.
    """


class NotCovered(PrivacyError):  # noqa: N818 - a result, not a fault
    """Valid input that the requested analysis does not cover; nothing is estimated instead.

    >>> from topdp.plan import Poisson
    >>> from topdp.privacy import CALIBRATIONS
    >>> CALIBRATIONS["udp"].calibrate(1.0, 1e-5, releases=10, batches=Poisson(2000, 20))
    Traceback (most recent call last):
        ...
    topdp.privacy.basics.refusals.NotCovered: Calibration 'udp' with Poisson batches: its analysis samples \
agents, not records. Use 'tight', 'optimal' or 'moments'.
    """


class PrivacyWarning(UserWarning):
    """A warning that the ε that a method claims is smaller than its exact ε.

    >>> import warnings
    >>> from topdp.privacy import CALIBRATIONS
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always", PrivacyWarning)
    ...     claimed = CALIBRATIONS["udp"].claim([0.4], 1e-5)
    >>> print(str(said[0].message)[:88])
    Calibration 'udp' claims epsilon=11.9963 at delta=1e-05; the same releases are exactly e
    """


def expect_supported(reason: str | None) -> None:
    """Raise NotCovered if `reason`, which an accountant's `supports` returned, is not None."""
    if reason is not None:
        raise NotCovered(reason)


def expect_epsilon(epsilon: float) -> float:
    """Return `epsilon` as a float; raise PrivacyError unless it is finite and above 0."""
    value = _number("epsilon", epsilon)
    if not 0 < value < math.inf:
        raise PrivacyError(f"Expected a finite epsilon > 0, got {epsilon}.")
    return value


def expect_delta(delta: float) -> float:
    """Return `delta` as a float; raise PrivacyError unless it lies strictly between 0 and 1."""
    value = _number("delta", delta)
    if not 0 < value < 1:
        raise PrivacyError(f"Expected 0 < delta < 1, got {delta}.")
    return value


def expect_deltas(delta: ArrayLike, agents: int) -> Floats:
    """Return the δ of each agent [agents]. `delta`: one number for all agents, or one for each of them.

    Raise PrivacyError for another number of values, and unless each lies strictly between 0 and 1.

    >>> expect_deltas(1e-5, 2).tolist(), expect_deltas([1e-5, 1e-6], 2).tolist()
    ([1e-05, 1e-05], [1e-05, 1e-06])
    """
    values = np.atleast_1d(np.asarray(delta, dtype=object))
    if values.shape not in ((1,), (agents,)):
        raise PrivacyError(f"Expected one delta, or one for each of {agents} agents, got {len(values)}.")
    return np.broadcast_to([expect_delta(value) for value in values], agents).astype(np.float64)


def _number(name: str, value: float) -> float:
    """Return `value` as a float; raise PrivacyError, which mentions `name`, if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise PrivacyError(f"Expected {name} as a number, got {value!r}.") from None
