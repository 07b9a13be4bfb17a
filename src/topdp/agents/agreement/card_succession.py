"""What follows a card: a new certificate or a new address of the same agent, signed by the key before.

A manifest is not changed by it: its card stays where trust begins, and each successor is signed by the key of
the card before it, and by its own. So anybody may pass successors on. How they travel: `life/cards.py`.

**Guarantees.** Only who holds the key of an agent's card can name what comes after it, while that card is
valid. The first successor of a number counts; another one of the same number, though well signed, is a
`ForkError`: the key is in two hands. Numbers only grow, so old successors that are repeated do nothing. A
successor keeps the name, and whether there is an address: who dials whom follows from the manifest. What was
taken once is taken again at every start, whatever dates its certificate has: no card can keep books shut. Of
one agent at most `MOST` are taken.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from topdp.agents.agreement import identity
from topdp.agents.agreement.identity import Identity
from topdp.agents.agreement.identity_card import Card, check_address
from topdp.agents.agreement.manifest import Manifest
from topdp.base.files import write_atomically
from topdp.errors import InputError, TrustError

SUCCESSOR_FILE = "successor.json"
RENEWAL_FOLDER_PREFIX = "renewed-"
MAX_SUCCESSOR_BYTES = 8192
"""Bytes of one successor; ours have below 2,500."""
MAX_SUCCESSORS = 64
"""Successors of one card of a manifest: more than anybody needs, and little to keep and pass on."""


class NotASuccessorError(TrustError):
    """What names no successor of a card that is known here."""


class SuccessorOrderError(TrustError):
    """A successor of a card that is not the newest here, or has expired: nobody's fault who passes it on."""


class CardForkError(TrustError):
    """Two successors of one card, both signed with its key."""


class SuccessorLimitError(TrustError):
    """More successors than a manifest takes, all signed by their agent."""


@dataclass(frozen=True)
class Successor:
    """Card `number` of an agent, after the one whose digest is `before`."""

    number: int
    before: str
    card: Card
    signature: str  # hex, by the key of the card before
    proof: str  # hex, by the key of this card

    def text(self) -> str:
        card = [self.card.name, self.card.address, self.card.certificate]
        return json.dumps([self.number, self.before, card, self.signature, self.proof])

    @classmethod
    def read(cls, text: str) -> Successor:
        try:
            if len(text) > MAX_SUCCESSOR_BYTES:
                raise ValueError
            number, before, card, signature, proof = json.loads(text)
            words = (before, *card, signature, proof)
            if type(number) is not int or not 1 <= number < 2**31 or len(card) != 3:
                raise ValueError
            if not all(isinstance(word, str) for word in words):
                raise ValueError
            bytes.fromhex(signature), bytes.fromhex(proof)
            found = cls(number, before, Card(*card), signature, proof)
            if (
                len(found.text()) > MAX_SUCCESSOR_BYTES
            ):  # as it is booked and passed on, which others must read again
                raise ValueError
            return found
        except (ValueError, TypeError, RecursionError):
            raise NotASuccessorError(
                "Expected a card with number, signature and proof, got something else: ask for it again."
            ) from None

    def expect_follows(self, card: Card, now: datetime | None = None) -> None:
        """Refuses what the holder of `card` has not named as its own next card, or not in time."""
        self.expect_signed_by(card)
        if self.card.x509.not_valid_before_utc < card.x509.not_valid_before_utc:
            raise SuccessorOrderError(
                f"Expected a certificate of {card.name} that begins with the one before it or later, got one "
                "that begins earlier: make the next card with `topdp agent renew`."
            )
        for one in (card, self.card):
            if reason := one.validity_problem(now):
                raise SuccessorOrderError(f"Expected a successor in time, but {reason}.")

    def expect_signed_by(self, card: Card) -> None:
        """Refuses what the holder of `card` has not named as its own next card, whatever the time is."""
        words = _words(self.number, self.before, self.card)
        if self.before != card_digest(card):
            raise SuccessorOrderError(
                f"Expected a successor of {card.name}'s card {card.fingerprint[:16]}, got another's."
            )
        if self.card.name != card.name or not card.verifies(bytes.fromhex(self.signature), words):
            raise NotASuccessorError(
                f"Expected a successor signed by the key of {card.name}'s card {card.fingerprint[:16]}, got "
                "one that is not."
            )
        if not self.card.verifies(bytes.fromhex(self.proof), words):
            raise NotASuccessorError(f"Expected a proof that {card.name} holds its new key, got none.")
        if bool(self.card.address) != bool(card.address):
            raise NotASuccessorError(
                f"Expected an address of {card.name} before and after, or neither: who dials whom follows "
                "from the manifest."
            )


def card_digest(card: Card) -> str:
    text = json.dumps([card.name, card.address, card.certificate])
    return hashlib.sha256(b"topdp card\n" + text.encode()).hexdigest()


def sign_successor(number: int, before: Identity, after: Identity) -> Successor:
    """`after` as the successor of `before`."""
    words = _words(number, card_digest(before.card), after.card)
    return Successor(
        number, card_digest(before.card), after.card, before.sign(words).hex(), after.sign(words).hex()
    )


class CardDirectory:
    """The cards of all agents of a manifest as they are now, and all that came before them."""

    def __init__(self, manifest: Manifest) -> None:
        self._cards = {card.name: [card] for card in manifest.cards}
        self._known: dict[str, dict[int, Successor]] = {name: {} for name in manifest.names}
        self._shown: set[str] = set()  # who has shown its newest card on a link
        self.on_shown: Callable[[str], None] = lambda name: None  # called when somebody does

    def card(self, name: str) -> Card:
        return self._cards[name][-1]

    def cards(self, name: str) -> tuple[Card, ...]:
        """All cards of an agent, from the manifest's on."""
        return tuple(self._cards[name])

    def acceptable(self, name: str) -> tuple[Card, ...]:
        """The cards of an agent that a link may show, newest first: once that was, no other one."""
        cards = self._cards[name]
        return (cards[-1],) if name in self._shown else tuple(reversed(cards[-2:]))

    def mark_shown(self, card: Card) -> None:
        """A link to this card is open."""
        if card == self.card(card.name) and card.name not in self._shown:
            self._shown.add(card.name)
            self.on_shown(card.name)

    def number(self, name: str) -> int:
        """Of its newest card; 0: that of the manifest."""
        return max(self._known[name], default=0)

    def accept(self, successor: Successor, now: datetime | None = None) -> bool:
        """Whether it is new here. Refuses what is no successor, and by ForkError a second one."""

        def expect(card: Card) -> None:
            successor.expect_follows(card, now)
            if len(self._known[card.name]) >= MAX_SUCCESSORS:
                raise SuccessorLimitError(
                    f"Expected at most {MAX_SUCCESSORS} successors of {card.name}'s card in the "
                    "manifest, got one more."
                )

        return self._take(successor, expect)

    def _take(self, successor: Successor, expect: Callable[[Card], None]) -> bool:
        name = successor.card.name
        if name not in self._cards:
            raise NotASuccessorError(f"Expected a successor of an agent of the manifest, got {name!r:.80}.")
        known = self._known[name].get(successor.number)
        if known is not None:
            if _content(known) == _content(successor):
                return False
            self._fork(successor)
        if successor.number < self.number(name):
            return False  # repeated from before this manifest, or skipped on the way to a newer one
        expect(self.card(name))
        self._known[name][successor.number] = successor
        self._cards[name].append(successor.card)
        self._shown.discard(name)
        return True

    def has(self, successor: Successor) -> bool:
        return self._known[successor.card.name].get(successor.number) is not None

    def restore(self, successor: Successor) -> None:
        """One that these books have taken before; whether it was in time was seen then, by another clock."""
        self._take(successor, successor.expect_signed_by)

    def _fork(self, successor: Successor) -> None:
        """Another successor of a number that is taken: only if it is well signed is it a story."""
        name = successor.card.name
        for card in self._cards[name]:
            if card.verifies(
                bytes.fromhex(successor.signature),
                _words(successor.number, successor.before, successor.card),
            ):
                raise CardForkError(
                    f"Expected one successor {successor.number} of {name}'s card, got two that its key has "
                    f"signed: that key is in two hands. Ask {name} by another way; the first one stays."
                )
        raise NotASuccessorError(f"Expected a successor that a key of {name} has signed, got another.")


def renew(folder: Path, address: str | None = None, keep_key: bool = False) -> Successor:
    """Makes the next card of the identity in `folder`, and its successor, in a folder of their own.

    `keep_key`: the address alone changes.
    """
    held = load_identities(folder)
    before, number = held[-1], len(held)
    if reason := before.card.validity_problem():
        raise TrustError(
            f"Expected to renew a card while it is valid, but {reason}: its key no longer counts. Make a new "
            "identity, and a new manifest with its card."
        )
    address = before.card.address if address is None else check_address(address)
    if bool(address) != bool(before.card.address):
        raise InputError(
            "Expected an address before and after, or neither: who dials whom follows from the manifest."
        )
    if keep_key:
        if address == before.card.address:
            raise InputError(f"Expected another address than {address}: nothing would change.")
        after = Identity(Card(before.card.name, address, before.card.certificate), before.key)
    else:
        after = identity.generate(before.card.name, address)
    place = folder / f"{RENEWAL_FOLDER_PREFIX}{number}"
    shutil.rmtree(place, ignore_errors=True)  # left by a renewal that was broken off: nobody was told of it
    identity.save(place, after)
    successor = sign_successor(number, before, after)
    write_atomically(place / SUCCESSOR_FILE, successor.text() + "\n")
    return successor


def load_identities(folder: Path) -> list[Identity]:
    """All identities of the agent in `folder`, oldest first; expired ones too."""
    found = [identity.load_identity(folder, expired=True)]
    while (folder / f"{RENEWAL_FOLDER_PREFIX}{len(found)}" / SUCCESSOR_FILE).exists():
        found.append(identity.load_identity(folder / f"{RENEWAL_FOLDER_PREFIX}{len(found)}", expired=True))
    return found


def load_successors(folder: Path, after: int = 0) -> list[Successor]:
    """What `renew` has made in `folder`, from number `after` + 1 on."""
    found: list[Successor] = []
    while (place := folder / f"{RENEWAL_FOLDER_PREFIX}{after + len(found) + 1}" / SUCCESSOR_FILE).exists():
        found.append(read_successor(place))
    return found


def has_successor(folder: Path, number: int) -> bool:
    """Whether there is a card after `number`."""
    return (folder / f"{RENEWAL_FOLDER_PREFIX}{number + 1}" / SUCCESSOR_FILE).exists()


def read_successor(path: Path) -> Successor:
    try:
        return Successor.read(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"Could not read a successor from {path}: {getattr(error, 'strerror', error)}."
        ) from None


def _words(number: int, before: str, card: Card) -> bytes:
    parts: list[Any] = [number, before, card.name, card.address, card.certificate]
    return b"topdp successor 1\n" + json.dumps(parts).encode()


def _content(successor: Successor) -> tuple[int, str, str]:
    """Without the signatures: the same thing may be signed twice."""
    return successor.number, successor.before, card_digest(successor.card)
