"""The page of a federation: what its agents publish, side by side. It shows less than their own pages.

Each agent's organisation runs `topdp dash` and shares the token for the published facts. A file lists the
*places*, which are the addresses of these servers:

    [[agent]]
    name = "ada"                        # optional; another agent at this place is then an error
    url = "https://ada.example.org:8765"
    token-file = "ada.token"            # or token = "..."
    certificate = "ada.pem"             # for certificates that no public authority has signed

**Guarantees.** Responses of other servers are checked, limited in size and shown as text. They are claims of
their authors, and nothing here depends on them. A token is sent only to its own address.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, ValidationError

from topdp.base import toml_text
from topdp.errors import InputError
from topdp.views.live.agent_page import PublishedAgent, StrictFacts
from topdp.views.live.page_access import PUBLISHED_PATH, is_loopback, token_from
from topdp.views.live.page_events import Events
from topdp.views.live.remote_fetch import FetchError, fetch

logger = logging.getLogger("topdp.views.live")

POLL_INTERVAL_SECONDS = 3.0  # per place; three times as long if the place does not answer
MAX_PARALLEL_FETCHES = 16
MAX_PLACES = 500
MAX_SHOWN_AGENTS = 5000  # one place may publish a thousand


class PublishedAgents(StrictFacts):
    agents: list[PublishedAgent] = Field(max_length=1000)


@dataclass(frozen=True)
class PublishingPlace:
    """An address at which facts of agents are published, and how to access it."""

    url: str
    token: str | None = field(repr=False)
    name: str | None = None
    certificate: Path | None = None


@dataclass
class _PlaceState:
    agents: list[dict[str, Any]] = field(default_factory=list)
    at: float | None = None
    problem: str | None = "not asked yet"


def read_places(file: Path) -> list[PublishingPlace]:
    """Return the places that `file` lists in the format above. Paths in it are relative to its folder.

    Raise InputError if the file has another format.
    """
    try:
        tree = toml_text.parse_toml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: expected a TOML file of [[agent]] tables, got: {error}") from error
    tables = tree.get("agent")
    if not isinstance(tables, list) or not tables or set(tree) != {"agent"} or len(tables) > MAX_PLACES:
        raise InputError(f"{file}: expected 1 to {MAX_PLACES} [[agent]] tables and nothing else.")
    return [_place(table, f"{file}, agent {number}", file.parent) for number, table in enumerate(tables, 1)]


def _place(table: object, where: str, folder: Path) -> PublishingPlace:
    keys = ("name", "url", "token", "token-file", "certificate")
    if not isinstance(table, dict) or not all(k in keys and isinstance(v, str) for k, v in table.items()):
        # Without the table, which may contain a token.
        raise InputError(f"{where}: expected only the keys {', '.join(keys)}, each as text.")
    url = table.get("url", "").rstrip("/")
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and not parts.username
        valid = valid and not (parts.query or parts.fragment) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise InputError(f'{where}: expected url = "https://host:port", got {url!r:.200}.')
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise InputError(
            f"{where}: expected https, got {url}, where others could read the token in transit. Start that "
            "topdp dash with --certificate and --key, or forward its port with ssh -L."
        )
    files = {key: folder / table[key] for key in ("token-file", "certificate") if key in table}
    for key, path in files.items():
        if not path.is_file():
            content = key.removesuffix("-file")
            raise InputError(f"{where}: expected a {content} in {path}, which does not exist.")
    token = token_from(files["token-file"], "") if "token-file" in files else table.get("token")
    return PublishingPlace(url, token, table.get("name"), files.get("certificate"))


class FederationFeed:
    """The last response of every place."""

    def __init__(self, places: Iterable[PublishingPlace]) -> None:
        self.places = list(places)
        self._states = [_PlaceState() for _ in self.places]

    def view(self, own: Iterable[dict[str, Any]], now: float | None = None) -> dict[str, Any]:
        """Return all published agents including `own`, and every place with the age of its last response."""
        now = time.time() if now is None else now
        agents = [{**agent, "place": None, "age": 0.0} for agent in own]
        places = []
        for place, state in zip(self.places, self._states, strict=True):
            age = None if state.at is None else max(0.0, now - state.at)
            places.append({"url": place.url, "name": place.name, "age": age, "problem": state.problem})
            agents += [
                {**agent, "place": place.url, "age": age, "lost": state.problem} for agent in state.agents
            ]
        return {"agents": agents[:MAX_SHOWN_AGENTS], "places": places}

    async def run(self, events: Events) -> None:
        """Poll every place at its own pace until cancelled, and publish changes.

        It uses threads of its own, so that places that do not answer delay only each other.
        """
        if not self.places:
            return
        with ThreadPoolExecutor(min(MAX_PARALLEL_FETCHES, len(self.places)), "federation") as threads:
            try:
                async with asyncio.TaskGroup() as group:
                    for number in range(len(self.places)):
                        group.create_task(self._poll(number, threads, events))
            finally:
                threads.shutdown(wait=False, cancel_futures=True)

    async def _poll(self, number: int, threads: ThreadPoolExecutor, events: Events) -> None:
        state, place = self._states[number], self.places[number]
        loop = asyncio.get_running_loop()
        while True:
            before = (state.agents, state.problem)
            try:
                state.agents = await loop.run_in_executor(threads, fetch_agents, place)
                state.at, state.problem = time.time(), None
            except FetchError as error:
                state.problem = str(error)
            except Exception as error:  # continue after an internal error
                logger.exception("could not fetch %s", place.url)
                state.problem = f"internal error: {type(error).__name__}"
            if (state.agents, state.problem) != before:
                events.publish("federation", {})
            await asyncio.sleep((1 if state.problem is None else 3) * POLL_INTERVAL_SECONDS)


def fetch_agents(place: PublishingPlace) -> list[dict[str, Any]]:
    """Fetch and return the facts that a place publishes now.

    Raise FetchError if there is no response, or if it is invalid or of another agent.
    """
    body = fetch(place.url + PUBLISHED_PATH, place.token, place.certificate)
    try:
        published = PublishedAgents.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:80]
        raise FetchError(f"the response is invalid: {where}: {first['msg']}") from error
    names = [agent.name for agent in published.agents]
    if place.name is not None and names != [place.name]:
        raise FetchError(f"expected the agent {place.name}, got {', '.join(names)[:80] or 'no agent'}")
    return [json.loads(agent.model_dump_json()) for agent in published.agents]
