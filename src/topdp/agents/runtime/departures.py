"""Agents that have departed from a run with shared draws: how all others learn it, and what each then does.

A departed agent leaves draws in the rows of the agents that it shared them with, and nothing cancels these
draws any more. Notices settle who may leave them out, and when:

1. A neighbour that hears nothing of an agent for the idle timeout (or has quarantined it) states that it is
   *silent*, and the last round that it has of it. From then on it accepts no further row of it, for good.
2. An agent has *departed* when all its neighbours say so, except those that have departed themselves.
3. Every other agent then counts it as a colluder, charges the cost, and states from which round on.
4. Once all remaining agents have stated that, each leaves out the draws that it shared with the departed
   agent, in the rounds that all ledgers cover. It takes back those of the last rounds in which nobody saw a
   row of the departed agent.

**Guarantees.** Nothing is left out or taken back in a round that the ledgers of all remaining agents do not
cover, in whatever order notices arrive, and whoever lies: a false notice can exclude an agent from the
training (if all its neighbours lie together), and never makes a charge too small. A draw is taken back inside
a row with noise of its own, and is scaled so that it has no more noise than that row. An agent that finds
itself departed makes no further row.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from topdp.agents.agreement.signatures import Notice
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_facts import DEPARTED_SUBJECT_PREFIX
from topdp.agents.runtime.agent_rows import PlanPart, RowChanges
from topdp.agents.runtime.notice_exchange import NoticeExchange
from topdp.privacy.observers.survivors import RECALLED_ROUNDS

SILENT, LEFT_OUT = "silent ", "left out "


class Departures:
    """What one agent knows of departed agents."""

    def __init__(self, part: PlanPart, notices: NoticeExchange, ledger: Ledger, takes_back: bool) -> None:
        self.part, self.notices, self.ledger, self.takes_back = part, notices, ledger, takes_back
        self.manifest = notices.manifest
        self.name = notices.identity.card.name
        notices.checks |= {SILENT: self._check_silent, DEPARTED_SUBJECT_PREFIX: self._check_departed}

    # Notices of this agent

    def give_up(self, peer: str) -> bool:
        """State that `peer` is silent for good; return whether that is new."""
        is_new = not self.is_given_up(peer)
        if is_new:
            self.notices.publish(SILENT + peer, str(self.ledger.last_received(peer)))
        return is_new

    def is_given_up(self, peer: str) -> bool:
        run = self.notices.run
        return bool(run) and self.notices.store.text(self.name, run, SILENT + peer) is not None

    def count_as_colluder(self, name: str, first: int) -> None:
        """State that the ledger of this agent covers `name` as a colluder in all rounds from `first` on."""
        self.notices.publish(DEPARTED_SUBJECT_PREFIX + name, str(first))

    # Consequences of all notices

    def departed_agents(self) -> dict[str, int]:
        """Map each departed agent to the last round that some neighbour has of it.

        All neighbours of such an agent call it silent, except those that have departed themselves.
        """
        silent = {
            (author, about.removeprefix(SILENT)): int(text)
            for author, about, text in self.notices.store.starting(self.notices.run, SILENT)
        }
        candidates: set[str] = set()
        departed = {subject for _, subject in silent}
        while departed != candidates:
            candidates = departed
            departed = {name for name in candidates if self._is_departed(name, candidates, silent)}
        return {name: max(r for (_, subject), r in silent.items() if subject == name) for name in departed}

    def _is_departed(self, name: str, candidates: set[str], silent: Mapping[tuple[str, str], int]) -> bool:
        remaining = [peer for peer in self.manifest.neighbours(name) if peer not in candidates]
        return bool(remaining) and all((peer, name) in silent for peer in remaining)

    def covered_from(self, name: str) -> int | None:
        """Return the round from which all remaining agents count `name` as a colluder, or None."""
        departed = self.departed_agents()
        stated = self.notices.store.on(self.notices.run, DEPARTED_SUBJECT_PREFIX + name)
        remaining = [other for other in self.manifest.names if other not in departed]
        if name not in departed or any(other not in stated for other in remaining):
            return None
        return max(int(stated[other]) for other in remaining)

    def unsettled_agents(self) -> list[str]:
        """Return the agents that a neighbour calls silent and that not all others count as colluders yet."""
        subjects = {about for _, about, _ in self.notices.store.starting(self.notices.run, SILENT)}
        names = sorted(about.removeprefix(SILENT) for about in subjects)
        return [name for name in names if self.covered_from(name) is None]

    def row_changes(self, round: int) -> tuple[RowChanges, dict[str, str]]:
        """Return how this agent's rows of `round` differ from the plan, and facts for the ledger."""
        shared = self.part.shared_in(round)
        if not shared:
            return RowChanges(), {}
        left_out: set[int] = set()
        taken_back: list[tuple[int, int, int, float]] = []
        notes: dict[str, str] = {}
        for name, last_seen in self.departed_agents().items():
            other = self.manifest.number(name)
            draws = {draw for _, draw, _ in shared if self.part.partner[draw] == other}
            covered = self.covered_from(name) if draws else None
            if covered is None or covered > round:
                continue
            left_out |= draws
            if LEFT_OUT + name not in self.ledger.meta:
                notes[LEFT_OUT + name] = str(round)
                taken_back += self._draws_to_take_back(round, draws, max(covered, last_seen + 1))
        return RowChanges(frozenset(left_out), tuple(taken_back)), notes

    def _draws_to_take_back(
        self, round: int, draws: set[int], first: int
    ) -> list[tuple[int, int, int, float]]:
        """Return (row, round, draw, deviation) of the draws in the agent's last rows that nothing cancels."""
        if not self.takes_back:
            return []
        scale = self.part.plan.scale
        noisy = [r for r in np.flatnonzero(scale[:round] > 0).tolist() if self.part.shared_in(r)]
        rounds_made = {entry.round for entry in self.ledger.entries() if entry.kind != "skip"}
        # At most the noise of this row, or it would reveal more of the departed agent than its reserve.
        return [
            (row, r, draw, std * min(1.0, float(scale[round] / scale[r])))
            for r in noisy[-RECALLED_ROUNDS:]
            if r >= first and r in rounds_made
            for row, draw, std in self.part.shared_in(r)
            if draw in draws
        ]

    # Valid notices

    def _check_silent(self, notice: Notice) -> None:
        subject = notice.about.removeprefix(SILENT)
        if subject not in self.manifest.names or notice.author not in self.manifest.neighbours(subject):
            raise ValueError("expected the statement of a neighbour about a neighbour")
        self._check_round(notice, -1)

    def _check_departed(self, notice: Notice) -> None:
        subject = notice.about.removeprefix(DEPARTED_SUBJECT_PREFIX)
        if subject not in self.manifest.names or subject == notice.author:
            raise ValueError("expected a statement about another agent")
        self._check_round(notice, 0)

    def _check_round(self, notice: Notice, first: int) -> None:
        text = notice.text
        is_integer = text.removeprefix("-").isdecimal() and text.isascii() and str(int(text)) == text
        if not notice.run or not is_integer or not first <= int(text) <= self.part.plan.releases:
            raise ValueError("expected a round of the plan")
