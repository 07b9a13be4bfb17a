"""Protocols: each writes a plan from a graph and a schedule, without data; one file per protocol."""

from typing import TYPE_CHECKING

from topdp.base.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from topdp.protocols.asynchronous import PlainAsynchronous, TopAsynchronous
    from topdp.protocols.central import Central
    from topdp.protocols.correlated import Correlated
    from topdp.protocols.dsgd import Dsgd
    from topdp.protocols.muffliato import Muffliato
    from topdp.protocols.protocol import Protocol, UpdateRule, protocol_of
    from topdp.protocols.synchronous import PlainSynchronous, TopSynchronous

__all__ = [
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
        "asynchronous": ["PlainAsynchronous", "TopAsynchronous"],
        "central": ["Central"],
        "correlated": ["Correlated"],
        "dsgd": ["Dsgd"],
        "muffliato": ["Muffliato"],
        "protocol": ["Protocol", "UpdateRule", "protocol_of"],
        "synchronous": ["PlainSynchronous", "TopSynchronous"],
    },
)
