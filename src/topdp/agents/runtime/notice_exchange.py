"""Exchange of notices along the links until all agents have them, and which notices an agent accepts.

An agent sends each neighbour the notices that it has not acknowledged, before any row. `pair_keys` (keys of a
run) and `departures` define what notices mean.

**Guarantees.** A notice that is stored and passed on bears its author's signature for this manifest and has a
known subject; no author can have more in the ledger than a few notices about each agent. A neighbour that
sends anything else is quarantined. Two keys of one author end an agent that has not begun the run: it would
be unknown with whom it shares noise. Once all agents have stated that they have the same keys, the first key
counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from topdp.agents.agreement.card_succession import CardDirectory
from topdp.agents.agreement.identity import Identity
from topdp.agents.agreement.signatures import Notice, NoticeError, decode_notices, encode_notices
from topdp.agents.ledger.notice_store import NoticeStore
from topdp.agents.runtime.pair_keys import KEYS_AGREED, RUN_KEY, RunKey
from topdp.agents.wire.link_refusals import quoted
from topdp.agents.wire.transport import ReplyCode
from topdp.errors import TrustError

MAX_RESENDS = 32  # how often a neighbour is sent all notices once more

NoticeCheck = Callable[[Notice], None]
"""Raises ValueError if the text does not fit the subject of the notice."""


class NoticeExchange:
    """The notices of all agents, and which of them each neighbour has."""

    def __init__(self, directory: CardDirectory, identity: Identity, plan: str, store: NoticeStore) -> None:
        self.directory, self.identity, self.plan, self.store = directory, identity, plan, store
        self.manifest = directory.manifest
        self.run = ""  # the name of the run, once the keys of all agents have arrived
        self.has_begun = store.ledger.round >= 0
        # By the first words of the subject.
        self.checks: dict[str, NoticeCheck] = {RUN_KEY: self._check_key, KEYS_AGREED: self._check_agreed}
        self._acknowledged: dict[str, int] = {}  # neighbour -> number of the last notice that it has
        self._sent_after: dict[str, int] = {}  # neighbour -> number after which the notices sent to it begin
        self._reported_counts: dict[str, int] = {}  # neighbour -> number of notices that it reported
        self._resends: Counter[str] = Counter()  # how often each neighbour reported fewer than before
        self._partings: Counter[str] = Counter()
        # Of one author: a key, an agreement, and that each other agent is silent and has departed.
        self._max_notices = 2 * len(self.manifest.names)

    def publish(self, about: str, text: str) -> None:
        """Make a notice of this agent. An earlier notice on the same subject stays instead."""
        run = "" if about == RUN_KEY else self.run
        if self.store.text(self.identity.card.name, run, about) is None:
            self.store.add(Notice.signed(self.identity, self.manifest, run, about, text))

    def keys(self) -> dict[str, RunKey]:
        """Map each agent whose key of the run has arrived to that key."""
        return {author: RunKey.read(text) for author, text in self.store.on("", RUN_KEY).items()}

    def next_unsent(self, peer: str) -> tuple[int, bytes] | None:
        """Return the notices that `peer` has not acknowledged, as (number of the last, bytes), or None."""
        start = self._sent_after[peer] = self._acknowledged.get(peer, 0)
        waiting = self.store.after(start)
        return (waiting[-1][0], encode_notices(notice for _, notice in waiting)) if waiting else None

    def parting_notices(self, peer: str) -> bytes:
        """Return all notices, for an excluded neighbour that may lack some and so may not have begun the run.

        Such a neighbour requests them once for each of its starts; the number of replies is limited.
        """
        self._partings[peer] += 1
        if self._partings[peer] > MAX_RESENDS:
            return b""
        return encode_notices(notice for _, notice in self.store.after(0))

    def note_reported_count(self, peer: str, count: int) -> None:
        """Record that `peer` reports `count` notices. If it had more before, send it all again.

        Its ledger is then an older copy, or the report was made before the last notices arrived; in that case
        it receives again what it has.
        """
        reported = max(self._reported_counts.get(peer, 0), self.store.total(self._acknowledged.get(peer, 0)))
        if count < reported and self._resends[peer] < MAX_RESENDS:
            self._resends[peer] += 1
            self._acknowledged[peer] = 0
        self._reported_counts[peer] = count

    def note_acknowledged(self, peer: str, number: int) -> None:
        """Record that `peer` has the notices up to `number`, unless it has lost earlier ones."""
        start = self._sent_after.get(peer, 0)
        if self._acknowledged.get(peer, 0) == start:
            self._acknowledged[peer] = max(number, start)

    def accept(self, body: bytes) -> tuple[ReplyCode, str]:
        """Store the valid notices that a neighbour passes on; return the reply code and an explanation.

        Raise TrustError if this agent can no longer begin the run.
        """
        try:
            notices = decode_notices(body, self._max_notices * len(self.manifest.names))
        except NoticeError:
            return ReplyCode.NOT_A_STATEMENT, "sent bytes that are no notices"
        for notice in notices:
            if self.store.text(notice.author, notice.run, notice.about) == notice.text:
                continue  # stored before, when its signature was verified
            if notice.run not in ("", self.run) and not self.has_begun:
                return ReplyCode.LATER, ""
            if fault := self._fault_of(notice):
                words = f"passed on what {quoted(notice.author, 80)} cannot have said: {fault}"
                return ReplyCode.NOT_A_STATEMENT, words
            if self.store.add(notice) == "another" and notice.about == RUN_KEY and not self.has_begun:
                raise TrustError(
                    f"Expected one key of {notice.author} for this run, got two signed ones: {notice.author} "
                    "started twice or lost its state folder, or somebody replayed a key of an earlier run. "
                    "No row was sent from this ledger. Start all agents again with new state folders, or "
                    f"make a manifest without {notice.author}."
                )
        return ReplyCode.OK, ""

    def _fault_of(self, notice: Notice) -> str:
        check = self.checks.get(next((kind for kind in self.checks if notice.about.startswith(kind)), ""))
        if check is None or notice.run not in ("", self.run):
            return "its subject or its run is unknown here"
        if not notice.verify(self.directory):
            return "it does not bear the signature of that agent"
        try:
            check(notice)
        except ValueError as error:
            return str(error)
        return "" if self.store.count(notice.author) < self._max_notices else "too many notices of that agent"

    def _check_agreed(self, notice: Notice) -> None:
        if notice.about != KEYS_AGREED or notice.text or not notice.run:
            raise ValueError("expected the name of a run")

    def _check_key(self, notice: Notice) -> None:
        if notice.about != RUN_KEY or notice.run:
            raise ValueError("expected the key of a run")
        if RunKey.read(notice.text).plan != self.plan:
            raise ValueError("its key is for another plan")
