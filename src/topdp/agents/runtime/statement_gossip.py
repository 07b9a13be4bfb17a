"""Statements from agent to agent, along the links, until all have them; what is believed of those that come.

Every neighbour is sent what it has not acknowledged, before any row. What statements mean is for `agreement`
(keys of a run) and `departures` (who is gone).

**Guarantees.** What is kept and passed on bears its author's signature for this manifest and is of a kind
that is known here; no author can have more on the books than a few statements about everybody. Whoever sends
anything else is quarantined. Two keys of one author end an agent that has not begun: with whom it would share
noise is not known then. Once all have said that they hold the same keys, the first counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from topdp.agents.agreement.card_succession import CardDirectory
from topdp.agents.agreement.identity import Identity
from topdp.agents.agreement.manifest import Manifest
from topdp.agents.agreement.signatures import (
    Statement,
    StatementError,
    decode_statements,
    encode_statements,
)
from topdp.agents.ledger.statement_store import StatementStore
from topdp.agents.runtime.pair_keys import AGREED, RUN_KEY, RunKey
from topdp.agents.wire.link_refusals import quoted
from topdp.agents.wire.wire_codes import ReplyCode
from topdp.errors import TrustError

MOST_TIMES = 32  # that a neighbour is told everything once more

Check = Callable[[Statement], None]
"""Raises ValueError when a text is not what statements of its kind say."""


class StatementGossip:
    """What all agents have stated, and what each neighbour has of it."""

    def __init__(self, manifest: Manifest, identity: Identity, plan: str, news: StatementStore) -> None:
        self.manifest, self.identity, self.plan, self.news = manifest, identity, plan, news
        self.run = ""  # its name, once the keys of all are here
        self.begun = news.ledger.round >= 0
        # By the first word or words of the subject.
        self.kinds: dict[str, Check] = {RUN_KEY: self._check_key, AGREED: self._check_agreed}
        self.directory: CardDirectory | None = None  # cards that agents have had since the manifest was made
        self._told: dict[str, int] = {}
        self._parted: Counter[str] = Counter()
        self._base: dict[str, int] = {}  # after which number what is on its way to each neighbour begins
        self._had: dict[str, int] = {}  # how many statements each neighbour said that it has
        self._forgot: Counter[str] = Counter()  # how often it then had fewer
        # Of one author: a key, an agreement, and of every other agent that it is silent and is counted out.
        self._most = 2 * len(manifest.names)

    def state(self, about: str, text: str) -> None:
        """Says something in this agent's own name; what was said once stays."""
        run = "" if about == RUN_KEY else self.run
        if self.news.text(self.identity.card.name, run, about) is None:
            self.news.add(Statement.signed(self.identity, self.manifest, run, about, text))

    def keys(self) -> dict[str, RunKey]:
        """The keys of the run that are here, by agent."""
        return {author: RunKey.read(text) for author, text in self.news.on("", RUN_KEY).items()}

    def untold(self, peer: str) -> tuple[int, bytes] | None:
        """What `peer` has not acknowledged: the number of the last one, and their bytes."""
        waiting = self.news.after(self._told.get(peer, 0))
        self._base[peer] = self._told.get(peer, 0)
        return (waiting[-1][0], encode_statements(statement for _, statement in waiting)) if waiting else None

    def parting(self, peer: str) -> bytes:
        """All that is on the books, for a neighbour that was given up and may not have begun: it lacks some.

        A few times: it asks once for each of its starts.
        """
        self._parted[peer] += 1
        if self._parted[peer] > MOST_TIMES:
            return b""
        return encode_statements(statement for _, statement in self.news.after(0))

    def learn(self, peer: str, statements: int) -> None:
        """`peer` has so many. If it had or took more, its books are an older copy: it is told all again.

        A greeting that was on its way while it took some looks the same; then it hears again what it knows.
        """
        least = max(self._had.get(peer, 0), self.news.total(self._told.get(peer, 0)))
        if statements < least and self._forgot[peer] < MOST_TIMES:
            self._forgot[peer] += 1
            self._told[peer] = 0
        self._had[peer] = statements

    def acknowledged(self, peer: str, number: int) -> None:
        """`peer` has what it was told last, up to `number`; unless it has forgotten what came before."""
        if self._told.get(peer, 0) == self._base.get(peer, 0):
            self._told[peer] = max(number, self._base.get(peer, 0))

    def take(self, body: bytes) -> tuple[ReplyCode, str]:
        """What is to be said of statements that a neighbour passes on; the good ones are kept.

        Raises TrustError where this agent cannot begin any more.
        """
        try:
            statements = decode_statements(body, self._most * len(self.manifest.names))
        except StatementError:
            return ReplyCode.NOT_A_STATEMENT, "sent what are no statements"
        for statement in statements:
            if self.news.text(statement.author, statement.run, statement.about) == statement.text:
                continue  # known: that it is signed was seen before
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
                    "tells two stories, has lost its state folder, or somebody repeats one of an earlier "
                    "run. Nothing was sent: all agents start again with new state folders, or without it."
                )
        return ReplyCode.OK, ""

    def _fault(self, statement: Statement) -> str:
        check = self.kinds.get(next((kind for kind in self.kinds if statement.about.startswith(kind)), ""))
        if check is None or statement.run not in ("", self.run):
            return "no subject, or no run, that is known here"
        if not statement.verify(self.manifest, self.directory):
            return "it bears no signature of that agent"
        try:
            check(statement)
        except ValueError as error:
            return str(error)
        return "" if self.news.count(statement.author) < self._most else "it says too much"

    def _check_agreed(self, statement: Statement) -> None:
        if statement.about != AGREED or statement.text or not statement.run:
            raise ValueError("expected the name of a run")

    def _check_key(self, statement: Statement) -> None:
        if statement.about != RUN_KEY or statement.run:
            raise ValueError("expected the key of a run")
        if RunKey.read(statement.text).plan != self.plan:
            raise ValueError("its key is for another plan")
