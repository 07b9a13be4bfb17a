"""Beside the life of an agent, in its process: orders taken up, its standing written, words for people.

Looks twice a second; says something to the log every `report` seconds, and when the standing of an order
changes. Decides nothing of the run: the agent itself asks, before each release, whether it is paused.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from topdp.agents.ledger.ledger_entries import LedgerError
from topdp.agents.node.operator_orders import STOP_FILE, OperatorOrders
from topdp.agents.node.status_file import STATUS_INTERVAL_SECONDS, AgentState, ProcessStatus, process_birth
from topdp.agents.node.status_words import progress_in_words, scores_in_words
from topdp.agents.runtime.agent import Agent
from topdp.agents.runtime.run_end import last_round

if TYPE_CHECKING:
    from topdp.agents.node.owner_evaluation import OwnerEvaluation

logger = logging.getLogger("topdp.agents")

POLL_SECONDS = 0.5  # seconds between two looks at the orders


class NodeMonitor:
    """Beside one agent, from its first greeting to its end."""

    def __init__(
        self,
        agent: Agent,
        orders: OperatorOrders,
        stop: Callable[[], None],
        report: float = 30.0,
        scores: OwnerEvaluation | None = None,
    ) -> None:
        """`stop` asks the process to end. `report`: seconds between two lines of progress; 0: none."""
        self.agent, self.orders, self.stop = agent, orders, stop
        self.report, self.scores = report, scores
        self.found: dict[str, Any] | None = None  # the newest scores
        self._birth = process_birth(os.getpid())
        self._written = self._reported = 0.0
        self._standing: ProcessStatus | None = None
        self._scored: int | None = None
        self._scoring: asyncio.Task[None] | None = None
        self._mute = False
        orders.withdraw(STOP_FILE)  # of whoever ran here before
        self.paused = orders.paused()
        if self.paused:
            self._say(
                "is paused since before this start: no new release until `topdp agent resume`", "paused"
            )
        agent.loop.paused = orders.paused

    def _rounds(self) -> int:
        """The last round: the plan's, or an earlier one where the run was amended."""
        planned, ends = self.agent.context.part.plan.releases - 1, last_round(self.agent.ledger)
        return planned if ends is None else min(planned, max(ends, self.agent.ledger.round))

    async def run(self) -> None:
        """Until cancelled."""
        self._reported = asyncio.get_running_loop().time()
        while True:
            try:
                self.look()
            except Exception:  # who stands beside an agent must not end it
                logger.exception(
                    "%s: could not look at where it is", self.agent.name, extra={"event": "status"}
                )
                await asyncio.sleep(STATUS_INTERVAL_SECONDS)
            await asyncio.sleep(POLL_SECONDS)

    def look(self) -> None:
        """Takes up orders, writes where the agent is, and tells it when it is time."""
        agent = self.agent
        if not agent.loop.stopping.is_set() and self.orders.take_stop():
            self._say("asked to stop", "stop")
            self.stop()
        paused = self.orders.paused()
        if paused != self.paused:
            self.paused = paused
            self._say("paused: no new release" if paused else "resumed", "paused" if paused else "resumed")
            agent.peers.changed.set()
        self._score()
        standing = self.standing()
        changed = self._standing is None or _stable_fields(standing) != _stable_fields(self._standing)
        if (
            changed
            or standing.written - self._written >= STATUS_INTERVAL_SECONDS
            or standing.written < self._written
        ):
            self._write(standing)
        if self.report and asyncio.get_running_loop().time() - self._reported >= self.report:
            self._reported = asyncio.get_running_loop().time()
            self.tell()

    def standing(self, code: int | None = None) -> ProcessStatus:
        agent, loop = self.agent, self.agent.loop
        state: AgentState = loop.activity
        if code is not None:
            state = "ended"
        elif state == "waits" and self.orders.paused():
            state = "paused"
        return ProcessStatus(
            process=os.getpid(),
            begun=self._birth,
            written=time.time(),
            state=state,
            round=agent.ledger.round,
            rounds=self._rounds(),
            budget=agent.context.epsilon,
            waits_for=dict(loop.waits.since),
            heard=dict(agent.peers.heard_at),
            scores=self.found,
            code=code,
        )

    def tell(self) -> None:
        """One line on where the agent is."""
        with suppress(LedgerError):  # it has just ended
            standing, ledger = self.standing(), self.agent.ledger
            words = progress_in_words(standing, ledger.spent, ledger.charged_by)
            if standing.scores:
                words += f"; {scores_in_words(standing.scores)}"
            facts: dict[str, object] = {
                "rounds": standing.rounds,
                "epsilon": ledger.spent,
                "budget": standing.budget,
                "waits_for": dict(standing.waits_for),
                "state": standing.state,
                "scores": standing.scores,
            }
            self._say(words, "progress", facts)

    def end(self, code: int) -> None:
        """The last word of this process in the state folder; its books may be closed."""
        self._write(self.standing(code))

    async def close(self) -> None:
        if self._scoring is not None:
            await asyncio.wait([self._scoring])

    def _score(self) -> None:
        """Begins to evaluate, beside the rounds, where one is due and none is under way."""
        ledger, scores = self.agent.ledger, self.scores
        if scores is None or ledger.round < 0 or (self._scoring and not self._scoring.done()):
            return
        if (
            self._scored is None
            or ledger.round >= self._scored + scores.every
            or (self.agent.loop.all_done and ledger.round > self._scored)
        ):
            self._scored = ledger.round
            self._scoring = asyncio.create_task(self._evaluate(scores, ledger.round))

    async def _evaluate(self, scores: OwnerEvaluation, round: int) -> None:
        try:
            estimate = self.agent.loop.reported().clone()
            self.found = await asyncio.to_thread(scores.of, estimate, round)
        except Exception:  # a number for people must not end an agent
            logger.exception("%s: --evaluate failed", self.agent.name, extra={"event": "evaluate"})
            self.scores = None

    def _write(self, standing: ProcessStatus) -> None:
        self._standing, self._written = standing, standing.written
        try:
            standing.write(self.agent.folder)
            self._mute = False
        except OSError as error:
            if not self._mute:
                self._mute = True
                self._say(f"could not write where it is: {error.strerror}; it goes on", "status")

    def _say(self, words: str, event: str, facts: dict[str, object] | None = None) -> None:
        extra = {
            "agent": self.agent.name,
            "event": event,
            "round": self.agent.ledger.round,
            "facts": facts or {},
        }
        logger.info("%s: %s", self.agent.name, words, extra=extra)


def _stable_fields(standing: ProcessStatus) -> tuple[object, ...]:
    """What is worth writing at once, when it changes."""
    waits = tuple(standing.waits_for.items())
    scored = standing.scores and standing.scores["round"]
    return standing.state, standing.round, waits, scored, standing.code
