"""The named methods: each is a protocol, a calibration of its noise, and a law of the noise along the rounds.

All use the same update rule; docs/paper.md has the table. Plans are written by protocols/, budgets are met
by privacy/: this file only says which goes with which.
"""

from __future__ import annotations

from dataclasses import dataclass

from topdp.errors import InputError
from topdp.protocols import PlainAsynchronous, PlainSynchronous, Protocol, TopAsynchronous, TopSynchronous
from topdp.protocols.base import OWN_SHARE


@dataclass(frozen=True)
class Method:
    """`calibration` None: any, `tight` unless the configuration names another.

    `noise_along`: the law of the noise along the rounds where the configuration names none.
    """

    name: str
    reuses_noise: bool = False
    noisy: bool = True
    noise_along: str = "constant"
    calibration: str | None = None

    def protocol(self, mode: str, alpha: float, offline: float, own_share: float = OWN_SHARE) -> Protocol:
        if mode == "sync":
            return TopSynchronous(alpha, own_share) if self.reuses_noise else PlainSynchronous(alpha)
        if mode == "async" and self.reuses_noise:
            return TopAsynchronous(alpha, offline, own_share)
        if mode == "async":
            return PlainAsynchronous(alpha, offline)
        raise InputError(f"Expected mode 'sync' or 'async', got {mode!r}.")


METHODS = {
    method.name: method
    for method in (
        Method("no-noise", noisy=False),
        Method("plain"),
        Method("li18", calibration="advanced"),
        Method("li18-ma", calibration="moments"),
        Method("udp", calibration="udp"),
        Method("optimal", calibration="optimal"),
        Method("top", reuses_noise=True),
        Method("top-dp", reuses_noise=True, noise_along="steps"),
    )
}
