"""New cards of agents, with certificates and addresses, exchanged until all agents have them.

An agent sends its neighbours the cards that `topdp agent renew` makes while the agent runs; every agent
passes on the cards that it accepted. `agreement/card_succession.py` defines which card may follow which;
`wire` decides which certificate a link accepts.

**Guarantees.** An accepted card is in the ledger before the reply is sent, so a restarted agent still has it,
and a contradiction is detected even years later. A neighbour that passes on an unsigned card is quarantined.
So is an agent whose key has signed two successors, or more successors than a manifest takes, until a person
has examined it. An agent presents a new certificate only after all its neighbours have confirmed that they
have it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from topdp.agents.agreement import card_succession
from topdp.agents.agreement.card_succession import (
    MAX_SUCCESSORS,
    CardDirectory,
    CardForkError,
    NotASuccessorError,
    Successor,
    SuccessorLimitError,
    SuccessorOrderError,
)
from topdp.agents.agreement.identity import Identity
from topdp.agents.agreement.manifest import Manifest
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.wire.link_refusals import RefusalLog
from topdp.agents.wire.transport import Reply, ReplyCode
from topdp.errors import TrustError

ACCEPTED_KEY, KNOWN_TO_KEY, SHOWN_KEY = "card of ", "card known to ", "card shown by "


class CardUpdates:
    """The cards of all agents, as the ledger of one agent records them."""

    def __init__(
        self, name: str, ledger: Ledger, directory: CardDirectory, folder: Path | None = None
    ) -> None:
        """`folder`: the identity folder of this agent, in which a renewal appears while it runs."""
        self.name, self.ledger, self.directory, self.folder = name, ledger, directory, folder
        self._to_send = recorded_successors(ledger.meta)
        self._sent_counts: dict[str, int] = {}  # neighbour -> how many of these cards were sent to it
        self._log = RefusalLog(name)
        self.directory.on_shown = self._note_shown

    def _note_shown(self, name: str) -> None:
        if number := self.directory.number(name):
            self.ledger.database.remember(SHOWN_KEY + name, str(number))

    def load_renewals(self) -> None:
        """Record the cards that were renewed at this site since the last call."""
        numbers = [successor.number for successor in self._to_send if successor.card.name == self.name]
        if self.folder is None or len(card_succession.successor_files(self.folder)) <= max(
            numbers, default=0
        ):
            return
        renewed = renewals(self.folder, self.directory.manifest, self.name)
        if len(renewed) > MAX_SUCCESSORS:
            words = (
                f"the last {len(renewed) - MAX_SUCCESSORS} are not shown: a manifest takes "
                f"{MAX_SUCCESSORS}; make a new one"
            )
            self._log.report(self.name, "card", words)
        for successor in renewed[:MAX_SUCCESSORS]:
            if self._record(successor):
                words = "neighbours are told; shown once all know it, after a restart"
                self._log.note("card", f"card {successor.number}: {words}", logging.INFO)

    def next_unsent(self, peer: str) -> tuple[int, bytes] | None:
        """Return the position and the bytes of the next card that this agent has not yet sent to `peer`."""
        self.load_renewals()
        position = self._sent_counts.get(peer, 0)
        if position >= len(self._to_send):
            return None
        return position, self._to_send[position].text().encode()

    def record_reply(self, peer: str, position: int, reply: Reply) -> None:
        """Record the reply of `peer` to a card. A refused card is not sent to it again before a restart."""
        self._sent_counts[peer] = position + 1
        successor = self._to_send[position]
        if reply.ok and successor.card.name == self.name:
            self.ledger.database.remember(KNOWN_TO_KEY + peer, str(successor.number))
        elif not reply.ok:
            words = f"does not accept card {successor.number} of {successor.card.name}: {reply.code.words}"
            self._log.report(peer, "card", words)

    def accept(self, body: bytes) -> tuple[ReplyCode, str, str | None]:
        """Accept or refuse a card that a neighbour passes on.

        Return the reply code, an explanation, and the agent whose key was misused, or None.
        """
        try:
            successor = Successor.read(body.decode("utf-8", errors="replace"))
            self._record(successor)
        except CardForkError as fork:
            return ReplyCode.EQUIVOCATION, str(fork), successor.card.name
        except SuccessorLimitError as error:
            return ReplyCode.UNKNOWN_ROUND, str(error), successor.card.name
        except SuccessorOrderError as error:
            return ReplyCode.GAP, str(error), None
        except NotASuccessorError as error:
            return ReplyCode.NOT_A_STATEMENT, f"passed on something that is no card: {error}", None
        return ReplyCode.OK, "", None

    def _record(self, successor: Successor) -> bool:
        """Record a valid card in the ledger; return whether it is new."""
        self.directory.accept(successor)
        name, key = successor.card.name, f"{ACCEPTED_KEY}{successor.card.name} {successor.number}"
        if key in self.ledger.meta or not self.directory.has(successor):
            return False
        self.ledger.database.remember(key, successor.text())
        self._to_send.append(successor)
        self._log.note("card", f"card {successor.number} of {name} is accepted", logging.INFO, peer=name)
        return True


def recorded_successors(meta: Mapping[str, str]) -> list[Successor]:
    """Return the successors in the ledger, each after its predecessor."""
    successors = [Successor.read(text) for key, text in meta.items() if key.startswith(ACCEPTED_KEY)]
    return sorted(successors, key=lambda successor: successor.number)


def renewals(folder: Path, manifest: Manifest, name: str) -> Sequence[Successor]:
    """Return the successors in an identity folder of the card that the manifest lists for `name`."""
    successors = card_succession.load_successors(folder)
    base = card_succession.card_digest(manifest.card(name))
    first = next((k for k, each in enumerate(successors) if each.before == base), len(successors))
    return successors[first:]


def restore_directory(
    manifest: Manifest, meta: Mapping[str, str], own: Sequence[Successor] = ()
) -> CardDirectory:
    """Return the cards of all agents that the ledger records, and this site's own renewals (`own`)."""
    directory = CardDirectory(manifest)
    for successor in [*recorded_successors(meta), *own[:MAX_SUCCESSORS]]:
        directory.accept(successor, is_recorded=True)
    for name in manifest.names:
        if meta.get(SHOWN_KEY + name) == str(directory.number(name)):
            directory.mark_shown(directory.card(name))
    return directory


def choose_identity(manifest: Manifest, identities: Sequence[Identity], meta: Mapping[str, str]) -> Identity:
    """Return the newest identity whose card all neighbours have, or else the one in the manifest.

    An expired identity is replaced by the newest one: a neighbour that has the new card accepts it.
    """
    name = identities[0].card.name
    listed = manifest.card(name).fingerprint
    fingerprints = [identity.card.fingerprint for identity in identities]
    position = fingerprints.index(listed) if listed in fingerprints else -1
    neighbours = manifest.neighbours(name)
    known_to_all = min((int(meta.get(KNOWN_TO_KEY + peer, "0")) for peer in neighbours), default=0)
    newest = max(position, min(known_to_all, len(identities) - 1))
    chosen = identities[-1] if identities[newest].card.validity_problem() else identities[newest]
    if reason := chosen.card.validity_problem():
        raise TrustError(
            f"Expected a valid certificate in the identity folder, but {reason}. Make a new identity."
        )
    if position < 0:
        raise TrustError(
            f"Expected the certificate that the manifest lists for {name}, got {fingerprints[-1]}: use the "
            "identity whose card is in the manifest."
        )
    return chosen
