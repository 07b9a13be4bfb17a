"""One agent: its books, its neighbours and its life put together, from the first greeting to the result.

What it leaves in its state folder at the end: `result.json` and `estimate.safetensors`, beside the ledger.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save

from topdp.agents.agreement.card_succession import Directory
from topdp.agents.agreement.ledger_mark import BooksMark
from topdp.agents.agreement.row_signatures import Proofs
from topdp.agents.development.failpoints import Failpoints
from topdp.agents.ledger import start_choices
from topdp.agents.ledger.inbox import Inbox
from topdp.agents.ledger.ledger import Ledger, Partners
from topdp.agents.ledger.ledger_check import verify
from topdp.agents.ledger.ledger_entries import digest_of
from topdp.agents.ledger.row_witness import holds, newest_head
from topdp.agents.runtime.agent_context import Equipment
from topdp.agents.runtime.agent_loop import Life
from topdp.agents.runtime.agent_rows import shares_draws
from topdp.agents.runtime.card_updates import Cards
from topdp.agents.runtime.greeting import Terms
from topdp.agents.runtime.hidden_row_limits import same_limits
from topdp.agents.runtime.live_pairing_loop import Meetings
from topdp.agents.runtime.peers import Peers
from topdp.agents.runtime.planned_loop import Rounds
from topdp.agents.runtime.shared_draws import PrivateFiles, Sharing
from topdp.agents.wire import row_payload
from topdp.agents.wire.link_refusals import Told
from topdp.agents.wire.traffic_counter import Counted
from topdp.agents.wire.transport import Transport, end_all
from topdp.base.files import write_whole
from topdp.errors import ExitCode, InputError
from topdp.privacy.answers import WORST_CASE, answer_kind
from topdp.runs import builders

BOOKS = "books"  # the key of the books' own name
RESULT, ESTIMATE = "result.json", "estimate.safetensors"
GRACE = 3.0
"""Seconds that an agent has, once it is asked to stop, for what it is in the middle of."""


@dataclass(frozen=True)
class Outcome:
    """How an agent ended. `code` is the exit code of its process."""

    code: ExitCode
    finished: bool  # False: asked to stop before the last round
    result: dict[str, Any]


class Agent:
    """Opens the ledger, so one object per state folder; `run` lives until the last round, or `stop`."""

    def __init__(
        self,
        equipment: Equipment,
        folder: Path,
        transport: Transport,
        failpoints: Failpoints | None = None,
        live_pairing: bool = False,
        private: PrivateFiles | None = None,
        directory: Directory | None = None,
    ) -> None:
        """`live_pairing`: partners are found on the way, not taken from the plan; all agents or none.

        `private`: who signs, and where keys of runs are kept; needed where the plan shares draws.
        `directory`: the cards that the transport reads, where it reads any.
        """
        self.folder, self.name = folder, equipment.name
        if live_pairing and shares_draws(equipment.part.plan):
            raise InputError(
                "Expected a plan whose agents share no draws for live pairing, got one that does."
            )
        if live_pairing and equipment.meter.spending.batches.sampled:
            raise InputError("Expected full or cyclic batches for live pairing, got Poisson batches.")
        if live_pairing and not builders.optimiser(equipment.manifest.config).plain:
            raise InputError("Expected train.optimiser = 'sgd' alone for live pairing: it keeps no memories.")
        if live_pairing and equipment.part.plan.robust is not None:
            raise InputError(
                "Expected robust.rule = 'mean' for live pairing: partners' rows come one by one."
            )
        manifest = equipment.manifest
        partners: Partners = "found" if live_pairing else "planned"
        gauge = equipment.meter
        by_plan = (gauge.by_plan is not None or gauge.in_the_open) and not live_pairing
        guarantee = manifest.config.privacy.guarantee if by_plan else WORST_CASE.name
        self.ledger = Ledger(
            folder,
            manifest.hash,
            self.name,
            partners=partners,
            guarantee=guarantee,
            whoever_is_missing=gauge.in_the_open,
            reserve=equipment.setup.reserve if by_plan else 0,
        )
        try:
            # What a changed byte hides would be counted from, and bound by the next charge.
            verify(self.ledger)
            self._put_together(
                equipment, transport, failpoints or Failpoints(), live_pairing, private, directory
            )
        except BaseException:
            self.ledger.close()  # and its lock: who starts next in this process finds it free
            raise

    def _put_together(
        self,
        equipment: Equipment,
        transport: Transport,
        failpoints: Failpoints,
        live_pairing: bool,
        private: PrivateFiles | None,
        directory: Directory | None,
    ) -> None:
        manifest, part = equipment.manifest, equipment.part
        self.sharing: Sharing | None = None
        rehearses = equipment.gradients.rehearsal is not None
        seeded, granted = equipment.draws.seeded, equipment.setup.budget(part.agent)
        least = start_choices.settle(self.ledger, seeded, rehearses, equipment.asked, granted)
        start_choices.note_delta(self.ledger, manifest.config.privacy.delta)
        if live_pairing:  # charges by worst case, and rounds are each agent's own count
            every = same_limits(part.plan, manifest.rules.largest_norm)
            equipment = replace(equipment, limits=every)
        self.equipment = equipment = replace(equipment, epsilon=least)
        folder_of_identity = private.folder if private else None
        self.cards = Cards(manifest, self.name, self.ledger, folder_of_identity, directory)
        if equipment.order is not None:
            start_choices.expect_order(self.ledger, equipment.order)
        if shares_draws(part.plan):
            self.sharing = Sharing(equipment, self.ledger, private, failpoints)
            self.sharing.gossip.directory = self.cards.directory
        self.mark = BooksMark(private.folder, manifest.hash) if private else None
        doubtful = self._resumes()
        neighbours = list(manifest.neighbours(self.name))
        sent = {name: part.rounds_from(manifest.number(name)) for name in neighbours}
        start = equipment.start.numpy()
        plan = "live pairing" if live_pairing else part.plan.digest()
        self.traffic = Counted(transport)
        self.peers = Peers(
            self.name,
            neighbours,
            Terms(manifest.hash, plan, digest_of(start.tobytes())),
            self.ledger,
            Inbox(self.ledger, sent, gaps=manifest.rules.goes_on),
            self.traffic,
            self._check,
            failpoints,
            Told(self.name),
            Proofs(
                self.name,
                manifest,
                private.identity if private else None,
                self.cards.directory if self.cards else None,
            ),
            part.plan.releases - 1,
            self.sharing.gossip if self.sharing else None,
            self.cards,
            doubtful,
        )
        way = Meetings if live_pairing else Rounds
        self.life: Life = way(
            equipment, self.ledger, self.peers, failpoints, self._leave, self.sharing, self._note
        )

    def _check(self, peer: str, round: int, body: bytes) -> None:
        """Refuses bytes that are no row of this federation, or longer than one of this round may be."""
        start, part, largest = self.equipment.start, self.equipment.part, self.equipment.limits
        number = self.equipment.manifest.number(peer)
        row = part.read(round).get(number, number)  # who meets as it comes hands over its estimate
        row_payload.decode(
            body, len(start), str(start.dtype).removeprefix("torch."), largest.taken(round, row)
        )

    def _resumes(self) -> bool:
        """Whether rows of this agent may be out that its books do not know; an old copy is refused here."""
        books = self.ledger
        if BOOKS not in books.meta:
            books.database.remember(BOOKS, secrets.token_hex(16))
        if self.mark is None:
            return books.round >= 0
        others = self.mark.resume(books.meta[BOOKS], books.round, lambda head: holds(books, head))
        if books.round >= 0:
            self._note(books.round)  # who was killed between entry and mark has none of what leaves now
        return others or books.round >= 0

    def _note(self, round: int) -> None:
        if self.mark is not None:
            self.mark.note(self.ledger.meta[BOOKS], round, newest_head(self.ledger))

    def stop(self) -> None:
        """Asks the agent to end; what was done is on disk, and the same command continues."""
        self.life.stopping.set()
        self.peers.changed.set()

    async def run(self) -> Outcome:
        try:
            await self.peers.start()
            return self._outcome(await self._lived())
        finally:
            await self.peers.close()
            self.ledger.close()

    async def _lived(self) -> bool:
        """The agent's life. One that is asked to stop in the middle of something has `GRACE` to end it.

        What is then left off was not booked, so nobody has seen it: it is done anew after a restart.
        """
        life = asyncio.create_task(self.life.run())
        asked = asyncio.create_task(self.life.stopping.wait())
        try:
            await asyncio.wait([life, asked], return_when=asyncio.FIRST_COMPLETED)
            if not life.done():
                await asyncio.wait([life], timeout=GRACE)
            return life.done() and life.result()
        finally:
            await end_all([life, asked], self.name)

    def abandon(self) -> None:
        """For tests: what is left of an agent that was killed."""
        for task in list(self.peers.tasks):
            task.cancel()
        self.ledger.close()

    def _outcome(self, finished: bool) -> Outcome:
        seeded, rehearsal = (start_choices.was(self.ledger, key) for key in start_choices.OPTIONS)
        result = {
            "agent": self.name,
            "federation": self.equipment.manifest.hash,
            "releases": self.ledger.round + 1,
            **self._counts(),
            "finished": finished,
            "seeded": seeded,
            "rehearsal": rehearsal,
            "budget": self.equipment.epsilon,
            "stopped_at": self.ledger.stopped_at,
            "departed": self.ledger.departed,
            "departures": self.ledger.departures(),
            **({"gone": self.ledger.counted_out()} if self.sharing else {}),
            "spent": self._spent(),
            "milliseconds_per_round": self.life.timing.per_round(),
            "processor_milliseconds_per_round": self.life.timing.processor_per_round(),
            "releases_timed": self.life.timing.rounds,
        }
        if seeded:
            result["warning"] = "Seeded noise: for tests only. Who knows the seed can subtract the noise."
        return Outcome(ExitCode.BUDGET if self.life.out_of_budget else ExitCode.DONE, finished, result)

    def _counts(self) -> dict[str, int]:
        """How many of the rounds were made, how many of these without data, and how many were left out."""
        kinds = Counter(entry.kind for entry in self.ledger.entries())
        made = kinds["release"] + kinds["noise"]
        return {"made": made, "without_data": kinds["noise"], "skipped": self.ledger.round + 1 - made}

    def _spent(self) -> dict[str, Any]:
        books, privacy = self.ledger, self.equipment.manifest.config.privacy
        counted = answer_kind(books.charged_by).counts_colluders
        colluders = {"colluders": privacy.colluders} if counted else {}
        return {
            "epsilon": books.spent,
            "worst_case": books.last.worst_case if books.last else 0.0,
            "delta": privacy.delta,
            "charged_by": books.charged_by,
            **colluders,
            "adjacency": privacy.adjacency,
        }

    def _leave(self) -> None:
        outcome = self._outcome(True)
        if self.sharing is not None:
            self.sharing.end()
        write_whole(self.folder / ESTIMATE, save({"estimate": self.life.reported().contiguous()}))
        write_whole(
            self.folder / RESULT, json.dumps({**outcome.result, "code": outcome.code}, indent=2) + "\n"
        )
