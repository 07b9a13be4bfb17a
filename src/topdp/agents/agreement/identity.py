"""The identity of an agent: a key made on its own machine, and a self-signed certificate.

Other agents see its card (`identity_card`). gRPC's TLS does not support Ed25519, so keys are ECDSA on P-256.

**Guarantees.** The private key is written once, with read permission for its owner only, and never leaves the
folder. The certificate may not sign other certificates (key usage), but no check relies on that: see
`wire/handshake.py`.
"""

from __future__ import annotations

import hmac
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from topdp.agents.agreement.identity_card import (
    KEY_CURVE,
    Card,
    IdentityError,
    check_name,
    read_card,
)
from topdp.base.files import read_text, write_atomically
from topdp.errors import TrustError

TLS_HOST_NAME = "agent.topdp"
"""The host name in every certificate: TLS requires one. It does not identify the agent."""

CERTIFICATE_VALIDITY = timedelta(days=3650)
KEY_FILE, CERTIFICATE_FILE, CARD_FILE = "key.pem", "certificate.pem", "card.toml"


@dataclass(frozen=True)
class Identity:
    """A card with its private key."""

    card: Card
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    def __post_init__(self) -> None:
        if self.key.public_key() != self.card.public_key:
            raise TrustError(
                f"Expected the key of {self.card.name}'s certificate, got another key: the files belong to "
                "different agents. Restore them together, or make a new identity and send out its card."
            )

    def sign(self, data: bytes) -> bytes:
        return self.key.sign(data, ec.ECDSA(hashes.SHA256()))

    def secret(self, purpose: str) -> bytes:
        """Return 32 secret bytes for `purpose`, derived from the private key; the same after a restart."""
        private = self.key.private_numbers().private_value.to_bytes(32, "big")
        return hmac.digest(private, b"topdp " + purpose.encode(), "sha256")

    def shared_secret(self, card: Card, purpose: str) -> bytes:
        """Return 32 bytes for `purpose` that only this agent and the holder of `card` can compute."""
        secret = self.key.exchange(ec.ECDH(), card.public_key)
        return hmac.digest(secret, b"topdp " + purpose.encode(), "sha256")

    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


def generate(
    name: str, address: str = "", start: datetime | None = None, validity: timedelta = CERTIFICATE_VALIDITY
) -> Identity:
    """Make a new identity in memory; `create_identity` makes one on disk.

    `start`: begin of the certificate's validity (UTC); None: one day ago.
    """
    start = start or datetime.now(UTC) - timedelta(days=1)  # neighbours' clocks may be slow
    check_name(name)
    key = ec.generate_private_key(KEY_CURVE())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    # To sign messages only.
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + validity)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(TLS_HOST_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")
    return Identity(Card(name, address, pem), key)


def create_identity(folder: Path, name: str, address: str = "") -> Identity:
    """Make a key, a certificate and a card in `folder`. Never replace an existing identity."""
    return save(folder, generate(name, address))


def save(folder: Path, identity: Identity) -> Identity:
    """Write an identity to `folder`, which must not contain one."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The file is created with its mode, so other users can never read the key.
        handle = os.open(folder / KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(identity.key_pem())
            file.flush()
            os.fsync(handle)
    except FileExistsError:
        if not folder.is_dir():
            raise IdentityError(f"Expected a folder for the identity, but {folder} is a file.") from None
        raise IdentityError(
            f"Expected no identity in {folder}, but found {folder / KEY_FILE}. Name another folder, or move "
            "that file away (neighbours that have its card will not accept the new one)."
        ) from None
    except OSError as error:
        raise IdentityError(f"Could not write an identity to {folder}: {error.strerror}.") from error
    write_atomically(folder / CERTIFICATE_FILE, identity.card.certificate)
    write_atomically(folder / CARD_FILE, identity.card.to_toml())
    return identity


def expect_own_folder(folder: Path) -> None:
    """Raise TrustError if other users can write to `folder`: they could replace keys, marks or a ledger."""
    mode = folder.stat().st_mode & 0o777
    if mode & 0o022:
        raise TrustError(
            f"Expected {folder} to be writable by its owner only (mode 700), got mode {mode:o}: others may "
            f"have replaced its files. Use `chmod 700 {folder}` if you know that they have not."
        )


def load_identity(folder: Path) -> Identity:
    """Load the identity in `folder`, which may have expired. Raise an error if it cannot be read."""
    path = folder / KEY_FILE
    try:
        mode = path.stat().st_mode & 0o777
        pem = path.read_bytes()
    except FileNotFoundError:
        raise IdentityError(
            f"Expected a key in {path}, but found none. Make one with `topdp agent init`."
        ) from None
    except OSError as error:
        raise IdentityError(f"Could not read {path}: {error.strerror}.") from error
    expect_own_folder(folder)
    if mode & 0o077:
        raise TrustError(
            f"Expected {path} to be readable by its owner only (mode 600), got mode {mode:o}: others may "
            f"have read it. Use `chmod 600 {path}` if you know that they have not, else make a new identity."
        )
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise IdentityError(f"Expected a private key in {path}, but: {error}") from None
    if not (isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, KEY_CURVE)):
        raise IdentityError(
            f"Expected a P-256 key in {path}, got another kind of key. Move {path} away and make a new "
            "identity with `topdp agent init`, or name another --identity folder."
        )
    card = read_card(folder / CARD_FILE)
    certificate = read_text(folder / CERTIFICATE_FILE)
    if Card(card.name, card.address, certificate).fingerprint != card.fingerprint:
        raise TrustError(
            f"Expected the certificate of {folder / CARD_FILE} in {folder / CERTIFICATE_FILE}, got "
            "another one. Restore the files together."
        )
    return Identity(card, key)
