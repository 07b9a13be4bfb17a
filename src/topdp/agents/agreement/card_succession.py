"""Successors of cards: a new certificate or address of the same agent, signed with the previous key.

A successor does not change the manifest: its cards stay the root of trust. Each successor is signed with the
key of the previous card and with its own key, so any agent may pass successors on. `runtime/card_updates.py`
distributes them.

**Guarantees.** Only the holder of the key of an agent's card can create its successor, while that card is
valid. The first successor of a number counts; a different one with the same number and a valid signature is a
`CardForkError`: two parties hold the key. Numbers only grow, so repeated old successors have no effect. A
successor keeps the agent's name and does not add or remove an address, because the manifest determines which
end of a link dials. A successor that was accepted once is accepted at every start, whatever the validity of
its certificate, so no card can make a ledger unusable. At most `MAX_SUCCESSORS` of one agent are accepted.
"""

from __future__ import annotations

import hashlib
import itertools
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
from topdp.base.files import read_text, write_atomically
from topdp.errors import InputError, TrustError

SUCCESSOR_FILE = "successor.json"
RENEWAL_FOLDER_PREFIX = "renewed-"
MAX_SUCCESSOR_BYTES = 8192  # those of `renew` have below 2,500
MAX_SUCCESSORS = 64
"""Successors of one card of a manifest: more than an agent needs, and few to store and pass on."""


class NotASuccessorError(TrustError):
    """A text that is not a successor of a known card."""


class SuccessorOrderError(TrustError):
    """A successor of a card that is not the newest one known here, or has expired.

    An agent that passes it on is not quarantined.
    """


class CardForkError(TrustError):
    """Two successors of one card, both signed with its key."""


class SuccessorLimitError(TrustError):
    """More successors than are accepted under one manifest, all signed by their agent."""


@dataclass(frozen=True, kw_only=True)
class Successor:
    """Card `number` of an agent, the successor of the card whose digest is `before`."""

    number: int
    before: str
    card: Card
    signature: str  # hex, by the key of the previous card
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
            if type(number) is not int or not 1 <= number < 2**31 or len(card) != 3:
                raise ValueError
            if not all(isinstance(part, str) for part in (before, *card, signature, proof)):
                raise ValueError
            bytes.fromhex(signature), bytes.fromhex(proof)
            successor = cls(number=number, before=before, card=Card(*card), signature=signature, proof=proof)
            if len(successor.text()) > MAX_SUCCESSOR_BYTES:  # this form is stored and passed on
                raise ValueError
            return successor
        except (ValueError, TypeError, RecursionError):
            raise NotASuccessorError(
                "Expected a card with number, signature and proof, got another text. Request it again."
            ) from None

    def expect_follows(self, card: Card, now: datetime | None = None) -> None:
        """Raise TrustError unless this is the signed successor of `card` and both certificates are valid."""
        self.expect_signed_by(card)
        if self.card.x509.not_valid_before_utc < card.x509.not_valid_before_utc:
            raise SuccessorOrderError(
                f"Expected a certificate of {card.name} that is valid from the beginning of the previous one "
                "or later, got one that begins earlier. Make the next card with `topdp agent renew`."
            )
        for certified in (card, self.card):
            if problem := certified.validity_problem(now):
                raise SuccessorOrderError(f"Expected valid certificates, but {problem}.")

    def expect_signed_by(self, card: Card) -> None:
        """Raise TrustError unless this is the signed successor of `card`, whatever their validity."""
        signed = _signed_bytes(self.number, self.before, self.card)
        if self.before != card_digest(card):
            raise SuccessorOrderError(
                f"Expected a successor of {card.name}'s card {card.fingerprint[:16]}, got one of another."
            )
        if self.card.name != card.name or not card.verifies(bytes.fromhex(self.signature), signed):
            raise NotASuccessorError(
                f"Expected a successor signed with the key of {card.name}'s card {card.fingerprint[:16]}, "
                "got one with another name or signature."
            )
        if not self.card.verifies(bytes.fromhex(self.proof), signed):
            raise NotASuccessorError(
                f"Expected a proof that {card.name} holds its new key, got no valid signature with it."
            )
        if bool(self.card.address) != bool(card.address):
            raise NotASuccessorError(
                f"Expected an address in both {card.name}'s card and its successor or in neither, but only "
                "one has an address: the manifest determines which end of a link dials."
            )


def card_digest(card: Card) -> str:
    text = json.dumps([card.name, card.address, card.certificate])
    return hashlib.sha256(b"topdp card\n" + text.encode()).hexdigest()


def sign_successor(number: int, before: Identity, after: Identity) -> Successor:
    """Return `after` as successor `number`, signed with the keys of `before` and `after`."""
    digest = card_digest(before.card)
    signed = _signed_bytes(number, digest, after.card)
    return Successor(
        number=number,
        before=digest,
        card=after.card,
        signature=before.sign(signed).hex(),
        proof=after.sign(signed).hex(),
    )


class CardDirectory:
    """The current cards of all agents of a manifest, and all their earlier ones."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._cards = {card.name: [card] for card in manifest.cards}
        self._successors: dict[str, dict[int, Successor]] = {name: {} for name in manifest.names}
        self._shown: set[str] = set()  # agents that have presented their newest card on a link
        self.on_shown: Callable[[str], None] = lambda name: None  # called when an agent presents it

    def card(self, name: str) -> Card:
        return self._cards[name][-1]

    def cards(self, name: str) -> tuple[Card, ...]:
        """Return all cards of an agent, starting with the one in the manifest."""
        return tuple(self._cards[name])

    def acceptable(self, name: str) -> tuple[Card, ...]:
        """Return the cards that an agent may present on a link, newest first.

        These are the newest card and its predecessor; only the newest after the agent has presented it once.
        """
        cards = self._cards[name]
        return (cards[-1],) if name in self._shown else tuple(reversed(cards[-2:]))

    def mark_shown(self, card: Card) -> None:
        """Record that an agent has opened a link with this card."""
        if card == self.card(card.name) and card.name not in self._shown:
            self._shown.add(card.name)
            self.on_shown(card.name)

    def number(self, name: str) -> int:
        """Return the number of an agent's newest card; 0 for that of the manifest."""
        return max(self._successors[name], default=0)

    def accept(self, successor: Successor, now: datetime | None = None, is_recorded: bool = False) -> bool:
        """Add a successor, and return whether it is new. Raise CardForkError on a second one of a number.

        `is_recorded`: this agent has accepted the successor earlier, so its validity does not matter.
        """
        name = successor.card.name
        if name not in self._cards:
            raise NotASuccessorError(f"Expected a successor of an agent of the manifest, got {name!r:.80}.")
        accepted = self._successors[name].get(successor.number)
        if accepted is not None:
            if _unsigned_content(accepted) == _unsigned_content(successor):
                return False
            self._raise_fork(successor)
        if successor.number < self.number(name):
            return False  # repeated from before this manifest, or skipped on the way to a newer one
        if is_recorded:
            successor.expect_signed_by(self.card(name))
        else:
            successor.expect_follows(self.card(name), now)
            if len(self._successors[name]) >= MAX_SUCCESSORS:
                raise SuccessorLimitError(
                    f"Expected at most {MAX_SUCCESSORS} successors of {name}'s card in the manifest, got "
                    f"{MAX_SUCCESSORS + 1}. Make a new manifest with its newest card."
                )
        self._successors[name][successor.number] = successor
        self._cards[name].append(successor.card)
        self._shown.discard(name)
        return True

    def has(self, successor: Successor) -> bool:
        return self._successors[successor.card.name].get(successor.number) is not None

    def _raise_fork(self, successor: Successor) -> None:
        """Raise CardForkError for a second successor of a number if a key of the agent has signed it.

        Otherwise raise NotASuccessorError: an unsigned successor proves no fork.
        """
        name = successor.card.name
        signature = bytes.fromhex(successor.signature)
        signed = _signed_bytes(successor.number, successor.before, successor.card)
        if any(card.verifies(signature, signed) for card in self._cards[name]):
            raise CardForkError(
                f"Expected one successor {successor.number} of {name}'s card, got two signed with its key: "
                f"two parties hold that key. Contact {name} through another channel; the first one stays."
            )
        raise NotASuccessorError(
            f"Expected a successor signed with a key of {name}, got one with another signature."
        )


def renew(folder: Path, address: str | None = None, keep_key: bool = False) -> Successor:
    """Make the next identity of the agent in a subfolder of `folder`, and return its signed successor.

    `address`: `host:port` of the new card; None keeps the address. `keep_key`: keep the key and certificate,
    and change only the address.
    """
    identities = load_identities(folder)
    before, number = identities[-1], len(identities)
    if problem := before.card.validity_problem():
        raise TrustError(
            f"Expected a valid card to renew, but {problem}: signatures of its key are no longer accepted. "
            "Make a new identity, and a new manifest with its card."
        )
    address = before.card.address if address is None else check_address(address)
    if bool(address) != bool(before.card.address):
        raise InputError(
            "--address: expected an address in both the current card and the next one or in neither, but "
            "only one has an address: the manifest determines which end of a link dials."
        )
    if keep_key:
        if address == before.card.address:
            raise InputError(
                f"--address: expected another address than {address}, got the same: nothing would change."
            )
        after = Identity(Card(before.card.name, address, before.card.certificate), before.key)
    else:
        after = identity.generate(before.card.name, address)
    subfolder = folder / f"{RENEWAL_FOLDER_PREFIX}{number}"
    shutil.rmtree(subfolder, ignore_errors=True)  # of an interrupted renewal that no neighbour has seen
    identity.save(subfolder, after)
    successor = sign_successor(number, before, after)
    write_atomically(subfolder / SUCCESSOR_FILE, successor.text() + "\n")
    return successor


def load_identities(folder: Path) -> list[Identity]:
    """Return all identities of the agent in `folder`, oldest first, including expired ones."""
    folders = [folder, *(file.parent for file in successor_files(folder))]
    return [identity.load_identity(each) for each in folders]


def load_successors(folder: Path) -> list[Successor]:
    """Return the successors that `renew` has made in `folder`, oldest first."""
    return [Successor.read(read_text(file)) for file in successor_files(folder)]


def successor_files(folder: Path) -> list[Path]:
    """Return the files of all successors in `folder`, oldest first."""
    files = (folder / f"{RENEWAL_FOLDER_PREFIX}{k}" / SUCCESSOR_FILE for k in itertools.count(1))
    return list(itertools.takewhile(Path.exists, files))


def _signed_bytes(number: int, before: str, card: Card) -> bytes:
    parts: list[Any] = [number, before, card.name, card.address, card.certificate]
    return b"topdp successor 1\n" + json.dumps(parts).encode()


def _unsigned_content(successor: Successor) -> tuple[int, str, str]:
    """Return the content without signatures: the same content may be signed twice."""
    return successor.number, successor.before, card_digest(successor.card)
