"""An event loop in virtual time that knows which agent each step belongs to, so that agents can be killed.

Each agent lives in a `Process`: everything it does, in tasks, callbacks and timers, carries the process in
its context. A killed process makes no further step, not even a `finally`. A stopped process makes its steps
when it continues. After a jump of its clock, timers are due earlier or later.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq

from history import VirtualLoop

TURN = 1e-6  # least lateness of a timer, in seconds: on a clock that stands still a loop might wait for ever

OWNER: contextvars.ContextVar[Process | None] = contextvars.ContextVar("owner", default=None)


class Process:
    """One start of one agent, up to its end or its death."""

    def __init__(self, name, loop, dies_at_step=None):
        self.name, self.loop = name, loop
        self.dead = self.stopped = False
        self.ahead = 0.0  # of its clock, in seconds
        self.disk_full = ""  # the kind of statement that fails
        self.steps, self.dies_at_step = 0, dies_at_step
        self.died = loop.create_future()
        self._held = []
        self._context = contextvars.copy_context()
        self._context.run(OWNER.set, self)

    def spawn(self, coroutine):
        return self.loop.create_task(coroutine, context=self._context.copy())

    def kill(self):
        if not self.dead:
            self.dead = True
            self.died.set_result(None)

    def stop(self):
        """Stops the process, as SIGSTOP does."""
        self.stopped = True

    def go_on(self):
        self.stopped = False
        if not self.dead:
            self._release()

    def jump(self, seconds):
        self.ahead += seconds
        for handle in self.loop._scheduled:
            if handle._context.get(OWNER) is self:
                handle._when -= seconds
        heapq.heapify(self.loop._scheduled)

    def bury(self):
        """Lets the dead continue after the run, so that their tasks end by cancellation."""
        self.dead = self.stopped = False
        self._release()

    def step(self, own, callback, arguments):
        if self.dead or self.stopped:
            self._held.append((own[0], callback, arguments))
            return
        self.steps += 1
        if self.steps == self.dies_at_step:
            self._held.append((own[0], callback, arguments))
            self.kill()
            return
        callback(*arguments)

    def _release(self):
        held, self._held = self._held, []
        for handle, callback, arguments in held:
            if not handle.cancelled():
                self.loop.call_soon(callback, *arguments, context=handle._context)


class FaultyLoop(VirtualLoop):
    def time(self):
        owner = OWNER.get()
        return self.now + (owner.ahead if owner else 0.0)

    def call_soon(self, callback, *args, context=None):
        owner = OWNER.get() if context is None else context.get(OWNER)
        if owner is None:
            return super().call_soon(callback, *args, context=context)
        own = []
        own.append(super().call_soon(owner.step, own, callback, args, context=context))
        return own[0]

    def call_at(self, when, callback, *args, context=None):
        reader = OWNER.get()  # the process whose clock gave `when`
        when -= reader.ahead if reader else 0.0
        owner = reader if context is None else context.get(OWNER)
        if owner is None:
            return super().call_at(when, callback, *args, context=context)
        when = max(when, self.now) + TURN
        own = []
        own.append(super().call_at(when, owner.step, own, callback, args, context=context))
        return own[0]


async def end_all(processes):
    """Cancels all remaining tasks, of live and dead processes; those that do not end are left behind."""
    this = asyncio.current_task()
    for _ in range(3):
        left = [task for task in asyncio.all_tasks() if task is not this]
        if not left:
            return
        for task in left:
            task.cancel()
        for process in processes:
            process.bury()
        await asyncio.wait(left, timeout=60)
