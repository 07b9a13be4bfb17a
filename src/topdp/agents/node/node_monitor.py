"""The monitor of an agent, in its process: executes orders, writes the status file and logs progress.

It polls orders, writes the status when it changes, and logs progress every `report` seconds. It does not
control the run: before each release, the agent itself checks whether it is paused.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from topdp.agents.ledger.ledger_entries import LedgerError
from topdp.agents.node.agent_status import (
    STATUS_INTERVAL_SECONDS,
    AgentState,
    ProcessStatus,
    process_birth,
    progress_in_words,
    scores_in_words,
)
from topdp.agents.node.operator_orders import STOP_FILE, OperatorOrders
from topdp.agents.runtime.agent import Agent
from topdp.base.files import FileError

if TYPE_CHECKING:
    from topdp.agents.node.owner_evaluation import OwnerEvaluation

logger = logging.getLogger("topdp.agents")

MONITOR_POLL_SECONDS = 0.5


class NodeMonitor:
    """Monitors one agent from its first greeting to its end."""

    def __init__(
        self,
        agent: Agent,
        orders: OperatorOrders,
        stop: Callable[[], None],
        *,
        report: float = 30.0,
        evaluation: OwnerEvaluation | None = None,
    ) -> None:
        """`stop` asks the process to end. `report`: seconds between two lines of progress; 0: none."""
        self.agent, self.orders, self.stop = agent, orders, stop
        self.report, self.evaluation = report, evaluation
        self.scores: dict[str, Any] | None = None  # of the newest evaluation
        self._birth = process_birth(os.getpid())
        self._reported_at = 0.0
        self._written: ProcessStatus | None = None
        self._evaluated_round = -math.inf
        self._evaluating: asyncio.Task[None] | None = None
        self._write_fails = False
        orders.withdraw(STOP_FILE)  # an order for an earlier process
        self.paused = orders.is_paused()
        if self.paused:
            self._log(
                "is paused since before this start: no new release until `topdp agent resume`", "paused"
            )
        agent.loop.paused = orders.is_paused

    async def run(self) -> None:
        """Poll until cancelled."""
        self._reported_at = asyncio.get_running_loop().time()
        while True:
            try:
                self.poll()
            except Exception:  # a fault of the monitor must not end the agent
                logger.exception("%s: the monitor failed", self.agent.name, extra={"event": "status"})
                await asyncio.sleep(STATUS_INTERVAL_SECONDS)
            await asyncio.sleep(MONITOR_POLL_SECONDS)

    def poll(self) -> None:
        """Execute orders, write the status if it has changed, and log progress if it is due."""
        agent = self.agent
        if not agent.loop.stopping.is_set() and self.orders.take_stop():
            self._log("asked to stop", "stop")
            self.stop()
        paused = self.orders.is_paused()
        if paused != self.paused:
            self.paused = paused
            self._log("paused: no new release" if paused else "resumed", "paused" if paused else "resumed")
            agent.peers.changed.set()
        self._evaluate_if_due()
        status = self.status()
        last = self._written
        is_recent = last is not None and 0 <= status.written - last.written < STATUS_INTERVAL_SECONDS
        if last is None or not is_recent or _stable_fields(status) != _stable_fields(last):
            self._write(status)
        if self.report and asyncio.get_running_loop().time() - self._reported_at >= self.report:
            self._reported_at = asyncio.get_running_loop().time()
            with suppress(LedgerError):  # the agent has just ended
                words = progress_in_words(status, agent.ledger.spent, agent.ledger.charged_by)
                if status.scores:
                    words += f"; {scores_in_words(status.scores)}"
                facts = status.model_dump(include={"rounds", "budget", "waits_for", "state", "scores"})
                self._log(words, "progress", {**facts, "epsilon": agent.ledger.spent})

    def status(self, code: int | None = None) -> ProcessStatus:
        agent, loop = self.agent, self.agent.loop
        planned, end = agent.context.part.plan.releases - 1, agent.ledger.final_round
        state: AgentState = loop.activity
        if code is not None:
            state = "ended"
        elif state == "waits" and self.orders.is_paused():
            state = "paused"
        return ProcessStatus(
            process=os.getpid(),
            begun=self._birth,
            written=time.time(),
            state=state,
            round=agent.ledger.round,
            # An amended run may end before the last round of its plan.
            rounds=planned if end is None else min(planned, max(end, agent.ledger.round)),
            budget=agent.context.epsilon,
            waits_for=dict(loop.waits.started),
            heard=dict(agent.peers.heard_at),
            scores=self.scores,
            code=code,
        )

    def end(self, code: int) -> None:
        """Write the exit code to the status file. The ledger may be closed."""
        self._write(self.status(code))

    def _evaluate_if_due(self) -> None:
        """Begin an evaluation, beside the rounds, if one is due and none is under way."""
        ledger, evaluation = self.agent.ledger, self.evaluation
        if evaluation is None or ledger.round < 0 or (self._evaluating and not self._evaluating.done()):
            return
        rounds = ledger.round - self._evaluated_round
        if rounds >= evaluation.every or (self.agent.loop.all_done and rounds > 0):
            self._evaluated_round = ledger.round
            self._evaluating = asyncio.create_task(self._evaluate(evaluation, ledger.round))

    async def _evaluate(self, evaluation: OwnerEvaluation, round: int) -> None:
        try:
            estimate = self.agent.loop.reported().clone()
            self.scores = await asyncio.to_thread(evaluation.of, estimate, round)
        except Exception:  # a failed evaluation must not end the agent
            logger.exception("%s: --evaluate failed", self.agent.name, extra={"event": "evaluate"})
            self.evaluation = None

    def _write(self, status: ProcessStatus) -> None:
        self._written = status
        try:
            status.write(self.agent.folder)
            self._write_fails = False
        except FileError as error:
            if not self._write_fails:
                self._write_fails = True
                self._log(f"could not write its status, and goes on: {error}", "status")

    def _log(self, words: str, event: str, facts: dict[str, object] | None = None) -> None:
        name, round = self.agent.name, self.agent.ledger.round
        extra = {"agent": name, "event": event, "round": round, "facts": facts or {}}
        logger.info("%s: %s", name, words, extra=extra)


def _stable_fields(status: ProcessStatus) -> dict[str, Any]:
    """Return the fields whose changes are written at once."""
    return status.model_dump(exclude={"written", "heard"})
