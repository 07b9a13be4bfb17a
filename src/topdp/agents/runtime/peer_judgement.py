"""What one agent believes of its neighbours: whether a ledger is an old copy, and which neighbours were
heard.

Greetings report what each side has of the other. Where that contradicts the ledger here, an agent has made a
round twice, or lies. An agent ends if its own signature is shown under a row that its ledger lacks
(`agreement/signatures.py`); a neighbour that only claims such a row is quarantined, and so is one that
contradicts itself.

After a start, an agent whose ledger is not empty does not know that it is the newest, until every neighbour
that may have rows of it has reported which, when asked: a greeting that was on its way before may have been
made before a row of the earlier process arrived. Not asked: neighbours that are quarantined, given up or
finished in this very ledger; from that entry on nothing new is sent to them, so they have nothing that this
ledger lacks.

**Guarantees.** If the ledger of an agent is an old copy, no data enter a round before all those neighbours
are heard (`agent_loop`); and one that has a newer row in its ledger shows it. Neighbours that lie, one or
several, can end no agent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from topdp.agents.agreement.signatures import RowSignatures
from topdp.agents.ledger import stored_rows
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.runtime.peer_messages import Greeting, LinkTerms
from topdp.agents.wire.wire_codes import ReplyCode
from topdp.errors import TrustError


@dataclass(frozen=True)
class GreetingVerdict:
    """What follows from a greeting: this agent's end, the neighbour's quarantine, or nothing."""

    fault: TrustError | None = None
    code: ReplyCode | None = None
    words: str = ""
    is_old: bool = False  # it may have been overtaken on its way: ask again before anything is decided


class PeerBeliefs:
    """What neighbours have reported and shown to this process."""

    def __init__(
        self,
        *,
        neighbours: list[str],
        ledger: Ledger,
        signatures: RowSignatures,
        given_up: Callable[[str], bool],
        in_doubt: bool,
    ) -> None:
        """`given_up`: whether this agent counts a neighbour as gone.

        `in_doubt`: this ledger is not empty, or not the first of this agent: it may be an old copy.
        """
        self.neighbours, self.ledger, self.signatures = neighbours, ledger, signatures
        self.in_doubt = in_doubt
        self.met: set[str] = set()  # neighbours that have said what they have seen
        self.answered: set[str] = set()  # those that said it when asked, so after the start of this process
        self.shown = dict.fromkeys(self.neighbours, -1)  # the highest round of which each has shown a row
        self.passed: dict[str, tuple[int, int]] = {}  # the last row each has for this agent, and its round
        self.given_up = given_up

    def unheard(self) -> list[str]:
        """Neighbours that may have rows of this agent which its ledger lacks."""
        if not self.in_doubt:
            return []
        return [peer for peer in self.neighbours if peer not in self.answered and not self._is_closed(peer)]

    def round_of(self, peer: str) -> int:
        """The highest round of which `peer` has ever shown a row."""
        return max(self.shown[peer], self.ledger.last_received(peer))

    def skips_rounds(self, peer: str, round: int) -> bool:
        """Whether `peer` says that `round` is over for it and that it made no row for this agent in it.

        It is believed: of its own rows only, and who lies could as well keep them back.
        """
        last, done = self.passed.get(peer, (-1, -1))
        return last < round <= done

    def greeting(self, peer: str, terms: LinkTerms, run: str, statements: int) -> Greeting:
        seen = stored_rows.newest_received(self.ledger.database, peer)
        sent = stored_rows.newest_sent(
            self.ledger.database, stored_rows.receiver_of(self.ledger.database, peer)
        )
        return Greeting(
            terms=terms,
            charged=self.ledger.last_sent_round,
            seen=seen.round,
            round=self.ledger.round,
            run=run,
            seen_digest=seen.digest,
            seen_signature=seen.signature,
            sent=sent.round,
            sent_digest=sent.digest,
            statements=statements,
        )

    def judge(self, peer: str, greeting: Greeting, known: int | None) -> GreetingVerdict:
        """`known`: the highest round of `peer` that was here before it was asked; None: it was not asked."""
        receiver = stored_rows.receiver_of(self.ledger.database, peer)
        mine = self.ledger.digest_sent(receiver, greeting.seen) if greeting.seen >= 0 else None
        if greeting.seen >= 0 and mine != greeting.seen_digest:
            signature = bytes.fromhex(greeting.seen_signature)
            if self.signatures.verify_own(receiver, greeting.seen, greeting.seen_digest, signature):
                return GreetingVerdict(fault=self._old_copy(peer, greeting.seen))
            words = f"claims a row of round {greeting.seen} that this agent did not make, and cannot show it"
            return GreetingVerdict(code=ReplyCode.NOT_A_GREETING, words=words)
        theirs = self.ledger.digest_received(peer, greeting.sent)
        if theirs is not None and theirs != greeting.sent_digest:
            words = f"rolled back: sent round {greeting.sent} before, and now has another row for it"
            return GreetingVerdict(code=ReplyCode.ROLLED_BACK, words=words)
        seen = self.ledger.last_received(peer) if known is None else known
        if greeting.charged < seen:
            words = f"rolled back: sent round {seen} before, and now knows of {greeting.charged} only"
            return GreetingVerdict(code=ReplyCode.ROLLED_BACK, words=words, is_old=known is None)
        return GreetingVerdict()

    def _old_copy(self, peer: str, round: int) -> TrustError:
        return TrustError(
            f"{peer} has a row of round {round} that this agent has signed and its ledger, which ends at "
            f"round {self.ledger.round}, does not know: it is an old copy, what was spent since is missing. "
            f"Restore the newest {self.ledger.folder}; without it this agent must leave the federation."
        )

    def _is_closed(self, peer: str) -> bool:
        books = self.ledger
        return books.quarantined(peer) is not None or books.finished(peer) or self.given_up(peer)
