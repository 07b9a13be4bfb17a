"""The application of the live page: pages, their numbers, and events. `page_access` checks access.

    /                     all runs and agents             /api/runs
    /runs/ID              one run                         /api/runs/ID/facts
    /compare?run=ID...    several runs                    the same, for each run
    /agents/ID            an agent's links and ledger     /api/agents/ID
    /federation           what agents publish             /api/federation, /api/published
                          changes                         /api/events

**Guarantees.** Neither parameters nor data are read. Requests cannot change anything. They cannot access
anything outside the folders that the user names, because a request contains the id of a source in them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from topdp.runs.run_folder import RunFolder
from topdp.views.live import page_access
from topdp.views.live.agent_page import agent_view, published
from topdp.views.live.disk_watch import AnswerCache, DiskWatch
from topdp.views.live.federation_page import FederationFeed
from topdp.views.live.live_sources import LiveSource, SourceKind
from topdp.views.live.page_events import Events, EventStream, TooManyListeners
from topdp.views.live.planner_page import planner_routes
from topdp.views.pages.page_assets import live_page
from topdp.views.pages.run_facts import run_facts

MAX_COMPARED_RUNS = 12
PROBLEM = "problem"
STATIC_FOLDERS: list[str | tuple[str, str]] = [
    ("topdp.views.pages", "static"),
    ("topdp.views.live", "static"),
]


class Dash:
    """The routes of the live page and their shared state."""

    def __init__(self, paths: Sequence[Path], federation: FederationFeed | None = None) -> None:
        self.watch = DiskWatch(paths)
        self.events = Events()
        self.federation = federation or FederationFeed([])
        self.answers = AnswerCache(_facts)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Watch the disk and poll the federation while the server runs."""
        await asyncio.to_thread(self.watch.scan)
        tasks = [asyncio.create_task(task.run(self.events)) for task in (self.watch, self.federation)]
        try:
            yield
        finally:
            self.events.close()
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)

    # Pages

    async def fixed(self, kind: str, request: Request) -> Response:
        return self._page(kind)

    async def one(self, kind: SourceKind, request: Request) -> Response:
        source = self._source(request, kind)
        return self._page(kind, id=source.id, name=source.name)

    async def compare(self, request: Request) -> Response:
        ids = dict.fromkeys(request.query_params.getlist("run"))
        runs = [source for id in ids if (source := self.watch.source(id, "run")) is not None]
        if not 2 <= len(runs) <= MAX_COMPARED_RUNS or len(runs) < len(ids):
            raise HTTPException(
                404, f"Expected 2 to {MAX_COMPARED_RUNS} existing runs to compare. Choose them in the list."
            )
        return self._page("compare", ids=[run.id for run in runs], runs=runs)

    def _page(self, kind: str, **facts: object) -> Response:
        return HTMLResponse(live_page(f"{kind}.html", kind=kind, **{"planner": True, **facts}))

    # Numbers

    async def listed(self, request: Request) -> Response:
        sources, places = self.watch.summaries(), len(self.federation.places)
        return JSONResponse({"sources": sources, "cut": self.watch.cut, "places": places})

    async def facts(self, kind: SourceKind, request: Request) -> Response:
        body = await run_in_threadpool(self.answers.get, self._source(request, kind))
        return Response(body, media_type="application/json")

    async def published(self, request: Request) -> Response:
        return JSONResponse({"agents": await run_in_threadpool(self._own)})

    async def federation_view(self, request: Request) -> Response:
        own = await run_in_threadpool(self._own)
        return JSONResponse(self.federation.view(own))

    def _own(self) -> list[dict[str, Any]]:
        views = [json.loads(self.answers.get(source)) for source in self.watch.sources("agent")]
        return [published(view) for view in views if PROBLEM not in view]  # an agent's page shows its problem

    # Events

    async def changes(self, request: Request) -> Any:
        # Visitors on one machine share an address; the names of their browsers tell them apart.
        visitor = f"{request.client.host if request.client else ''} {request.headers.get('user-agent', '')}"
        try:
            return EventStream(self.events, visitor)
        except TooManyListeners as error:
            code = 429 if error.by_visitor else 503
            return JSONResponse({PROBLEM: str(error)}, code, {"retry-after": "10"})

    def _source(self, request: Request, kind: SourceKind) -> LiveSource:
        source = self.watch.source(request.path_params["id"], kind)
        if source is None:
            raise HTTPException(404)
        return source

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", partial(self.fixed, "home")),
            Route("/runs/{id}", partial(self.one, "run")),
            Route("/compare", self.compare),
            Route("/agents/{id}", partial(self.one, "agent")),
            Route("/federation", partial(self.fixed, "federation")),
            Route("/api/runs", self.listed),
            Route("/api/runs/{id}/facts", partial(self.facts, "run")),
            Route("/api/agents/{id}", partial(self.facts, "agent")),
            Route("/api/federation", self.federation_view),
            Route(page_access.PUBLISHED_PATH, self.published),
            Route("/api/events", self.changes),
            Mount(page_access.STATIC_PATH, StaticFiles(packages=STATIC_FOLDERS)),
            *planner_routes,
        ]


def application(dash: Dash, access: page_access.Access, secure: bool = False) -> page_access.PageGuard:
    """Return the application to serve: the routes of `dash`, protected by a PageGuard."""
    handlers: Any = {HTTPException: _error_response}
    app = Starlette(routes=dash.routes(), lifespan=dash.lifespan, exception_handlers=handlers)
    return page_access.PageGuard(app, access, secure)


def _facts(source: LiveSource) -> dict[str, Any]:
    return run_facts(RunFolder.open(source.path)) if source.kind == "run" else agent_view(source.path)


async def _error_response(request: Request, error: HTTPException) -> Response:
    words = error.detail
    if error.status_code == 404 and "Expected" not in words:
        words = "There is nothing by this name. It may have been removed; the list has all runs and agents."
    refusal = page_access.Refusal(error.status_code, "Not found", words)
    return page_access.refusal_response(refusal, request.url.path)
