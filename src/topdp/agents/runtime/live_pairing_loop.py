"""Asynchronous rounds of one agent that looks for partners while it runs, instead of those that a plan drew.

In every round the agent proposes an exchange to its neighbours, in random order and the last partner last,
until one accepts; the two exchange estimates (Algorithm 2). An agent that finds no partner works alone with
full noise. If the outcome of an exchange is in doubt, the agent asks for it, works on and exchanges with
others. Each agent counts its own rounds. No agent waits for another, except at the beginning, until all
neighbours are there.

**Guarantees.** As for every `AgentLoop`. Which exchanges happen is not known in advance, so the agent charges
by worst case, which counts only an agent's own draws. Rows that carry no data any more are made of rows that
count as seen, and of noise: they cost nothing. Poisson batches are refused: their cost is computed for a
plan.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import final

from torch import Tensor

from topdp.agents.ledger.ledger_entries import digest_of
from topdp.agents.ledger.pairing_records import PairingRecords, PairRecord
from topdp.agents.ledger.stored_rows import ANY_RECEIVER
from topdp.agents.runtime.agent_loop import AgentLoop, TickClock
from topdp.agents.runtime.agent_rows import mixed, noised, stepped
from topdp.agents.runtime.peer_contacts import TICKS_PER_TIMEOUT
from topdp.agents.runtime.peer_messages import Handover
from topdp.agents.wire import row_payload
from topdp.agents.wire.transport import Message, Reply, Unreachable
from topdp.agents.wire.wire_codes import MessageKind, ReplyCode
from topdp.plan import Plan, unsupported
from topdp.protocols import protocol_of
from topdp.protocols.protocol import reduced

# The order in which neighbours are asked: no secret, but not seeded.
CHANCE: Callable[[], random.Random] = random.SystemRandom
MAX_LISTENING_SECONDS = 0.3  # how long an agent waits for a proposal; decides how many meet, nothing else


def supports(plan: Plan) -> str | None:
    """Return None, or why live pairing cannot execute the plan."""
    if not protocol_of(plan).pairwise:
        return f"protocol {plan.protocol}"
    return unsupported(plan, ())


@final
class LivePairingLoop(AgentLoop):
    """The loop of one agent without drawn partners."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pairing = PairingRecords(self.ledger)
        config = self.context.manifest.config
        self.alpha, self.own_share = config.method.alpha, config.method.own_share
        self.reuses = self.context.setup.run.method.reuses_noise
        self.deviation = self.context.part.plan.full_scale
        self._chance = CHANCE()
        self._awaited = False  # whether it has waited for neighbours that were not there
        self._slow: dict[str, tuple[int, int]] = {}  # failed requests in a row, and the round to ask again
        self._asking: dict[str, asyncio.Task[None]] = {}  # partners with whom an exchange is being settled
        self.peers.handlers |= {
            MessageKind.PROPOSE: self._propose,
            MessageKind.COMMIT: self._commit,
            MessageKind.RESOLVE: self._resolve,
        }

    async def _next_round(self) -> bool:
        if not await self._heard_all(for_ever=False):
            return False
        if self.ledger.round >= 0:
            with self.timing.measure("network"):
                await self._await_all()
                await self._settle()
                await self._seek()
        if self.paused():
            return True  # before a row is made: the ledger holds what was gathered
        await self._round(self.ledger.round + 1, self.pairing.ready())
        return True

    async def _round(self, round: int, pair: PairRecord | None) -> None:
        plan, me = self.context.part.plan, self.context.part.agent
        scale, rate = float(plan.scale[round]), float(plan.rate[round])
        std = float(self.deviation[me])
        if pair is not None and self.reuses:
            other = self.deviation[[self.context.manifest.number(pair.partner)]]
            std = float(reduced(self.deviation[[me]], other, self.alpha, self.own_share)[0])
        information = self.context.meter.spending.release(rate, scale, std)
        kind, cost = self._decide(round, information, planned=False)
        job = self._job(round, pair, std * scale, rate if kind == "release" else None)
        row = self._bounded(round, me, await self._compute(job))
        self.pairing.forget_rows()
        applied = [(pair.partner, pair.partner_round or 0)] if pair else []
        body = row_payload.encode(row.numpy())
        self._release(round, kind, cost, {ANY_RECEIVER: body}, {me: row}, applied, pair.id if pair else None)

    def _job(
        self, round: int, pair: PairRecord | None, std: float, rate: float | None
    ) -> Callable[[], Tensor]:
        """Return the function that computes the row of `round`, without touching the ledger.

        `rate` None: no data enter.
        """
        estimate = self.estimate()
        parts, before = [(0, 1.0)], {0: estimate}
        if pair is not None:
            before[1] = self._received(pair.partner, pair.partner_round or 0)
            parts = [(0, self.alpha), (1, 1 - self.alpha)]

        def job() -> Tensor:
            row = mixed(parts, before, estimate)
            if rate is not None:
                row = stepped(row, self.context.gradients.mean(round, estimate), -rate)
            draws, me = self.context.draws, self.context.part.agent
            return noised(row, lambda noise: draws.add(noise, std, round, me), [std], estimate.dtype)

        return job

    # Asking

    async def _seek(self) -> None:
        """Listen or ask first, by a coin: if all asked at once, all would be busy."""
        if self._chance.random() < 0.5:
            await self._listen()
        if not self.pairing.busy:
            await self._ask()
        if self.pairing.ready() is None:
            await self._listen()

    async def _listen(self) -> None:
        """Wait a while for an exchange to be committed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._chance.uniform(0.5, 1.0) * MAX_LISTENING_SECONDS):
                while self.pairing.ready() is None and not self.stopping.is_set():
                    self.peers.changed.clear()
                    await self.peers.changed.wait()

    async def _await_all(self) -> None:
        """Wait once, until all neighbours are there, an exchange is ready, or the idle timeout is over."""
        ticks, waited = TickClock(self.context.manifest.rules.idle_timeout), 0
        while not self._awaited and waited < TICKS_PER_TIMEOUT and not self.stopping.is_set():
            away = [peer for peer in self.peers.neighbours if not self.peers.transport.reaches(peer)]
            if not away or self.pairing.ready() is not None:
                break
            self._raise_faults()
            waited += await ticks.wait(self.peers)
        self._awaited = True

    async def _ask(self) -> None:
        """Ask neighbours until one accepts, or all that are reachable were asked."""
        last, open_with = self.pairing.last_partner(), self.pairing.open_with()
        free = [peer for peer in self.peers.neighbours if peer not in open_with]
        if free != [last]:  # meets the last partner again only if nobody else is free
            free = [peer for peer in free if peer != last]
        for peer in self._chance.sample(free, len(free)):
            if self.pairing.busy or self.stopping.is_set():
                return
            _, again = self._slow.get(peer, (0, -1))
            believed = self.ledger.quarantined(peer) is None and self.ledger.round >= again
            believed = believed and not self.ledger.finished(peer)  # it gets no new row: see `accept`
            if believed and self.peers.transport.reaches(peer):
                await self._ask_one(peer)

    async def _ask_one(self, peer: str) -> None:
        id, own = self.pairing.propose(), self.ledger.round
        try:
            reply = await self.peers.request(peer, Message.of(MessageKind.PROPOSE, own, id.encode()))
            self._slow.pop(peer, None)
            self.hooks.reached("after_propose")
            if not reply.ok:
                return
            row = self._handed_over(peer, reply.body)
            if row is None:
                return
            self.hooks.reached("before_commit")
            verdict = self.pairing.commit(id, peer, own, row.round, row.body, bytes.fromhex(row.signature))
            if verdict is ReplyCode.EQUIVOCATION:
                self.peers.distrust(peer, verdict, f"sent two different rows for round {row.round}")
                return
            self.hooks.reached("after_commit")
            if verdict is ReplyCode.OK:
                await self._settle()
        except Unreachable:  # it is left alone for one round, then two, four, and so on
            times = self._slow.get(peer, (0, 0))[0] + 1
            self._slow[peer] = (times, own + 2 ** min(times, 20))
        finally:
            self.pairing.give_up()

    def _handed_over(self, peer: str, packed: bytes) -> Handover | None:
        """The row that `peer` hands over; None, and quarantine, if it hands over anything else."""
        try:
            row = Handover.unpack(packed, self.peers.last_round)
            self.peers.check_row(peer, row.round, row.body)
            signed = (peer, ANY_RECEIVER, row.round, digest_of(row.body), bytes.fromhex(row.signature))
            if not self.peers.signatures.verify(*signed):
                row = replace(row, signature="")
        except ValueError as error:
            self.peers.distrust(peer, ReplyCode.NOT_A_ROW, f"sent what is not a row: {error}")
            return None
        return row

    async def _settle(self) -> None:
        """Tell acceptors what was decided, and ask proposers about exchanges in doubt, all at once.

        Waits for those that answer soon; the others go on in the background.
        """
        for partner in self.pairing.open_with():
            there = self.peers.transport.reaches(partner) and self.ledger.quarantined(partner) is None
            if there and partner not in self._asking:
                task = self._asking[partner] = self.peers.spawn(self._settle_with(partner))
                task.add_done_callback(partial(self._answered, partner))
        if self._asking:
            await asyncio.wait(list(self._asking.values()), timeout=MAX_LISTENING_SECONDS)

    def _answered(self, partner: str, _: asyncio.Task[None]) -> None:
        self._asking.pop(partner, None)

    async def _settle_with(self, partner: str) -> None:
        with suppress(Unreachable):
            for pair in self.pairing.unconfirmed():
                if pair.partner == partner:
                    packed = self._packed(pair.own_round, pair.id)
                    message = Message.of(MessageKind.COMMIT, pair.own_round, packed)
                    if (await self.peers.request(partner, message)).ok:
                        self.pairing.confirm(pair.id)
                        self.hooks.reached("after_told")
            for pair in self.pairing.prepared():
                if pair.partner == partner:
                    message = Message.of(MessageKind.RESOLVE, 0, pair.id.encode())
                    reply = await self.peers.request(partner, message)
                    if reply.code is ReplyCode.ABORTED:
                        self.pairing.aborted(pair.id)
                    elif reply.code is ReplyCode.COMMITTED:
                        self._take(partner, pair.id, reply.body)
        self.peers.changed.set()

    # Answering

    async def _propose(self, peer: str, message: Message) -> Reply:
        if not self.pairing.accept(message.body.decode("ascii", "replace")[:64], peer):
            return Reply(ReplyCode.BUSY)
        self.hooks.reached("after_prepare")
        return Reply(ReplyCode.OK, body=self._packed(self.ledger.round))

    async def _commit(self, peer: str, message: Message) -> Reply:
        return Reply(self._take(peer, None, message.body))

    async def _resolve(self, peer: str, message: Message) -> Reply:
        id = message.body.decode("ascii", "replace")
        code, pair = self.pairing.outcome(id, peer)
        return Reply(code, body=self._packed(pair.own_round, id) if pair else b"")

    def _packed(self, round: int, id: str = "") -> bytes:
        body = self.pairing.own_row(round)
        signature = self.peers.signatures.sign(ANY_RECEIVER, round, digest_of(body))
        return Handover(round, id, body, signature.hex()).pack()

    def _take(self, peer: str, id: str | None, packed: bytes) -> ReplyCode:
        row = self._handed_over(peer, packed)
        if row is None:
            return ReplyCode.NOT_A_ROW
        signature = bytes.fromhex(row.signature)
        verdict = self.pairing.committed(id or row.meeting, peer, row.round, row.body, signature)
        if not verdict.accepted:
            words = f"commit of round {row.round} refused: {verdict.words}"
            self.peers.refusals.report(peer, verdict.name.lower(), words)
        self.peers.changed.set()
        return verdict

    # The end

    async def _drain(self) -> bool:
        self.pairing.closed = True
        return await super()._drain()

    def _stays_with(self) -> list[str]:
        """The neighbours that are in doubt about an exchange, or do not know that this agent ends.

        Without those that are silent for too long; and none after two idle timeouts, whatever they answer.
        """
        if self.drained >= 2 * TICKS_PER_TIMEOUT:
            return []
        open_with = self.pairing.open_with()
        return [
            peer
            for peer in self.peers.neighbours
            if (peer in open_with or (self.peers.transport.reaches(peer) and not self._knows(peer)))
            and self.peers.silent[peer] < TICKS_PER_TIMEOUT
            and self.ledger.quarantined(peer) is None
        ]

    def _knows(self, peer: str) -> bool:
        return self.ledger.finish_known(peer) or self.peers.ends_with(peer)
