"""A network in memory that delays, loses, repeats and cuts as a schedule says, and records all events.

Every message that is handed to it counts as sent, even if it never arrives. Requests of one agent to another
stay in order, as on a link that replaces an older one. Its requests and its replies share one order if the
schedule says so; otherwise they do not, as in a process that handles simultaneous messages in another order.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import defaultdict

from history import Event

from faults.clock import TURN
from topdp.agents.ledger.ledger_entries import digest_of
from topdp.agents.runtime.peer_messages import Handover
from topdp.agents.wire.transport import MessageKind, Transport, Unreachable
from topdp.errors import TopdpError


class Network:
    """`weather` is a Schedule; `say` takes the lines of the log."""

    def __init__(self, loop, weather, chance, idle_timeout, say):
        self.loop, self.weather, self.chance, self.idle_timeout = loop, weather, chance, idle_timeout
        self.say = say
        self.there = {}
        self.events = []
        self.unanswered = []  # (agent, the error that it raised)
        self._sent, self._arrived = defaultdict(int), defaultdict(int)
        self._last = defaultdict(float)  # the last arrival by (sender, receiver)
        self._context = contextvars.copy_context()  # belongs to no process
        self._tasks = set()

    def transport(self, process):
        return Endpoint(self, process)

    def carry(self, endpoint, peer, message):
        """A future of the reply; the message continues whatever happens to its sender."""
        answer = self.loop.create_future()
        self._spawn(self._carry(endpoint.name, peer, message, answer))
        return answer

    def gone(self, process):
        """Breaks the links of `process`, which was killed or has closed."""
        found = self.there.get(process.name)
        if found is not None and found.process is process:
            del self.there[process.name]
            found.broken.set_result(None)

    async def _carry(self, sender, receiver, message, answer):
        link = (sender, receiver)
        self._sent[link] += 1
        number = self._sent[link]
        self._note("sent", sender, receiver, message)
        await self._on_its_way(sender, receiver)
        reply = None
        target = self.there.get(receiver)
        if target is not None and number > self._arrived[link] and not self._lost(sender, receiver, message):
            self._arrived[link] = number
            if self._happens(self.weather.repeats):
                self._spawn(self._again(sender, receiver, number, message))
            reply = await self._handled(target, sender, message)
        if reply is not None:
            await self._on_its_way(receiver, sender)
            if self._lost(receiver, sender, message, "reply to "):
                reply = None
        if reply is None:
            await asyncio.sleep(self.chance.uniform(0.0, self.idle_timeout))
            if not answer.done():
                answer.set_exception(Unreachable(f"{receiver} did not answer."))
        elif not answer.done():
            answer.set_result(reply)

    async def _again(self, sender, receiver, number, message):
        await asyncio.sleep(self._delay(sender, receiver))
        target = self.there.get(receiver)
        if target is not None and self._arrived[sender, receiver] == number:
            self.say(f"{message.kind.name} {message.round} of {sender} comes to {receiver} again")
            await self._handled(target, sender, message)

    async def _handled(self, target, sender, message):
        """The reply of `target`; None if it is gone, or has not replied within the idle timeout."""
        task = target.process.spawn(target.handle(sender, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait(
            {task, target.broken}, return_when=asyncio.FIRST_COMPLETED, timeout=self.idle_timeout
        )
        if not task.done() or task.cancelled():
            return None
        error = task.exception()
        if error is not None:
            if isinstance(error, Exception) and not isinstance(error, TopdpError):
                self.unanswered.append((target.name, f"{message.kind.name} of {sender}: {error!r}"))
            return None
        reply = task.result()
        self._note("answered", sender, target.name, message, reply.ok)
        if message.kind in (MessageKind.PROPOSE, MessageKind.RESOLVE) and reply.body:
            self._handed(target.name, sender, reply.body)
        if not reply.ok:
            self.say(
                f"{target.name} says {reply.code.name} to {message.kind.name} {message.round} of {sender}"
            )
        return reply

    def _note(self, what, sender, receiver, message, ok=None):
        facts = (sender, receiver, message.kind.name.lower(), message.round, message.digest)
        self.events.append(Event(what, *facts, ok))
        if what == "sent" and message.kind is MessageKind.COMMIT:
            self._handed(sender, receiver, message.body)

    def _handed(self, sender, receiver, packed):
        row = Handover.unpack(packed)
        self.events.append(Event("sent", sender, receiver, "handed", row.round, digest_of(row.body)))

    async def _on_its_way(self, sender, receiver):
        arrives = self.loop.now + self._delay(sender, receiver)
        if self.weather.in_order:
            arrives = self._last[sender, receiver] = max(arrives, self._last[sender, receiver] + TURN)
        await asyncio.sleep(arrives - self.loop.now)

    def _delay(self, sender, receiver):
        most = self.weather.delay * (self.weather.slowness(sender) + self.weather.slowness(receiver)) / 2
        return self.chance.uniform(0.1, 1.0) * most

    def _happens(self, probability):
        return self.loop.now < self.weather.heals_at and self.chance.random() < probability

    def _lost(self, sender, receiver, message, what=""):
        lost = self.weather.is_cut(sender, receiver, self.loop.now) or self._happens(self.weather.loses)
        if lost:
            self.say(f"lost from {sender} to {receiver}: {what}{message.kind.name} {message.round}")
        return lost

    def _spawn(self, coroutine):
        task = self.loop.create_task(coroutine, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Endpoint(Transport):
    def __init__(self, network, process):
        self.network, self.process, self.name = network, process, process.name
        self.open = False
        self._answers = set()

    async def start(self, handle):
        self.handle, self.open = handle, True
        self.broken = self.network.loop.create_future()
        self.network.there[self.name] = self

    def reaches(self, peer):
        network = self.network
        return peer in network.there and not network.weather.is_cut(self.name, peer, network.loop.now)

    async def request(self, peer, message):
        if not self.open:
            raise Unreachable("closed")
        answer = self.network.carry(self, peer, message)
        self._answers.add(answer)
        try:
            return await answer
        finally:
            self._answers.discard(answer)

    async def close(self):
        self.open = False
        self.network.gone(self.process)
        for answer in tuple(self._answers):
            if not answer.done():
                answer.set_exception(Unreachable("closed"))
