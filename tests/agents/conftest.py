"""Agents of tests pretend to crash, so their books need no fsync; and one thread is enough for small rows."""

import itertools
import random
import signal

import pytest
import torch

from topdp.agents.development import child_processes
from topdp.agents.ledger import ledger_database
from topdp.agents.runtime import live_pairing_loop
from topdp.learning.gradients import ClippedGradients


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(ledger_database, "SYNCHRONOUS_MODE", "OFF")
    seeds = itertools.count()
    monkeypatch.setattr(live_pairing_loop, "PARTNER_ORDER", lambda: random.Random(next(seeds)))
    known = {}  # gradients of one small model: checked once, not once for each agent and restart

    def shared(flat, clip, *kinds, **options):
        key = (flat.dimension, flat.dtype, clip, kinds, *options.items())
        return known.setdefault(key, ClippedGradients(flat, clip, *kinds, **options))

    monkeypatch.setattr("topdp.learning.gradients.clipped_gradients.ClippedGradients", shared)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Mortal:
    """The process of an agent that kills itself at a failpoint; it is then started again, if it can be."""

    def __init__(self, process, start_again, kills):
        self._process, self._start_again, self._kills = process, start_again, kills

    def __getattr__(self, name):
        return getattr(self._process, name)

    @property
    def exitcode(self):
        code = self._process.exitcode
        if code != -signal.SIGKILL:
            return code
        self._kills.append(self._process.pid)
        if self._start_again is None:
            return 0  # the others go on
        self._process, self._start_again = self._start_again(), None
        return None


@pytest.fixture
def killed_at(monkeypatch):
    """`killed_at(agent0="after_ledger:3")` kills an agent of a demonstration there, and starts it again.

    With `for_good=True`, it is not started again. Returns a list of the processes that were killed.
    """
    start = child_processes.start

    def install(for_good=False, **failpoints):
        kills = []

        def start_mortal(command, log, **variables):
            name = log.parent.name
            if name not in failpoints:
                return start(command, log, **variables)
            rehearse = [command[0], "rehearse", *command[2:]]  # the command that has failpoints
            process = start(rehearse, log, **variables, TOPDP_FAILPOINT=failpoints[name])
            return Mortal(process, None if for_good else lambda: start(command, log, **variables), kills)

        monkeypatch.setattr(child_processes, "start", start_mortal)
        return kills

    return install
