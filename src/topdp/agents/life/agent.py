"""One agent: its books, its neighbours and its rounds put together, from the first greeting to the result.

What it leaves in its state folder at the end: `result.json` and `estimate.safetensors`, beside the ledger.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from topdp.agents.books.inbox import Inbox
from topdp.agents.books.ledger import Ledger, digest_of
from topdp.agents.life.equipment import Equipment
from topdp.agents.life.failpoints import Failpoints
from topdp.agents.life.meetings import Meetings
from topdp.agents.life.peers import Peers, Terms
from topdp.agents.life.rounds import Rounds
from topdp.agents.terms.setup import Setup, spent
from topdp.agents.wire import payload
from topdp.agents.wire.refusals import Told
from topdp.agents.wire.transport import Transport
from topdp.errors import InputError

logger = logging.getLogger("topdp.agents")

DONE, OUT_OF_BUDGET = 0, 3
RESULT, ESTIMATE = "result.json", "estimate.safetensors"


@dataclass(frozen=True)
class Outcome:
    """How an agent ended. `code` is the exit code of its process."""

    code: int
    finished: bool  # False: asked to stop before the last round
    result: dict[str, Any]


class Agent:
    """Opens the ledger, so one object per state folder; `run` lives until the last round, or `stop`."""

    def __init__(
        self,
        setup: Setup,
        work: Equipment,
        folder: Path,
        transport: Transport,
        failpoints: Failpoints | None = None,
        largest_norm: float = float("inf"),
        live_pairing: bool = False,
    ) -> None:
        """`live_pairing`: partners are found on the way, not taken from the plan; all agents or none."""
        self.setup, self.work, self.folder = setup, work, folder
        self.name = setup.names[work.part.agent]
        if live_pairing and work.meter.spending.batches.sampled:
            raise InputError("Expected full or cyclic batches for live pairing, got Poisson batches.")
        self.ledger = Ledger(folder, setup.federation, self.name)
        self.failpoints = failpoints or Failpoints()
        neighbours = [setup.names[other] for other in setup.graph.neighbours[work.part.agent] if other >= 0]
        rounds = {name: work.part.rounds_from(setup.names.index(name)) for name in neighbours}
        start = work.start.numpy()
        dtype = start.dtype.name
        self.peers = Peers(
            self.name,
            neighbours,
            Terms(
                setup.federation,
                "live pairing" if live_pairing else setup.plan.digest(),
                digest_of(start.tobytes()),
            ),
            self.ledger,
            Inbox(self.ledger, rounds, gaps=work.goes_on),
            transport,
            lambda body: void(payload.decode(body, len(start), dtype, largest_norm)),
            self.failpoints,
            Told(self.name),
        )
        self.rounds: Rounds | Meetings
        if live_pairing:
            self.rounds = Meetings(setup, work, self.ledger, self.peers, self.failpoints, self._leave)
        else:
            self.rounds = Rounds(work, self.ledger, self.peers, self.failpoints, self._leave)

    def stop(self) -> None:
        """Asks the agent to end; what was done is on disk, and the same command continues."""
        self.rounds.stopping.set()
        self.peers.changed.set()

    async def run(self) -> Outcome:
        try:
            await self.peers.start()
            finished = await self.rounds.run()
            return self._outcome(finished)
        finally:
            await self.peers.close()
            self.ledger.close()

    def abandon(self) -> None:
        """For tests: what is left of an agent that was killed."""
        for task in self.peers.tasks:
            task.cancel()
        self.ledger.close()

    def _outcome(self, finished: bool) -> Outcome:
        rounds = self.rounds
        by = "worst-case"
        if self.work.meter.by_plan is not None and rounds.departed is None:
            by = self.setup.config.privacy.guarantee
        result = {
            "agent": self.name,
            "federation": self.setup.federation,
            "rounds": self.ledger.round + 1,
            "finished": finished,
            "seeded": self.work.draws.seeded,
            "budget": self.work.epsilon,
            "stopped_at": int(self.ledger.meta["stopped"]) if rounds.out_of_budget else None,
            "departed": rounds.departed,
            "spent": spent(self.ledger.last, self.setup.config, by),
            "milliseconds_per_round": rounds.timing.per_round(),
            "rounds_timed": rounds.timing.rounds,
        }
        if self.work.draws.seeded:
            result["warning"] = "Seeded noise: for tests only. Who knows the seed can subtract the noise."
        return Outcome(OUT_OF_BUDGET if rounds.out_of_budget else DONE, finished, result)

    def _leave(self) -> None:
        outcome = self._outcome(True)
        beside = self.folder / f".{ESTIMATE}"
        save_file({"estimate": self.rounds.estimate().contiguous()}, beside)
        os.replace(beside, self.folder / ESTIMATE)
        text = json.dumps({**outcome.result, "code": outcome.code}, indent=2) + "\n"
        (self.folder / f".{RESULT}").write_text(text, encoding="utf-8")
        os.replace(self.folder / f".{RESULT}", self.folder / RESULT)


def void(value: object) -> None:
    """A check whose value is not needed."""
