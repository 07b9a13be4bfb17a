"""Verify that a ledger is intact: `topdp agent ledger verify`, and at each start. Changes nothing.

**Guarantees.** On a ledger that is opened for reading only, the check sees a consistent snapshot, even while
the agent runs. Detected: an entry that was changed, removed, added or swapped in the chain; outgoing bytes
and a state that differ from the charged ones; facts of the run and of neighbours that differ from the
journal; received rows, notices and lines of the journal that were changed, removed or inserted before the
last charge; a budget that grew; missing charges. Not detected: a tail of the chain that was removed together
with everything that belongs to it; plausible additions after the last charge; missing bytes of older rows
that were perhaps not acknowledged (they are then not sent, which costs no privacy); a chain that was
recomputed by somebody who can write the file. Neighbours detect a removed tail when they exchange greetings.
A ledger with entries of format 4 is refused, because they have no digest of received rows, notices and the
journal, and the rows that they charge were not signed.
"""

from __future__ import annotations

import itertools
import math
import sqlite3
from collections.abc import Mapping

from topdp.agents.ledger import event_journal
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_database import LEDGER_FILE, damage_error, database_error
from topdp.agents.ledger.ledger_entries import LedgerEntry, TamperedError, digest_of
from topdp.agents.ledger.ledger_facts import parse_reply_code
from topdp.agents.ledger.start_choices import BUDGET_KEY, recorded_budget
from topdp.errors import TopdpError
from topdp.privacy.answers import GUARANTEES

KEEP_FILE = "The file was changed or is damaged. Do not delete it: its charges were spent."
PAIR_STATES = ("prepared", "committed", "aborted")


def verify(ledger: Ledger) -> int:
    """Verify `ledger` and return its number of charges. Raise TamperedError with the first fault."""
    try:
        # If an index of SQLite lost a line, a charged row would never be sent.
        pages = ledger.database.one("PRAGMA integrity_check(1)")
        if pages != ("ok",):
            raise damage_error(ledger.folder, str(pages[0] if pages else "nothing")[:200])
        entries = _check_charges(ledger)
        _check_outbox(ledger, entries)
        _check_logs(ledger, entries)
        _check_facts(ledger, entries)
        _check_inbox(ledger, entries)
        _check_pairs(ledger, entries)
        last, state = (entries[-1] if entries else None), ledger.state()
    except TopdpError:
        raise
    except (sqlite3.Error, TypeError, ValueError) as error:  # a missing table; an impossible value
        raise (
            database_error(ledger.folder, error)
            if isinstance(error, sqlite3.Error)
            else TamperedError(f"{ledger.folder / LEDGER_FILE} has an impossible value: {error}.")
        ) from error
    booked = (last.round, last.state) if last else None
    if booked != ((state[0], digest_of(state[1])) if state else None):
        raise TamperedError(f"The state in {ledger.folder / LEDGER_FILE} is not that of the last charge.")
    return len(entries)


def _check_charges(ledger: Ledger) -> list[LedgerEntry]:
    ledger.database.expect_chain()
    total, round = 0.0, -1
    entries = []
    rows = ledger.database.rows("SELECT number, entry FROM charges ORDER BY number")
    for position, (number, text) in enumerate(rows):
        entry = LedgerEntry.read(text)
        total += entry.charge
        faults = {
            "has a wrong number": not number == entry.number == position,
            "has an impossible charge": not (math.isfinite(entry.charge) and entry.charge >= 0),
            "has a wrong total": entry.total != total,
            "repeats a round": entry.round < round + (entry.kind != "late"),
            "carries no digest of the logs, like entries of format 4": not entry.books,
        }
        fault = next((words for words, is_so in faults.items() if is_so), entry.contradiction)
        if fault:
            _charge_fault(ledger, position, fault)
        round = entry.round
        entries.append(entry)
    return entries


def _check_outbox(ledger: Ledger, entries: list[LedgerEntry]) -> None:
    """Check that every charged row is in the outbox or recorded as delivered, and that no other row is."""
    delivered = {
        str(to): int(str(r)) for to, r in ledger.database.rows("SELECT receiver, round FROM delivered")
    }
    charged = {(to, entry.round): digest for entry in entries for to, digest in entry.digests.items()}
    for key in delivered.items():
        if key not in charged:
            raise TamperedError(
                f"Expected a charge for the row that {ledger.folder / LEDGER_FILE} records as delivered to "
                f"{key[0]} in round {key[1]}, got none. {KEEP_FILE}"
            )
    expected = {key: digest for key, digest in charged.items() if key[1] > delivered.get(key[0], -1)}
    for receiver, round, digest, body in ledger.database.rows(
        "SELECT receiver, round, digest, body FROM outbox"
    ):
        booked = expected.pop((str(receiver), int(str(round))), None)
        whole = body is None or (isinstance(body, bytes) and digest_of(body) == digest)
        # Bytes are deleted by a later release than their own, once they are acknowledged.
        early = body is None and round == ledger.round and not ledger.finished(str(receiver))
        if booked != digest or not whole or early:
            raise TamperedError(
                f"The row for {receiver} in round {round} differs from the charged row. {KEEP_FILE}"
            )
    for to, missing in expected:
        raise TamperedError(f"The row charged for {to} in round {missing} is not in the outbox. {KEEP_FILE}")


def _check_logs(ledger: Ledger, entries: list[LedgerEntry]) -> None:
    """Check the journal, received rows and notices against the digests that the charges carry."""
    db = ledger.database.connection
    heads = {
        name: ["", *(log.head for log in event_journal.LogHead().lines(db, name))]
        for name in event_journal.LOG_QUERIES
    }
    before = dict.fromkeys(event_journal.LOG_QUERIES, 0)
    for position, entry in enumerate(entries):
        for name, lines in heads.items():
            if not before[name] <= entry.counts.get(name, -1) < len(lines):
                _charge_fault(
                    ledger, position, f"counts another number of {name} than the file has: some are missing"
                )
        before = {name: entry.counts[name] for name in event_journal.LOG_QUERIES}
    bound = event_journal.logs_digest(db, {name: heads[name][before[name]] for name in heads})
    if entries and entries[-1].books != bound:
        raise TamperedError(
            f"{ledger.folder / LEDGER_FILE}: notes, received rows, statements or delivered rows differ from "
            f"those at the last charge. {KEEP_FILE}"
        )
    late = ledger.database.one("SELECT max(charges) FROM notes")
    if late and late[0] is not None and int(str(late[0])) > len(entries):
        raise TamperedError(
            f"Expected {late[0]} charges, got {len(entries)}: some are missing from "
            f"{ledger.folder / LEDGER_FILE}."
        )


def _check_facts(ledger: Ledger, entries: list[LedgerEntry]) -> None:
    """Check that facts of the run and of neighbours agree with the journal and are possible."""
    ledger.expect_consistent()
    recorded_budget(ledger)
    _check_budgets(ledger)
    meta, round = ledger.meta, entries[-1].round if entries else -1
    faults: Mapping[str, bool] = {
        "partners": meta.get("partners") not in ("planned", "found"),
        "whoever_is_missing": meta.get("whoever_is_missing") not in ("True", "False"),
        "guarantee": meta.get("guarantee") not in GUARANTEES,
        "seeded or rehearsal": not {meta.get("seeded"), meta.get("rehearsal")} <= {None, "True"},
        "stopped": ledger.stopped_at is not None and not 0 <= ledger.stopped_at <= round + 1,
        "stopped, and data entered later": ledger.stopped_at is not None
        and any(e.kind == "release" and e.round >= ledger.stopped_at for e in entries),
    }
    for fault, is_so in faults.items():
        if is_so:
            raise TamperedError(f"Facts of the run are impossible: {fault}.")
    for name, words, code in ledger.database.rows("SELECT name, quarantined, quarantined_for FROM peers"):
        if words is not None or code is not None:
            parse_reply_code(str(name), code)


def _check_budgets(ledger: Ledger) -> None:
    """Check that no start made the budget larger (`start_choices`)."""
    lines = "SELECT value FROM notes WHERE place = 'meta' AND key = ? ORDER BY number"
    try:
        budgets = [float(str(value)) for (value,) in ledger.database.rows(lines, BUDGET_KEY)]
    except ValueError as error:
        raise TamperedError(f"Expected numbers as budgets in the journal, but {error}.") from None
    for before, after in itertools.pairwise(budgets):
        if not after <= before:
            raise TamperedError(f"Expected a budget of at most {before:.6g}, as earlier, got {after:.6g}.")


def _check_inbox(ledger: Ledger, entries: list[LedgerEntry]) -> None:
    """Check that received rows have increasing rounds per sender, correct digests and a possible use."""
    rounds = {entry.round for entry in entries if entry.kind not in ("late", "skip")}
    newest: dict[str, int] = {}
    for sender, round, digest, body, applied in ledger.database.rows(
        "SELECT sender, round, digest, body, applied FROM inbox ORDER BY rowid"
    ):
        row = f"The row of {sender} in round {round}"
        if body is not None and not (isinstance(body, bytes) and digest_of(body) == digest):
            raise TamperedError(f"{row} differs from the accepted row.")
        if int(str(round)) <= newest.get(str(sender), -1):
            raise TamperedError(f"{row} is out of order.")
        newest[str(sender)] = int(str(round))
        if applied is not None and (applied not in rounds or body is not None):
            raise TamperedError(f"{row} cannot have been used in round {applied}.")


def _check_pairs(ledger: Ledger, entries: list[LedgerEntry]) -> None:
    rounds = {entry.round for entry in entries}
    query = "SELECT id, status, own_round, partner, partner_round, applied FROM pairs"
    for id, status, own_round, partner, partner_round, applied in ledger.database.rows(query):
        is_committed = status == "committed"
        fits = (
            status in PAIR_STATES
            and own_round in rounds
            and (applied is None or (is_committed and applied in rounds))
        )
        if not fits or (
            is_committed and ledger.digest_received(str(partner), int(str(partner_round))) is None
        ):
            raise TamperedError(f"The exchange {id} with {partner} is impossible.")


def _charge_fault(ledger: Ledger, position: int, fault: str) -> None:
    raise TamperedError(f"Charge {position} in {ledger.folder / LEDGER_FILE} {fault}.")
