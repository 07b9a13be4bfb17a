"""Who an agent is: a key made on its own site, a certificate signed by that key alone, and a public card.

There is no authority. An agent is known by the SHA-256 of its certificate (its *fingerprint*), which a
manifest lists; what a certificate says about names is never believed. gRPC's TLS takes no Ed25519,
so keys are ECDSA on P-256.

**Guarantees.** The private key is written once, readable by its owner alone, and never leaves the folder. The
certificate may not sign others (key usage), but nobody relies on that: see `handshake.py`.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import tomllib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from topdp.errors import InputError, TrustError
from topdp.files import write_whole

TLS_NAME = "agent.topdp"
"""The host name in every certificate: TLS wants one, and ours says nothing about who it is."""

VALIDITY = timedelta(days=3650)
KEY, CERTIFICATE, CARD = "key.pem", "certificate.pem", "card.toml"
CURVE = ec.SECP256R1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]{0,252}):([0-9]{1,5})", re.ASCII)


class IdentityError(InputError):
    """A name, address, key or card that cannot be used; one that must not be relied on is a TrustError."""


@dataclass(frozen=True)
class Card:
    """What an agent shows to everybody. `address` is `host:port`, or empty for a site that opens no port."""

    name: str
    address: str
    certificate: str  # PEM

    def __post_init__(self) -> None:
        check_name(self.name)
        check_address(self.address)
        if not isinstance(self.x509.public_key(), ec.EllipticCurvePublicKey) or not isinstance(
            self._public.curve, CURVE
        ):
            raise IdentityError(f"Expected a P-256 key in the certificate of {self.name}, got another kind.")

    @cached_property
    def x509(self) -> x509.Certificate:
        try:
            found = x509.load_pem_x509_certificates(self.certificate.encode("ascii"))
        except (ValueError, UnicodeEncodeError) as error:
            raise IdentityError(f"Expected a PEM certificate of {self.name}: {error}") from None
        if len(found) != 1:
            raise IdentityError(f"Expected one certificate of {self.name}, got {len(found)}.")
        return found[0]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate (DER), in hex."""
        return fingerprint(self.x509)

    @property
    def _public(self) -> ec.EllipticCurvePublicKey:
        key = self.x509.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        return key

    def signed(self, signature: bytes, data: bytes) -> bool:
        """Whether the holder of this card's key signed `data`."""
        try:
            self._public.verify(signature, data, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    def expired(self, now: datetime | None = None) -> str:
        """Why the certificate is not valid at `now`, or nothing."""
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


@dataclass(frozen=True)
class Identity:
    """A card with its private key."""

    card: Card
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    def __post_init__(self) -> None:
        ours, theirs = (
            key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
            for key in (self.key.public_key(), self.card.x509.public_key())
        )
        if ours != theirs:
            raise TrustError(
                f"Expected the key of {self.card.name}'s certificate, got another key: the files are of "
                f"different agents; restore them together, or make a new identity and send out its card."
            )

    def sign(self, data: bytes) -> bytes:
        return self.key.sign(data, ec.ECDSA(hashes.SHA256()))

    def secret(self, purpose: str) -> bytes:
        """32 bytes for `purpose` that only this key gives, and gives again after a restart."""
        private = self.key.private_numbers().private_value.to_bytes(32, "big")
        return hmac.digest(private, b"topdp " + purpose.encode(), "sha256")

    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


def fingerprint(certificate: x509.Certificate) -> str:
    return hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


def make(
    name: str, address: str = "", start: datetime | None = None, validity: timedelta = VALIDITY
) -> Identity:
    """A new identity in memory; `init` makes one on disk."""
    start = start or datetime.now(UTC) - timedelta(days=1)  # neighbours' clocks may be behind
    check_name(name)
    key = ec.generate_private_key(CURVE())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    usage = x509.KeyUsage(
        True, False, False, False, False, False, False, False, False
    )  # to sign messages only
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + validity)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(TLS_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")
    return Identity(Card(name, address, pem), key)


def init(folder: Path, name: str, address: str = "") -> Identity:
    """Makes a key, a certificate and a card in `folder`. An identity that is there is never replaced."""
    return keep(folder, make(name, address))


def keep(folder: Path, identity: Identity) -> Identity:
    """Writes an identity to `folder`, where none may be."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The mode is given at birth: there is no moment in which others could read the key.
        handle = os.open(folder / KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(identity.key_pem())
            file.flush()
            os.fsync(handle)
    except FileExistsError:
        if not folder.is_dir():
            raise IdentityError(f"Expected a folder for the identity, {folder} is a file.") from None
        raise IdentityError(
            f"Expected no identity in {folder}, found {folder / KEY}: name another folder, or move that "
            f"one away (neighbours who have its card will not know the new one)."
        ) from None
    except OSError as error:
        raise IdentityError(f"Could not write an identity to {folder}: {error.strerror}.") from error
    write_whole(folder / CERTIFICATE, identity.card.certificate)
    write_whole(folder / CARD, identity.card.to_toml())
    return identity


def load(folder: Path, now: datetime | None = None, expired: bool = False) -> Identity:
    """The identity in `folder`, or the reason why it cannot be used. `expired`: one that was may be."""
    path = folder / KEY
    try:
        mode = path.stat().st_mode & 0o777
        pem = path.read_bytes()
    except FileNotFoundError:
        raise IdentityError(
            f"Expected a key in {path}, found none: make one with `topdp agent init`."
        ) from None
    except OSError as error:
        raise IdentityError(f"Could not read {path}: {error.strerror}.") from error
    if mode & 0o077:
        raise TrustError(
            f"Expected {path} readable by its owner alone (mode 600), got mode {mode:o}: others may have "
            f"read it; `chmod 600 {path}` if you know that they have not, else make a new identity."
        )
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise IdentityError(f"Expected a private key in {path}: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError(f"Expected a P-256 key in {path}, got another kind.")
    card = read_card(folder / CARD)
    certificate = _read(folder / CERTIFICATE)
    if Card(card.name, card.address, certificate).fingerprint != card.fingerprint:
        raise TrustError(
            f"Expected the certificate of {folder / CARD} in {folder / CERTIFICATE}, got another one."
        )
    held = Identity(card, key)
    if not expired:
        expect_valid(held, str(folder), now)
    return held


def expect_valid(identity: Identity, origin: str, now: datetime | None = None) -> None:
    if reason := identity.card.expired(now):
        raise TrustError(f"Expected a valid certificate in {origin}: {reason}; make a new identity.")


def read_card(path: Path) -> Card:
    """The card in a file, as another site sent it."""
    return parse_card(_read(path), str(path))


def parse_card(text: str, origin: str = "card") -> Card:
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise IdentityError(f"Expected a card (TOML) in {origin}: {error}") from None
    return card_from_tree(tree, origin)


def card_from_tree(tree: Any, origin: str) -> Card:
    """A card from its four keys; the fingerprint must be that of the certificate."""
    keys = {"name", "address", "fingerprint", "certificate"}
    if not isinstance(tree, dict) or set(tree) != keys or not all(isinstance(tree[k], str) for k in keys):
        got = ", ".join(sorted(tree)) if isinstance(tree, dict) else type(tree).__name__
        raise IdentityError(
            f"{origin}: expected a card with the texts {', '.join(sorted(keys))}, got {got:.200}."
        )
    try:
        card = Card(tree["name"], tree["address"], tree["certificate"])
    except IdentityError as error:
        raise IdentityError(f"{origin}: {error}") from None
    if card.fingerprint != tree["fingerprint"]:
        raise TrustError(
            f"{origin}: expected the fingerprint {card.fingerprint} of its certificate, got "
            f"{tree['fingerprint']:.80}: the card is damaged or was changed; ask {card.name} for it again."
        )
    return card


def check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise IdentityError(
            f"Expected a name of 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or "
            f"digit, got {name!r:.80}."
        )
    return name


def check_address(address: str) -> str:
    match = ADDRESS.fullmatch(address)
    if address and not (match and 1 <= int(match[2]) <= 65535):
        raise IdentityError(
            f"Expected an address host:port with a port from 1 to 65535, for example "
            f"agent.example.org:7400, or none for a site that opens no port, got {address!r:.80}."
        )
    return address


def is_loopback(address: str) -> bool:
    """Whether `host:port` is on this machine and no other."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors write a mark first
    except FileNotFoundError:
        raise IdentityError(f"Expected a file {path}, found none.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise IdentityError(f"Could not read {path}: {getattr(error, 'strerror', error)}.") from None
