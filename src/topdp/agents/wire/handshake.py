"""The proof of a peer's identity: its fingerprint is compared, and it signs fresh nonces of both ends.

TLS alone is no proof. gRPC accepts any certificate that a pinned certificate has signed, even if the pinned
one states CA:FALSE, so a neighbour could make a certificate in the name of another one; and a gRPC client
cannot see which certificate the server presented. Therefore the listener compares the SHA-256 of the dialer's
certificate with the manifest, the dialer pins exactly the listener's certificate, and each end signs, with
the key of its certificate in the manifest,

    role, hash of the manifest, both fingerprints, both nonces

**Guarantees.** A peer that passes holds the private key of the certificate that the manifest lists under its
name, now (the nonces are fresh), for this federation and this pair, in this role. Over TLS an honest listener
signs only for a dialer whose certificate it has seen, and an honest dialer only for a listener that has
signed, so signatures cannot be relayed. This does not protect against an agent that gives its key away.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from topdp.agents.agreement.identity import Identity
from topdp.agents.agreement.identity_card import Card, fingerprint
from topdp.agents.wire import wire_pb2 as wire
from topdp.agents.wire.link_refusals import LinkEnded, quoted

WIRE_VERSION = 4
NONCE_BYTES = 32


class FrameStream(ABC):
    """The frames to and from one peer, at the end that dialled or at the other.

    Its methods raise LinkEnded when the stream has failed or the peer has refused the link.
    """

    @abstractmethod
    async def read(self) -> wire.Frame | None:
        """Return the next frame; None if the peer has ended the stream.

        Raise LinkEnded if its bytes are not a frame.
        """

    @abstractmethod
    async def write(self, frame: wire.Frame) -> None:
        """Send a frame; wait while the peer does not read. Only one call at a time is permitted."""

    @abstractmethod
    async def end(self) -> None:
        """Close the sending side. Wait until the peer has read everything, if the transport can detect it."""


@dataclass(frozen=True)
class HandshakeParty:
    """This agent as one end of a link that is being opened."""

    identity: Identity
    federation: str  # the manifest's hash

    def hello(self, receiver: str, nonce: bytes, signature: bytes = b"") -> wire.Frame:
        return wire.Frame(
            hello=wire.Hello(
                version=WIRE_VERSION,
                federation=bytes.fromhex(self.federation),
                sender=self.identity.card.name,
                receiver=receiver,
                nonce=nonce,
                signature=signature,
            )
        )


def fresh_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def transcript(
    role: str, federation: str, dialer: Card, listener: Card, nonces: tuple[bytes, bytes]
) -> bytes:
    """Return the bytes that an end signs; every part has a fixed length."""
    ends = bytes.fromhex(federation) + bytes.fromhex(dialer.fingerprint) + bytes.fromhex(listener.fingerprint)
    return f"topdp link {WIRE_VERSION} {role:8}\n".encode("ascii") + ends + b"".join(nonces)


def card_of_leaf(pem: bytes, cards: Mapping[str, Card]) -> Card:
    """Return the card whose certificate the peer presented to TLS; names inside the certificate are ignored.

    `cards`: the acceptable cards by fingerprint. Raise LinkEnded if the certificate is none of theirs.
    """
    try:
        leaf = x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise LinkEnded("stranger", "it presented a certificate that cannot be read") from None
    card = cards.get(fingerprint(leaf))
    if card is not None:
        return card
    for signer in cards.values():
        with suppress(ValueError, TypeError, InvalidSignature):
            leaf.verify_directly_issued_by(signer.x509)
            subject = quoted(leaf.subject.rfc4514_string())
            raise LinkEnded(
                "forged", f"{signer.name}'s key has signed a certificate for {subject}", signer.name
            )
    raise LinkEnded("stranger", "its certificate is not that of a neighbour that dials this agent")


def check_signature(card: Card, signature: bytes, signed: bytes) -> None:
    if not card.verifies(signature, signed):
        raise LinkEnded("signature", f"it does not hold the key of {card.name}'s certificate")


def check_validity(card: Card) -> None:
    if reason := card.validity_problem():
        raise LinkEnded("expired", reason)


def check_hello(hello: wire.Hello, party: HandshakeParty, peer: Card) -> None:
    if hello.version != WIRE_VERSION:
        raise LinkEnded("version", f"expected version {WIRE_VERSION} of the wire format, got {hello.version}")
    if hello.sender != peer.name:
        raise LinkEnded("name", f"it claims to be {quoted(hello.sender)}, but is {peer.name}")
    if hello.receiver != party.identity.card.name:
        raise LinkEnded("name", f"it wants {quoted(hello.receiver)}, but this is {party.identity.card.name}")
    if hello.federation != bytes.fromhex(party.federation):
        got = quoted(hello.federation.hex())
        raise LinkEnded("manifest", f"expected the manifest {party.federation}, it has {got}")
    if len(hello.nonce) != NONCE_BYTES:
        raise LinkEnded("protocol", f"expected a nonce of {NONCE_BYTES} bytes, got {len(hello.nonce)}")


async def dial(stream: FrameStream, party: HandshakeParty, peer: Card) -> None:
    """Prove both identities as the end that dialled `peer`."""
    check_validity(peer)
    nonce = fresh_nonce()
    await stream.write(party.hello(peer.name, nonce))
    hello = (await _read(stream, "hello")).hello
    check_hello(hello, party, peer)
    facts = (party.federation, party.identity.card, peer, (nonce, hello.nonce))
    check_signature(peer, hello.signature, transcript("listener", *facts))
    signature = party.identity.sign(transcript("dialer", *facts))
    await stream.write(wire.Frame(proof=wire.Proof(signature=signature)))
    await _read(stream, "proof")


async def listen(stream: FrameStream, party: HandshakeParty, peer: Card) -> None:
    """Prove both identities as the end that was dialled; `peer` is the card that TLS has seen."""
    hello = (await _read(stream, "hello")).hello
    check_hello(hello, party, peer)
    check_validity(peer)
    nonce = fresh_nonce()
    facts = (party.federation, peer, party.identity.card, (hello.nonce, nonce))
    signature = party.identity.sign(transcript("listener", *facts))
    await stream.write(party.hello(peer.name, nonce, signature))
    proof = (await _read(stream, "proof")).proof
    check_signature(peer, proof.signature, transcript("dialer", *facts))
    await stream.write(wire.Frame(proof=wire.Proof()))


async def _read(stream: FrameStream, kind: str) -> wire.Frame:
    frame = await stream.read()
    if frame is None:
        raise LinkEnded("lost", "it ended the stream before the link was open")
    if frame.WhichOneof("content") != kind:
        raise LinkEnded("protocol", f"expected {kind}, got {frame.WhichOneof('content')}")
    return frame
