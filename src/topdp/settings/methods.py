"""The named methods: each is a protocol, a calibration of its noise, and whether the noise decays.

All use the same update rule; docs/paper.md has the table. Plans are written by protocols/, budgets are met
by privacy/: this file only says which goes with which.
"""

from __future__ import annotations

from dataclasses import dataclass

from topdp.errors import InputError
from topdp.protocols import PlainAsynchronous, PlainSynchronous, Protocol, TopAsynchronous, TopSynchronous


@dataclass(frozen=True)
class Method:
    """`calibration` None: any, `tight` unless the configuration names another."""

    name: str
    reuses_noise: bool = False
    noisy: bool = True
    decays: bool = False
    calibration: str | None = None

    def protocol(self, mode: str, alpha: float, offline: float) -> Protocol:
        if mode == "sync":
            return TopSynchronous(alpha) if self.reuses_noise else PlainSynchronous(alpha)
        if mode == "async":
            return (TopAsynchronous if self.reuses_noise else PlainAsynchronous)(alpha, offline)
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
        Method("top-dp", reuses_noise=True, decays=True),
    )
}
