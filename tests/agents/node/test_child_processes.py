"""What a demonstration has started ends with it: whoever asks, and also where nobody can ask any more."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

import pytest
from sites import free_address

from topdp.agents.development import child_processes, federation_demo
from topdp.errors import ExitCode, Interrupted

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for processes by their number")


class Child:
    """A small process that looks like one of `multiprocessing`, whose own take a second to start."""

    def __init__(self, command="exec sleep 60"):
        self._process = subprocess.Popen(["sh", "-c", f"{command} >&-"], stdout=subprocess.PIPE)
        self._process.stdout.read()  # it is past its trap
        self._process.stdout.close()
        self.sentinel = os.pidfd_open(self._process.pid)
        self.terminate, self.kill = self._process.terminate, self._process.kill

    @property
    def exitcode(self):
        return self._process.poll()

    def join(self, timeout=None):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        if self.exitcode is not None:
            os.close(self.sentinel)


def test_who_does_not_end_is_killed(monkeypatch):
    monkeypatch.setattr(child_processes, "CHILD_SHUTDOWN_SECONDS", 0.3)
    said = []
    process = Child("trap '' TERM; exec sleep 60")
    began = time.monotonic()
    assert child_processes.terminate_all({0: process}, ["ada"], said.append) == {0: -9}
    assert time.monotonic() - began < 30 and "ada did not end" in said[0]


@pytest.fixture
def heard():
    """Nothing is ignored, also where the tests are run under `nohup`."""
    before = {one: signal.signal(one, signal.default_int_handler) for one in child_processes.END_SIGNALS}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.mark.parametrize("number", child_processes.END_SIGNALS)
def test_a_signal_ends_the_agents_of_a_demonstration_and_then_itself(number, heard, tmp_path, monkeypatch):
    """It comes while they are being started: one is there, the other is not."""
    made = []

    def start(command, log, **variables):
        made.append(Child())
        if len(made) == 1:
            os.kill(os.getpid(), number)
        return made[-1]

    monkeypatch.setattr(child_processes, "start", start)
    before = [signal.getsignal(one) for one in child_processes.END_SIGNALS]
    with pytest.raises(Interrupted, match=signal.Signals(number).name) as stopped:
        federation_demo.run_processes(tmp_path, ["ada", "bob"])
    assert stopped.value.code == ExitCode.INTERRUPTED
    assert [process.exitcode for process in made] == [-signal.SIGTERM] * 2
    assert [signal.getsignal(one) for one in child_processes.END_SIGNALS] == before


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with child_processes.note_end_signals() as received:
            os.kill(os.getpid(), signal.SIGHUP)
            child_processes.expect_no_signal(received)
            assert received == []
    finally:
        signal.signal(signal.SIGHUP, before)


PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from topdp.agents.development import child_processes

if __name__ == "__main__":
    child_processes.PRELOADED_MODULES = ()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as some who start it do: its children have it from there
    child = child_processes.start(["relay", "--listen", sys.argv[1]], Path(sys.argv[2]))
    print(child.pid, flush=True)
    time.sleep(60)
"""


def test_a_child_of_a_killed_parent_ends(tmp_path):
    program, log = tmp_path / "program.py", tmp_path / "log"
    program.write_text(PROGRAM)
    command = [sys.executable, program, free_address(), log]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        process = os.pidfd_open(child)
        parent.kill()
    try:
        assert select.select([process], [], [], 60)[0], "it outlived its parent"
    finally:
        os.close(process)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
