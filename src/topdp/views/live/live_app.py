"""The live page as an application: pages, their numbers, and events. Who may see it is `guard`'s to say.

    /                     all runs and agents             /api/runs
    /runs/ID              one run                         /api/runs/ID/facts
    /compare?run=ID...    several runs                    the same, of each
    /agents/ID            an agent's links and ledger     /api/agents/ID
    /federation           what agents publish             /api/federation, /api/published
                          what has changed                /api/events

**Guarantees.** Neither parameters nor data are read. Nothing can be changed from here, and nothing outside
the named folders can be asked for: a page is named by an id that was found there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import mimetypes
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from topdp.errors import TopdpError
from topdp.runs.run_folder import RunFolder
from topdp.views.live.agent_page import agent_view, published
from topdp.views.live.disk_watch import Answers, Watch
from topdp.views.live.event_streams import EventStream
from topdp.views.live.federation_page import Federation
from topdp.views.live.live_sources import Source, expect_plain
from topdp.views.live.page_access import PUBLISHED, Access, Refusal
from topdp.views.live.page_events import Events, TooManyListeners
from topdp.views.live.page_guard import Guard, refused
from topdp.views.live.page_templates import page
from topdp.views.live.planner_page import planner_routes
from topdp.views.pages.run_facts import run_facts

COMPARED = 12  # runs on one page
PROBLEM = "problem"


class Dash:
    """What the routes share."""

    def __init__(self, paths: Sequence[Path], federation: Federation | None = None) -> None:
        self.watch = Watch(paths)
        self.events = Events()
        self.federation = federation or Federation([])
        self.runs = Answers(_facts)
        self.agents = Answers(_view)
        self.static = _static_files()

    @asynccontextmanager
    async def living(self, app: Starlette) -> AsyncIterator[None]:
        """Looks and asks beside the server, and ends with it."""
        await asyncio.to_thread(self.watch.look)
        tasks = [asyncio.create_task(one.run(self.events)) for one in (self.watch, self.federation)]
        try:
            yield
        finally:
            self.events.close()
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)

    # Pages

    async def home(self, request: Request) -> Response:
        return self._page("home.html", "home")

    async def run(self, request: Request) -> Response:
        source = self._source(request, "run")
        return self._page("run.html", "run", id=source.id, name=source.name)

    async def compare(self, request: Request) -> Response:
        asked = dict.fromkeys(request.query_params.getlist("run"))
        found = [source for id in asked if (source := self.watch.source(id, "run")) is not None]
        if not 2 <= len(found) <= COMPARED or len(found) < len(asked):
            raise HTTPException(
                404, f"Expected 2 to {COMPARED} runs of the list to compare: choose them there."
            )
        return self._page("compare.html", "compare", ids=[one.id for one in found], runs=found)

    async def agent(self, request: Request) -> Response:
        source = self._source(request, "agent")
        return self._page("agent.html", "agent", id=source.id, name=source.name)

    async def federated(self, request: Request) -> Response:
        return self._page("federation.html", "federation")

    def _page(self, template: str, kind: str, **facts: object) -> Response:
        given: dict[str, object] = {"id": "", "ids": [], "planner": bool(planner_routes), **facts}
        return HTMLResponse(page(template, kind=kind, **given))

    # Numbers

    async def listed(self, request: Request) -> Response:
        told = {
            "sources": self.watch.summaries(),
            "cut": self.watch.cut,
            "places": len(self.federation.places),
        }
        return JSONResponse({**told, "event": self.events.last})

    async def run_facts(self, request: Request) -> Response:
        return await self._answer(self.runs, self._source(request, "run"))

    async def agent_facts(self, request: Request) -> Response:
        return await self._answer(self.agents, self._source(request, "agent"))

    async def _answer(self, answers: Answers, source: Source) -> Response:
        body = await run_in_threadpool(answers.of, source)
        return Response(body, media_type="application/json")

    async def published(self, request: Request) -> Response:
        return JSONResponse({"agents": await run_in_threadpool(self._own)})

    async def federation_view(self, request: Request) -> Response:
        own = await run_in_threadpool(self._own)
        return JSONResponse(self.federation.view(own))

    def _own(self) -> list[dict[str, Any]]:
        found = []
        for source in self.watch.sources("agent"):
            view = json.loads(self.agents.of(source))
            if PROBLEM not in view:  # else its own page says why
                found.append(published(view))
        return found

    # Events and files

    async def changes(self, request: Request) -> Any:
        after = request.headers.get("last-event-id") or request.query_params.get("after") or None
        # Visitors of one machine have one address: what their programs call themselves tells them apart.
        visitor = f"{request.client.host if request.client else ''} {request.headers.get('user-agent', '')}"
        try:
            return await EventStream.begin(self.events, after, visitor)
        except TooManyListeners as error:
            code = 429 if error.of_one else 503
            return JSONResponse({PROBLEM: str(error)}, code, {"retry-after": "10"})

    async def file(self, request: Request) -> Response:
        found = self.static.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        body, kind, tag = found
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        return Response(body, media_type=kind, headers={"etag": tag})

    def _source(self, request: Request, kind: str) -> Source:
        source = self.watch.source(request.path_params["id"], kind)
        if source is None:
            raise HTTPException(404)
        return source

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", self.home),
            Route("/runs/{id}", self.run),
            Route("/compare", self.compare),
            Route("/agents/{id}", self.agent),
            Route("/federation", self.federated),
            Route("/api/runs", self.listed),
            Route("/api/runs/{id}/facts", self.run_facts),
            Route("/api/agents/{id}", self.agent_facts),
            Route("/api/federation", self.federation_view),
            Route(PUBLISHED, self.published),
            Route("/api/events", self.changes),
            Route("/static/{name}", self.file),
            *planner_routes,
        ]


def application(dash: Dash, access: Access, secure: bool = False) -> Guard:
    """The application that a server serves."""
    app = Starlette(routes=dash.routes(), lifespan=dash.living, exception_handlers={HTTPException: _in_words})
    return Guard(app, access, secure)


def _facts(source: Source) -> dict[str, Any]:
    try:
        expect_plain(source)
        return run_facts(RunFolder.open(source.path))
    except TopdpError as error:
        return {PROBLEM: source.in_words(str(error)), "name": source.name}


def _view(source: Source) -> dict[str, Any]:
    try:
        expect_plain(source)
        return agent_view(source.path)
    except TopdpError as error:
        return {PROBLEM: source.in_words(str(error)), "name": source.name}


async def _in_words(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {
        404: "There is nothing by this name: it may have been removed. All runs and agents are in the list."
    }
    said = error.detail if "Expected" in error.detail else words.get(error.status_code, error.detail)
    return refused(Refusal(error.status_code, "Not found", said), request.url.path)


def _static_files() -> dict[str, tuple[bytes, str, str]]:
    """name -> (bytes, type, tag): the shared parts of pages and those of this room; nothing else."""
    found = {}
    for package in ("topdp.views.pages", "topdp.views.live"):
        for file in files(package).joinpath("static").iterdir():
            if file.name.endswith((".js", ".css", ".svg", ".txt")):
                kind = mimetypes.guess_type(file.name)[0] or "text/plain"
                body = file.read_bytes()
                found[file.name] = (body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found
