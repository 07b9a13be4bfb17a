"""What is on the books beside charges and rows: of the run, and of every neighbour.

Whether data still enter, whether the plan is still followed, who is quarantined, counted out or done. Each
is the newest word on its matter; `journal` keeps all of them. Not for what was charged, sent or received:
`ledger`, which is one of these.

**Guarantees.** A departure from the plan is never taken back; within the reserve it is one neighbour's each.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from topdp.agents.ledger import event_journal
from topdp.agents.ledger.ledger_database import (
    LEDGER_FILE,
    READ_ERRORS,
    LedgerDatabase,
    TamperedError,
    database_error,
)
from topdp.agents.wire.wire_codes import ReplyCode

DEPARTED_SUBJECT_PREFIX = "without "  # begins the subject of the statement that somebody is counted out


@dataclass(frozen=True)
class Quarantine:
    """Why nothing more is believed of a neighbour: what it did, and the particulars for people."""

    code: ReplyCode
    words: str


class LedgerFacts:
    """Facts of one agent's run. `reserve`: so many neighbours may be gone while its guarantee still holds."""

    def __init__(self, database: LedgerDatabase, reserve: int) -> None:
        self.database = database
        self.reserve = reserve

    @property
    def meta(self) -> dict[str, str]:
        return self.database.meta

    def expect_consistent(self) -> None:
        """What the books hold for true is what was written down of it; else one changed byte hides a fact."""
        try:
            noted, found = (
                event_journal.journal_facts(self.database.connection),
                event_journal.table_facts(self.database.connection),
            )
        except READ_ERRORS as error:
            raise database_error(self.database.folder, error) from error
        for what, one, other in (("run", noted[0], found[0]), ("neighbours", noted[1], found[1])):
            if one != other:
                changed = sorted(str(key) for key, _ in {*one.items()} ^ {*other.items()})
                raise TamperedError(
                    f"Facts of the {what} in {self.database.folder / LEDGER_FILE} are not what was "
                    "written down: "
                    f"{', '.join(changed)[:200]}. Do not delete it: its charges were spent."
                )

    def quarantine(self, peer: str, code: ReplyCode, words: str) -> None:
        """Nothing more is believed of `peer`, nor sent to it, until a person has looked.

        The first reason counts. What it does after that writes nothing: nobody fills the journal so.
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
        """A person has looked: `peer` is believed again."""
        self._note(peer, quarantined=None, quarantined_for=None)

    def stop_data(self, round: int) -> None:
        """This agent's data enter no round from `round` on: its budget is used up."""
        self.database.remember("stopped", str(round))

    @property
    def stopped_at(self) -> int | None:
        """The round from which this agent's data enter no more; None while they do."""
        return None if (round := self.meta.get("stopped")) is None else parse_round(round)

    def note_departure(self, words: str, peer: str | None = None) -> None:
        """The plan is no longer followed as written, as far as this agent has seen; the first time counts.

        Because of `peer`, if that is why: the reserve covers it then, as long as there is some left.
        """
        known = self.covered_departures()
        if self.departed is not None or peer in known:
            return
        if peer is not None and len(known) < self.reserve:
            self.database.remember("departures", json.dumps({**known, peer: words}))
        else:
            self.database.remember("departed", words)

    def covered_departures(self) -> dict[str, str]:
        """{neighbour: what happened} of those who are gone, or refuse this agent, within the reserve."""
        return {
            str(peer): str(words) for peer, words in json.loads(self.meta.get("departures", "{}")).items()
        }

    @property
    def departed(self) -> str | None:
        """Why the plan is no longer followed, beyond what the reserve covers; None while it is."""
        return self.meta.get("departed")

    def departed_members(self) -> dict[str, int]:
        """{agent: the round from which these books count it as a colluder, because it is gone}"""
        query = "SELECT about, text FROM statements WHERE author = ? AND substr(about, 1, ?) = ?"
        found = self.database.rows(
            query, self.meta.get("agent"), len(DEPARTED_SUBJECT_PREFIX), DEPARTED_SUBJECT_PREFIX
        )
        return {str(about).removeprefix(DEPARTED_SUBJECT_PREFIX): parse_round(text) for about, text in found}

    def note_finished(self, peer: str) -> None:
        """`peer` has done all its rounds and needs nothing more."""
        if not self.finished(peer):
            self._note(peer, finished=1)

    def finished(self, peer: str) -> bool:
        return self._peer(peer, "finished") is not None

    def note_finish_known(self, peer: str) -> None:
        """`peer` knows that this agent has done all its rounds."""
        self._note(peer, told=1)

    def finish_known(self, peer: str) -> bool:
        return self._peer(peer, "told") is not None

    def recorded_peers(self) -> list[str]:
        """Everybody of whom something is on the books."""
        found = {str(name) for (name,) in self.database.rows("SELECT name FROM peers")}
        after = self.database.one("SELECT min(sender) FROM inbox")
        while after is not None and after[0] is not None:  # from one to the next, not row by row
            found.add(str(after[0]))
            after = self.database.one("SELECT min(sender) FROM inbox WHERE sender > ?", after[0])
        return sorted(found)

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
