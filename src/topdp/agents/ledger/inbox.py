"""Which rows of a neighbour an agent accepts: each once, in order, and only those that the plan expects.

A row is named by (federation, sender, receiver, round), and rounds increase strictly for each sender. The
same name with the same digest is acknowledged again. With another digest the sender has equivocated and is
quarantined. `row_payload` decodes the bytes; the transport establishes who the sender is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topdp.agents.ledger.ledger import Ledger
from topdp.agents.wire.wire_codes import ReplyCode


class Inbox:
    """Judges rows, and stores accepted ones in the ledger before they are acknowledged."""

    def __init__(
        self, ledger: Ledger, rounds: Mapping[str, Sequence[int]], window: int = 4, gaps: bool = False
    ) -> None:
        """`rounds`: for each neighbour the increasing rounds in which it sends to this agent.

        `gaps`: a neighbour that was gone may leave out rounds. `window`: how many rounds it may be ahead.
        """
        self.gaps = gaps
        self.ledger = ledger
        self.window = window
        self._place = {sender: {r: p for p, r in enumerate(each)} for sender, each in rounds.items()}
        self._rounds = {sender: list(each) for sender, each in rounds.items()}

    def judge(self, sender: str, round: int, digest: str) -> ReplyCode:
        """The reply to a row whose bytes have this digest; OK if it is new. Changes nothing."""
        if sender not in self._place:
            return ReplyCode.STRANGER
        if self.ledger.quarantined(sender) is not None:
            return ReplyCode.QUARANTINED
        if round not in self._place[sender]:
            return ReplyCode.UNKNOWN_ROUND
        accepted = self.ledger.digest_received(sender, round)
        if accepted is not None:
            return ReplyCode.AGAIN if accepted == digest else ReplyCode.EQUIVOCATION
        if round < self.ledger.last_received(sender) or not (self.gaps or round == self.expected(sender)):
            return ReplyCode.GAP
        return ReplyCode.LATER if round > self.ledger.round + self.window else ReplyCode.OK

    def expected(self, sender: str) -> int | None:
        """The next round that `sender` owes; None once all rows have arrived."""
        last, rounds = self.ledger.last_received(sender), self._rounds[sender]
        place = self._place[sender][last] + 1 if last >= 0 else 0
        return rounds[place] if place < len(rounds) else None

    def skips_rounds(self, sender: str, round: int) -> bool:
        """Whether `sender`, which may leave out nothing, has skipped the round that it owes."""
        owed = self.expected(sender)
        return not self.gaps and owed is not None and round > owed

    def settle(
        self, verdict: ReplyCode, sender: str, round: int, digest: str, body: bytes, signature: bytes = b""
    ) -> None:
        """Record what follows from a verdict: a row for later use, or a quarantine."""
        if verdict is ReplyCode.OK:
            late = round < self.ledger.round  # the round that reads it is over: the digest is enough
            self.ledger.store_row(sender, round, digest, None if late else body, signature)
        elif verdict is ReplyCode.EQUIVOCATION:
            self.ledger.quarantine(sender, verdict, f"sent two different rows for round {round}")
