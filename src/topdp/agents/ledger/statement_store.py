"""Statements on the books of an agent: its own and all that reached it, each once; the first one counts.

Who is believed is `gossip`'s to decide.
"""

from __future__ import annotations

from typing import Literal

from topdp.agents.agreement.signed_statements import Statement
from topdp.agents.ledger.ledger import Ledger

STATEMENT_COLUMNS = "author, run, about, text, signature"


class StatementStore:
    """The statements of all agents, as far as they have come here."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def add(self, statement: Statement) -> Literal["new", "known", "another"]:
        """Keeps a statement; `another`: its author has said something else on this before, which stays."""
        said = self.text(statement.author, statement.run, statement.about)
        if said is not None:
            return "known" if said == statement.text else "another"
        with self.ledger.database.transaction() as db:
            db.execute(
                f"INSERT INTO statements ({STATEMENT_COLUMNS}) VALUES (?, ?, ?, ?, ?)",
                (statement.author, statement.run, statement.about, statement.text, statement.signature),
            )
        return "new"

    def text(self, author: str, run: str, about: str) -> str | None:
        """What `author` has said about `about`."""
        query = "SELECT text FROM statements WHERE author = ? AND run = ? AND about = ?"
        row = self.ledger.database.one(query, author, run, about)
        return str(row[0]) if row else None

    def on(self, run: str, about: str) -> dict[str, str]:
        """{author: text} of all who have said something about `about`."""
        query = "SELECT author, text FROM statements WHERE run = ? AND about = ?"
        return {str(author): str(text) for author, text in self.ledger.database.rows(query, run, about)}

    def starting(self, run: str, kind: str) -> list[tuple[str, str, str]]:
        """(author, subject, text) of all statements whose subject begins with `kind`."""
        query = "SELECT author, about, text FROM statements WHERE run = ? AND substr(about, 1, ?) = ?"
        found = self.ledger.database.rows(query, run, len(kind), kind)
        return [(str(author), str(about), str(text)) for author, about, text in found]

    def count(self, author: str) -> int:
        """How many statements of `author` are on the books."""
        row = self.ledger.database.one("SELECT count(*) FROM statements WHERE author = ?", author)
        return int(str(row[0])) if row else 0

    def total(self, last: int | None = None) -> int:
        """How many statements are on the books; up to number `last`."""
        query = "SELECT count(*) FROM statements WHERE ? IS NULL OR number <= ?"
        row = self.ledger.database.one(query, last, last)
        return int(str(row[0])) if row else 0

    def after(self, number: int) -> list[tuple[int, Statement]]:
        """The statements that came after number `number`, with theirs."""
        query = f"SELECT number, {STATEMENT_COLUMNS} FROM statements WHERE number > ? ORDER BY number"
        return [
            (int(str(row[0])), Statement(*(str(part) for part in row[1:])))
            for row in self.ledger.database.rows(query, number)
        ]
