"""What agents sign: each row they send, and notices that all agents pass on.

A *row signature* covers the identification and digest of a row, not its bytes: with it, the receiver can
prove to any third party that the row was sent. Neighbours present the newest one in their greetings. So an
agent whose ledger is an old copy gets proof instead of claims, and a neighbour cannot falsely claim that a
ledger is old. `runtime/peer_judgement` evaluates claims. A *notice* carries what must reach agents that are
not neighbours: keys of a run, and departures.

**Guarantees.** Only the holder of the card's key can make a signature that verifies. A row signature for
another manifest, receiver, round or digest does not verify. An agent that passes a notice on can withhold it,
but cannot change it: the signature covers the manifest, the run, the author, the subject and the text. Of two
different notices of one author on one subject in one run, at most one can be honest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from topdp.agents.agreement.card_succession import CardDirectory
from topdp.agents.agreement.identity import Identity
from topdp.agents.agreement.manifest import Manifest

MAX_SIGNATURE_BYTES = 128  # signatures with P-256 have at most 72
MAX_NOTICE_CHARS = 512  # of a subject or a text; those that agents make have below 250
MAX_NOTICE_BYTES = 5 * MAX_NOTICE_CHARS + 32
NOTICE_FIELDS = ("author", "run", "about", "text", "signature")


class NoticeError(ValueError):
    """Bytes that are not encoded notices. `notice_exchange` catches it."""


@dataclass(frozen=True)
class RowSignatures:
    """Makes and verifies the signatures of rows for one agent."""

    directory: CardDirectory
    identity: Identity

    def sign(self, receiver: str, round: int, digest: str) -> bytes:
        """Return this agent's signature of a row for `receiver` with this digest."""
        return self.identity.sign(self._signed_bytes(self.identity.card.name, receiver, round, digest))

    @property
    def retired_cards(self) -> int:
        """The number of this agent's cards whose key it uses no more; 0 if the directory lacks its card."""
        own = self.identity.card
        fingerprints = [card.fingerprint for card in self.directory.cards(own.name)]
        return fingerprints.index(own.fingerprint) if own.fingerprint in fingerprints else 0

    def verify(
        self, sender: str, receiver: str, round: int, digest: str, signature: bytes, first_card: int = 0
    ) -> bool:
        """Return whether `sender` signed that row with the key of any of its cards from `first_card` on."""
        signed = self._signed_bytes(sender, receiver, round, digest)
        return 0 < len(signature) <= MAX_SIGNATURE_BYTES and any(
            card.verifies(signature, signed) for card in self.directory.cards(sender)[first_card:]
        )

    def _signed_bytes(self, sender: str, receiver: str, round: int, digest: str) -> bytes:
        return (
            b"topdp row 1\n"
            + json.dumps([self.directory.manifest.hash, sender, receiver, round, digest]).encode()
        )


@dataclass(frozen=True, kw_only=True)
class Notice:
    """`author` states `text` about the subject `about`. `run` is empty before the run has a name."""

    author: str
    run: str
    about: str
    text: str
    signature: str  # hex

    @classmethod
    def of_parts(cls, parts: Iterable[str]) -> Notice:
        """Return the notice with these fields, in the order of NOTICE_FIELDS."""
        return cls(**dict(zip(NOTICE_FIELDS, parts, strict=True)))

    @classmethod
    def signed(cls, identity: Identity, manifest: Manifest, run: str, about: str, text: str) -> Notice:
        """Return a notice of the agent with this identity, signed for `manifest`."""
        name = identity.card.name
        signed = _notice_bytes(manifest.hash, name, run, about, text)
        return cls.of_parts((name, run, about, text, identity.sign(signed).hex()))

    def verify(self, directory: CardDirectory) -> bool:
        """Return whether the author is a member of the manifest and signed this with any of its keys."""
        if self.author not in directory.manifest.names:
            return False
        signed = _notice_bytes(directory.manifest.hash, self.author, self.run, self.about, self.text)
        cards = directory.cards(self.author)
        return any(card.verifies(bytes.fromhex(self.signature), signed) for card in cards)


def encode_notices(notices: Iterable[Notice]) -> bytes:
    """Encode notices as JSON.

    >>> decode_notices(encode_notices([Notice.of_parts(("ada", "", "weather", "rain", "00"))]))
    [Notice(author='ada', run='', about='weather', text='rain', signature='00')]
    """
    return json.dumps([list(astuple(notice)) for notice in notices]).encode()


def decode_notices(body: bytes, limit: int = 1000) -> list[Notice]:
    """Decode at most `limit` notices. Raise NoticeError on more notices or malformed bytes."""
    try:
        if len(body) > limit * MAX_NOTICE_BYTES:
            raise NoticeError
        notices = [Notice.of_parts(parts) for parts in json.loads(body)]
        if len(notices) > limit:
            raise NoticeError
        for notice in notices:
            parts = astuple(notice)
            if not all(isinstance(part, str) and len(part) <= MAX_NOTICE_CHARS for part in parts):
                raise NoticeError
            "".join(parts).encode()  # raises on half a surrogate pair
            bytes.fromhex(notice.signature)
    except (ValueError, TypeError, RecursionError):
        raise NoticeError from None
    return notices


def _notice_bytes(federation: str, author: str, run: str, about: str, text: str) -> bytes:
    return b"topdp statement 1\n" + json.dumps([federation, author, run, about, text]).encode()
