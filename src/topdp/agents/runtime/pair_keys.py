"""Pair secrets, which only two agents know: X25519 keys of one run, then HKDF, then ChaCha20.

Each agent states one fresh public key and one fresh nonce for a run. The *run's name* is a hash of what all
agents have stated. So two agents with the same run name have the same keys of all agents, and no two runs
have the same name, because every agent contributes a fresh part. `agent_draws` adds draws to rows;
`notice_exchange` exchanges the notices.

**Guarantees.** A pair secret follows from the two private keys, and looks random to all others (computational
Diffie-Hellman on X25519, HKDF-SHA256: RFC 7748, RFC 5869). It depends on label and version, the manifest, the
plan, the run, and both agents' numbers and public keys, lower number first (this order decides which agent
adds and which subtracts). The key of each piece of a draw also depends on round, draw and piece. So no two
draws of any pair, run, plan or federation have a key in common, and both agents of a pair have the same keys.
Keys that give everybody the same secret (points of low order) are refused.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from topdp.errors import TrustError

SEED_LABEL = "topdp pair draws 1"
RUN_KEY = "run key"
"""The subject of notices that state a key."""

KEYS_AGREED = "agreed"
"""The subject of notices which confirm that their author has the keys of all agents of the named run."""


@dataclass(frozen=True)
class RunKey:
    """The key of the run that an agent states before round 0."""

    plan: str  # digest
    public: str  # hex
    nonce: str  # hex

    @classmethod
    def fresh(cls, plan: str, public: str) -> RunKey:
        return cls(plan, public, secrets.token_hex(32))

    def text(self) -> str:
        return json.dumps([self.plan, self.public, self.nonce])

    @classmethod
    def read(cls, text: str) -> RunKey:
        """Return the key in `text`. Raise ValueError if it is none, or gives everybody the same secret."""
        try:
            plan, public, nonce = json.loads(text)
            is_valid = len(bytes.fromhex(public)) == len(bytes.fromhex(nonce)) == 32 and isinstance(plan, str)
        except (TypeError, RecursionError):
            is_valid = False
        if not is_valid:
            raise ValueError("expected a plan, a public key and a nonce of 32 bytes each")
        _shared_secret(X25519PrivateKey.generate(), public)
        return cls(plan, public.lower(), nonce.lower())


def derive_run(
    federation: str, keys: list[RunKey], me: int, partners: Iterable[int], private: X25519PrivateKey | None
) -> tuple[str, dict[int, bytes]]:
    """Return the run's name (a hash of what all agents have stated), and the secret with each partner.

    `keys`: those of all agents, in the order of their numbers. `partners`: the agents with which this one
    shares draws. `private` is None if the run has ended and the key was erased; then only the name is known.
    """
    stated = [[key.plan, key.public, key.nonce] for key in keys]
    run = hashlib.sha256(json.dumps(["topdp run 1", federation, stated]).encode()).hexdigest()
    if private is None:
        return run, {}
    if private.public_key().public_bytes_raw().hex() != keys[me].public:
        raise TrustError("Expected the private half of the key that this agent has stated, got another one.")
    seeds = {}
    for other in partners:
        low, high = sorted((me, other))
        context = [SEED_LABEL, federation, keys[me].plan, run, low, high, keys[low].public, keys[high].public]
        try:
            secret = _shared_secret(private, keys[other].public)
        except ValueError as error:
            raise TrustError(f"Expected a key from agent {other} that makes a secret: {error}.") from None
        seeds[other] = HKDF(SHA256(), 32, bytes.fromhex(run), json.dumps(context).encode()).derive(secret)
    return run, seeds


def draw_key(seed: bytes, round: int, draw: int, piece: int) -> bytes:
    """Return the key of ChaCha20 for one piece of one draw."""
    return HKDFExpand(SHA256(), 32, json.dumps(["draw", round, draw, piece]).encode()).derive(seed)


def _shared_secret(private: X25519PrivateKey, public: str) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(public)))
    except ValueError:
        # RFC 7748, section 6.1: a point of low order gives zeros whatever the private key is.
        raise ValueError("its public key gives everybody the same secret") from None
