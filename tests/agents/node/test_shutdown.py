"""Tests that an agent that is asked to stop ends within a stated time, whatever blocks it."""

import asyncio
import contextlib
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from history import Wire, federation, on_virtual_time
from sites import run

from topdp.agents.runtime import agent as agents
from topdp.agents.wire import transport

PROGRAM = """
import asyncio, sys, time
from topdp.agents.node import agent_log, shutdown
agent_log.log_to_stderr(False)
shutdown.AGENT_SHUTDOWN_SECONDS, shutdown.BLOCKED_LOOP_SECONDS = {limit}, 0.3

async def hangs_here():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

async def main():
    ends = shutdown.Shutdown(lambda: print("asked", flush=True), lambda: print("closed", flush=True))
    ends.listen()
    task = asyncio.create_task(hangs_here())
    print("ready", flush=True)
    if {blocked}:
        await asyncio.sleep(0.2)
        ends.ask(15)
        time.sleep(60)
    await task

asyncio.run(main())
"""


def started(limit=0.3, blocked=False):
    program = PROGRAM.format(limit=limit, blocked=blocked)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", program], **pipes)
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_task_that_hangs_is_named_and_the_process_ends_with_a_closed_ledger():
    process = started()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and out.split() == ["asked", "closed"]
    assert "hangs_here" in err and "did not end within 0.3 s" in err


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(second):
    process = started(limit=1000)
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "asked\n"
    process.send_signal(second)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and out.split() == ["closed"]
    assert f"second signal ({second.name})" in err


def test_a_thread_ends_the_process_if_the_event_loop_is_blocked():
    process = started(blocked=True)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "closed" not in out
    assert "time.sleep(60)" in err or "in main" in err


def test_a_stop_interrupts_a_long_round(tmp_path, quick):
    """A request without an answer waits as long as the link's timeout; a stop does not wait for that."""
    made = federation(tmp_path, agents=2, rounds=3)

    async def body():
        agent = made.agent(0, Wire().transport(made.names[0]))

        async def long():
            await asyncio.sleep(1000)

        agent.loop._next_round = long
        running = asyncio.create_task(agent.run())
        await asyncio.sleep(1)
        agent.stop()
        outcome = await running
        assert not outcome.finished and outcome.code == 0
        return asyncio.get_running_loop().time()

    assert on_virtual_time(body()) < 1 + 2 * agents.STOP_GRACE_SECONDS


def test_tasks_that_do_not_end_are_named_and_left_behind(monkeypatch, caplog):
    monkeypatch.setattr(transport, "ENDING_SECONDS", 0.05)
    over = asyncio.Event()

    async def stubborn():
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()

    async def body():
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        await transport.end_all([task], "a test")
        assert not task.done()
        over.set()
        await task

    run(body())
    assert "stubborn" in caplog.text and "did not end" in caplog.text


@pytest.mark.slow
def test_real_agents_end_when_asked_to_stop(capsys):
    """Runs two of the stops of `benchmarks/stops.py`: at random moments, over real links."""
    stops = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "stops.py"))
    assert stops["main"](["--stops", "2", "--seed", "1"]) == 0
    assert "codes [0]" in capsys.readouterr().out
