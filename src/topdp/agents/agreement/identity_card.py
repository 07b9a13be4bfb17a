"""The card of an agent, which is public: its name, its address and its certificate.

There is no certificate authority. An agent is identified by the SHA-256 of its certificate (its
*fingerprint*), which a manifest lists; names inside certificates are ignored. Private keys are in `identity`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from topdp.base import toml_text
from topdp.base.files import read_text
from topdp.errors import InputError, TrustError

KEY_CURVE = ec.SECP256R1
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
ADDRESS_PATTERN = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]{0,252}):([0-9]{1,5})", re.ASCII)


class IdentityError(InputError):
    """A name, address, key or card that cannot be used. One that must not be trusted raises TrustError."""


@dataclass(frozen=True)
class Card:
    """The public part of an identity. `address` is `host:port`, or empty for an agent that opens no port."""

    name: str
    address: str
    certificate: str  # PEM

    def __post_init__(self) -> None:
        check_name(self.name)
        check_address(self.address)
        key = self.x509.public_key()
        if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, KEY_CURVE)):
            raise IdentityError(
                f"Expected a P-256 key in the certificate of {self.name}, got another kind of key. Make the "
                "identity with `topdp agent init`."
            )

    @cached_property
    def x509(self) -> x509.Certificate:
        try:
            certificates = x509.load_pem_x509_certificates(self.certificate.encode("ascii"))
        except (ValueError, UnicodeEncodeError) as error:
            raise IdentityError(f"Expected a PEM certificate of {self.name}, but: {error}") from None
        if len(certificates) != 1:
            raise IdentityError(f"Expected one certificate of {self.name}, got {len(certificates)}.")
        return certificates[0]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate (DER), in hex."""
        return fingerprint(self.x509)

    @property
    def public_key(self) -> ec.EllipticCurvePublicKey:
        key = self.x509.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        return key

    def verifies(self, signature: bytes, data: bytes) -> bool:
        """Return whether `signature` is a signature of `data` with this card's key."""
        try:
            self.public_key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    def validity_problem(self, now: datetime | None = None) -> str:
        """Return the reason why the certificate is not valid at `now`, or an empty string."""
        now = now or datetime.now(UTC)
        first, last = self.x509.not_valid_before_utc, self.x509.not_valid_after_utc
        if first <= now <= last:
            return ""
        return f"the certificate of {self.name} is valid from {first:%F} to {last:%F}, today is {now:%F}"

    def to_tree(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "address": self.address,
            "fingerprint": self.fingerprint,
            "certificate": self.certificate,
        }

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_tree(), multiline_strings=True)


def fingerprint(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(hashes.SHA256()).hex()


def read_card(path: Path) -> Card:
    """Read a card from a TOML file."""
    text = read_text(path)
    try:
        tree = toml_text.parse_toml(text)
    except ValueError as error:
        raise IdentityError(f"Expected a card (TOML) in {path}, but: {error}") from None
    return card_from_tree(tree, str(path))


def card_from_tree(tree: Any, origin: str) -> Card:
    """Return the card with these four keys. Raise TrustError if the fingerprint is not the certificate's.

    `origin` names the file or key of the card in errors.
    """
    keys = {"name", "address", "fingerprint", "certificate"}
    if not isinstance(tree, dict) or set(tree) != keys or not all(isinstance(tree[k], str) for k in keys):
        got = ", ".join(sorted(tree)) if isinstance(tree, dict) else type(tree).__name__
        raise IdentityError(
            f"{origin}: expected a card with the strings {', '.join(sorted(keys))}, got {got:.200}."
        )
    try:
        card = Card(tree["name"], tree["address"], tree["certificate"])
    except IdentityError as error:
        raise IdentityError(f"{origin}: {error}") from None
    if card.fingerprint != tree["fingerprint"]:
        raise TrustError(
            f"{origin}: expected the fingerprint {card.fingerprint} of its certificate, got "
            f"{tree['fingerprint']:.80}: the card is damaged or was changed. Ask {card.name} for it again."
        )
    return card


def check_name(name: str) -> str:
    if not NAME_PATTERN.fullmatch(name):
        raise IdentityError(
            f"Expected a name of 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or "
            f"digit, got {name!r:.80}."
        )
    return name


def check_address(address: str) -> str:
    match = ADDRESS_PATTERN.fullmatch(address)
    if address and not (match and 1 <= int(match[2]) <= 65535):
        raise IdentityError(
            f"Expected an address host:port with a port from 1 to 65535, for example "
            f"agent.example.org:7400, or none for an agent that opens no port, got {address!r:.80}."
        )
    return address
