"""How an agent judges greetings: whether a ledger is an old copy, and which neighbours have reported.

Greetings report which rows each side has received from the other. If a greeting contradicts this agent's
ledger, one of the two agents has made a round twice, or lies. An agent ends if a neighbour presents its own
signature for a row that its ledger lacks (`agreement/signatures.py`); a neighbour that claims such a row
without a signature is quarantined, and so is a neighbour that contradicts itself.

After a start, an agent does not know whether its ledger is the newest copy, even if the ledger is empty: both
its folders may have been restored from a backup of the day on which they were made. It knows that once every
neighbour that may have its rows has reported them in reply to a request of this process: a greeting sent
earlier may have been made before a row of the previous process arrived. It requests no report from
neighbours that are quarantined, excluded or finished according to this ledger: nothing new is sent to them
after that entry, so they have no row that this ledger lacks.

A key that the agent has renewed may be in other hands. Once a process with the new key has heard all those
neighbours, the ledger holds every row that the agent has signed with the old key, and records that: from then
on, old keys prove nothing. Before that, a row with an old signature ends no agent either, but its neighbour
counts as not heard.

**Guarantees.** If the ledger of an agent is an old copy, the agent's data are used in no round before all
those neighbours have reported (`agent_loop`); and a neighbour with a newer row in its ledger presents it.
Neighbours that lie, one or several, can end no agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topdp.agents.ledger import stored_rows
from topdp.agents.runtime.peer_messages import Greeting
from topdp.agents.wire.transport import ReplyCode
from topdp.errors import TrustError

RETIRED_KEY = "retired cards"
"""The ledger's key for the number of this agent's first cards whose signatures prove nothing any more."""

if TYPE_CHECKING:
    from topdp.agents.runtime.peer_contacts import PeerContacts


class PeerBeliefs:
    """What neighbours have reported to this process, and the rows that they have sent."""

    def __init__(self, peers: PeerContacts) -> None:
        self.peers, self.neighbours, self.ledger = peers, peers.neighbours, peers.ledger
        self.reported: set[str] = set()  # neighbours that have reported which rows they received
        self.answered: set[str] = set()  # those that reported it in reply to a request of this process
        self.newest_shown = dict.fromkeys(self.neighbours, -1)  # highest round of a row from each neighbour
        # Neighbour -> (round of its last row for this agent, its last round).
        self.passed_rounds: dict[str, tuple[int, int]] = {}
        self._contact_rounds: dict[str, int] = {}  # neighbour in contact -> its round when the contact began
        self._contact_times: dict[str, float] = {}  # neighbour -> when its last answered request was sent

    def unheard_peers(self) -> list[str]:
        """Return the neighbours that may have rows of this agent that its ledger lacks."""
        return [peer for peer in self.neighbours if peer not in self.answered and not self._is_closed(peer)]

    @property
    def run_has_begun(self) -> bool:
        """Whether some neighbour reports that it has made a round. A lie costs accuracy, and no privacy."""
        return any(last >= 0 for _, last in self.passed_rounds.values())

    def note_contact(self, peer: str, sent: float, answered: float | None) -> None:
        """Record when this agent sent a request to `peer`, and when the reply arrived; None: none has."""
        timeout = self.peers.signatures.directory.manifest.rules.idle_timeout
        last = self._contact_times.get(peer, sent)
        if answered is None or answered - last > timeout / 2:
            self._contact_rounds.pop(peer, None)
        self._contact_times[peer] = sent

    def may_have_reached(self, peer: str, round: int) -> bool:
        """Return whether `peer` may have made `round`.

        Neighbours that hear each other do not go on without each other. So while `peer` has answered this
        agent's requests without a pause of half the idle timeout, it is at most a few rounds ahead of this
        agent, or of the next round in which the two exchange rows. After a pause, any round is possible.
        """
        start, inbox = self._contact_rounds.get(peer), self.peers.inbox
        if start is None:
            return True
        return round <= max(start, self.ledger.round, inbox.expected(peer) or 0) + inbox.window

    def skips_rounds(self, peer: str, round: int) -> bool:
        """Return whether `peer` reports that its `round` has passed without a row for this agent.

        The report is accepted without proof: it concerns only rows of `peer`, which could also withhold them.
        """
        last_sent, last = self.passed_rounds.get(peer, (-1, -1))
        return last_sent < round <= last

    def judge(self, peer: str, greeting: Greeting, received: int | None) -> bool:
        """Apply the consequence of a greeting: the end of this agent, a quarantine of `peer`, or none.

        Return whether the agent uses what the greeting reports. `received`: the highest round received from
        `peer` before this agent requested the greeting; None if the agent did not request it.
        """
        receiver = stored_rows.receiver_of(self.ledger.database, peer)
        own_digest = self.ledger.digest_sent(receiver, greeting.seen) if greeting.seen >= 0 else None
        received_digest = self.ledger.digest_received(peer, greeting.sent)
        newest = self.ledger.last_received(peer) if received is None else received
        if greeting.seen >= 0 and own_digest != greeting.seen_digest:
            facts = (greeting.seen, greeting.seen_digest, bytes.fromhex(greeting.seen_signature))
            signatures, row = self.peers.signatures, (self.peers.name, receiver, *facts)
            if signatures.verify(*row, signatures.retired_cards):
                self.peers.fail(self._old_copy(peer, greeting.seen))
                return False
            if signatures.verify(*row, int(self.ledger.meta.get(RETIRED_KEY, "0"))):
                words = (
                    f"has a row of round {greeting.seen} with a signature of this agent's earlier key, and "
                    "does not count as heard. If the state folder is an old copy, restore the newest; if "
                    f"that key was stolen, let the others sign an amendment without {peer}"
                )
                self.peers.refusals.report(peer, "retired_key", words)
                return False
            code = ReplyCode.NOT_A_GREETING
            words = f"claims a row of round {greeting.seen} that this agent did not make, and cannot show it"
        elif received_digest is not None and received_digest != greeting.sent_digest:
            code = ReplyCode.ROLLED_BACK
            words = f"rolled back: sent round {greeting.sent} before, and now has another row for it"
        elif greeting.charged < newest and received is None:
            self.peers.greet_again(peer)  # the greeting may be outdated: another one decides
            return False
        elif greeting.charged < newest:
            code = ReplyCode.ROLLED_BACK
            words = f"rolled back: sent round {newest} before, and now knows of {greeting.charged} only"
        else:
            return True
        if self.ledger.quarantined(peer) is None:
            self.peers.distrust(peer, code, words)
        return True

    def note_answer(self, peer: str, round: int) -> None:
        """Record that `peer`, which is at `round`, has answered a request of this process for its report."""
        self.answered.add(peer)
        self._contact_rounds.setdefault(peer, round)
        retired = str(self.peers.signatures.retired_cards)
        if not self.unheard_peers() and self.ledger.meta.get(RETIRED_KEY, "0") != retired:
            self.ledger.database.remember(RETIRED_KEY, retired)

    def _old_copy(self, peer: str, round: int) -> TrustError:
        return TrustError(
            f"{peer} has a row of round {round} that this agent has signed, but its ledger, which ends at "
            f"round {self.ledger.round}, lacks it: the ledger is an old copy, and later charges are missing. "
            f"Restore the newest {self.ledger.folder}; without it this agent must leave the federation."
        )

    def _is_closed(self, peer: str) -> bool:
        ledger = self.ledger
        return ledger.quarantined(peer) is not None or ledger.finished(peer) or self.peers.is_excluded(peer)
