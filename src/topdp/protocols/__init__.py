"""Protocols: each writes a plan from a graph and a schedule, without data."""

from typing import TYPE_CHECKING

from topdp.base.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from topdp.protocols._asynchronous import PlainAsynchronous, TopAsynchronous
    from topdp.protocols._broadcasting import Alone, Central, Correlated, Dsgd, Muffliato
    from topdp.protocols._synchronous import PlainSynchronous, TopSynchronous
    from topdp.protocols.protocol import Protocol, UpdateRule, protocol_of

__all__ = [
    "Alone",
    "Central",
    "Correlated",
    "Dsgd",
    "Muffliato",
    "PlainAsynchronous",
    "PlainSynchronous",
    "Protocol",
    "TopAsynchronous",
    "TopSynchronous",
    "UpdateRule",
    "protocol_of",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "_asynchronous": ["PlainAsynchronous", "TopAsynchronous"],
        "_broadcasting": ["Alone", "Central", "Correlated", "Dsgd", "Muffliato"],
        "protocol": ["Protocol", "UpdateRule", "protocol_of"],
        "_synchronous": ["PlainSynchronous", "TopSynchronous"],
    },
)


def __dir__() -> list[str]:
    return __all__
