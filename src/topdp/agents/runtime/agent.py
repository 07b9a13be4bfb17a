"""One agent with its ledger, neighbours and loop, from the first greeting to the result.

At the end the agent writes `result.json` and `estimate.safetensors` to its state folder, beside the ledger.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save

from topdp.agents.agreement.card_succession import CardDirectory
from topdp.agents.agreement.identity import expect_own_folder
from topdp.agents.agreement.run_marks import RollbackMark
from topdp.agents.agreement.signatures import RowSignatures
from topdp.agents.ledger import start_choices
from topdp.agents.ledger.inbox import Inbox
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_check import verify
from topdp.agents.ledger.ledger_entries import digest_of
from topdp.agents.runtime.agent_context import AgentContext, PrivateFiles
from topdp.agents.runtime.agent_loop import AgentLoop
from topdp.agents.runtime.card_updates import CardUpdates, restore_directory
from topdp.agents.runtime.outbox_sender import OutboxSender
from topdp.agents.runtime.peer_contacts import PeerContacts
from topdp.agents.runtime.peer_messages import LinkTerms
from topdp.agents.runtime.planned_loop import PlannedLoop
from topdp.agents.runtime.request_handlers import RequestHandlers
from topdp.agents.runtime.row_guards import uniform_norm_limits
from topdp.agents.wire.transport import Transport, end_all
from topdp.base.files import write_atomically
from topdp.errors import ExitCode, InputError
from topdp.plan import Capability
from topdp.privacy.answers import WORST_CASE, answer_kind

if TYPE_CHECKING:
    from topdp.agents.runtime.shared_draws import SharedDraws

RESULT_FILE, ESTIMATE_FILE = "result.json", "estimate.safetensors"
STOP_GRACE_SECONDS = 3.0
"""How long an agent that was asked to stop may take to finish its current step."""


@dataclass(frozen=True)
class AgentOutcome:
    """How an agent ended. `code` is the exit code of its process."""

    code: ExitCode
    finished: bool  # False: asked to stop before the last round
    result: dict[str, Any]


class Agent:
    """One agent with its state folder, whose ledger it locks. `run` ends after the last round or `stop`."""

    def __init__(
        self,
        context: AgentContext,
        folder: Path,
        *,
        transport: Transport,
        private: PrivateFiles,
        live_pairing: bool = False,
        directory: CardDirectory | None = None,
    ) -> None:
        """`live_pairing`: whether the agent finds partners while it runs; all agents of a federation do, or
        none.

        `private`: the identity that signs, and the folder that contains keys of runs. `directory`: the cards
        that the transport reads, if it reads any.
        """
        self.folder, self.name, self.private, self.live_pairing = folder, context.name, private, live_pairing
        self._loop_class: type[AgentLoop] = PlannedLoop
        if live_pairing:
            from topdp.agents.runtime import live_pairing_loop

            self._loop_class = live_pairing_loop.LivePairingLoop
            sampled = context.meter.spending.batches.sampled
            if reason := live_pairing_loop.supports(context.part.plan, sampled):
                raise InputError(
                    "--live-pairing: expected method.mode = async alone and full or cyclic batches for live "
                    f"pairing, got {reason}. Make a manifest without this, or omit --live-pairing."
                )
        manifest, meter = context.manifest, context.meter
        if folder.exists():
            expect_own_folder(folder)
        by_plan = (meter.by_plan is not None or meter.in_the_open) and not live_pairing
        self.ledger = Ledger(
            folder,
            manifest.hash,
            self.name,
            partners="found" if live_pairing else "planned",
            guarantee=manifest.config.privacy.guarantee if by_plan else WORST_CASE.name,
            holds_after_departures=meter.in_the_open,
            reserve=context.setup.reserve if by_plan else 0,
        )
        try:
            # The next charge would build on a changed byte, and its hash would hide the change.
            verify(self.ledger)
            self._assemble(context, transport, directory)
        except BaseException:
            self.ledger.close()  # releases its lock for a later start in this process
            raise

    def _assemble(self, context: AgentContext, transport: Transport, directory: CardDirectory | None) -> None:
        manifest, part, hooks, private = context.manifest, context.part, context.hooks, self.private
        epsilon = start_choices.record_choices(
            self.ledger,
            seeded=hooks.seeded,
            rehearsal=hooks.rehearsal,
            requested=context.requested,
            granted=context.setup.budget(part.agent),
        )
        if start_choices.DELTA_KEY not in self.ledger.meta:  # for programs that read the ledger alone
            self.ledger.database.remember(start_choices.DELTA_KEY, repr(context.setup.delta(part.agent)))
        if self.live_pairing:  # the agent charges by worst case, and each agent counts its own rounds
            context = replace(context, limits=uniform_norm_limits(part.plan, manifest.rules.largest_norm))
        self.context = context = replace(context, epsilon=epsilon)
        directory = directory or restore_directory(manifest, self.ledger.meta)
        if context.order is not None:
            start_choices.expect_record_order(self.ledger, context.order)
        self.shared_draws: SharedDraws | None = None
        if Capability.SHARED_DRAWS in part.plan.needs:
            from topdp.agents.runtime.shared_draws import SharedDraws

            self.shared_draws = SharedDraws(context, self.ledger, private, directory)
        self.mark = RollbackMark(private.folder, manifest.hash)
        self._resume_from_mark()
        neighbours = manifest.neighbours(self.name)
        sent = {name: part.rounds_from(manifest.number(name)) for name in neighbours}
        plan = "live pairing" if self.live_pairing else part.plan.digest()
        self.peers = PeerContacts(
            terms=LinkTerms(manifest.hash, plan, digest_of(context.start.numpy().tobytes())),
            ledger=self.ledger,
            inbox=Inbox(self.ledger, sent, gaps=manifest.rules.tolerates_silence),
            transport=transport,
            check_row=self._check_row,
            signatures=RowSignatures(directory, private.identity),
            last_round=part.plan.releases - 1,
            hooks=hooks,
            notices=self.shared_draws.notices if self.shared_draws else None,
            card_updates=CardUpdates(self.name, self.ledger, directory, private.folder),
        )
        if self.shared_draws is not None:
            self.shared_draws.attach(self.peers)
        self.requests, self.sender = RequestHandlers(self.peers), OutboxSender(self.peers)
        self.loop = self._loop_class(
            context, self.peers, finish=self._write_results, shared_draws=self.shared_draws, mark=self._mark
        )

    def _check_row(self, peer: str, round: int, body: bytes) -> None:
        """Raise PayloadError if the bytes are no row of this federation, or its norm exceeds the limit."""
        number = self.context.manifest.number(peer)
        # With live pairing, a partner sends its estimate.
        row = self.context.part.read_rows[round].get(number, number)
        self.context.decode(body, self.context.limits.accepted_norm(round, row))

    def _resume_from_mark(self) -> None:
        """Compare the ledger with the rollback mark. Raise TrustError for an old copy."""
        ledger = self.ledger
        if start_choices.LEDGER_ID_KEY not in ledger.meta:
            ledger.database.remember(start_choices.LEDGER_ID_KEY, secrets.token_hex(16))
        self.mark.resume(ledger.meta[start_choices.LEDGER_ID_KEY], ledger.round, ledger.has_entry)
        if ledger.round >= 0:
            self._mark(ledger.round)  # after a kill between entry and mark, none of its rows was sent

    def _mark(self, round: int) -> None:
        self.mark.note(self.ledger.meta[start_choices.LEDGER_ID_KEY], round, self.ledger.head)

    def stop(self) -> None:
        """Ask the agent to end. All finished work is on disk, and the same command continues."""
        self.loop.stopping.set()
        self.peers.changed.set()

    async def run(self) -> AgentOutcome:
        try:
            await self.peers.transport.start(self.requests.handle)
            for peer in self.peers.neighbours:
                self.peers.spawn(self.sender.serve(peer))
            return self._outcome(await self._run_loop())
        finally:
            await end_all(list(self.peers.tasks), "neighbours")
            await self.peers.transport.close()
            self.ledger.close()

    async def _run_loop(self) -> bool:
        """Run the loop. Once asked to stop, the loop has `STOP_GRACE_SECONDS` to finish its step.

        A step that is cancelled then is not in the ledger, so nobody has seen it. A restarted agent repeats
        it.
        """
        rounds = asyncio.create_task(self.loop.run())
        stopping = asyncio.create_task(self.loop.stopping.wait())
        try:
            await asyncio.wait([rounds, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not rounds.done():
                await asyncio.wait([rounds], timeout=STOP_GRACE_SECONDS)
            return rounds.done() and rounds.result()
        finally:
            await end_all([rounds, stopping], self.name)

    def _outcome(self, finished: bool) -> AgentOutcome:
        kinds = Counter(entry.kind for entry in self.ledger.entries())
        rounds = kinds["release"] + kinds["noise"]
        seeded, rehearsal = (
            start_choices.ever_chosen(self.ledger, key) for key in start_choices.TEST_OPTIONS
        )
        skipped = self.ledger.round + 1 - rounds
        has_skipped_most = finished and skipped > rounds
        result = {
            "agent": self.name,
            "federation": self.context.manifest.hash,
            "releases": self.ledger.round + 1,
            "made": rounds,
            "without_data": kinds["noise"],
            "skipped": skipped,
            "finished": finished and not has_skipped_most,
            "seeded": seeded,
            "rehearsal": rehearsal,
            "budget": self.context.epsilon,
            "stopped_at": self.ledger.stopped_at,
            "departed": self.ledger.departed,
            "departures": self.ledger.covered_departures(),
            "suspects": self.ledger.suspects,
            **({"gone": self.ledger.departed_members()} if self.shared_draws else {}),
            "spent": self._spent(),
            "milliseconds_per_round": self.loop.timing.per_round(),
            "processor_milliseconds_per_round": self.loop.timing.processor_per_round(),
            "releases_timed": self.loop.timing.rounds,
        }
        if seeded:
            result["warning"] = "Seeded noise: for tests only. Anyone who knows the seed can subtract it."
        code = ExitCode.BUDGET if self.loop.out_of_budget else ExitCode.DONE
        return AgentOutcome(ExitCode.TRUST if has_skipped_most else code, finished, result)

    def _spent(self) -> dict[str, Any]:
        ledger, privacy = self.ledger, self.context.manifest.config.privacy
        counted = answer_kind(ledger.charged_by).counts_colluders
        colluders = {"colluders": privacy.colluders} if counted else {}
        return {
            "epsilon": ledger.spent,
            WORST_CASE.key: ledger.worst_case,
            "delta": self.context.setup.delta(self.context.part.agent),
            "charged_by": ledger.charged_by,
            **colluders,
            "adjacency": privacy.adjacency,
            "unit": privacy.unit,
        }

    def _write_results(self) -> None:
        outcome = self._outcome(True)
        if self.shared_draws is not None:
            self.shared_draws.erase_key()
        write_atomically(self.folder / ESTIMATE_FILE, save({"estimate": self.loop.reported().contiguous()}))
        write_atomically(
            self.folder / RESULT_FILE, json.dumps({**outcome.result, "code": outcome.code}, indent=2) + "\n"
        )
