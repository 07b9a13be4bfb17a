"""Facts in a ledger besides charges and rows: about the run and about every neighbour.

The facts are whether the agent still uses its data, whether the plan is still followed, and which neighbours
are quarantined, departed or finished. These are current values; `event_journal` keeps all values. Charged,
sent and received rows are in `ledger`, whose `Ledger` is a subclass of `LedgerFacts`.

**Guarantees.** A departure from the plan is never revoked. Within the reserve, a departure counts for the one
neighbour that caused it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from topdp.agents.ledger import event_journal
from topdp.agents.ledger.ledger_database import LEDGER_FILE, READ_ERRORS, LedgerDatabase, database_error
from topdp.agents.ledger.ledger_entries import TamperedError
from topdp.agents.wire.transport import ReplyCode

DEPARTED_SUBJECT_PREFIX = "without "  # followed by a name: the subject of a notice that an agent is gone
FINAL_ROUND_KEY, LEAVING_KEY = "ends", "leaves"


@dataclass(frozen=True)
class Quarantine:
    """Why an agent no longer accepts messages of a neighbour: a code, and an explanation for people."""

    code: ReplyCode
    words: str


class LedgerFacts:
    """Facts of one agent's run.

    `reserve`: how many neighbours may depart while the agent's guarantee still holds.
    """

    def __init__(self, database: LedgerDatabase, reserve: int) -> None:
        self.database = database
        self.reserve = reserve

    @property
    def meta(self) -> dict[str, str]:
        return self.database.meta

    def expect_consistent(self) -> None:
        """Raise TamperedError unless the current facts are equal to those of the journal."""
        try:
            journal = event_journal.journal_facts(self.database.connection)
            tables = event_journal.table_facts(self.database.connection)
        except READ_ERRORS as error:
            raise database_error(self.database.folder, error) from error
        changed = [place_and_key for place_and_key, _ in {*journal.items()} ^ {*tables.items()}]
        of_run = sorted(str(key) for place, key in changed if place == "meta")
        if changed:
            raise TamperedError(
                f"Facts of the {'run' if of_run else 'neighbours'} in {self.database.folder / LEDGER_FILE} "
                f"differ from the journal: {', '.join(of_run or sorted(map(str, changed)))[:200]}. Do not "
                "delete the file: its charges were spent."
            )

    def end_with(self, round: int, leaving: Iterable[str] = ()) -> None:
        """Record that the run ends after `round`, whatever a later start requests.

        If an earlier round was recorded before, that one stays. `leaving`: agents that are not members any
        more after `round`. They may have departed for good, so no agent waits for them.
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
        """Accept nothing from `peer` and send nothing to it until a person lifts the quarantine.

        The first reason counts. Later ones are not recorded, so a neighbour cannot fill the journal.
        """
        if self.quarantined(peer) is None:
            self._note(peer, quarantined=words, quarantined_for=code.name)

    def quarantined(self, peer: str) -> Quarantine | None:
        row = self.database.one("SELECT quarantined, quarantined_for FROM peers WHERE name = ?", peer)
        words, code = row or (None, None)
        return None if words is None else Quarantine(parse_reply_code(peer, code), str(words))

    def lift_quarantine(self, peer: str) -> None:
        """Accept messages of `peer` again, after a person has examined the reason."""
        self._note(peer, quarantined=None, quarantined_for=None)

    def stop_data(self, round: int) -> None:
        """Record that this agent uses its data in no round from `round` onwards: its budget is spent."""
        self.database.remember("stopped", str(round))

    @property
    def stopped_at(self) -> int | None:
        """The first round in which this agent no longer uses its data; None while it uses them."""
        return None if (round := self.meta.get("stopped")) is None else parse_round(round)

    def note_departure(self, words: str, peer: str | None = None) -> None:
        """Record that the plan is no longer followed, as far as this agent can see. The first reason counts.

        `peer`: the neighbour that caused the departure. The departure counts against the reserve if the
        reserve is not used up; otherwise it is recorded in `departed`.
        """
        covered = self.covered_departures()
        if self.departed is not None or peer in covered:
            return
        if peer is not None and len(covered) < self.reserve:
            self.database.remember("departures", json.dumps({**covered, peer: words}))
        else:
            self.database.remember("departed", words)

    def covered_departures(self) -> dict[str, str]:
        """Map neighbours that departed, or refuse this agent, within the reserve to the reason."""
        return {
            str(peer): str(words) for peer, words in json.loads(self.meta.get("departures", "{}")).items()
        }

    def note_suspect(self, peer: str, words: str) -> None:
        """Record that rows of `peer` are unlike those of others. The first reason counts."""
        if peer not in self.suspects:
            self.database.remember("suspects", json.dumps({**self.suspects, peer: words}))

    @property
    def suspects(self) -> dict[str, str]:
        """Map neighbours whose rows were unlike those of others to the first reason."""
        suspects = json.loads(self.meta.get("suspects", "{}"))
        return {str(peer): str(words) for peer, words in suspects.items()}

    @property
    def departed(self) -> str | None:
        """The reason why the plan is no longer followed; None while it is, or while the reserve suffices."""
        return self.meta.get("departed")

    def departed_members(self) -> dict[str, int]:
        """Map each departed agent to the round from which this ledger counts it as a colluder."""
        query = "SELECT about, text FROM statements WHERE author = ? AND substr(about, 1, ?) = ?"
        prefix = DEPARTED_SUBJECT_PREFIX
        rows = self.database.rows(query, self.meta.get("agent"), len(prefix), prefix)
        return {str(about).removeprefix(prefix): parse_round(text) for about, text in rows}

    def note_finished(self, peer: str) -> None:
        """Record that `peer` has completed all its rounds and needs nothing more."""
        if not self.finished(peer):
            self._note(peer, finished=1)

    def finished(self, peer: str) -> bool:
        return self._peer(peer, "finished") is not None

    def note_finish_known(self, peer: str) -> None:
        """Record that `peer` has been informed that this agent has completed all its rounds."""
        self._note(peer, told=1)

    def finish_known(self, peer: str) -> bool:
        return self._peer(peer, "told") is not None

    def recorded_peers(self) -> list[str]:
        """Return the sorted names of all neighbours with a fact or a received row in the ledger."""
        names = {str(name) for (name,) in self.database.rows("SELECT name FROM peers")}
        sender = self.database.one("SELECT min(sender) FROM inbox")
        while sender is not None and sender[0] is not None:  # one index lookup per name, not a scan of rows
            names.add(str(sender[0]))
            sender = self.database.one("SELECT min(sender) FROM inbox WHERE sender > ?", sender[0])
        return sorted(names)

    def _peer(self, peer: str, column: str) -> Any:
        row = self.database.one(f"SELECT {column} FROM peers WHERE name = ?", peer)
        return row[0] if row else None

    def _note(self, peer: str, **columns: object) -> None:
        with self.database.transaction() as db:
            for column, value in columns.items():
                event_journal.set_peer_fact(db, peer, column, value)


def parse_reply_code(peer: str, code: object) -> ReplyCode:
    if str(code) not in ReplyCode.__members__:
        raise TamperedError(
            f"Expected a reply code as the reason for the quarantine of {peer}, got {code!r:.80}."
        )
    return ReplyCode[str(code)]


def parse_round(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise TamperedError(f"Expected a whole number as round in the ledger, got {value!r:.80}.") from None
