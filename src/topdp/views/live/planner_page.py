"""The page on which a setting is planned: a form, and answers as they are computed. No data, no torch.

A question is a POST of what was filled in; the answer is one JSON object a line: first what is known at once,
then what takes longer, the recommendation, and `done`. Nothing is kept but what observers see at unit noise.

One question of a page at a time: the next one ends the one before, and so does leaving the page. Questions
are computed by a few threads; each looks after every observer whether it is still wanted, and stops.
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
from topdp.runs.planner.observer_cache import ObserverCache
from topdp.runs.planner.planner_form import FORM_FIELDS, FormError, as_command, as_toml, asked, faults
from topdp.runs.planner.setting_answers import PlannerQuestion, recommendation, stages
from topdp.views.live.page_templates import page
from topdp.views.terminal.planned_table import lines, remarks

LONGEST = 20_000  # bytes of a question
ASKING = 10.0  # seconds to send one
AT_ONCE = 2  # questions that are computed at the same time
WAITING = 16  # questions, those included
PATIENCE = 120.0
"""Seconds after which an answer is given up: a page is for looking around, a command for waiting."""

STYLES = ("topdp.css", "dash.css", "planner.css")
SCRIPTS = ("tables.js", "planner.js")

Say = Callable[[dict[str, Any]], None]


class Abandoned(Exception):  # noqa: N818 - a state, not a fault
    """Nobody waits for the answer any more."""


class Asked:
    """One question on its way: whether it is still wanted, and until when."""

    def __init__(self) -> None:
        self.abandoned = threading.Event()
        self.until = time.monotonic() + PATIENCE

    def check(self) -> None:
        if self.abandoned.is_set():
            raise Abandoned
        if time.monotonic() > self.until:
            raise InputError(
                f"This takes longer than {PATIENCE:.0f} s, which a page does not wait for: the command "
                "below, with plan in the place of run, does."
            )


class Desk:
    """Where questions are handed in. One for a server."""

    def __init__(self) -> None:
        self.memory = ObserverCache()
        self.current: dict[str, Asked] = {}
        self.threads = ThreadPoolExecutor(AT_ONCE, "planner")

    async def answers(self, client: str, values: Mapping[str, object]) -> AsyncIterator[str]:
        """Lines of JSON; who asks again under the same name ends this one."""
        if before := self.current.pop(client, None):
            before.abandoned.set()
        if len(self.current) >= WAITING:
            yield _line({"problem": "Too many questions are being answered here: ask again in a moment."})
            return
        mine = self.current[client] = Asked()
        loop, said = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any] | None]()

        def say(told: dict[str, Any] | None) -> None:
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(said.put_nowait, told)

        self.threads.submit(self._work, mine, values, say)
        try:
            while (told := await said.get()) is not None:
                yield _line(told)
        finally:
            mine.abandoned.set()
            if self.current.get(client) is mine:
                del self.current[client]

    def _work(
        self, mine: Asked, values: Mapping[str, object], say: Callable[[dict[str, Any] | None], None]
    ) -> None:
        try:
            mine.check()
            answer(asked(values), values, self.memory, mine.check, say)
        except Abandoned:
            pass
        except TopdpError as error:
            wrong = error if isinstance(error, FormError) else faults(error)
            say({"problem": str(wrong), "fields": wrong.fields})
        except MemoryError:
            say({"problem": "Not enough memory for this question: ask for fewer agents or rounds."})
        except Exception as error:
            say({"problem": f"A fault of ours: {type(error).__name__}."})
            raise
        finally:
            say(None)


def answer(
    question: PlannerQuestion,
    values: Mapping[str, object],
    memory: ObserverCache,
    check: Callable[[], None],
    say: Say,
) -> None:
    """Says all that is known of a setting, as it becomes known; `check` ends it by an exception."""

    def progress(stage: str, done: int = 0, total: int | None = None, /, **details: Any) -> None:
        check()
        if total is not None:
            say({"progress": [done, total]})

    changes = as_command(values)
    given = [part for change in changes for part in ("--set", change)]
    say({"toml": as_toml(question.asked), "command": shlex.join(["topdp", "run", *given])})
    advised = False
    for known in stages(question, False, progress, memory):
        check()
        rows = [[name, *cells] for name, cells in lines([known])]
        left = known["seconds_left"]
        say({"lines": rows, "remarks": remarks(known), "pending": known["pending"], "seconds_left": left})
        if not advised:  # it takes less time than what may be to come
            say({"recommended": recommendation(question, given, progress, memory)})
            advised = True
    say({"done": True})


async def show(request: Request) -> Response:
    return HTMLResponse(
        page("plan.html", kind="plan", planner=True, fields=FORM_FIELDS, styles=STYLES, scripts=SCRIPTS)
    )


DESK = Desk()


async def ask(request: Request) -> Response:
    """A body of {"client": a name of the page's own, "values": {key: text}}."""
    body = b""
    try:
        async with asyncio.timeout(ASKING):
            async for part in request.stream():
                body += part
                if len(body) > LONGEST:
                    return JSONResponse({"problem": f"Expected at most {LONGEST} bytes."}, 413)
    except TimeoutError:
        return JSONResponse({"problem": f"Expected a question within {ASKING:.0f} s."}, 408)
    try:
        told = json.loads(body)
        client, values = told["client"], told["values"]
        if not (isinstance(client, str) and 0 < len(client) <= 64 and isinstance(values, dict)):
            raise ValueError
    except (ValueError, TypeError, KeyError, RecursionError):
        return JSONResponse({"problem": 'Expected {"client": "a name", "values": {"key": "text"}}.'}, 400)
    return StreamingResponse(DESK.answers(client, values), media_type="application/x-ndjson")


def _line(told: dict[str, Any]) -> str:
    return json.dumps(told, allow_nan=False) + "\n"


planner_routes = [Route("/plan", show), Route("/api/plan", ask, methods=["POST"])]
"""What the live page takes in."""
