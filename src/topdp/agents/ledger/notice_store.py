"""Notices in a ledger: the agent's own and all received ones; the first of an author on a subject counts.

Which notices are accepted is decided in `runtime/notice_exchange`.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Literal

from topdp.agents.agreement.signatures import NOTICE_FIELDS, Notice
from topdp.agents.ledger.ledger import Ledger

NOTICE_COLUMNS = ", ".join(NOTICE_FIELDS)


class NoticeStore:
    """The notices in the ledger of one agent: its own, and those received from others."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def add(self, notice: Notice) -> Literal["new", "known", "another"]:
        """Store a notice, and return whether it is new.

        `known`: the same text is already stored. `another`: an earlier notice of this author on this subject
        has another text; the earlier one stays.
        """
        earlier = self.text(notice.author, notice.run, notice.about)
        if earlier is not None:
            return "known" if earlier == notice.text else "another"
        with self.ledger.database.transaction() as db:
            db.execute(f"INSERT INTO statements ({NOTICE_COLUMNS}) VALUES (?, ?, ?, ?, ?)", astuple(notice))
        return "new"

    def text(self, author: str, run: str, about: str) -> str | None:
        """Return the text of the notice of `author` on the subject `about`, or None."""
        query = "SELECT text FROM statements WHERE author = ? AND run = ? AND about = ?"
        row = self.ledger.database.one(query, author, run, about)
        return str(row[0]) if row else None

    def on(self, run: str, about: str) -> dict[str, str]:
        """Map author to text for all notices on the subject `about`."""
        query = "SELECT author, text FROM statements WHERE run = ? AND about = ?"
        return {str(author): str(text) for author, text in self.ledger.database.rows(query, run, about)}

    def starting(self, run: str, kind: str) -> list[tuple[str, str, str]]:
        """Return (author, subject, text) of all notices whose subject begins with `kind`."""
        query = "SELECT author, about, text FROM statements WHERE run = ? AND substr(about, 1, ?) = ?"
        rows = self.ledger.database.rows(query, run, len(kind), kind)
        return [(str(author), str(about), str(text)) for author, about, text in rows]

    def count(self, author: str) -> int:
        """Return the number of notices of `author`."""
        row = self.ledger.database.one("SELECT count(*) FROM statements WHERE author = ?", author)
        return int(str(row[0])) if row else 0

    def total(self, last: int | None = None) -> int:
        """Return the number of notices; if `last` is not None, only of those up to number `last`."""
        query = "SELECT count(*) FROM statements WHERE ? IS NULL OR number <= ?"
        row = self.ledger.database.one(query, last, last)
        return int(str(row[0])) if row else 0

    def after(self, number: int) -> list[tuple[int, Notice]]:
        """Return (number, notice) of all notices with a number above `number`, in order."""
        query = f"SELECT number, {NOTICE_COLUMNS} FROM statements WHERE number > ? ORDER BY number"
        return [
            (int(str(row[0])), Notice.of_parts(str(part) for part in row[1:]))
            for row in self.ledger.database.rows(query, number)
        ]
