"""The planner page: a form for a setting, and its answers as they are computed. Needs neither data nor torch.

A request is a POST of the form. The response has one JSON object per line: quick answers first, then slower
ones, the recommendation, and `done`. Only what observers see at unit noise is cached.

A page has one request at a time: the next request cancels the previous one, and so does leaving the page. A
few threads compute the answers; after every observer they check whether the request is cancelled.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from topdp.errors import InputError, TopdpError
from topdp.runs.epsilon_text import answer_words
from topdp.runs.planner import planner_form
from topdp.runs.planner.observer_cache import ObserverCache
from topdp.runs.planner.setting_answers import PlannerQuestion, recommendation, stages
from topdp.views.pages.page_assets import live_page
from topdp.views.terminal.gains_table import GAIN_HEADERS, GAINS_CAPTION, gain_rows
from topdp.views.terminal.planned_table import lines, remarks

MAX_REQUEST_BYTES = 20_000
PLAN_REQUEST_SECONDS = 10.0  # a page must send a request within this time
PLANNER_THREADS = 2
MAX_PLAN_REQUESTS = 16  # requests that wait or are being computed
MAX_ANSWER_SECONDS = 120.0
"""The time after which the page stops computing an answer. The command line has no such limit."""


Send = Callable[[dict[str, Any]], None]


class Cancelled(Exception):  # noqa: N818 - a state, not a fault
    """The request was cancelled."""


class PlanRequest:
    """A request in progress, with its deadline."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.until = time.monotonic() + MAX_ANSWER_SECONDS

    def check(self) -> None:
        """Raise Cancelled if the request was cancelled, and InputError if its time is over."""
        if self.cancelled.is_set():
            raise Cancelled
        if time.monotonic() > self.until:
            raise InputError(
                f"This setting takes longer than the {MAX_ANSWER_SECONDS:.0f} s that the page allows. Use "
                "the command below, with `topdp plan` instead of `topdp run`."
            )


class PlannerService:
    """The service that answers the requests of all pages of a server."""

    def __init__(self) -> None:
        self.memory = ObserverCache()
        self.current: dict[str, PlanRequest] = {}
        self.threads = ThreadPoolExecutor(PLANNER_THREADS, "planner")

    async def answers(self, client: str, values: Mapping[str, object]) -> AsyncIterator[str]:
        """Yield lines of JSON. A new request of the same client cancels this one."""
        if previous := self.current.pop(client, None):
            previous.cancelled.set()
        if len(self.current) >= MAX_PLAN_REQUESTS:
            yield _line({"problem": "The server is computing too many answers. Try again in a moment."})
            return
        request = self.current[client] = PlanRequest()
        loop, answers = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any] | None]()

        def send(part: dict[str, Any] | None) -> None:
            with suppress(RuntimeError):  # the server has stopped
                loop.call_soon_threadsafe(answers.put_nowait, part)

        self.threads.submit(self._work, request, values, send)
        try:
            while (part := await answers.get()) is not None:
                yield _line(part)
        finally:
            request.cancelled.set()
            if self.current.get(client) is request:
                del self.current[client]

    def _work(
        self,
        request: PlanRequest,
        values: Mapping[str, object],
        send: Callable[[dict[str, Any] | None], None],
    ) -> None:
        try:
            request.check()
            answer(planner_form.question_of(values), values, self.memory, request.check, send)
        except Cancelled:
            pass
        except TopdpError as error:
            problem = planner_form.form_error(error)
            send({"problem": str(problem), "fields": problem.fields})
        except MemoryError:
            send({"problem": "Not enough memory for this setting. Try fewer agents or rounds."})
        except Exception as error:
            send({"problem": f"Internal error: {type(error).__name__}."})
            raise
        finally:
            send(None)


def answer(
    question: PlannerQuestion,
    values: Mapping[str, object],
    memory: ObserverCache,
    check: Callable[[], None],
    send: Send,
) -> None:
    """Send the answers about a setting as they become available. `check` raises an exception to cancel."""

    def progress(stage: str, done: int = 0, total: int | None = None, /, **details: Any) -> None:
        check()
        if total is not None:
            send({"progress": [done, total]})

    options = [part for change in planner_form.as_command(values) for part in ("--set", change)]
    send({"toml": planner_form.as_toml(question.given), "command": shlex.join(["topdp", "run", *options])})
    recommended = False
    for setting in stages(question, False, progress, memory):
        check()
        rows = [[name, *cells] for name, cells in lines([setting])]
        pending = [answer_words(name) for name in setting["pending"]]
        seconds = setting["seconds_left"]
        gains = {"headers": GAIN_HEADERS, "rows": gain_rows(setting["gains"]), "caption": GAINS_CAPTION}
        parts = {"lines": rows, "remarks": remarks(setting), "gains": gains}
        send({**parts, "pending": pending, "seconds_left": seconds})
        if not recommended:  # after the first stage, because later stages may take long
            send({"recommended": recommendation(question, options, progress, memory)})
            recommended = True
    send({"done": True})


async def show_page(request: Request) -> Response:
    files = {"styles": ("topdp.css", "dash.css", "planner.css"), "scripts": ("tables.js", "planner.js")}
    fields = planner_form.FORM_FIELDS
    return HTMLResponse(live_page("plan.html", kind="plan", planner=True, fields=fields, **files))


PLANNER = PlannerService()


async def answer_request(request: Request) -> Response:
    """Answer a body of {"client": a name that the page chose, "values": {key: text}}."""
    body = b""
    try:
        async with asyncio.timeout(PLAN_REQUEST_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_REQUEST_BYTES:
                    return JSONResponse({"problem": f"Expected at most {MAX_REQUEST_BYTES} bytes."}, 413)
    except TimeoutError:
        return JSONResponse({"problem": f"Expected a request within {PLAN_REQUEST_SECONDS:.0f} s."}, 408)
    try:
        content = json.loads(body)
        client, values = content["client"], content["values"]
        if not (isinstance(client, str) and 0 < len(client) <= 64 and isinstance(values, dict)):
            raise ValueError
    except (ValueError, TypeError, KeyError, RecursionError):
        return JSONResponse({"problem": 'Expected {"client": "a name", "values": {"key": "text"}}.'}, 400)
    return StreamingResponse(PLANNER.answers(client, values), media_type="application/x-ndjson")


def _line(part: dict[str, Any]) -> str:
    return json.dumps(part, allow_nan=False) + "\n"


planner_routes = [Route("/plan", show_page), Route("/api/plan", answer_request, methods=["POST"])]
"""The routes of the planner, for the live page."""
