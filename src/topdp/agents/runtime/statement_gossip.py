"""Notices from agent to agent, along the links, until all have them; and which notices are accepted.

Every neighbour is sent what it has not acknowledged, before any row. `pair_keys` (keys of a run) and
`departures` say what notices mean.

**Guarantees.** What is kept and passed on bears its author's signature for this manifest and has a known
subject; no author can have more in the ledger than a few notices about each agent. A neighbour that sends
anything else is quarantined. Two keys of one author end an agent that has not begun: with whom it would share
noise is unknown then. Once all have stated that they hold the same keys, the first counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from topdp.agents.agreement.card_succession import CardDirectory
from topdp.agents.agreement.identity import Identity
from topdp.agents.agreement.manifest import Manifest
from topdp.agents.agreement.signatures import (
    Notice,
    NoticeError,
    decode_notices,
    encode_notices,
)
from topdp.agents.ledger.notice_store import NoticeStore
from topdp.agents.runtime.pair_keys import KEYS_AGREED, RUN_KEY, RunKey
from topdp.agents.wire.link_refusals import quoted
from topdp.agents.wire.wire_codes import ReplyCode
from topdp.errors import TrustError

MAX_RESENDS = 32  # how often a neighbour is sent all notices once more

Check = Callable[[Notice], None]
"""Raises ValueError if the text does not fit the subject of the notice."""


class StatementGossip:
    """What all agents have stated, and what each neighbour has of it."""

    def __init__(self, manifest: Manifest, identity: Identity, plan: str, news: NoticeStore) -> None:
        self.manifest, self.identity, self.plan, self.news = manifest, identity, plan, news
        self.run = ""  # the name of the run, once the keys of all are here
        self.begun = news.ledger.round >= 0
        # By the first word or words of the subject.
        self.kinds: dict[str, Check] = {RUN_KEY: self._check_key, KEYS_AGREED: self._check_agreed}
        self.directory: CardDirectory | None = None  # cards that agents have had since the manifest was made
        self._told: dict[str, int] = {}
        self._parted: Counter[str] = Counter()
        self._base: dict[str, int] = {}  # after which number what is on its way to each neighbour begins
        self._had: dict[str, int] = {}  # how many notices each neighbour said that it has
        self._forgot: Counter[str] = Counter()  # how often it then had fewer
        # Of one author: a key, an agreement, and for every other agent that it is silent and that it is gone.
        self._most = 2 * len(manifest.names)

    def state(self, about: str, text: str) -> None:
        """State something in this agent's own name; a notice once made stays."""
        run = "" if about == RUN_KEY else self.run
        if self.news.text(self.identity.card.name, run, about) is None:
            self.news.add(Notice.signed(self.identity, self.manifest, run, about, text))

    def keys(self) -> dict[str, RunKey]:
        """The keys of the run that are here, by agent."""
        return {author: RunKey.read(text) for author, text in self.news.on("", RUN_KEY).items()}

    def untold(self, peer: str) -> tuple[int, bytes] | None:
        """Return the number of the last notice that `peer` has not acknowledged, and the bytes of all."""
        waiting = self.news.after(self._told.get(peer, 0))
        self._base[peer] = self._told.get(peer, 0)
        return (waiting[-1][0], encode_notices(statement for _, statement in waiting)) if waiting else None

    def parting(self, peer: str) -> bytes:
        """All notices in the ledger, for a neighbour that was given up and may not have begun because it
        lacks some.

        A few times: it asks once for each of its starts.
        """
        self._parted[peer] += 1
        if self._parted[peer] > MAX_RESENDS:
            return b""
        return encode_notices(statement for _, statement in self.news.after(0))

    def learn(self, peer: str, statements: int) -> None:
        """`peer` reports how many notices it has. If it had or took more before, its ledger is an older
        copy: it is sent all again.

        A greeting that was on its way while it took some looks the same; then it receives again what it has.
        """
        reported = max(self._had.get(peer, 0), self.news.total(self._told.get(peer, 0)))
        if statements < reported and self._forgot[peer] < MAX_RESENDS:
            self._forgot[peer] += 1
            self._told[peer] = 0
        self._had[peer] = statements

    def acknowledged(self, peer: str, number: int) -> None:
        """Record that `peer` has the notices up to `number`, unless it has lost earlier ones."""
        if self._told.get(peer, 0) == self._base.get(peer, 0):
            self._told[peer] = max(number, self._base.get(peer, 0))

    def take(self, body: bytes) -> tuple[ReplyCode, str]:
        """Keep the valid ones of notices that a neighbour passes on; return the reply code and words for
        it.

        Raises TrustError if this agent cannot begin any more.
        """
        try:
            statements = decode_notices(body, self._most * len(self.manifest.names))
        except NoticeError:
            return ReplyCode.NOT_A_STATEMENT, "sent bytes that are no statements"
        for statement in statements:
            if self.news.text(statement.author, statement.run, statement.about) == statement.text:
                continue  # known: its signature was checked before
            if statement.run not in ("", self.run) and not self.begun:
                return ReplyCode.LATER, ""
            fault = self._fault(statement)
            if fault:
                return (
                    ReplyCode.NOT_A_STATEMENT,
                    f"passed on what {quoted(statement.author, 80)} cannot have said: {fault}",
                )
            if self.news.add(statement) == "another" and statement.about == RUN_KEY and not self.begun:
                raise TrustError(
                    f"Expected one key of {statement.author} for this run, got two that it has signed: it "
                    "contradicts itself, has lost its state folder, or a key of an earlier run was replayed. "
                    "Nothing was sent. Start all agents again with new state folders, or without it."
                )
        return ReplyCode.OK, ""

    def _fault(self, statement: Notice) -> str:
        check = self.kinds.get(next((kind for kind in self.kinds if statement.about.startswith(kind)), ""))
        if check is None or statement.run not in ("", self.run):
            return "its subject or its run is unknown here"
        if not statement.verify(self.manifest, self.directory):
            return "it does not bear the signature of that agent"
        try:
            check(statement)
        except ValueError as error:
            return str(error)
        return "" if self.news.count(statement.author) < self._most else "too many statements of that agent"

    def _check_agreed(self, statement: Notice) -> None:
        if statement.about != KEYS_AGREED or statement.text or not statement.run:
            raise ValueError("expected the name of a run")

    def _check_key(self, statement: Notice) -> None:
        if statement.about != RUN_KEY or statement.run:
            raise ValueError("expected the key of a run")
        if RunKey.read(statement.text).plan != self.plan:
            raise ValueError("its key is for another plan")
