"""A sender's signature under each of its rows: who has the row can show to anybody that it was sent.

It is over the row's name and digest, not over its bytes. Neighbours show the newest one when they greet, so
that an agent whose books are an old copy need not take anybody's word for it; and nobody can make it believe
that it is one. How claims are weighed: `life/beliefs.py`.

**Guarantees.** Nobody but the holder of the card's key can make a signature that holds; one for another
manifest, receiver, round or digest does not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from topdp.agents.agreement.card_succession import CardDirectory
from topdp.agents.agreement.identity import Identity
from topdp.agents.agreement.manifest import Manifest

MAX_SIGNATURE_BYTES = 128
"""Bytes of a signature; those of P-256 have at most 72."""


@dataclass(frozen=True)
class RowSignatures:
    """Signatures under rows, made and checked by one agent; without an identity it makes none."""

    name: str
    manifest: Manifest
    identity: Identity | None
    directory: CardDirectory | None = None  # the cards that came after those of the manifest

    def sign(self, receiver: str, round: int, digest: str) -> bytes:
        """Under a row of this agent."""
        if self.identity is None:
            return b""
        return self.identity.sign(self._words(self.name, receiver, round, digest))

    def verify_own(self, receiver: str, round: int, digest: str, signature: bytes) -> bool:
        """Whether this agent has signed that row. One that signs nothing cannot tell, and believes it."""
        if self.identity is None:
            return True
        return self.verify(self.name, receiver, round, digest, signature)

    def verify(self, sender: str, receiver: str, round: int, digest: str, signature: bytes) -> bool:
        """Whether `sender` has signed that row."""
        words = self._words(sender, receiver, round, digest)
        cards = self.directory.cards(sender) if self.directory else (self.manifest.card(sender),)
        return 0 < len(signature) <= MAX_SIGNATURE_BYTES and any(
            card.signed(signature, words) for card in cards
        )

    def _words(self, sender: str, receiver: str, round: int, digest: str) -> bytes:
        facts = [self.manifest.hash, sender, receiver, round, digest]
        return b"topdp row 1\n" + json.dumps(facts).encode()
