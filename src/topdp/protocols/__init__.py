"""Protocols write plans: one file per way of talking. They know graphs and schedules, and touch no data."""

from topdp.protocols.asynchronous import PlainAsynchronous, TopAsynchronous
from topdp.protocols.central import Central
from topdp.protocols.correlated import Correlated
from topdp.protocols.dsgd import Dsgd
from topdp.protocols.muffliato import Muffliato
from topdp.protocols.protocol import Protocol, UpdateRule
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
]
