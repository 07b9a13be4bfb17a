"""The named methods: each combines a protocol, a calibration of its noise and a noise schedule.

docs/methods.md helps to choose a method; docs/paper.md has a table of the paper's methods. `protocols/`
writes plans, and `privacy/` computes the noise that meets a budget. This file only combines them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, TypeVar

from topdp import protocols
from topdp.errors import InputError

if TYPE_CHECKING:
    from topdp.protocols import Protocol
    from topdp.runs.config import MethodConfig

Number = TypeVar("Number", int, float)


def _plain(c: MethodConfig) -> Protocol:
    if c.mode == "sync":
        return protocols.PlainSynchronous(c.alpha)
    return protocols.PlainAsynchronous(c.alpha, c.offline, rematch=c.rematch)


def _top(c: MethodConfig) -> Protocol:
    if c.mode == "sync":
        return protocols.TopSynchronous(c.alpha, c.own_share)
    return protocols.TopAsynchronous(c.alpha, c.offline, c.own_share, rematch=c.rematch)


def _muffliato(c: MethodConfig) -> Protocol:
    return protocols.Muffliato(chosen_number("gossip", c.gossip), c.chebyshev)


def _correlated(c: MethodConfig) -> Protocol:
    return protocols.Correlated(
        secrets=c.secrets,
        degree=chosen_number("secrets_degree", c.secrets_degree),
        pair_noise=chosen_number("pair_noise", c.pair_noise),
        gossip=chosen_number("gossip", c.gossip),
        chebyshev=c.chebyshev,
    )


@dataclass(frozen=True)
class Method:
    """A named method. `writer` makes its protocol from the settings.

    `calibration`: the only calibration; None: any, and `tight` unless the configuration names another.
    `noise_kind`: the kind of noise schedule if the configuration names none.
    """

    name: str
    writer: Callable[[MethodConfig], Protocol]
    _: KW_ONLY
    noisy: bool = True
    noise_kind: str = "constant"
    calibration: str | None = None
    modes: tuple[str, ...] = ("sync", "async")
    pools: bool = False  # all records are in one place, which needs a trusted party
    mixes: bool = True  # agents mix rows of other agents
    gossips: bool = False  # there are averaging steps between gradients, as many as the key `gossip` states
    shares_noise: bool = False  # agents add pair noise (keys `secrets_degree`, `pair_noise`)
    reuses_noise: bool = False  # noise in received rows replaces a part of an agent's own noise

    @property
    def comparable(self) -> bool:
        """Whether `topdp recommend` compares the method, which meets a budget by noise of its own."""
        return self.noisy and self.mixes and not (self.calibration or self.reuses_noise)

    @property
    def tuned(self) -> tuple[str, ...]:
        """The keys of `method` that may be `auto` and that this method uses."""
        return ("secrets_degree", "pair_noise") * self.shares_noise + ("gossip",) * self.gossips

    def gossip_steps(self, c: MethodConfig) -> int:
        """Return the number of averaging steps between two gradients."""
        return chosen_number("gossip", c.gossip) if self.gossips else 0

    def protocol(self, c: MethodConfig) -> Protocol:
        if c.mode not in self.modes:
            raise InputError(
                f"method.mode: expected {' or '.join(self.modes)} for {self.name}, got {c.mode!r}."
            )
        return self.writer(c)


def chosen_number(key: str, value: Number | str) -> Number:
    """Return the value of a key. Raise InputError if it is still `auto`, not a number that `auto_values.py`
    chose.
    """
    if isinstance(value, str):
        raise InputError(f"Expected a number for method.{key}, got {value!r}. Set it to a number.")
    return value


METHODS = {
    method.name: method
    for method in (
        Method("no-noise", _plain, noisy=False),
        Method("plain", _plain),
        Method("li18", _plain, calibration="advanced"),
        Method("li18-ma", _plain, calibration="moments"),
        Method("udp", _plain, calibration="udp"),
        Method("optimal", _plain, calibration="optimal"),
        Method("top", _top, reuses_noise=True),
        Method("top-dp", _top, noise_kind="steps", reuses_noise=True),
        Method("dsgd", lambda c: protocols.Dsgd(), modes=("sync",), noise_kind="power"),
        Method("muffliato", _muffliato, modes=("sync",), noise_kind="power", gossips=True),
        Method(
            "correlated",
            _correlated,
            modes=("sync",),
            noise_kind="power",
            gossips=True,
            shares_noise=True,
        ),
        Method("alone", lambda c: protocols.Alone(), modes=("sync",), noise_kind="power", mixes=False),
        Method(
            "central",
            lambda c: protocols.Central(),
            modes=("sync",),
            noise_kind="power",
            pools=True,
            mixes=False,
        ),
    )
}

# The method with all records in one place.
POOLED = next(method for method in METHODS.values() if method.pools)

# The method by which each agent trains on its own records, without the others.
ALONE = next(method for method in METHODS.values() if not (method.mixes or method.pools))
