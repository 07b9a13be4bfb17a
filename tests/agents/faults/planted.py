"""Faults that are put into agents on purpose: an injector that does not find them finds nothing.

Each is a context manager; within it all agents of this process have the fault.
"""

from __future__ import annotations

import asyncio
import contextlib
from unittest import mock

import numpy as np

from faults.injector import run
from topdp.agents.books.inbox import Inbox
from topdp.agents.books.ledger import Ledger
from topdp.agents.life.base import Life
from topdp.agents.life.peers import Peers
from topdp.agents.wire import payload
from topdp.agents.wire.codes import MessageKind, ReplyCode
from topdp.agents.wire.transport import Message, Unreachable
from topdp.errors import TopdpError


@contextlib.contextmanager
def sent_before_it_is_booked():
    """Rows leave, and then the charge is written: who is killed between has spent what no book knows."""
    release, under_way = Life._release, set()

    def early(self, round, kind, cost, bodies, *others, **more):
        for peer, body in bodies.items():
            message = Message.of(MessageKind.ROW, round, body)
            under_way.add(asyncio.ensure_future(_ignored(self.peers.transport, peer, message)))
        return release(self, round, kind, cost, bodies, *others, **more)

    with mock.patch.object(Life, "_release", early):
        yield


async def _ignored(transport, peer, message):
    with contextlib.suppress(Unreachable):
        await transport.request(peer, message)


@contextlib.contextmanager
def fresh_bytes_on_resend():
    """What was not acknowledged is made again, with other noise, and not taken from the books."""
    original, sent = Peers._next, set()

    def fresh(self, peer):
        message = original(self, peer)
        if message is None or message.kind is not MessageKind.ROW:
            return message
        name = (id(self.ledger.folder), self.name, peer, message.round)
        if name in sent:
            row = payload.decode(message.body, len(self.check(message.body)))
            body = payload.encode(row + np.float32(0.001))
            return Message.of(message.kind, message.round, body)
        sent.add(name)
        return message

    with mock.patch.object(Peers, "_next", fresh):
        yield


@contextlib.contextmanager
def no_digest_compared():
    """Two rows under one name are not told apart; the sender says something else in every resend."""

    def credulous(self, *facts):
        verdict = judge(self, *facts)
        return ReplyCode.AGAIN if verdict is ReplyCode.EQUIVOCATION else verdict

    judge = Inbox.judge
    with mock.patch.object(Inbox, "judge", credulous), fresh_bytes_on_resend():
        yield


@contextlib.contextmanager
def swallowed_cancellation():
    """A task that is cancelled takes that for a neighbour out of reach, and tries again.

    Not among `PLANTED`: an agent that is asked to stop ends whatever hangs, so this one is survived.
    """
    greet = Peers._greet

    async def deaf(self, peer):
        try:
            return await greet(self, peer)
        except asyncio.CancelledError:
            raise Unreachable("cancelled") from None

    with mock.patch.object(Peers, "_greet", deaf):
        yield


@contextlib.contextmanager
def no_acknowledgement():
    """What a neighbour has said it has is sent for ever."""
    with mock.patch.object(Ledger, "acknowledge", lambda self, receiver, round: None):
        yield


@contextlib.contextmanager
def acknowledged_before_it_is_on_disk():
    """A row is written down a little later: who is killed between has lost it, and is never sent it again."""
    settle = Inbox.settle

    def late(self, *facts):
        asyncio.get_running_loop().call_later(0.05, _settled, settle, self, facts)

    with mock.patch.object(Inbox, "settle", late):
        yield


def _settled(settle, inbox, facts):
    with contextlib.suppress(TopdpError):  # it has come again meanwhile, or the books are closed
        settle(inbox, *facts)


PLANTED = {
    fault.__name__.replace("_", "-"): fault
    for fault in (
        sent_before_it_is_booked,
        fresh_bytes_on_resend,
        no_digest_compared,
        no_acknowledgement,
        acknowledged_before_it_is_on_disk,
    )
}


def first_found(name, seeds, job="sync-wait"):
    """(seed, faults) of the first of `seeds` that shows the fault `name`, and nothing without it; or None."""
    for seed in seeds:
        with PLANTED[name]():
            found = run(job, seed).faults
        if found and not run(job, seed).faults:
            return seed, found
    return None
