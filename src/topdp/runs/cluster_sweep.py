"""A sweep by other machines: orders are given out, what comes back is written here, what is lost is given out
again. Knows nothing of how machines are reached (`ray_cluster.py`), so that a test can stand in for them.

An order that fails does not stop the others: it is said at the end. What cannot be trusted, a machine with
other code, stops all. Whatever came back before is on disk and not done again.
"""

from __future__ import annotations

import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topdp.base.progress import Progress
from topdp.errors import (
    BudgetError,
    DataError,
    ExitCode,
    InputError,
    TopdpError,
    TrustError,
    UnavailableError,
)
from topdp.runs.cluster_orders import Answer, Differs, Failed, Lost, Made, Order, packed
from topdp.runs.config import ConfigError
from topdp.runs.result import Metrics
from topdp.runs.run_stacks import Dealer
from topdp.runs.sweep_grid import Point

TRIES = 4
"""How often an order is given out before those who lose it are believed: it may be what ends them."""

AHEAD = 2  # orders beyond what can be worked on at once, so that nobody waits for the next

WAIT = 1.0  # seconds between two looks at what is out

PATIENCE = 60.0
"""Seconds without any machine that could take an order, after which the sweep is given up."""


class ClusterError(InputError):
    """Machines that cannot be reached, do not agree or cannot do what is asked of them."""


class Cluster(ABC):
    """Machines that carry out orders. `device` and `cpus` are what each order gets there."""

    device: str
    cpus: int

    @abstractmethod
    def put(self, records: dict[str, Any]) -> Any:
        """Records on their way; what is returned stands for them in `give`, until it is let go."""

    @abstractmethod
    def give(self, order: Order, records: Sequence[Any]) -> Any:
        """Gives out an order; what is returned stands for it in `answers`."""

    @abstractmethod
    def answers(self, seconds: float) -> list[tuple[Any, Answer]]:
        """What has come back, each once; waits so long for a first."""

    @abstractmethod
    def places(self) -> int:
        """How many orders can be worked on at once."""

    @abstractmethod
    def cancel(self) -> None:
        """Ends all work that is out."""


@dataclass(eq=False)
class Work:
    """A stack of the sweep, its order, and how often that was lost."""

    stack: list[Point]
    order: Order
    lost: int = 0


def dispatched(
    stacks: Sequence[list[Point]],
    cluster: Cluster,
    dealer: Dealer,
    place: Path,
    progress: Progress,
    done: int,
    total: int,
    patience: float = PATIENCE,
) -> None:
    """All stacks by the cluster; each run is written to its folder in `place` as soon as it is back."""
    _expect_no_sinks(stacks)
    waiting, out = deque(_works(stacks, cluster, dealer)), dict[Any, Work]()
    failed: list[tuple[Work, Failed | Lost]] = []
    sent: dict[str, Any] = {}
    last: Metrics | None = None
    alive = time.monotonic()
    with _told_to_stop(), _cancelled_at_the_end(cluster):
        while waiting or out:
            progress("sweeping", done, total, unit="run", metrics=last)
            places = cluster.places()
            while waiting and places and len(out) < places + AHEAD:
                work = waiting.popleft()
                out[cluster.give(work.order, _records(work, cluster, dealer, sent))] = work
            for handle, answer in cluster.answers(WAIT):
                work = out.pop(handle)
                if isinstance(answer, Made):
                    for point, run in zip(work.stack, answer.runs, strict=True):
                        run.write(place / point.folder)
                        last = run.metrics[-1] if run.metrics else last
                        done += 1
                elif isinstance(answer, Differs):
                    raise ClusterError(answer.message)
                elif isinstance(answer, Lost) and work.lost + 1 < TRIES:
                    work.lost += 1
                    again = f"given out again ({work.lost} of {TRIES - 1})"
                    progress(f"{_names(work.stack)}: {answer.message}; {again}")
                    waiting.appendleft(work)
                else:
                    failed.append((work, answer))
            needed = {name for work in (*waiting, *out.values()) for name in work.order.shards}
            for name in set(sent) - needed:
                del sent[name]
            now = time.monotonic()
            alive = now if places else alive
            if now - alive >= patience:
                raise ClusterError(
                    f"Expected a node with room for a run, found none for {patience:.0f} s: nodes are gone. "
                    "What is done is kept."
                )
        progress("sweeping", done, total, unit="run", metrics=last)
    if failed:
        raise _error_of(failed)


def _works(stacks: Sequence[list[Point]], cluster: Cluster, dealer: Dealer) -> list[Work]:
    """Those that share records come together: what nobody needs any more can then be let go."""
    works = [
        Work(stack, Order.of([point.config for point in stack], dealer, cluster.device, cluster.cpus))
        for stack in stacks
    ]
    first: dict[str, int] = {}
    for number, work in enumerate(works):
        first.setdefault(work.order.shards[0], number)
    return sorted(works, key=lambda work: first[work.order.shards[0]])


def _records(work: Work, cluster: Cluster, dealer: Dealer, sent: dict[str, Any]) -> list[Any]:
    """Each set of records is sent once, for all who need it."""
    for config in work.order.configs:
        name = dealer.name_of_shards(config)
        if name not in sent:
            sent[name] = cluster.put(packed(dealer.shards(config)))
    return [sent[name] for name in work.order.shards]


def _expect_no_sinks(stacks: Sequence[list[Point]]) -> None:
    """They would write on another machine, where nobody looks."""
    for stack in stacks:
        if sinks := stack[0].config.report.sinks:
            raise ConfigError(
                f"report.sinks: expected none in a sweep by other machines, got {', '.join(sinks)}: metrics "
                "come back in the run folders. Leave them away, or use --executor local."
            )


def _error_of(failed: Sequence[tuple[Work, Failed | Lost]]) -> Exception:
    """The first failure, as a run on this machine would end, and how many more there are."""
    stack, answer = failed[0][0].stack, failed[0][1]
    more = sum(len(work.stack) for work, _ in failed) - len(stack)
    others = f" {more} more failed, too." if more else ""
    rest = f"{others} What did not fail is done; the same command tries again what did."
    if isinstance(answer, Lost):
        return ClusterError(f"{_names(stack)}: {answer.message}, {TRIES} times in a row.{rest}")
    if answer.code is None:
        return RuntimeError(f"{_names(stack)} failed on another machine:\n{answer.message}{rest}")
    kinds: dict[int, type[TopdpError]] = {
        ExitCode.BUDGET: BudgetError, ExitCode.TRUST: TrustError,
        ExitCode.DATA: DataError, ExitCode.UNAVAILABLE: UnavailableError,
    }  # fmt: skip
    return kinds.get(answer.code, InputError)(f"{_names(stack)}: {answer.message.rstrip('.')}.{rest}")


def _names(stack: list[Point]) -> str:
    folders = [point.folder for point in stack]
    if len(stack) > 1:
        return f"runs {folders[0]} to {folders[-1]}, together"
    return f"run {folders[0]}{f' ({stack[0].label})' if stack[0].label else ''}, seed {stack[0].seed}"


@contextmanager
def _cancelled_at_the_end(cluster: Cluster) -> Iterator[None]:
    """Also where everything is done: then there is nothing to cancel."""
    try:
        yield
    finally:
        cluster.cancel()


@contextmanager
def _told_to_stop() -> Iterator[None]:
    """SIGTERM is as Ctrl-C, which is heard at once: files are whole or not there, all else is elsewhere."""

    def stop(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
