"""Live pages for tests: a server in a thread on a free port, small runs, and ledgers of small agents."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx

from builders import blobs_file
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_entries import ReleaseCost
from topdp.agents.node.agent_status import ProcessStatus, process_birth
from topdp.agents.node.node_monitor import NodeMonitor
from topdp.agents.node.operator_orders import PAUSE_FILE, OperatorOrders
from topdp.runs import config
from topdp.runs.run import run
from topdp.views.live.live_app import Dash, application
from topdp.views.live.live_server import bound_socket, serve
from topdp.views.live.page_access import Access

sys.path.append(str(Path(__file__).parents[2] / "agents"))  # the tests of agents define small federations

from history import Wire, federation

PATIENCE = 20.0  # seconds to wait for anything; an idle machine needs less


@contextmanager
def served(paths, port=0, federation=None, certificate=None, key=None, **access):
    """The address, the `Dash` and `client`, an httpx client of the server."""
    dash = Dash([path.resolve() for path in paths], federation)
    sock = bound_socket("127.0.0.1", port)
    stop = []
    app = application(dash, Access(**access))
    thread = threading.Thread(
        target=lambda: asyncio.run(serve(app, dash, sock, certificate, key, on_start=stop.append)),
        daemon=True,
    )
    thread.start()
    url = f"http{'s' if certificate else ''}://127.0.0.1:{sock.getsockname()[1]}"
    believed = ssl.create_default_context(cafile=certificate) if certificate else True
    try:
        with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False, verify=believed) as client:
            assert client.get("/static/dash.css").status_code == 200
            yield SimpleNamespace(url=url, dash=dash, client=client, port=sock.getsockname()[1])
    finally:
        stop[0]()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server has not ended"
        sock.close()


class directly:  # noqa: N801 - a context like `served`
    """An httpx client of an application without a server, under the name `host`. Nothing runs beside it."""

    def __init__(self, app, host="127.0.0.1"):
        self._runner = asyncio.Runner()
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{host}")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._runner.run(self._client.aclose())
        self._runner.close()

    def request(self, method, path, **options):
        return self._runner.run(self._client.request(method, path, **options))

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def post(self, path, **options):
        return self.request("POST", path, **options)


def until(condition, what="it"):
    """Waits until `condition` returns something, and returns it."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {PATIENCE} s for {what}")


def small(tmp_path, **changes):
    """The configuration of a run that takes less than a second."""
    data = blobs_file(tmp_path / "blobs.npz", 60)
    settings = {
        "topology.agents": 4,
        "topology.kind": "ring",
        "rounds": 6,
        "privacy.epsilon": 2.0,
        "train.evaluate_every": 1,
        "train.checkpoint_every": 1,
        "data.name": str(data),
        **changes,
    }
    return config.read(None, None, [f"{key}={_toml(value)}" for key, value in settings.items()])


def _toml(value):
    return f'"{value}"' if isinstance(value, str) else str(value)


def run_in(folder, *callbacks, **changes):
    folder.parent.mkdir(parents=True, exist_ok=True)
    return run(small(folder.parent, **changes), folder, callbacks=callbacks)


def books(folder, name="ada", federation="federation", releases=3, peers=("bob",)):
    """The state folder of an agent after some releases."""
    ledger = Ledger(folder, federation, name)
    for round in range(releases):
        ledger.release(
            round, ReleaseCost(0.125, 0.25 * (round + 1), 0.1), dict.fromkeys(peers, b"parameters"), b"state"
        )
    for peer in peers:
        ledger.store_row(peer, 0, "digest", b"parameters")
    ledger.close()
    return folder


def standing(folder, **changes):
    """Writes a status file, as a process of this test would."""
    facts = {
        "process": os.getpid(),
        "begun": process_birth(os.getpid()),
        "written": time.time(),
        "state": "waits",
    }
    found = {"round": 2, "rounds": 8, "budget": 1.0, "heard": {"bob": time.time()}}
    ProcessStatus(**{**facts, **found, **changes}).write(folder)


@contextmanager
def living_federation(folder, agents=3, rounds=6):
    """Agents that learn together in a thread until the end, over links in memory, each with its monitor.

    All are paused from the start; `resume` lets them continue.
    """
    made = federation(folder, agents=agents, rounds=rounds, idle_timeout=60.0)
    orders = [OperatorOrders(made.state(number)) for number in range(agents)]
    for one in orders:
        one.folder.mkdir(parents=True)
        one.give(PAUSE_FILE)

    async def life(number, wire):
        agent = made.agent(number, wire.transport(made.names[number]))
        monitor = NodeMonitor(agent, orders[number], agent.stop, report=0)
        beside = asyncio.create_task(monitor.run())
        try:
            await agent.run()
        finally:
            beside.cancel()
            monitor.end(0)
            agent.ledger.close()

    async def all_of_them():
        wire = Wire()
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for number in range(agents):
                group.create_task(life(number, wire))

    thread = threading.Thread(target=lambda: asyncio.run(all_of_them()), daemon=True)
    thread.start()
    resume = lambda: [one.withdraw(PAUSE_FILE) for one in orders]  # noqa: E731
    try:
        yield SimpleNamespace(resume=resume, names=made.names, states=[one.folder for one in orders])
    finally:
        resume()
        thread.join(60)


class Held:
    """A callback that pauses a run after some round until the test lets it continue."""

    def __init__(self, round):
        self.round, self.reached, self.go = round, threading.Event(), threading.Event()

    def on_round(self, run):
        if run.round == self.round:
            self.reached.set()
            assert self.go.wait(60)
