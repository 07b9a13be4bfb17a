"""Runs one federation under one schedule of faults, in virtual time, and reports everything that went wrong.

    verdict = run("sync-wait", seed=7)        # verdict.faults is empty, or describes what happened

The conditions are in `checks`. Agents and ledgers are real; clock, network and disk are simulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import shutil
import sqlite3
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import torch
from history import Crash

from faults import checks
from faults.clock import FaultyLoop, Process, end_all
from faults.disk import disks
from faults.jobs import prepared
from faults.network import Network
from faults.schedules import Kill, Schedule, drawn
from topdp.agents.development.development_hooks import Failpoints
from topdp.agents.ledger import ledger_database
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.runtime import live_pairing_loop
from topdp.errors import TopdpError, TrustError

BOUND = 240.0  # virtual seconds after all has healed in which nobody does a round, starts or ends: all stuck
LONGEST = 4000.0  # virtual seconds that any run may take
LEFT = "left waiting"
TO_STOP = 60.0  # virtual seconds in which an agent that is asked to end must end
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())


@dataclass
class Verdict:
    """The result of one schedule."""

    schedule: Schedule
    faults: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    starts: int = 0
    kills: int = 0
    seconds: float = 0.0  # virtual
    left: list[str] = field(default_factory=list)  # agents that waited until they were stopped
    codes: dict[str, int | None] = field(default_factory=dict)  # None: waited until it was stopped


class Injector:
    """One run. `lost`: the entries of ledgers that were replaced by an old copy, for the checks."""

    def __init__(self, job, schedule, loop, say):
        self.job, self.schedule, self.loop, self.say = job, schedule, loop, say
        chance = random.Random(f"network {schedule.seed}")
        self.network = Network(loop, schedule, chance, job.idle_timeout, say)
        self.processes: list[Process] = []
        self.running: dict[str, tuple[Process, object]] = {}  # process and agent, once it has one
        self.outcomes, self.gone, self.faults = {}, {}, []
        self.lost: dict[str, list] = {}
        self.too_late = False  # a ledger was put back after another agent had ended
        self.copies: dict[str, Path] = {}
        self.full: dict[str, str] = {}
        self.had_full: set[str] = set()
        self.kills = 0
        self.starts = Counter()  # by number of the agent
        self.last_call = False

    @property
    def federation(self):
        return self.job.made

    async def run(self):
        events = [self.loop.create_task(self._event(*event)) for event in self._events()]
        keepers = {
            name: self.loop.create_task(self._keep(number, name))
            for number, name in enumerate(self.job.names)
        }
        for task in keepers.values():
            task.add_done_callback(self._noticed)
        await self._until_all_end(keepers)
        for task in [*events, *keepers.values()]:
            task.cancel()
        await asyncio.gather(*events, *keepers.values(), return_exceptions=True)

    def _noticed(self, task):
        if not task.cancelled() and task.exception() is not None:
            self.faults.append(f"the injector itself: {task.exception()!r}")

    async def _until_all_end(self, keepers):
        """Waits for all agents; stops those that may wait for ever, and reports the others."""
        alone_since, standing, moved = None, None, 0.0
        while left := [name for name, task in keepers.items() if not task.done()]:
            await asyncio.wait([keepers[name] for name in left], timeout=2.0)
            left = [name for name in left if not keepers[name].done()]
            now, healed = self.loop.now, self._is_healed()
            if self._standing() != standing:
                standing, moved, alone_since = self._standing(), now, None
            may_wait = healed and all(self._may_wait(name) for name in left)
            alone_since = (alone_since or now) if may_wait else None
            late = now > LONGEST or now > max(self.schedule.heals_at, moved) + BOUND
            if left and (late or (alone_since is not None and now > alone_since + 4 * self.job.idle_timeout)):
                if not may_wait:
                    stuck = ", ".join(f"{name} ({self._stands(name)})" for name in left)
                    self.faults.append(f"deadlock: at {now:.0f} s have not ended: {stuck}")
                await self._stop_all(left, keepers)
                return

    async def _stop_all(self, left, keepers):
        self.last_call = True
        for name in left:
            if name in self.running and self.running[name][1] is not None:
                self.running[name][1].stop()
        await asyncio.wait([keepers[name] for name in left], timeout=TO_STOP)
        self.faults += [
            f"{name} does not end when it is asked to" for name in left if not keepers[name].done()
        ]

    def _is_healed(self):
        return self.loop.now > self.schedule.heals_at

    def _standing(self):
        """A value that changes whenever any agent makes progress."""
        rounds = {name: agent.ledger.round for name, (_, agent) in self.running.items() if agent is not None}
        return rounds, sorted(self.running), self.starts.total(), self.kills

    def _may_wait(self, name):
        """Whether the rules let `name` wait for ever.

        An agent may wait for an agent that is gone for good, if that is the rule, and for rows that an old
        copy lacks and that finished agents cannot send again. If all others have finished or are given up, it
        may wait to hear any of them. With pair noise and before its run has begun, it may wait for statements
        of an agent that has left. After it has written its result, it may wait because the last message of a
        neighbour was lost, which nobody can rule out.
        """
        if (self.gone or self.too_late) and not self.job.job.tolerates_silence:
            return True
        agent, ended = self.running.get(name, (None, None))[1], {*self.outcomes, *self.gone}
        if agent is None:
            return False
        if agent.shared_draws is not None and not agent.shared_draws.notices.has_begun:
            return bool(ended.intersection(agent.shared_draws.missing_agents()))
        ended |= {*agent.peers.excluded_by, *filter(agent.peers.is_excluded, agent.peers.neighbours)}
        may = self.job.job.tolerates_silence or agent.loop.all_done
        return may and ended.issuperset(agent.peers.neighbours)

    def _stands(self, name):
        agent = self.running.get(name, (None, None))[1]
        if agent is None:
            return "not started"
        silent = {peer: ticks for peer, ticks in agent.peers.silent_ticks.items() if ticks}
        return f"round {agent.ledger.round}, silent: {silent}"

    # One agent

    async def _keep(self, number, name):
        """Starts an agent, and starts it again after every kill or stop, until it ends for good."""
        kills = list(self.schedule.kills.get(name, ()))
        while True:
            kill = kills.pop(0) if kills else None
            process = Process(name, self.loop, kill.step if kill and kill.step else None)
            process.disk_full = self.full.get(name, "")
            self.processes.append(process)
            self.running[name] = (process, None)
            self.starts[number] += 1
            self.say(f"{name} starts")
            task = process.spawn(self._life(number, process, kill))
            timer = self.loop.call_later(kill.after, process.kill) if kill and kill.after else None
            await asyncio.wait({task, process.died}, return_when=asyncio.FIRST_COMPLETED)
            if timer is not None:
                timer.cancel()
            self.network.gone(process)
            _, agent = self.running.pop(name)
            if process.dead:
                self.kills += 1
                self.say(f"{name} is killed {self._how(kill)}")
                if agent is not None:
                    agent.ledger.close()
                await asyncio.sleep(kill.back_after if kill else 1.0)
                if kill and kill.old_copy:
                    self._put_back(number, name, kill.whole_disk)
            elif self._ended(name, task):
                return
            else:
                await asyncio.sleep(1.0)

    def _how(self, kill):
        return (
            ""
            if kill is None
            else f"({kill.place or (f'step {kill.step}' if kill.step else 'by the clock')})"
        )

    async def _life(self, number, process, kill):
        def die(place):
            process.kill()
            raise Crash(place)

        places = Failpoints(kill.place if kill and kill.place else None, die)
        agent = self.job.agent(number, self.network.transport(process), places, self.schedule.seeded)
        self.running[process.name] = (process, agent)
        if self.last_call:
            agent.stop()
        return await agent.run()

    def _ended(self, name, task):
        """Whether the agent has ended for good."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            outcome = task.result()
            self.say(f"{name} ends with {int(outcome.code)}{'' if outcome.finished else ', asked to'}")
            if outcome.finished:
                self.outcomes[name] = outcome
            elif self.last_call:
                self.gone[name] = LEFT
            return outcome.finished or self.last_call
        self.say(f"{name} ends by {error!r}")
        if isinstance(error, TrustError) and self._may_be_refused(name, error):
            self.gone[name] = str(error)
            return True
        if isinstance(error, TopdpError) and not isinstance(error, TrustError) and name in self.had_full:
            return False  # as its systemd unit does, start it again
        self.faults.append(f"{name} ended by {error!r}")
        self.gone[name] = repr(error)
        return True

    def _may_be_refused(self, name, error):
        left_behind = (
            self.job.job.shares_draws and self.job.job.tolerates_silence and "gone on without" in str(error)
        )
        return name in self.lost or left_behind

    # Faults at a given time

    def _events(self):
        for at, name in self.schedule.ends:
            yield at, self._end, name
        for at, span, name in self.schedule.stops:
            yield at, self._stop, name, span
        for at, by, name in self.schedule.jumps:
            yield at, self._jump, name, by
        for at, span, name, statement in self.schedule.full:
            yield at, self._fill, name, span, statement
        for at, name in self.schedule.copies:
            yield at, self._copy, name

    async def _event(self, at, act, name, *facts):
        await asyncio.sleep(at)
        await act(name, *facts)

    async def _end(self, name):
        process, agent = self.running.get(name, (None, None))
        if agent is None:
            return
        self.say(f"{name} is asked to end")
        agent.stop()
        for _ in range(int(TO_STOP)):
            await asyncio.sleep(1.0)
            if self.running.get(name, (None,))[0] is not process:
                return
        if not process.stopped and not process.dead:
            self.faults.append(f"{name} does not end when it is asked to")

    async def _stop(self, name, span):
        process, _ = self.running.get(name, (None, None))
        if process is not None:
            self.say(f"{name} is stopped")
            process.stop()
            await asyncio.sleep(span)
            process.go_on()

    async def _jump(self, name, by):
        process, _ = self.running.get(name, (None, None))
        if process is not None:
            self.say(f"the clock of {name} jumps by {by:.2f}")
            process.jump(by)

    async def _fill(self, name, span, statement):
        self.say(f"the disk of {name} is full")
        self.full[name] = statement
        self.had_full.add(name)
        with contextlib.suppress(KeyError):
            self.running[name][0].disk_full = statement
        await asyncio.sleep(span)
        self.full[name] = ""
        with contextlib.suppress(KeyError):
            self.running[name][0].disk_full = ""

    async def _copy(self, name):
        state = self.federation.state(self.job.names.index(name))
        if (state / ledger_database.LEDGER_FILE).exists():
            self.copies[name] = state.with_name(f"{name}.copy")
            private = self._private(name)
            shutil.rmtree(private.with_name(f"{name}.copy"), ignore_errors=True)
            if private.exists():
                shutil.copytree(private, private.with_name(f"{name}.copy"))
            with (
                contextlib.closing(sqlite3.connect(state / ledger_database.LEDGER_FILE)) as source,
                contextlib.closing(sqlite3.connect(self.copies[name])) as target,
            ):
                source.backup(target)

    def _private(self, name):
        return self.federation.private(self.job.names.index(name)).folder

    def _put_back(self, number, name, whole_disk):
        state = self.federation.state(number)
        if name not in self.copies or not (state / ledger_database.LEDGER_FILE).exists():
            return
        books = Ledger(state, writable=False)
        self.lost.setdefault(name, []).extend(books.entries())
        self.too_late |= bool(self.outcomes)
        self.say(f"{name} is put back from round {books.round} to an old copy")
        books.close()
        shutil.rmtree(state)
        state.mkdir(mode=0o700)
        shutil.copy(self.copies[name], state / ledger_database.LEDGER_FILE)
        private = self._private(name)
        if whole_disk:
            shutil.rmtree(private, ignore_errors=True)
            if private.with_name(f"{name}.copy").exists():
                shutil.copytree(private.with_name(f"{name}.copy"), private)


@contextlib.contextmanager
def quick():
    """Ledgers without fsync, seeded choices of partners, and no log."""
    seeds = itertools.count()
    silent = logging.getLogger("topdp.agents")
    level, threads = silent.level, torch.get_num_threads()
    silent.setLevel(logging.CRITICAL + 1)
    torch.set_num_threads(1)
    try:
        with (
            mock.patch.object(ledger_database, "SYNCHRONOUS_MODE", "OFF"),
            mock.patch.object(live_pairing_loop, "PARTNER_ORDER", lambda: random.Random(next(seeds))),
            mock.patch("os.fsync", lambda handle: None),
            disks(),
        ):
            yield
    finally:
        silent.setLevel(level)
        torch.set_num_threads(threads)


def schedule_of(name, seed) -> Schedule:
    """The faults under `seed`."""
    job = prepared(name, Path("/nowhere"))
    manifest = job.made.setup.manifest
    links = [(manifest.names[i], manifest.names[j]) for i, j in manifest.topology.edges.tolist()]
    return drawn(job.job, list(manifest.names), links, job.idle_timeout, seed)


def run(name, seed, schedule=None) -> Verdict:
    """Runs the job `name` under one schedule: that of `seed` by default."""
    job = prepared(name, Path("/nowhere"))
    schedule = schedule or schedule_of(name, seed)
    verdict = Verdict(schedule)
    with tempfile.TemporaryDirectory(prefix="faults-", dir=MEMORY) as folder, quick():
        loop = FaultyLoop()
        loop.set_exception_handler(lambda loop, context: None)
        asyncio.set_event_loop(loop)

        def say(words):
            verdict.log.append(f"{loop.now:9.3f} {words.replace(folder, '')}")

        injector = Injector(job.in_folder(Path(folder)), schedule, loop, say)
        try:
            loop.run_until_complete(injector.run())
            verdict.seconds = loop.now
            verdict.faults = injector.faults + checks.wrong(injector)
            verdict.left = [name for name, why in injector.gone.items() if why == LEFT]
            verdict.starts, verdict.kills = injector.starts.total(), injector.kills
            verdict.codes = {
                n: int(injector.outcomes[n].code) if n in injector.outcomes else None for n in job.names
            }
        finally:
            loop.run_until_complete(end_all(injector.processes))
            asyncio.set_event_loop(None)
            loop.close()
    return verdict


def unbroken(name) -> Schedule:
    """A schedule without faults."""
    return Schedule(f"{name} unbroken", delay=0.05)


__all__ = ["Kill", "Schedule", "Verdict", "run", "unbroken"]
