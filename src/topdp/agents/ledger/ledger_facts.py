"""Facts in a ledger besides charges and rows: about the run and about every neighbour.

Whether data still enter, whether the plan is still followed, who is quarantined, gone or finished. Each is
the current value; `event_journal` keeps all values. Charged, sent and received rows are in `ledger`, whose
`Ledger` is a `LedgerFacts`.

**Guarantees.** A departure from the plan is never revoked. Within the reserve it counts for one neighbour.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from topdp.agents.ledger import event_journal
from topdp.agents.ledger.ledger_database import LEDGER_FILE, READ_ERRORS, LedgerDatabase, database_error
from topdp.agents.ledger.ledger_entries import TamperedError
from topdp.agents.wire.wire_codes import ReplyCode

DEPARTED_SUBJECT_PREFIX = "without "  # followed by a name: the subject of a notice that an agent is gone
FINAL_ROUND_KEY, LEAVING_KEY = "ends", "leaves"


@dataclass(frozen=True)
class Quarantine:
    """Why an agent believes a neighbour no longer: a code, and particulars for people."""

    code: ReplyCode
    words: str


class LedgerFacts:
    """Facts of one agent's run. `reserve`: how many neighbours may go while its guarantee holds."""

    def __init__(self, database: LedgerDatabase, reserve: int) -> None:
        self.database = database
        self.reserve = reserve

    @property
    def meta(self) -> dict[str, str]:
        return self.database.meta

    def expect_consistent(self) -> None:
        """Raise TamperedError unless the current facts are those of the journal."""
        try:
            journal = event_journal.journal_facts(self.database.connection)
            tables = event_journal.table_facts(self.database.connection)
        except READ_ERRORS as error:
            raise database_error(self.database.folder, error) from error
        for subject, recorded, current in (
            ("run", journal[0], tables[0]),
            ("neighbours", journal[1], tables[1]),
        ):
            if recorded != current:
                changed = sorted(str(key) for key, _ in {*recorded.items()} ^ {*current.items()})
                raise TamperedError(
                    f"Facts of the {subject} in {self.database.folder / LEDGER_FILE} are not what was "
                    f"written down: {', '.join(changed)[:200]}. Do not delete it: its charges were spent."
                )

    def end_with(self, round: int, leaving: Iterable[str] = ()) -> None:
        """Make nothing after `round`, whatever a later start asks for; an earlier round named before stays.

        `leaving`: agents that are no longer members then. They may be gone for good: nobody waits for them.
        """
        self.database.remember(FINAL_ROUND_KEY, str(min(round, int(self.meta.get(FINAL_ROUND_KEY, round)))))
        self.database.remember(LEAVING_KEY, json.dumps(sorted({*leaving, *self.leaving})))

    @property
    def leaving(self) -> frozenset[str]:
        """The agents that are no longer members once this run has ended."""
        return frozenset(json.loads(self.meta.get(LEAVING_KEY, "[]")))

    @property
    def final_round(self) -> int | None:
        """The round after which this run ends for good; None if it ends with its plan."""
        return None if (round := self.meta.get(FINAL_ROUND_KEY)) is None else int(round)

    def quarantine(self, peer: str, code: ReplyCode, words: str) -> None:
        """Believe nothing more from `peer` and send it nothing until a person lifts the quarantine.

        The first reason counts. Later offences write nothing, so a neighbour cannot fill the journal.
        """
        if self.quarantined(peer) is None:
            self._note(peer, quarantined=words, quarantined_for=code.name)

    def quarantined(self, peer: str) -> Quarantine | None:
        row = self.database.one("SELECT quarantined, quarantined_for FROM peers WHERE name = ?", peer)
        words, code = row or (None, None)
        if words is None:
            return None
        if str(code) not in ReplyCode.__members__:
            raise TamperedError(f"Expected a reason for the quarantine of {peer}, got {code!r:.80}.")
        return Quarantine(ReplyCode[str(code)], str(words))

    def lift_quarantine(self, peer: str) -> None:
        """Believe `peer` again, after a person has looked."""
        self._note(peer, quarantined=None, quarantined_for=None)

    def stop_data(self, round: int) -> None:
        """This agent's data enter no round from `round` on: its budget is spent."""
        self.database.remember("stopped", str(round))

    @property
    def stopped_at(self) -> int | None:
        """The round from which this agent's data enter no more; None while they do."""
        return None if (round := self.meta.get("stopped")) is None else parse_round(round)

    def note_departure(self, words: str, peer: str | None = None) -> None:
        """Record that the plan is no longer followed, as far as this agent can see. The first reason counts.

        `peer`: the neighbour that caused it. The reserve covers it as long as some of it is left.
        """
        covered = self.covered_departures()
        if self.departed is not None or peer in covered:
            return
        if peer is not None and len(covered) < self.reserve:
            self.database.remember("departures", json.dumps({**covered, peer: words}))
        else:
            self.database.remember("departed", words)

    def covered_departures(self) -> dict[str, str]:
        """{neighbour: reason} of those that are gone, or refuse this agent, within the reserve."""
        return {
            str(peer): str(words) for peer, words in json.loads(self.meta.get("departures", "{}")).items()
        }

    @property
    def departed(self) -> str | None:
        """Why the plan is no longer followed, beyond what the reserve covers; None while it is."""
        return self.meta.get("departed")

    def departed_members(self) -> dict[str, int]:
        """{agent: the round from which this ledger counts it as a colluder, because it is gone}"""
        query = "SELECT about, text FROM statements WHERE author = ? AND substr(about, 1, ?) = ?"
        prefix = DEPARTED_SUBJECT_PREFIX
        rows = self.database.rows(query, self.meta.get("agent"), len(prefix), prefix)
        return {str(about).removeprefix(prefix): parse_round(text) for about, text in rows}

    def note_finished(self, peer: str) -> None:
        """Record that `peer` has done all its rounds and needs nothing more."""
        if not self.finished(peer):
            self._note(peer, finished=1)

    def finished(self, peer: str) -> bool:
        return self._peer(peer, "finished") is not None

    def note_finish_known(self, peer: str) -> None:
        """Record that `peer` has heard that this agent has done all its rounds."""
        self._note(peer, told=1)

    def finish_known(self, peer: str) -> bool:
        return self._peer(peer, "told") is not None

    def recorded_peers(self) -> list[str]:
        """All neighbours about which the ledger contains something."""
        names = {str(name) for (name,) in self.database.rows("SELECT name FROM peers")}
        after = self.database.one("SELECT min(sender) FROM inbox")
        while after is not None and after[0] is not None:  # from name to name, not row by row
            names.add(str(after[0]))
            after = self.database.one("SELECT min(sender) FROM inbox WHERE sender > ?", after[0])
        return sorted(names)

    def _peer(self, peer: str, column: str) -> Any:
        row = self.database.one(f"SELECT {column} FROM peers WHERE name = ?", peer)
        return row[0] if row else None

    def _note(self, peer: str, **columns: object) -> None:
        with self.database.transaction() as db:
            for column, value in columns.items():
                event_journal.set_peer_fact(db, peer, column, value)


def parse_round(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise TamperedError(f"Expected a round in the ledger, got {value!r:.80}.") from None
