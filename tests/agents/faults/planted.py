"""Faults that are planted in agents to test the injector: it must find each of them.

Each is a context manager, within which all agents of this process have the fault.
"""

from __future__ import annotations

import asyncio
import contextlib
from unittest import mock

import numpy as np
from safetensors.numpy import load

from faults import injector
from faults.injector import run
from topdp.agents.ledger.inbox import Inbox
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.runtime.agent_loop import AgentLoop
from topdp.agents.runtime.outbox_sender import OutboxSender
from topdp.agents.wire import row_payload
from topdp.agents.wire.transport import Message, MessageKind, ReplyCode, Unreachable
from topdp.errors import TopdpError


@contextlib.contextmanager
def sent_before_it_is_booked():
    """Rows are sent before the charge is written: an agent that is killed in between charges too little."""
    release = AgentLoop._release

    def early(self, round, kind, cost, bodies, *others, **more):
        for peer, body in bodies.items():
            leaving = self.peers.transport.request(peer, Message.of(MessageKind.ROW, round, body))
            leaving.send(None)  # it is under way from here on; nobody waits for the reply
            leaving.close()
        return release(self, round, kind, cost, bodies, *others, **more)

    with mock.patch.object(AgentLoop, "_release", early):
        yield


@contextlib.contextmanager
def fresh_bytes_on_resend():
    """An unacknowledged row is made again with other noise instead of being read from the ledger."""
    original, sent = OutboxSender._next, set()

    def fresh(self, peer):
        message = original(self, peer)
        if message is None or message.kind is not MessageKind.ROW:
            return message
        name = (id(self.ledger), peer, message.round)
        if name in sent:
            body = row_payload.encode(load(message.body)[row_payload.TENSOR_NAME] + np.float32(0.001))
            return Message.of(message.kind, message.round, body)
        sent.add(name)
        return message

    with mock.patch.object(OutboxSender, "_next", fresh):
        yield


@contextlib.contextmanager
def no_digest_compared():
    """Two rows for one round are not distinguished, and the sender changes its row in every resend."""

    def credulous(self, *facts):
        verdict = judge(self, *facts)
        return ReplyCode.AGAIN if verdict is ReplyCode.EQUIVOCATION else verdict

    judge = Inbox.judge
    with mock.patch.object(Inbox, "judge", credulous), fresh_bytes_on_resend():
        yield


@contextlib.contextmanager
def swallowed_cancellation():
    """A cancelled task treats the cancellation as an unreachable neighbour, and tries again.

    Not part of `PLANTED`, because an agent that is asked to stop ends even then.
    """
    greet = OutboxSender._greet

    async def deaf(self, peer):
        try:
            return await greet(self, peer)
        except asyncio.CancelledError:
            raise Unreachable("cancelled") from None

    with mock.patch.object(OutboxSender, "_greet", deaf):
        yield


@contextlib.contextmanager
def no_acknowledgement():
    """Rows that a neighbour has acknowledged are sent for ever."""
    with mock.patch.object(Ledger, "acknowledge", lambda self, receiver, round: None):
        yield


@contextlib.contextmanager
def acknowledged_before_it_is_on_disk():
    """A row is stored a little later: an agent killed in between loses it, and never gets it again."""
    settle = Inbox.settle

    def late(self, *facts):
        asyncio.get_running_loop().call_later(0.05, _settled, settle, self, facts)

    with mock.patch.object(Inbox, "settle", late):
        yield


def _settled(settle, inbox, facts):
    with contextlib.suppress(TopdpError):  # the row has arrived again meanwhile, or the ledger is closed
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
    """(seed, faults) of the first of `seeds` that shows the fault `name` and nothing without it, or None.

    An agent without progress for half a minute counts as stuck, with the fault and without it.
    """
    with mock.patch.object(injector, "BOUND", 30.0):
        return _first_found(name, seeds, job)


def _first_found(name, seeds, job):
    for seed in seeds:
        with PLANTED[name]():
            found = run(job, seed).faults
        if found and not run(job, seed).faults:
            return seed, found
    return None
