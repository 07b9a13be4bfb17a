"""Protocols write plans. One file per way of talking: everybody in every round, or in pairs."""

from topdp.protocols.asynchronous import PlainAsynchronous, TopAsynchronous
from topdp.protocols.base import Protocol
from topdp.protocols.synchronous import PlainSynchronous, TopSynchronous

__all__ = ["PlainAsynchronous", "PlainSynchronous", "Protocol", "TopAsynchronous", "TopSynchronous"]
