"""Proof of who is at the other end: fingerprints compared in code, and a signature over fresh nonces of both.

TLS alone does not prove it. gRPC accepts any certificate that a pinned one has signed, even one that says
CA:FALSE, so a neighbour could make a certificate in another's name; and a gRPC client cannot see which
certificate the server showed. Therefore: the listener compares the SHA-256 of the dialer's certificate with
the manifest; the dialer pins exactly the listener's certificate; and each end signs, with the key of its
certificate in the manifest,

    role, hash of the manifest, both fingerprints, both nonces

**Guarantees.** A peer that passes holds the private key of the certificate that the manifest lists under its
name, now (the nonces are fresh), for this federation and this pair, in this role. Over TLS an honest listener
signs only for a dialer whose certificate it has seen, and an honest dialer only for a listener that has
signed, so signatures cannot be relayed. Not defended: an agent that gives its key away.
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
    """Frames to and from one peer, whichever end dialled."""

    @abstractmethod
    async def read(self) -> wire.Frame | None:
        """The next frame; None if the peer has ended the stream. Refuses bytes that are not a frame."""

    @abstractmethod
    async def write(self, frame: wire.Frame) -> None:
        """Return when the frame is on its way; wait while the peer does not read. One at a time."""

    @abstractmethod
    async def end(self) -> None:
        """Close the sending side. Return when the peer has read everything, if the transport can tell."""


@dataclass(frozen=True)
class HandshakeParty:
    """One end of a link that is being opened."""

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
    """The card whose certificate TLS saw; `cards` by fingerprint. Names inside it are ignored."""
    try:
        leaf = x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise LinkEnded("stranger", "it showed a certificate that cannot be read") from None
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
    raise LinkEnded("stranger", "its certificate is not that of a neighbour who dials us")


def check_signature(card: Card, signature: bytes, words: bytes) -> None:
    if not card.verifies(signature, words):
        raise LinkEnded("signature", f"it does not hold the key of {card.name}'s certificate")


def check_validity(card: Card) -> None:
    if reason := card.validity_problem():
        raise LinkEnded("expired", reason)


def check_hello(hello: wire.Hello, party: HandshakeParty, peer: Card) -> None:
    if hello.version != WIRE_VERSION:
        raise LinkEnded("version", f"expected version {WIRE_VERSION} of the wire, got {hello.version}")
    if hello.sender != peer.name:
        raise LinkEnded("name", f"it claims to be {quoted(hello.sender)}, and is {peer.name}")
    if hello.receiver != party.identity.card.name:
        raise LinkEnded("name", f"it asks for {quoted(hello.receiver)}, this is {party.identity.card.name}")
    if hello.federation != bytes.fromhex(party.federation):
        theirs = quoted(hello.federation.hex())
        raise LinkEnded("manifest", f"expected the manifest {party.federation}, it holds {theirs}")
    if len(hello.nonce) != NONCE_BYTES:
        raise LinkEnded("protocol", f"expected a nonce of {NONCE_BYTES} bytes, got {len(hello.nonce)}")


async def dial(stream: FrameStream, party: HandshakeParty, peer: Card) -> None:
    """Open a link as the end that dialled `peer`; return when both ends believe each other."""
    check_validity(peer)
    mine = fresh_nonce()
    await stream.write(party.hello(peer.name, mine))
    hello = (await _read(stream, "hello")).hello
    check_hello(hello, party, peer)
    nonces = (mine, hello.nonce)
    ours = party.identity.card
    check_signature(peer, hello.signature, transcript("listener", party.federation, ours, peer, nonces))
    words = transcript("dialer", party.federation, ours, peer, nonces)
    await stream.write(wire.Frame(proof=wire.Proof(signature=party.identity.sign(words))))
    await _read(stream, "proof")


async def listen(stream: FrameStream, party: HandshakeParty, peer: Card) -> None:
    """Open a link as the end that was dialled; `peer` is the dialer whose certificate TLS saw."""
    hello = (await _read(stream, "hello")).hello
    check_hello(hello, party, peer)
    check_validity(peer)
    mine = fresh_nonce()
    nonces = (hello.nonce, mine)
    ours = party.identity.card
    words = transcript("listener", party.federation, peer, ours, nonces)
    await stream.write(party.hello(peer.name, mine, party.identity.sign(words)))
    proof = (await _read(stream, "proof")).proof
    check_signature(peer, proof.signature, transcript("dialer", party.federation, peer, ours, nonces))
    await stream.write(wire.Frame(proof=wire.Proof()))


async def _read(stream: FrameStream, kind: str) -> wire.Frame:
    frame = await stream.read()
    if frame is None:
        raise LinkEnded("lost", "it left before the link was open")
    if frame.WhichOneof("content") != kind:
        raise LinkEnded("protocol", f"expected {kind}, got {frame.WhichOneof('content')}")
    return frame
