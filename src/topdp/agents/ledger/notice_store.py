"""Notices in a ledger: the agent's own and all it has received, each once; the first one counts.

Which notices to believe is decided in `runtime/statement_gossip`.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Literal

from topdp.agents.agreement.signatures import NOTICE_FIELDS, Notice
from topdp.agents.ledger.ledger import Ledger

NOTICE_COLUMNS = ", ".join(NOTICE_FIELDS)


class NoticeStore:
    """The notices of all agents that this agent has received."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def add(self, notice: Notice) -> Literal["new", "known", "another"]:
        """Store a notice. `another`: an earlier one of its author on this subject differs, and stays."""
        earlier = self.text(notice.author, notice.run, notice.about)
        if earlier is not None:
            return "known" if earlier == notice.text else "another"
        with self.ledger.database.transaction() as db:
            db.execute(
                f"INSERT INTO statements ({NOTICE_COLUMNS}) VALUES (?, ?, ?, ?, ?)",
                astuple(notice),
            )
        return "new"

    def text(self, author: str, run: str, about: str) -> str | None:
        """The notice of `author` about `about`, or None."""
        query = "SELECT text FROM statements WHERE author = ? AND run = ? AND about = ?"
        row = self.ledger.database.one(query, author, run, about)
        return str(row[0]) if row else None

    def on(self, run: str, about: str) -> dict[str, str]:
        """{author: text} of all notices about `about`."""
        query = "SELECT author, text FROM statements WHERE run = ? AND about = ?"
        return {str(author): str(text) for author, text in self.ledger.database.rows(query, run, about)}

    def starting(self, run: str, kind: str) -> list[tuple[str, str, str]]:
        """(author, subject, text) of all notices whose subject begins with `kind`."""
        query = "SELECT author, about, text FROM statements WHERE run = ? AND substr(about, 1, ?) = ?"
        rows = self.ledger.database.rows(query, run, len(kind), kind)
        return [(str(author), str(about), str(text)) for author, about, text in rows]

    def count(self, author: str) -> int:
        """The number of notices of `author`."""
        row = self.ledger.database.one("SELECT count(*) FROM statements WHERE author = ?", author)
        return int(str(row[0])) if row else 0

    def total(self, last: int | None = None) -> int:
        """The number of notices, up to number `last`."""
        query = "SELECT count(*) FROM statements WHERE ? IS NULL OR number <= ?"
        row = self.ledger.database.one(query, last, last)
        return int(str(row[0])) if row else 0

    def after(self, number: int) -> list[tuple[int, Notice]]:
        """The notices after number `number`, with their numbers."""
        query = f"SELECT number, {NOTICE_COLUMNS} FROM statements WHERE number > ? ORDER BY number"
        return [
            (int(str(row[0])), Notice.of_parts(str(part) for part in row[1:]))
            for row in self.ledger.database.rows(query, number)
        ]
