"""The inbox: which rows of a neighbour an agent accepts: each once, in order, and only those of the plan.

A row is identified by (federation, sender, receiver, round), and rounds increase strictly for each sender. A
row with the same identification and the same digest is acknowledged again. With another digest, the sender
has equivocated and is quarantined. `row_payload` decodes the bytes; the transport authenticates the sender.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from topdp.agents.ledger.ledger import Ledger
from topdp.agents.wire.transport import ReplyCode


class Inbox:
    """Decides which rows are accepted, and stores these in the ledger before they are acknowledged."""

    def __init__(
        self, ledger: Ledger, rounds: Mapping[str, Sequence[int]], window: int = 4, gaps: bool = False
    ) -> None:
        """Accept rows for the agent of `ledger`.

        `rounds`: for each neighbour, the increasing rounds in which it sends to this agent. `window`: how
        many rounds a neighbour may be ahead of this agent. `gaps`: whether a neighbour may leave out rounds,
        as one that was offline does.
        """
        self.gaps = gaps
        self.ledger = ledger
        self.window = window
        # For each sender: each of its rounds -> the next one; -1 stands for the time before the first.
        self._next = {sender: dict(pairwise((-1, *each, None))) for sender, each in rounds.items()}

    def judge(self, sender: str, round: int, digest: str) -> ReplyCode:
        """Return the reply to a row with this digest: OK if the row is new. Does not change the inbox."""
        if sender not in self._next:
            return ReplyCode.STRANGER
        if self.ledger.quarantined(sender) is not None:
            return ReplyCode.QUARANTINED
        if round < 0 or round not in self._next[sender]:
            return ReplyCode.UNKNOWN_ROUND
        accepted = self.ledger.digest_received(sender, round)
        if accepted is not None:
            return ReplyCode.AGAIN if accepted == digest else ReplyCode.EQUIVOCATION
        if round < self.ledger.last_received(sender) or not (self.gaps or round == self.expected(sender)):
            return ReplyCode.GAP
        return ReplyCode.LATER if round > self.ledger.round + self.window else ReplyCode.OK

    def expected(self, sender: str) -> int | None:
        """Return the next round of `sender` that has not arrived, or None once all rows have arrived."""
        return self._next[sender][self.ledger.last_received(sender)]

    def skips_rounds(self, sender: str, round: int) -> bool:
        """Return whether a row of `round` skips an expected round although gaps are not allowed."""
        expected = self.expected(sender)
        return not self.gaps and expected is not None and round > expected

    def settle(
        self, verdict: ReplyCode, sender: str, round: int, digest: str, body: bytes, signature: bytes = b""
    ) -> None:
        """Apply a verdict: store an accepted row for later use, or quarantine a sender that equivocated."""
        if verdict is ReplyCode.OK:
            late = round < self.ledger.round  # the round that reads the row is over: the digest is enough
            self.ledger.store_row(sender, round, digest, None if late else body, signature)
        elif verdict is ReplyCode.EQUIVOCATION:
            self.ledger.quarantine(sender, verdict, f"sent two different rows for round {round}")
