"""Protocols: each writes a plan from a graph and a schedule, without data."""

from topdp.plan import Plan
from topdp.protocols._asynchronous import PlainAsynchronous, TopAsynchronous
from topdp.protocols._broadcasting import Central, Correlated, Dsgd, Muffliato
from topdp.protocols._synchronous import PlainSynchronous, TopSynchronous
from topdp.protocols.protocol import Protocol, UpdateRule

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


def protocol_of(plan: Plan) -> type[Protocol]:
    """Return the class of the protocol in this package that wrote `plan`.

    Return `Protocol` if no protocol of this package did, or if the rows of an optimiser were added later.

    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(2, 0.1), noise=np.full(2, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> protocol_of(plan).__name__
    'TopSynchronous'
    """
    kinds = (globals()[name] for name in __all__)
    return next((kind for kind in kinds if getattr(kind, "name", None) == plan.protocol), Protocol)
