"""The entries of a ledger: what a charge contains, which charges are valid, and the hash chain over them.

**Guarantees.** The hash of an entry covers its text and the hash of the previous entry. Changing, removing,
inserting or swapping an entry breaks the chain.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from topdp.errors import InputError, TrustError

EntryKind = Literal["release", "noise", "skip", "late"]


class LedgerError(InputError):
    """A ledger that cannot be used. The message says what to do."""


class TamperedError(TrustError):
    """A ledger that is damaged or contradicts itself."""


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One charge. The JSON form is part of the file format: fields keep their names.

    `release`: sends rows that depend on data, and has a charge. `noise`: sends rows without data; has a
    charge only if the cost of earlier releases is now known to be higher. `skip`: sends nothing and costs
    nothing. `late`: a charge for earlier releases, recorded after the round that it names.
    """

    number: int
    round: int
    kind: EntryKind
    charge: float  # ε at the federation's δ, under the guarantee by which this agent charges
    total: float
    worst_case: float | None  # ε spent so far if all other agents collude; None: infinite
    information: float | None  # 1/z² of this release at the agent's sensitivity; None: infinite
    digests: dict[str, str]  # receiver -> SHA-256 of the body
    state: str  # SHA-256 of the state after the release
    counts: dict[str, int] = field(default_factory=dict)  # log -> its lines so far, with those of this round
    books: str = ""  # digest of the logs (`event_journal.logs_digest`); never empty in a valid ledger

    @property
    def contradiction(self) -> str:
        """The reason why an entry of this kind is impossible, or an empty string."""
        if self.kind == "skip" and (self.digests or self.charge):
            return "sends or charges something in a round that was skipped"
        if self.kind == "late" and self.digests:
            return "sends something between two rounds"
        if self.kind != "release" and self.information != 0:
            return "has information about data in a round that no data entered"
        return ""

    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, allow_nan=False)

    @classmethod
    def read(cls, text: object) -> LedgerEntry:
        try:
            entry = cls(**json.loads(str(text)))
            has_integers = type(entry.number) is int and type(entry.round) is int
            is_valid = has_integers and math.isfinite(entry.charge) and math.isfinite(entry.total)
        except (ValueError, TypeError, RecursionError):
            is_valid = False
        if not is_valid:
            raise TamperedError(f"Expected a charge (JSON) in the ledger, got {text!r:.80}.")
        return entry


@dataclass(frozen=True)
class ReleaseCost:
    """The cost of a release: computed by `runtime/budget_meter`, checked by `expect_bookable`.

    The fields have the units of the fields of `LedgerEntry` with the same names. None: infinite.
    """

    charge: float = 0.0
    worst_case: float | None = 0.0
    information: float | None = 0.0


def expect_bookable(cost: ReleaseCost) -> None:
    """Raise LedgerError unless the cost can be charged.

    `charge` must be a finite number >= 0; the other fields may also be None (infinite).
    """
    for name, value in asdict(cost).items():
        if value is None and name != "charge":
            continue  # an infinite worst case is recorded; an infinite charge cannot be paid
        if not (isinstance(value, float | int) and math.isfinite(value) and value >= 0):
            raise LedgerError(
                f"Expected a finite {name} >= 0 as the cost of a release, got {value}. The ledger is "
                "unchanged. This is a fault of topdp: please report it with the manifest."
            )


def finite_or_none(value: float) -> float | None:
    """Return the value as JSON and SQL store it: None stands for infinity."""
    return value if math.isfinite(value) else None


def infinite_if_none(value: float | None) -> float:
    return math.inf if value is None else value


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def genesis_hash(meta: Mapping[str, str]) -> str:
    """Return the hash to which the first charge is chained."""
    return digest_of(json.dumps([meta.get("federation"), meta.get("agent")]).encode())


def chain_hash(previous: str, text: str) -> str:
    """Return the hash of an entry: over its text and the hash of the previous entry."""
    return digest_of(f"{previous}\n{text}".encode())
