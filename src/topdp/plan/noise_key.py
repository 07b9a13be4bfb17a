"""The secret key of a simulated run, from which its noise and its Poisson samples derive.

Everything else that a run draws (graph, partition, start, partners, order of cycles, dropout, attacks)
follows from the public seed (`random_streams`). Whoever knows the key can repeat the run with and without a
record and compare, so no ε holds against them. Real agents have no such key; their noise comes from the
operating system.

**Guarantees.** A key has 256 bits. By default they come from the operating system. A key of a noise seed is
public: it is for simulations that must be repeated, whose ε protects no record. What derives from a key for
one purpose reveals nothing about the key, or about what derives for another purpose.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass, field
from typing import Self, final

KEY_BYTES = 32


@final
@dataclass(frozen=True)
class NoiseKey:
    """The key of one run. Its text does not show it.

    >>> NoiseKey.fresh() == NoiseKey.fresh(), NoiseKey.of_seed(3) == NoiseKey.of_seed(3)
    (False, True)
    >>> NoiseKey.of_seed(3)
    NoiseKey()
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise ValueError(f"Expected a key of {KEY_BYTES} bytes, got {len(self.secret)}.")

    @classmethod
    def fresh(cls) -> Self:
        """Return a new key, which nobody else can know."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def of_seed(cls, noise_seed: int) -> Self:
        """Return the public key of a noise seed, for simulations only."""
        named = json.dumps(["topdp public noise", noise_seed]).encode()
        return cls(hashlib.blake2b(named, digest_size=KEY_BYTES).digest())

    def derive(self, purpose: str, *index: int) -> bytes:
        """Return 256 bits for `purpose` and `index` (for example, a round).

        >>> key = NoiseKey.of_seed(0)
        >>> len({key.derive("noise"), key.derive("poisson"), key.derive("poisson", 1)})
        3
        """
        named = json.dumps([purpose, *index]).encode()
        return hashlib.blake2b(named, key=self.secret, digest_size=KEY_BYTES).digest()
