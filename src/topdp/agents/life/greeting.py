"""What neighbours say first: the terms that both must hold alike, and what each remembers of the other."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

LONGEST = 4096  # bytes


class NotAGreeting(ValueError):  # noqa: N818 - what it was; never leaves `peers`
    """Bytes that are not a greeting."""


@dataclass(frozen=True)
class Terms:
    """What both ends of a link must hold alike."""

    federation: str  # hash of the manifest
    plan: str  # digest of the plan
    start: str  # digest of the row that all begin with


@dataclass(frozen=True)
class Greeting:
    """What an agent says of itself to a neighbour."""

    terms: Terms
    charged: int  # the last round whose rows may have left
    seen: int  # the highest round that it has from the other
    round: int  # the last round on its books
    run: str = ""  # the name of the run, where draws are shared and all keys are there

    def encode(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def decode(cls, body: bytes) -> Greeting:
        """Raises NotAGreeting on anything else."""
        try:
            if len(body) > LONGEST:
                raise NotAGreeting
            tree = json.loads(body)
            numbers = [tree["charged"], tree["seen"], tree["round"]]
            words = [*(tree["terms"][key] for key in ("federation", "plan", "start")), tree["run"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise NotAGreeting from None
        if not all(type(n) is int for n in numbers) or not all(isinstance(word, str) for word in words):
            raise NotAGreeting
        charged, seen, round = numbers
        return cls(Terms(*words[:3]), charged, seen, round, words[3])
