"""The loop of a run: round after round, with evaluations, checkpoints and signals in between.

What is run was decided before (`run.py`); what a round is, the engine knows.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from topdp.errors import Interrupted
from topdp.learning.gradients import DivergedError
from topdp.privacy.observers.view import Progress
from topdp.runs.best import Best, BestSoFar
from topdp.runs.callbacks import Callbacks, Running
from topdp.runs.export import notes_of
from topdp.runs.folder import GIVEN, Checkpoint, RunFolder
from topdp.runs.result import Metrics, Stopped, metrics_of
from topdp.settings.config import RunConfig
from topdp.simulator.engine import Engine, State

Watcher = Callable[[str, int, int, Metrics | None], None]
"""Called with (stage, steps done, steps in all, the last metrics): "accounting" and "training" step by step,
"planning" and "preparing" once, when they begin."""


def accounting(watch: Watcher | None) -> Progress | None:
    """The part of a watcher that accountants call."""

    def show(done: int, total: int, note: str = "") -> None:
        assert watch is not None
        watch(f"accounting: {note}" if note else "accounting", done, total, None)

    return None if watch is None else show


class InterruptedRun(Interrupted):
    """A run that was stopped by Ctrl-C; with a `folder` it can be resumed from there."""

    def __init__(self, folder: Path | None, how: str | None = None) -> None:
        how = how or f"topdp run --resume {folder}"
        super().__init__(f"Interrupted. Continue with: {how}" if folder else "Interrupted.")
        self.folder = folder


@dataclass(frozen=True)
class Trained:
    """Where the loop ended, and what was found on the way."""

    state: State
    metrics: list[Metrics]
    best: Best | None
    stopped: Stopped | None


def train_to_the_end(
    engine: Engine,
    start: torch.Tensor,
    config: RunConfig,
    folder: RunFolder | None,
    watch: Watcher | None,
    callbacks: Callbacks,
    seen_as: Callable[[list[Metrics]], Running],
) -> Trained:
    """All releases that are left, from the checkpoint in `folder` or from `start`, or until a callback stops.

    `seen_as` makes of the evaluations so far what callbacks are given.
    """
    each = engine.plan.releases // (config.rounds + 1)  # one that carries gradients, and those that only mix
    state, metrics = _begin(engine, start, folder, each)
    larger = {metric.name: metric.larger_is_better for metric in engine.metrics}
    run = seen_as(metrics)
    best = BestSoFar(folder, bool(metrics), notes_of(run.flat), larger)
    callbacks.start(run)
    stopped: Stopped | None = None
    with _leaving_it_loadable(folder, metrics, best, config) as keep, _stop_signals() as asked_to_stop:
        while state.releases < engine.plan.releases:
            state = engine.advance(state)
            t, within = divmod(state.releases - each, each)  # rounds done; one release stands before the loop
            if within:
                keep(state, False)  # the rows of the last round are overwritten soon
                continue
            due = t % config.train.evaluate_every == 0 or t == config.rounds
            due = due and engine.shards.test_inputs is not None
            if due:
                metrics.append(metrics_of(t, engine.evaluate(state)))
                best.see(metrics[-1], engine.reported(state))
            keep(state, t % config.train.checkpoint_every == 0)
            if watch is not None:
                watch("training", t, config.rounds, metrics[-1] if metrics else None)
            if asked_to_stop():
                raise KeyboardInterrupt
            run.advance(t, due, partial(engine.reported, state))
            with _kept_if_it_fails(folder, partial(keep, state, True)):
                callbacks.after_round(run)
            if run.stopped is not None and t < config.rounds:
                stopped = run.stopped
                keep(state, True)
                break
    best.save()
    return Trained(state, metrics, best.best, stopped)


def _begin(
    engine: Engine, start: torch.Tensor, folder: RunFolder | None, each: int
) -> tuple[State, list[Metrics]]:
    checkpoint = folder.checkpoint if folder is not None else None
    if folder is None or checkpoint is None:
        return engine.start(start), []
    metrics = [line for line in folder.metrics if line["round"] < checkpoint.releases // each]
    return engine.resume(checkpoint.releases, torch.from_numpy(checkpoint.rows)), metrics


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM are heard between rounds, where nothing is half done; a second one at once."""
    asked = False

    def ask(signum: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _leaving_it_loadable(
    folder: RunFolder | None, metrics: list[Metrics], best: BestSoFar, config: RunConfig
) -> Iterator[Callable[[State, bool], None]]:
    """Saves checkpoints as the run goes, and once more when it is interrupted."""
    last: list[State] = []

    def save(state: State) -> None:
        if folder is not None:
            folder.save_metrics(metrics)
            best.save()
            folder.save_checkpoint(Checkpoint(state.releases, state.rows.cpu().numpy()))

    def keep(state: State, due: bool) -> None:
        last[:] = [state]
        if due:
            save(state)

    try:
        yield keep
    except KeyboardInterrupt:
        if folder is not None:
            if last:
                save(last[0])
            folder.mark("interrupted")
        raise InterruptedRun(*_how_to_continue(folder, config)) from None
    except DivergedError:
        if folder is not None:
            folder.mark("diverged")
        raise


@contextmanager
def _kept_if_it_fails(folder: RunFolder | None, save: Callable[[], None]) -> Iterator[None]:
    """A user's own code may raise: the run can go on from the very round after which it did."""
    try:
        yield
    except Exception:
        save()
        if folder is not None:
            folder.mark("interrupted")
        raise


def _how_to_continue(folder: RunFolder | None, config: RunConfig) -> tuple[Path | None, str | None]:
    """The folder, and the call where the command line cannot do it: only Python has the module and shards."""
    if folder is None or config.data.name != GIVEN:
        return (folder.path if folder else None), None
    return folder.path, f"topdp.train(..., out={str(folder.path)!r}, resume=True)"
