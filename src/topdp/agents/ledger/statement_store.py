"""Signed statements in a ledger: the agent's own and all it has received, each once; the first one counts.

Which statements to believe is decided in `runtime/statement_gossip`.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Literal

from topdp.agents.agreement.signatures import STATEMENT_FIELDS, Statement
from topdp.agents.ledger.ledger import Ledger

STATEMENT_COLUMNS = ", ".join(STATEMENT_FIELDS)


class StatementStore:
    """The statements of all agents that this agent has received."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def add(self, statement: Statement) -> Literal["new", "known", "another"]:
        """Store a statement. `another`: an earlier one of its author on this subject differs, and stays."""
        earlier = self.text(statement.author, statement.run, statement.about)
        if earlier is not None:
            return "known" if earlier == statement.text else "another"
        with self.ledger.database.transaction() as db:
            db.execute(
                f"INSERT INTO statements ({STATEMENT_COLUMNS}) VALUES (?, ?, ?, ?, ?)",
                astuple(statement),
            )
        return "new"

    def text(self, author: str, run: str, about: str) -> str | None:
        """The statement of `author` about `about`, or None."""
        query = "SELECT text FROM statements WHERE author = ? AND run = ? AND about = ?"
        row = self.ledger.database.one(query, author, run, about)
        return str(row[0]) if row else None

    def on(self, run: str, about: str) -> dict[str, str]:
        """{author: text} of all statements about `about`."""
        query = "SELECT author, text FROM statements WHERE run = ? AND about = ?"
        return {str(author): str(text) for author, text in self.ledger.database.rows(query, run, about)}

    def starting(self, run: str, kind: str) -> list[tuple[str, str, str]]:
        """(author, subject, text) of all statements whose subject begins with `kind`."""
        query = "SELECT author, about, text FROM statements WHERE run = ? AND substr(about, 1, ?) = ?"
        rows = self.ledger.database.rows(query, run, len(kind), kind)
        return [(str(author), str(about), str(text)) for author, about, text in rows]

    def count(self, author: str) -> int:
        """The number of statements of `author`."""
        row = self.ledger.database.one("SELECT count(*) FROM statements WHERE author = ?", author)
        return int(str(row[0])) if row else 0

    def total(self, last: int | None = None) -> int:
        """The number of statements, up to number `last`."""
        query = "SELECT count(*) FROM statements WHERE ? IS NULL OR number <= ?"
        row = self.ledger.database.one(query, last, last)
        return int(str(row[0])) if row else 0

    def after(self, number: int) -> list[tuple[int, Statement]]:
        """The statements after number `number`, with their numbers."""
        query = f"SELECT number, {STATEMENT_COLUMNS} FROM statements WHERE number > ? ORDER BY number"
        return [
            (int(str(row[0])), Statement.of_parts(str(part) for part in row[1:]))
            for row in self.ledger.database.rows(query, number)
        ]
