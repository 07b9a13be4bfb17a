"""The content of an agent's page, and the part of it that is published. Only the state folder is read.

Reading cannot stop the agent. The ledger is opened read-only, in another process, and SQLite lets the agent
write meanwhile.

**Guarantees.** A page shows neither parameters nor data. Rows, digests and keys are not read. The *published*
part contains no number computed from records: round, ε and budget follow from the plan, and the states of
links from whether a neighbour was heard. Scores on an agent's own records are only in its own view, because
no account covers their publication.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from topdp.privacy.answers import WORST_CASE

MAX_SHOWN_CHARGES = 400  # a curve has no room for more
# Facts that are not shown, or are shown in another form.
HIDDEN_FACTS = ("agent", "id", "seen", "heard", "waits_for", "quarantined", "worst_case")
NORMAL_WAIT_SECONDS = 5.0  # a wait of this length is normal in every round
NEIGHBOUR_SILENCE_SECONDS = 60.0  # a neighbour not heard for this long counts as silent

Name = Field(min_length=1, max_length=200)
Number = Field(ge=-1, le=10**9)


class StrictFacts(BaseModel):
    """Facts in a response of another server, with exact types."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class PublishedLink(StrictFacts):
    state: Literal["heard", "silent", "waited for", "refused", "gone", "unknown"]
    received: int | None = Number


class PublishedAgent(StrictFacts):
    """The published facts of one agent."""

    name: str = Name
    federation: str | None = Field(max_length=200)
    process: Literal["running", "not answering", "not running"]
    doing: Literal["waits", "computes", "paused", "ends", "ended"] | None
    round: int = Number
    rounds: int | None = Number
    epsilon: float | None = Field(ge=0)  # None: infinite
    budget: float | None = Field(ge=0)
    charged_by: str = Field(max_length=200)
    paused: bool
    stopped: int | None = Number
    links: dict[Annotated[str, Name], PublishedLink] = Field(max_length=2000)


PUBLISHED_FACTS = [name for name in PublishedAgent.model_fields if name != "links"]


def agent_view(state: Path) -> dict[str, Any]:
    """Return everything that an agent's own page shows, as JSON. An `epsilon` of None is infinite.

    `costs`: the ε that the run has spent against observers other than that of the charged answer.
    """
    from topdp.agents.node.agent_status import read_status

    facts = read_status(state)
    charges, sent = _charges(state)
    return {
        **{key: value for key, value in facts.items() if key not in HIDDEN_FACTS},
        "name": str(facts["agent"]),
        "paused": facts["paused"] is not None,
        "costs": [{"against": WORST_CASE.against(0), "epsilon": facts["worst_case"]}],
        "links": _links(facts, sent, time.time()),
        "charges": charges,
        "notes": list(_notes(facts)),
    }


def published(view: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a view that others may see: the agent's progress, and which neighbours it hears."""
    links = {
        peer: {"state": link["state"], "received": link["received"]} for peer, link in view["links"].items()
    }
    return {**{key: view[key] for key in PUBLISHED_FACTS}, "links": links}


def _links(facts: dict[str, Any], sent: dict[str, int], now: float) -> dict[str, dict[str, Any]]:
    running = facts["process"] == "running"
    names = {*facts["seen"], *facts["heard"], *facts["waits_for"], *facts["gone"], *sent}
    links = {}
    for peer in sorted(names):
        heard, waits = facts["heard"].get(peer), facts["waits_for"].get(peer)
        quarantine = facts["quarantined"].get(peer)
        if quarantine is not None:
            state = "refused"
        elif peer in facts["gone"]:
            state = "gone"
        elif not running:
            state = "unknown"
        elif waits is not None and now - waits > NORMAL_WAIT_SECONDS:
            state = "waited for"
        else:
            state = "silent" if heard is None or now - heard > NEIGHBOUR_SILENCE_SECONDS else "heard"
        links[peer] = {
            "state": state,
            "heard": heard,
            "waits": waits,
            "sent": sent.get(peer),
            "received": None if facts["seen"].get(peer, -1) < 0 else facts["seen"][peer],
            "words": None if quarantine is None else f"{quarantine['code']}: {quarantine['words']}",
        }
    return links


def _charges(state: Path) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the charges, and the last round sent to each neighbour.

    If there are many charges, return only some of them, including the last.
    """
    from topdp.agents.ledger.ledger import Ledger
    from topdp.agents.ledger.ledger_entries import LedgerEntry

    with closing(Ledger(state, writable=False)) as ledger:
        last = ledger.last_entry.number if ledger.last_entry else -1
        every = max(1, -(-(last + 1) // MAX_SHOWN_CHARGES))
        query = "SELECT entry FROM charges WHERE number % ? = 0 OR number = ? ORDER BY number"
        entries = [LedgerEntry.read(text) for (text,) in ledger.database.rows(query, every, last)]
    sent = {peer: entry.round for entry in entries for peer in entry.digests}
    return [{"round": entry.round, "total": entry.total} for entry in entries], sent


def _notes(facts: dict[str, Any]) -> Iterator[str]:
    """Yield what a reader must know to interpret the numbers."""
    if facts["seeded"]:
        yield "Not private: its noise comes from a seed that others know. This is a test."
    if facts["rehearsal"]:
        yield "Not private: this is a rehearsal with canaries, which records gradients without noise."
    if facts["stopped"] is not None:
        yield f"Its budget ended before the plan. Its data enter no round from round {facts['stopped']} on."
    if facts["ends"] is not None:
        yield f"This run was amended and ends with round {facts['ends']}."
    if facts["departed"] is not None:
        yield "The run departed from the plan. From there on, ε is that of the worst case."
    if facts["process"] == "not answering":
        yield "Its process exists but has not written anything for a while."
    elif facts["process"] == "not running" and facts["code"] is None and facts["written"] is not None:
        yield "Its process was killed or crashed. Continue with the same `topdp agent start` command."
