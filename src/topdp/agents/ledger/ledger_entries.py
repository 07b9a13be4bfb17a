"""What stands in a ledger: charges, what they may be, and how each is chained to the one before."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Literal

from topdp.agents.ledger.hash_chain import chain_hash as chain_hash
from topdp.agents.ledger.hash_chain import digest_of as digest_of
from topdp.agents.ledger.hash_chain import genesis_hash as genesis_hash
from topdp.agents.ledger.ledger_database import LedgerError, TamperedError

EntryKind = Literal["release", "noise", "skip", "late"]


@dataclass(frozen=True)
class LedgerEntry:
    """One round. A `release` costs. A `skip` sends nothing and costs nothing.

    A `noise` sends rows that no data enter: it tells nothing, and has a charge only where earlier releases
    turn out to have cost more. A `late` is that charge alone, after the round that it names.
    """

    number: int
    round: int
    kind: EntryKind
    charge: float  # ε at the federation's δ, under the guarantee that this agent charges by
    total: float
    worst_case: float | None  # ε spent so far if all others collude; None: infinite
    information: float | None  # 1/z² of this release at the agent's sensitivity; None: infinite
    digests: dict[str, str]  # receiver -> SHA-256 of the body
    state: str  # SHA-256 of the state that the release leads to
    counts: dict[str, int] = field(default_factory=dict)  # log -> lines in it by then, this round's included
    books: str = ""  # digest of those logs (`journal.bound`); none in entries of format 4

    @property
    def contradiction(self) -> str:
        """What an entry of this kind cannot say, or nothing."""
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
            whole = type(entry.number) is int and type(entry.round) is int
            fits = whole and math.isfinite(entry.charge) and math.isfinite(entry.total)
        except (ValueError, TypeError, RecursionError):
            fits = False
        if not fits:
            raise TamperedError(f"Expected a charge in the ledger, got {text!r:.80}.")
        return entry


@dataclass(frozen=True)
class ReleaseCost:
    """What a release will cost: checked here, computed in `budget`."""

    charge: float = 0.0
    worst_case: float | None = 0.0
    information: float | None = 0.0


def expect_bookable(cost: ReleaseCost) -> None:
    for name, value in asdict(cost).items():
        if value is None and name != "charge":
            continue  # an infinite worst case is a fact to write down; an infinite charge cannot be paid
        if not (isinstance(value, float | int) and math.isfinite(value) and value >= 0):
            raise LedgerError(f"Expected {name}={value} to be finite and >= 0: such a charge is not booked.")
