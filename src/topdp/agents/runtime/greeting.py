"""What neighbours say first: the terms that both must hold alike, and what each remembers of the other.

Every field has its range here; whoever reads a greeting finds none that is outside. What is believed of it is
for `beliefs`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from topdp.agents.agreement.signatures import MAX_SIGNATURE_BYTES

LONGEST = 4096  # bytes
MOST_STATEMENTS = 2**31
WORD = re.compile(r"[ -~]{1,128}", re.ASCII)
HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)
SIGNATURE = re.compile(rf"(?:[0-9a-f]{{2}}){{0,{MAX_SIGNATURE_BYTES}}}", re.ASCII)


class GreetingError(ValueError):
    """Bytes that are not a greeting."""


@dataclass(frozen=True)
class LinkTerms:
    """What both ends of a link must hold alike."""

    federation: str  # hash of the manifest
    plan: str  # digest of the plan
    start: str  # digest of the row that all begin with


@dataclass(frozen=True)
class Greeting:
    """What an agent says of itself to a neighbour."""

    terms: LinkTerms
    charged: int  # the last round whose rows may have left
    seen: int  # the highest round that it has from the other
    round: int  # the last round on its books; nobody decides by it
    run: str = ""  # the name of the run, where draws are shared and all keys are there
    seen_digest: str = ""  # of that row from the other; empty where there is none
    seen_signature: str = ""  # the other's, under that row, in hex
    sent: int = -1  # the highest round of which it has a row for the other
    sent_digest: str = ""
    statements: int = 0  # how many it has on its books, where draws are shared

    def encode(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def decode(cls, body: bytes, last: int) -> Greeting:
        """Raises NotAGreeting on anything else; `last` is the last round of the plan."""
        try:
            if len(body) > LONGEST:
                raise GreetingError
            tree = json.loads(body)
            terms = LinkTerms(*(_text(tree["terms"], key, WORD) for key in ("federation", "plan", "start")))
            greeting = cls(
                terms,
                _round(tree, "charged", last),
                _round(tree, "seen", last),
                _round(tree, "round", last),
                _text(tree, "run", HASH, True),
                _text(tree, "seen_digest", HASH, True),
                _text(tree, "seen_signature", SIGNATURE, True),
                _round(tree, "sent", last),
                _text(tree, "sent_digest", HASH, True),
                _round({"statements": 0, **tree}, "statements", MOST_STATEMENTS),
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            raise GreetingError from None
        whole = (greeting.seen < 0) == (not greeting.seen_digest)
        if not whole or (greeting.sent < 0) == bool(greeting.sent_digest):
            raise GreetingError
        return greeting


def _round(tree: Mapping[str, Any], key: str, last: int) -> int:
    value = tree[key]
    if type(value) is not int or not -1 <= value <= last:
        raise GreetingError
    return value


def _text(tree: Mapping[str, Any], key: str, form: re.Pattern[str], may_be_empty: bool = False) -> str:
    value = tree[key]
    if not isinstance(value, str) or not (form.fullmatch(value) or (may_be_empty and not value)):
        raise GreetingError
    return value
