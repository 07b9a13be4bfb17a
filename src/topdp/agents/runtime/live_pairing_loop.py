"""The agent loop without planned partners: the agent finds a partner for each exchange while it runs.

In every round the agent proposes an exchange to its neighbours in random order, until one accepts; the two
agents exchange estimates (Algorithm 2). It neither proposes to nor accepts the agent whose row is in its own
present row. An agent that finds no partner makes its round alone, with full-scale noise. If the outcome of an
exchange is unknown, the agent requests it, and meanwhile continues and exchanges with other agents. Each
agent counts its own rounds. No agent waits for another, except at the beginning, until it reaches all
neighbours.

**Guarantees.** Those of `AgentLoop`. The exchanges are not known in advance, so the agent charges by worst
case, which counts only an agent's own draws. Rows without data are made of noise and of rows that count as
seen, so they cost nothing. Poisson batches are refused, because their cost is computed for a plan.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import final

from torch import Tensor

from topdp.agents.ledger.ledger_entries import digest_of
from topdp.agents.ledger.pairing_records import PairingRecords, PairRecord
from topdp.agents.ledger.stored_rows import ANY_RECEIVER
from topdp.agents.runtime.agent_loop import AgentLoop, TickClock
from topdp.agents.runtime.agent_rows import add_noise, mix_rows
from topdp.agents.runtime.peer_contacts import TICKS_PER_TIMEOUT
from topdp.agents.runtime.peer_messages import Handover
from topdp.agents.wire import row_payload
from topdp.agents.wire.transport import Message, MessageKind, Reply, ReplyCode, Unreachable
from topdp.plan import Plan, unsupported
from topdp.protocols import protocol_of
from topdp.protocols.protocol import reduced

PARTNER_ORDER: Callable[[], random.Random] = random.SystemRandom
"""The random numbers by which an agent chooses neighbours. They are no secret, and not seeded."""

MAX_LISTENING_SECONDS = 0.3  # how long an agent waits for a proposal; affects only how many exchanges happen


def supports(plan: Plan, sampled: bool) -> str | None:
    """Return None if live pairing can execute the plan, and otherwise the reason why it cannot.

    `sampled`: whether batches are Poisson.
    """
    reason = unsupported(plan, ()) if protocol_of(plan).pairwise else f"protocol {plan.protocol}"
    return reason or ("Poisson batches" if sampled else None)


@final
class LivePairingLoop(AgentLoop):
    """The loop of one agent without planned partners."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pairing = PairingRecords(self.ledger)
        config = self.context.manifest.config
        self.alpha, self.own_share = config.method.alpha, config.method.own_share
        self.reuses = self.context.setup.run.method.reuses_noise
        self.deviation = self.context.part.plan.full_scale
        self._random = PARTNER_ORDER()
        self._has_waited = False  # whether it has waited for unreachable neighbours
        # Failed requests in a row, and the round to ask again.
        self._failures: dict[str, tuple[int, int]] = {}
        # Partners with which the agent settles an exchange.
        self._settling: dict[str, asyncio.Task[None]] = {}
        self.peers.handlers |= {
            MessageKind.PROPOSE: self._propose,
            MessageKind.COMMIT: self._commit,
            MessageKind.RESOLVE: self._resolve,
        }

    async def _next_round(self) -> bool:
        if not await self._wait_for_reports(for_ever=False):
            return False
        if self.ledger.round >= 0:
            with self.timing.measure("network"):
                await self._wait_for_neighbours()
                await self._settle()
                await self._find_partner()
        if self.paused():
            return True  # no row was made, and committed exchanges are in the ledger
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
        row = self._bound_norm(round, me, await self._compute(job))
        self.pairing.forget_rows()
        applied = [(pair.partner, pair.partner_round or 0)] if pair else []
        body = row_payload.encode(row.numpy())
        self._release(round, kind, cost, {ANY_RECEIVER: body}, {me: row}, applied, pair.id if pair else None)

    def _job(
        self, round: int, pair: PairRecord | None, std: float, rate: float | None
    ) -> Callable[[], Tensor]:
        """Return a function that computes the row of `round` without access to the ledger.

        If `rate` is None, no data enter.
        """
        estimate = self.estimate()
        parts, before = [(0, 1.0)], {0: estimate}
        if pair is not None:
            before[1] = self._received_row(pair.partner, pair.partner_round or 0)
            parts = [(0, self.alpha), (1, 1 - self.alpha)]

        def job() -> Tensor:
            row = mix_rows(parts, before, estimate)
            if rate is not None:
                row.add_(self.context.gradients.mean(round, estimate), alpha=-rate)
            noise = [(std, round, self.context.part.agent)]
            return add_noise(row, self.context.draws, noise, estimate.dtype)

        return job

    # The proposer

    async def _find_partner(self) -> None:
        """Listen or propose first, at random: if all agents proposed at once, all would be busy."""
        if set(self.peers.neighbours) <= {self.pairing.mixed_in()}:
            return  # no neighbour may receive the present row
        if self._random.random() < 0.5:
            await self._listen()
        if not self.pairing.busy:
            await self._propose_to_neighbours()
        if self.pairing.ready() is None:
            await self._listen()

    async def _listen(self) -> None:
        """Wait a while for an exchange to be committed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._random.uniform(0.5, 1.0) * MAX_LISTENING_SECONDS):
                while self.pairing.ready() is None and not self.stopping.is_set():
                    self.peers.changed.clear()
                    await self.peers.changed.wait()

    async def _wait_for_neighbours(self) -> None:
        """Wait once, until all neighbours are reachable, an exchange is ready, or the idle timeout ends."""
        ticks, waited = TickClock(self.context.manifest.rules.idle_timeout), 0
        while not self._has_waited and waited < TICKS_PER_TIMEOUT and not self.stopping.is_set():
            away = [peer for peer in self.peers.neighbours if not self.peers.transport.reaches(peer)]
            if not away or self.pairing.ready() is not None:
                break
            self._raise_faults()
            waited += await ticks.wait(self.peers)
        self._has_waited = True

    async def _propose_to_neighbours(self) -> None:
        """Propose an exchange to the reachable neighbours, one after the other, until one accepts."""
        excluded = {self.pairing.mixed_in(), *self.pairing.open_with()}
        free = [peer for peer in self.peers.neighbours if peer not in excluded]
        for peer in self._random.sample(free, len(free)):
            if self.pairing.busy or self.stopping.is_set():
                return
            _, retry_round = self._failures.get(peer, (0, -1))
            is_eligible = self.ledger.quarantined(peer) is None and self.ledger.round >= retry_round
            is_eligible = is_eligible and not self.ledger.finished(peer)  # as in `PairingRecords.accept`
            if is_eligible and self.peers.transport.reaches(peer):
                await self._propose_to(peer)

    async def _propose_to(self, peer: str) -> None:
        id, own_round = self.pairing.propose(), self.ledger.round
        try:
            reply = await self.peers.request(peer, Message.of(MessageKind.PROPOSE, own_round, id.encode()))
            self._failures.pop(peer, None)
            self.hooks.reached("after_propose")
            if not reply.ok:
                return
            row = self._unpack_row(peer, reply.body)
            if row is None:
                return
            self.hooks.reached("before_commit")
            verdict = self.pairing.commit(id, peer, own_round, row.round, row.body, row.signature_bytes)
            if verdict is ReplyCode.EQUIVOCATION:
                self.peers.distrust(peer, verdict, f"sent two different rows for round {row.round}")
                return
            self.hooks.reached("after_commit")
            if verdict is ReplyCode.OK:
                await self._settle()
        except Unreachable:  # no proposal to it for one round, then two, four, and so on
            times = self._failures.get(peer, (0, 0))[0] + 1
            self._failures[peer] = (times, own_round + 2 ** min(times, 20))
        finally:
            self.pairing.give_up()

    def _unpack_row(self, peer: str, packed: bytes) -> Handover | None:
        """Return the row that `peer` sent in an exchange; if it sent none, quarantine it and return None."""
        try:
            row = Handover.unpack(packed, self.peers.last_round)
            self.peers.check_row(peer, row.round, row.body)
            signed = (peer, ANY_RECEIVER, row.round, digest_of(row.body), row.signature_bytes)
            if not self.peers.signatures.verify(*signed):
                row = replace(row, signature="")
        except ValueError as error:
            self.peers.distrust(peer, ReplyCode.NOT_A_ROW, f"sent what is not a row: {error}")
            return None
        return row

    async def _settle(self) -> None:
        """Inform acceptors of outcomes, and request unknown outcomes from proposers, all at once.

        Wait for partners that answer soon; the other requests continue in the background.
        """
        for partner in self.pairing.open_with():
            is_reachable = self.peers.transport.reaches(partner) and self.ledger.quarantined(partner) is None
            if is_reachable and partner not in self._settling:
                self._settling[partner] = self.peers.spawn(self._settle_with(partner))
        if self._settling:
            await asyncio.wait(list(self._settling.values()), timeout=MAX_LISTENING_SECONDS)

    async def _settle_with(self, partner: str) -> None:
        with suppress(Unreachable):
            for pair in self.pairing.unconfirmed():
                if pair.partner == partner:
                    packed = self._pack_row(pair.own_round, pair.id)
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
                        self._accept_commit(partner, pair.id, reply.body)
        self._settling.pop(partner, None)
        self.peers.changed.set()

    # The acceptor

    async def _propose(self, peer: str, message: Message) -> Reply:
        if not self.pairing.accept(message.body.decode("ascii", "replace")[:64], peer):
            return Reply(ReplyCode.BUSY)
        self.hooks.reached("after_prepare")
        return Reply(ReplyCode.OK, body=self._pack_row(self.ledger.round))

    async def _commit(self, peer: str, message: Message) -> Reply:
        return Reply(self._accept_commit(peer, None, message.body))

    async def _resolve(self, peer: str, message: Message) -> Reply:
        id = message.body.decode("ascii", "replace")
        code, pair = self.pairing.outcome(id, peer)
        return Reply(code, body=self._pack_row(pair.own_round, id) if pair else b"")

    def _pack_row(self, round: int, id: str = "") -> bytes:
        body = self.ledger.body(ANY_RECEIVER, round)
        signature = self.peers.signatures.sign(ANY_RECEIVER, round, digest_of(body))
        return Handover(round, id, body, signature.hex()).pack()

    def _accept_commit(self, peer: str, id: str | None, packed: bytes) -> ReplyCode:
        row = self._unpack_row(peer, packed)
        if row is None:
            return ReplyCode.NOT_A_ROW
        verdict = self.pairing.committed(id or row.exchange, peer, row.round, row.body, row.signature_bytes)
        if not verdict.accepted:
            words = f"commit of round {row.round} refused: {verdict.words}"
            self.peers.refusals.report(peer, verdict.name.lower(), words)
        self.peers.changed.set()
        return verdict

    # The end

    async def _drain(self) -> bool:
        self.pairing.closed = True
        return await super()._drain()

    def _peers_in_need(self) -> list[str]:
        """Return the neighbours with an unsettled exchange, or that were not informed that this agent ends.

        Neighbours that are silent for the idle timeout do not count, and after two idle timeouts none does.
        """
        if self.ticks_at_end >= 2 * TICKS_PER_TIMEOUT:
            return []
        unsettled = self.pairing.open_with() | {
            peer
            for peer in filter(self.peers.transport.reaches, self.peers.neighbours)
            if not (self.ledger.finish_known(peer) or self.peers.sends_nothing_to(peer))
        }
        return [
            peer
            for peer in self.peers.neighbours
            if peer in unsettled
            and self.peers.silent_ticks[peer] < TICKS_PER_TIMEOUT
            and self.ledger.quarantined(peer) is None
        ]
