"""The page of a federation: what its agents publish, put side by side. Not what their owners see.

Each agent's owner runs `topdp dash` at home and gives the token of what is published to whoever may see it.
A file names where each is:

    [[agent]]
    name = "ada"                        # refused if another name answers; leave away for several at one place
    url = "https://ada.example.org:8765"
    token-file = "ada.token"            # or token = "..."
    certificate = "ada.pem"             # whom to believe, where no public authority has signed it

**Guarantees.** What comes from elsewhere is checked, bounded and shown as text; it is somebody's word, and
nothing here depends on it. A token is sent to its own address alone, never on to another.
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
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from topdp.base import toml_text
from topdp.errors import InputError
from topdp.views.live.page_access import PUBLISHED, is_loopback, token_from
from topdp.views.live.page_events import Events
from topdp.views.live.remote_fetch import NoAnswerError, fetched

logger = logging.getLogger("topdp.views.live")

EVERY = 3.0  # seconds between two questions to one place; to one that does not answer three times that
THREADS = 16  # questions at once
PLACES = 500
SHOWN = 5000  # agents on the page: a place may name a thousand

Name = Field(min_length=1, max_length=200)
Number = Field(ge=-1, le=10**9)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class PublishedLink(_Strict):
    state: Literal["heard", "silent", "waited for", "refused", "gone", "unknown"]
    received: int | None = Number


class PublishedAgent(_Strict):
    """What one agent says of itself."""

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


class PublishedAgents(_Strict):
    agents: list[PublishedAgent] = Field(max_length=1000)


@dataclass(frozen=True)
class Place:
    """Where something is published."""

    url: str
    token: str | None = field(repr=False)
    name: str | None = None
    certificate: Path | None = None


@dataclass
class _Heard:
    agents: list[dict[str, Any]] = field(default_factory=list)
    at: float | None = None
    problem: str | None = "not asked yet"


def read_places(file: Path) -> list[Place]:
    """The places in a file as above; paths in it are beside it."""
    try:
        tree = toml_text.parse_toml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: expected a TOML file of [[agent]] tables: {error}") from error
    found = tree.get("agent")
    if not isinstance(found, list) or not found or set(tree) != {"agent"} or len(found) > PLACES:
        raise InputError(f"{file}: expected 1 to {PLACES} [[agent]] tables and nothing else.")
    return [_place(one, f"{file}, agent {number}", file.parent) for number, one in enumerate(found, 1)]


def _place(table: object, where: str, beside: Path) -> Place:
    known = ("name", "url", "token", "token-file", "certificate")
    if not isinstance(table, dict) or not all(k in known and isinstance(v, str) for k, v in table.items()):
        raise InputError(f"{where}: expected {', '.join(known)}, each as text, got {table!r:.200}.")
    url = table.get("url", "").rstrip("/")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and not parts.username
        good = good and not (parts.query or parts.fragment) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise InputError(f'{where}: expected url = "https://host:port", got {url!r:.200}.')
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise InputError(
            f"{where}: expected https, since a token in {url} could be read on the way: start that topdp "
            "dash with --certificate and --key, or bring its port here with ssh -L."
        )
    token = table.get("token")
    if "token-file" in table:
        path = beside / table["token-file"]
        if not path.exists():
            raise InputError(f"{where}: expected a token in {path}, there is no such file.")
        token = token_from(path, "")
    certificate = beside / table["certificate"] if "certificate" in table else None
    if certificate is not None and not certificate.is_file():
        raise InputError(f"{where}: expected a certificate in {certificate}, there is no such file.")
    return Place(url, token, table.get("name"), certificate)


class Federation:
    """What was last heard of every place."""

    def __init__(self, places: Iterable[Place]) -> None:
        self.places = list(places)
        self._heard = [_Heard() for _ in self.places]

    def view(self, own: Iterable[dict[str, Any]], now: float | None = None) -> dict[str, Any]:
        """All published agents, `own` ones included, and every place with how long ago it was heard."""
        now = time.time() if now is None else now
        agents = [{**agent, "place": None, "age": 0.0} for agent in own]
        places = []
        for place, heard in zip(self.places, self._heard, strict=True):
            age = None if heard.at is None else max(0.0, now - heard.at)
            shown = {"url": place.url, "name": place.name, "age": age, "problem": heard.problem}
            places.append(shown)
            agents += [
                {**agent, "place": place.url, "age": age, "lost": heard.problem} for agent in heard.agents
            ]
        return {"agents": agents[:SHOWN], "places": places}

    async def run(self, events: Events) -> None:
        """Asks every place again and again, each at its own pace, until cancelled; tells of what has changed.

        In threads of their own: places that do not answer keep nobody waiting but each other.
        """
        if not self.places:
            return
        with ThreadPoolExecutor(min(THREADS, len(self.places)), "federation") as threads:
            try:
                async with asyncio.TaskGroup() as group:
                    for number in range(len(self.places)):
                        group.create_task(self._keep_asking(number, threads, events))
            finally:
                threads.shutdown(wait=False, cancel_futures=True)

    async def _keep_asking(self, number: int, threads: ThreadPoolExecutor, events: Events) -> None:
        heard, place = self._heard[number], self.places[number]
        loop = asyncio.get_running_loop()
        while True:
            before = (heard.agents, heard.problem)
            try:
                heard.agents = await loop.run_in_executor(threads, ask, place)
                heard.at, heard.problem = time.time(), None
            except NoAnswerError as error:
                heard.problem = str(error)
            except Exception as error:  # a fault of ours is not the last question
                logger.exception("could not ask %s", place.url)
                heard.problem = f"a fault of ours: {type(error).__name__}"
            if (heard.agents, heard.problem) != before:
                events.tell("federation", {})
            await asyncio.sleep(EVERY if heard.problem is None else 3 * EVERY)


def ask(place: Place) -> list[dict[str, Any]]:
    """What is published at a place, now."""
    body = fetched(place.url + PUBLISHED, place.token, place.certificate)
    try:
        found = PublishedAgents.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:80]
        raise NoAnswerError(f"what it published cannot be read: {where}: {first['msg']}") from error
    names = [agent.name for agent in found.agents]
    if place.name is not None and names != [place.name]:
        raise NoAnswerError(f"expected {place.name} there, got {', '.join(names)[:80] or 'nobody'}")
    return [json.loads(agent.model_dump_json()) for agent in found.agents]
