"""Agents that are gone for good where draws are shared: how all come to know it, and what each then does.

A departed agent leaves draws in the rows of those it shared them with, which nothing cancels any more.
Notices settle who may leave them out, and when:

1. A neighbour that hears nothing of an agent for the idle timeout (or has quarantined it) states that it is
   *silent*, and the last round it has of it. From then on it accepts no further row of it: that is final.
2. An agent is *gone* when all its neighbours say so, except those that are gone themselves.
3. Every other agent then counts it as a colluder, charges what that costs, and states from which round on.
4. Once all that are left have stated that, each leaves out the draws it shared with the departed agent, in
   the rounds that all have covered, and takes back those of the last rounds in which nobody saw its rows.

**Guarantees.** Nothing is left out or taken back in a round that is not covered by the ledgers of all that
are left, whatever the order in which notices arrive, and whoever lies: a false notice can take an agent
out of the training (by all its neighbours together), and never makes anybody's charge too small. What is
taken back is inside a row with noise of its own, and scaled so that it has no more of it than that row. An
agent that finds itself gone makes no further row.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from topdp.agents.agreement.signatures import Notice
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_facts import DEPARTED_SUBJECT_PREFIX
from topdp.agents.runtime.agent_rows import PlanPart, RowChanges
from topdp.agents.runtime.statement_gossip import StatementGossip
from topdp.privacy.observers.survivors import RECALLED_ROUNDS

SILENT, LEFT_OUT = "silent ", "left out "


class Departures:
    """What one agent knows of departed agents."""

    def __init__(self, part: PlanPart, gossip: StatementGossip, ledger: Ledger, takes_back: bool) -> None:
        self.part, self.gossip, self.ledger, self.takes_back = part, gossip, ledger, takes_back
        self.manifest = gossip.manifest
        self.name = gossip.identity.card.name
        gossip.kinds |= {SILENT: self._check_silent, DEPARTED_SUBJECT_PREFIX: self._check_without}

    # Notices of this agent

    def give_up(self, peer: str) -> bool:
        """State that `peer` is silent for good; return whether that is new."""
        new = not self.given_up(peer)
        if new:
            self.gossip.state(SILENT + peer, str(self.ledger.last_received(peer)))
        return new

    def given_up(self, peer: str) -> bool:
        run = self.gossip.run
        return bool(run) and self.gossip.news.text(self.name, run, SILENT + peer) is not None

    def count_out(self, name: str, first: int) -> None:
        """State that the ledger of this agent covers `name` as a colluder in all rounds from `first` on."""
        self.gossip.state(DEPARTED_SUBJECT_PREFIX + name, str(first))

    # What follows from the notices of all

    def gone(self) -> dict[str, int]:
        """The agents that all their neighbours, except departed ones, call silent, each with the last round
        that some neighbour has of it.
        """
        silent = {
            (author, about.removeprefix(SILENT)): int(text)
            for author, about, text in self.gossip.news.starting(self.gossip.run, SILENT)
        }
        left = {subject for _, subject in silent}
        while True:
            out = {name for name in left if self._is_out(name, left, silent)}
            if out == left:
                break
            left = out
        return {name: max(r for (_, subject), r in silent.items() if subject == name) for name in left}

    def _is_out(self, name: str, candidates: set[str], silent: Mapping[tuple[str, str], int]) -> bool:
        there = [peer for peer in self.manifest.neighbours(name) if peer not in candidates]
        return bool(there) and all((peer, name) in silent for peer in there)

    def covered_from(self, name: str) -> int | None:
        """The round from which all that are left count `name` as a colluder; None: not all have said so."""
        gone = self.gone()
        stated = self.gossip.news.on(self.gossip.run, DEPARTED_SUBJECT_PREFIX + name)
        left = [other for other in self.manifest.names if other not in gone]
        if name not in gone or any(other not in stated for other in left):
            return None
        return max(int(stated[other]) for other in left)

    def unsettled(self) -> list[str]:
        """Return the agents that a neighbour calls silent, as long as not all count them as colluders."""
        silent = {about for _, about, _ in self.gossip.news.starting(self.gossip.run, SILENT)}
        names = sorted(about.removeprefix(SILENT) for about in silent)
        return [name for name in names if self.covered_from(name) is None]

    def changes(self, round: int) -> tuple[RowChanges, dict[str, str]]:
        """Return how this agent's rows of `round` differ from the plan, and the ledger's note of it."""
        mine = self.part.shared(round)
        if not mine:
            return RowChanges(), {}
        out: set[int] = set()
        back: list[tuple[int, int, int, float]] = []
        notes: dict[str, str] = {}
        for name, last_seen in self.gone().items():
            other = self.manifest.number(name)
            draws = {draw for _, draw, _ in mine if self.part.partner[draw] == other}
            covered = self.covered_from(name) if draws else None
            if covered is None or covered > round:
                continue
            out |= draws
            if LEFT_OUT + name not in self.ledger.meta:
                notes[LEFT_OUT + name] = str(round)
                back += self._missed(round, draws, max(covered, last_seen + 1))
        return RowChanges(frozenset(out), tuple(back)), notes

    def _missed(self, round: int, draws: set[int], first: int) -> list[tuple[int, int, int, float]]:
        """(row, round, draw, deviation) of the draws that the last rows of this agent held in vain."""
        if not self.takes_back:
            return []
        scale = self.part.plan.scale
        noisy = [r for r in np.flatnonzero(scale[:round] > 0).tolist() if self.part.shared(r)][
            -RECALLED_ROUNDS:
        ]
        rounds_made = {entry.round for entry in self.ledger.entries() if entry.kind != "skip"}
        # No more of it than this row has noise, or it would reveal more of that agent than its reserve.
        return [
            (row, r, draw, std * min(1.0, float(scale[round] / scale[r])))
            for r in noisy
            if r >= first and r in rounds_made
            for row, draw, std in self.part.shared(r)
            if draw in draws
        ]

    # Valid notices

    def _check_silent(self, statement: Notice) -> None:
        subject = statement.about.removeprefix(SILENT)
        if subject not in self.manifest.names or statement.author not in self.manifest.neighbours(subject):
            raise ValueError("expected the statement of a neighbour about a neighbour")
        self._check_round(statement, -1)

    def _check_without(self, statement: Notice) -> None:
        subject = statement.about.removeprefix(DEPARTED_SUBJECT_PREFIX)
        if subject not in self.manifest.names or subject == statement.author:
            raise ValueError("expected a statement about another agent")
        self._check_round(statement, 0)

    def _check_round(self, statement: Notice, first: int) -> None:
        text = statement.text
        whole = text.removeprefix("-").isdecimal() and text.isascii() and str(int(text)) == text
        if not statement.run or not whole or not first <= int(text) <= self.part.plan.releases:
            raise ValueError("expected a round of the plan")
