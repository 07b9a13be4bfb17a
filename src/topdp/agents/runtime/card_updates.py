"""New cards of agents, from neighbour to neighbour, until all have them: certificates and addresses.

An agent sends its neighbours what `topdp agent renew` has made while it runs; every agent passes on what it
accepted. `agreement/card_succession.py` states which card may follow which; `wire` states which certificate a
link accepts.

**Guarantees.** An accepted card is in the ledger before it is answered, so a restart knows it, and a
contradiction is found after years. A neighbour that passes on an unsigned card is quarantined; so is an agent
whose key has signed two successors, or more than a manifest takes, until a person has looked. An agent shows
a new certificate only once all its neighbours have confirmed that they know it.
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
from topdp.agents.agreement.identity import Identity, expect_valid
from topdp.agents.agreement.manifest import Manifest
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.wire.link_refusals import RefusalLog
from topdp.agents.wire.transport import Reply
from topdp.agents.wire.wire_codes import ReplyCode
from topdp.errors import TrustError

ACCEPTED_KEY, KNOWN_TO_KEY, SHOWN_KEY = "card of ", "card known to ", "card shown by "


class CardUpdates:
    """The cards of all agents, in the ledger of one."""

    def __init__(
        self,
        manifest: Manifest,
        name: str,
        *,
        ledger: Ledger,
        folder: Path | None = None,
        directory: CardDirectory | None = None,
    ) -> None:
        """`folder`: the identity folder of this agent, where a renewal appears while it runs."""
        self.name, self.ledger, self.folder = name, ledger, folder
        self.directory = directory or restored(manifest, ledger.meta)
        self._base = card_succession.card_digest(manifest.card(name))
        self._to_tell = kept(ledger.meta)
        self._told: dict[str, int] = {}
        self._log = RefusalLog(name)
        self.directory.on_shown = self._note_shown

    def _note_shown(self, name: str) -> None:
        if number := self.directory.number(name):
            self.ledger.database.remember(SHOWN_KEY + name, str(number))

    def look(self) -> None:
        """Take up cards that were renewed at this site since the last call."""
        own = [successor.number for successor in self._to_tell if successor.card.name == self.name]
        if self.folder is None or not card_succession.has_successor(self.folder, max(own, default=0)):
            return
        renewed = since(card_succession.load_successors(self.folder), self._base)
        if len(renewed) > MAX_SUCCESSORS:
            words = (
                f"the last {len(renewed) - MAX_SUCCESSORS} are not shown: a manifest takes "
                f"{MAX_SUCCESSORS}; make a new one"
            )
            self._log.report(self.name, "card", words)
        for successor in renewed[:MAX_SUCCESSORS]:
            if self._keep(successor):
                words = "neighbours are told; shown once all know it, after a restart"
                self._log.note("card", f"card {successor.number}: {words}", logging.INFO)

    def untold(self, peer: str) -> tuple[int, bytes] | None:
        """Return the number and the bytes of the next card that this agent has not yet sent to `peer`."""
        self.look()
        which = self._told.get(peer, 0)
        return (which, self._to_tell[which].text().encode()) if which < len(self._to_tell) else None

    def record_reply(self, peer: str, which: int, reply: Reply) -> None:
        """Record the answer of `peer`. A peer that accepts no cards is not asked again before a restart."""
        self._told[peer] = which + 1
        successor = self._to_tell[which]
        if reply.ok and successor.card.name == self.name:
            self.ledger.database.remember(KNOWN_TO_KEY + peer, str(successor.number))
        elif not reply.ok:
            words = f"does not accept card {successor.number} of {successor.card.name}: {reply.code.words}"
            self._log.report(peer, "card", words)

    def take(self, body: bytes) -> tuple[ReplyCode, str, str | None]:
        """Take a card that a neighbour passes on.

        Return the reply code, words, and the agent whose key was misused or None.
        """
        try:
            successor = Successor.read(body.decode("utf-8", errors="replace"))
            self._keep(successor)
        except CardForkError as fork:
            return ReplyCode.EQUIVOCATION, str(fork), successor.card.name
        except SuccessorLimitError as error:
            return ReplyCode.UNKNOWN_ROUND, str(error), successor.card.name
        except SuccessorOrderError as error:
            return ReplyCode.GAP, str(error), None
        except NotASuccessorError as error:
            return ReplyCode.NOT_A_STATEMENT, f"passed on something that is no card: {error}", None
        return ReplyCode.OK, "", None

    def _keep(self, successor: Successor) -> bool:
        """Whether the card is new in the ledger."""
        self.directory.accept(successor)
        name, key = successor.card.name, f"{ACCEPTED_KEY}{successor.card.name} {successor.number}"
        if key in self.ledger.meta or not self.directory.has(successor):
            return False
        self.ledger.database.remember(key, successor.text())
        self._to_tell.append(successor)
        self._log.note("card", f"card {successor.number} of {name} is accepted", logging.INFO, peer=name)
        return True


def kept(meta: Mapping[str, str]) -> list[Successor]:
    """The successors in the ledger, each after the one before it."""
    successors = [Successor.read(text) for key, text in meta.items() if key.startswith(ACCEPTED_KEY)]
    return sorted(successors, key=lambda successor: successor.number)


def since(successors: Sequence[Successor], base: str) -> Sequence[Successor]:
    """Return the successors after the card with this digest. The manifest may list a renewed card."""
    first = next((k for k, each in enumerate(successors) if each.before == base), len(successors))
    return successors[first:]


def restored(manifest: Manifest, meta: Mapping[str, str], own: Sequence[Successor] = ()) -> CardDirectory:
    """The cards of all agents as the ledger has them; `own`: this site's renewals."""
    directory = CardDirectory(manifest)
    for successor in [*kept(meta), *own]:
        directory.restore(successor)
    for name in manifest.names:
        if meta.get(SHOWN_KEY + name) == str(directory.number(name)):
            directory.mark_shown(directory.card(name))
    return directory


def chosen(manifest: Manifest, identities: Sequence[Identity], meta: Mapping[str, str]) -> Identity:
    """Return the newest identity that all neighbours know, or else the one in the manifest.

    An expired identity is replaced by the newest one, which a neighbour that knows its card accepts.
    """
    name = identities[0].card.name
    if len(identities) == 1:
        expect_valid(identities[0], "the identity folder")
    listed = manifest.card(name)
    prints = [identity.card.fingerprint for identity in identities]
    if listed.fingerprint not in prints:
        raise TrustError(
            f"Expected the certificate that the manifest lists for {name}, got {prints[-1]}: use the "
            "identity whose card is in the manifest."
        )
    neighbours = manifest.neighbours(name)
    shown_to_all = min((int(meta.get(KNOWN_TO_KEY + peer, "0")) for peer in neighbours), default=0)
    best = identities[max(prints.index(listed.fingerprint), min(shown_to_all, len(identities) - 1))]
    best = identities[-1] if best.card.validity_problem() else best
    expect_valid(best, "the identity folder")
    return best
