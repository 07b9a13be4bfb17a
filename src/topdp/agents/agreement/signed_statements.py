"""What an agent says to all others: signed with its card's key, and passed on along the links.

For what must reach agents that are no neighbours: keys of a run, and who is gone. Not for rows, which go to
neighbours alone and need no signature beside that of the link.

**Guarantees.** Whoever passes a statement on can withhold it and can do nothing else to it: the words that
are signed name the manifest, the run, the author and the subject. Of two statements of one author on one
subject in one run only one can be honest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from topdp.agents.agreement.card_succession import CardDirectory
from topdp.agents.agreement.identity import Identity
from topdp.agents.agreement.manifest import Manifest

MAX_STATEMENT_CHARS = 512
"""Letters of a subject or a text; ours have below 250."""

MAX_STATEMENT_BYTES = 5 * MAX_STATEMENT_CHARS + 32
"""Bytes of one statement."""


class StatementError(ValueError):
    """Bytes that are no statements."""


@dataclass(frozen=True)
class Statement:
    """`author` says `text` about `about`. `run` is empty before the run has a name."""

    author: str
    run: str
    about: str
    text: str
    signature: str  # hex

    @classmethod
    def signed(cls, identity: Identity, manifest: Manifest, run: str, about: str, text: str) -> Statement:
        """A statement of the agent that holds `identity`."""
        words = _statement_bytes(manifest.hash, identity.card.name, run, about, text)
        return cls(identity.card.name, run, about, text, identity.sign(words).hex())

    def holds(self, manifest: Manifest, directory: CardDirectory | None = None) -> bool:
        """Whether the author is in the manifest and has signed this for it, with any key it has had since."""
        if self.author not in manifest.names:
            return False
        words = _statement_bytes(manifest.hash, self.author, self.run, self.about, self.text)
        cards = directory.cards(self.author) if directory else (manifest.card(self.author),)
        return any(card.signed(bytes.fromhex(self.signature), words) for card in cards)


def encode_statements(statements: Iterable[Statement]) -> bytes:
    """
    >>> decode(encode([Statement("ada", "", "weather", "rain", "00")]))
    [Statement(author='ada', run='', about='weather', text='rain', signature='00')]
    """
    return json.dumps([[s.author, s.run, s.about, s.text, s.signature] for s in statements]).encode()


def decode_statements(body: bytes, most: int = 1000) -> list[Statement]:
    """At most so many. Raises NotAStatement on anything else."""
    try:
        if len(body) > most * MAX_STATEMENT_BYTES:
            raise StatementError
        found = [Statement(*parts) for parts in json.loads(body)]
        if len(found) > most:
            raise StatementError
        for statement in found:
            parts = (statement.author, statement.run, statement.about, statement.text, statement.signature)
            if not all(isinstance(part, str) and len(part) <= MAX_STATEMENT_CHARS for part in parts):
                raise StatementError
            "".join(parts).encode()  # half a surrogate pair is no text
            bytes.fromhex(statement.signature)
    except (ValueError, TypeError, RecursionError):
        raise StatementError from None
    return found


def _statement_bytes(federation: str, author: str, run: str, about: str, text: str) -> bytes:
    return b"topdp statement 1\n" + json.dumps([federation, author, run, about, text]).encode()
