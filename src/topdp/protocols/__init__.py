"""Protocols: write plans from a graph and a schedule, without data; one file per protocol."""

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
