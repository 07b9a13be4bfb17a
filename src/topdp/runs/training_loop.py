"""The loop of a run: round after round, with evaluations, checkpoints and signals in between.

`run.py` decides what is run; the engine computes the rounds.
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

from topdp.base.progress import Progress
from topdp.errors import Interrupted
from topdp.learning.gradients import DivergedError
from topdp.runs.best_estimates import Best, BestSoFar
from topdp.runs.callbacks import Callbacks, Running
from topdp.runs.checkpoints import Checkpoints
from topdp.runs.config import RunConfig
from topdp.runs.model_export import notes_of
from topdp.runs.result import Metrics, Stopped, metrics_of
from topdp.runs.row_arrays import as_tensor
from topdp.runs.run_folder import RunFolder
from topdp.simulator.engine import WrongReplayError
from topdp.simulator.ranks.process_group import ProcessGroup
from topdp.simulator.simulation import Simulation, State
from topdp.simulator.stepping import releases_until_due


class InterruptedRun(Interrupted):
    """A run that was stopped by Ctrl-C; with a `folder` it can be resumed from there."""

    def __init__(self, folder: Path | None, how: str | None = None) -> None:
        how = how or f"topdp run --resume {folder}"
        super().__init__(f"Interrupted. Continue with: {how}" if folder else "Interrupted.")
        self.folder = folder


@dataclass(frozen=True)
class Trained:
    """The last state of the loop, its best evaluation, and whether a callback stopped it."""

    state: State
    best: Best | None
    stopped: Stopped | None


def train_to_the_end(
    simulation: Simulation,
    start: torch.Tensor,
    metrics: list[Metrics],
    run: Running,
    folder: RunFolder | None,
    progress: Progress,
    callbacks: Callbacks,
    checkpoints: Checkpoints | None,
) -> Trained:
    """Compute all releases from the newest of `checkpoints` or `start` on, or until a callback stops the run.

    Evaluations are appended to `metrics`, which `run` shows to callbacks. Several ranks all call this, with a
    `RankedEngine`, and do the same in the same order; only rank 0 has a folder.
    """
    config = run.config
    group = None if checkpoints is None else checkpoints.group
    each = simulation.plan.releases_per_round
    state = _begin(simulation, start, metrics, folder, checkpoints)
    best = BestSoFar(
        folder, bool(metrics), notes=notes_of(run.flat), larger=run.larger_is_better, group=group
    )
    callbacks.start(run)
    looked_at = (config.train.evaluate_every, config.train.checkpoint_every, *([1] if callbacks else []))
    stopped: Stopped | None = None
    with (
        _leaving_it_loadable(simulation, folder, metrics, best, config, checkpoints) as keep,
        _stop_signals(group) as asked_to_stop,
    ):
        while state.releases < simulation.plan.releases:
            state = simulation.advance(
                state, releases_until_due(state.releases, each, config.rounds, *looked_at)
            )
            t, within = divmod(state.releases - each, each)  # rounds done; one release stands before the loop
            if within:
                keep(state, False)  # the rows of the last round are overwritten soon
                continue
            due = t % config.train.evaluate_every == 0 or t == config.rounds
            due = due and simulation.has_test_records
            if due:
                metrics.append(metrics_of(t, simulation.evaluate(state)))
                best.see(metrics[-1], partial(simulation.reported, state))
            keep(state, t % config.train.checkpoint_every == 0)
            progress("training", t, config.rounds, unit="round", metrics=metrics[-1] if metrics else None)
            if asked_to_stop():
                raise KeyboardInterrupt
            run.advance(t, due, partial(simulation.reported, state))
            with _kept_if_it_fails(folder, partial(keep, state, True)):
                callbacks.after_round(run)
            if run.stopped is not None and t < config.rounds:
                stopped = run.stopped
                keep(state, True)
                break
    best.save()
    return Trained(state, best.best, stopped)


def _begin(
    simulation: Simulation,
    start: torch.Tensor,
    metrics: list[Metrics],
    folder: RunFolder | None,
    checkpoints: Checkpoints | None,
) -> State:
    """The first state, from a checkpoint where there is one; `metrics` gets the evaluations before it."""
    if checkpoints is None or (checkpoint := checkpoints.newest()) is None:
        return simulation.start(start)
    lines = folder.metrics if folder is not None else []
    if checkpoints.group is not None:
        lines = checkpoints.group.led(lines)
    rounds = checkpoint.releases // simulation.plan.releases_per_round
    metrics += [line for line in lines if line["round"] < rounds]
    return simulation.resume(checkpoint.releases, as_tensor(checkpoint.rows))


@contextmanager
def _stop_signals(group: ProcessGroup | None) -> Iterator[Callable[[], bool]]:
    """Handle Ctrl-C and SIGTERM between rounds, where no state is half written; a second one stops at once.

    One rank that heard is enough for all. There a second is as the first: torchrun passes on what its
    processes have heard already.
    """
    asked = False

    def ask(signum: int, frame: object) -> None:
        nonlocal asked
        if asked and group is None:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked if group is None else group.any(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _leaving_it_loadable(
    simulation: Simulation,
    folder: RunFolder | None,
    metrics: list[Metrics],
    best: BestSoFar,
    config: RunConfig,
    checkpoints: Checkpoints | None,
) -> Iterator[Callable[[State, bool], None]]:
    """Save checkpoints during the run, and once more if it is interrupted."""
    last: list[State] = []

    def save(state: State) -> None:
        if folder is not None:
            folder.save_metrics(metrics)
            best.save()
        if checkpoints is not None:
            checkpoints.save(folder, state)

    def keep(state: State, due: bool) -> None:
        last[:] = [state]
        if due:
            save(state)

    try:
        yield keep
    except KeyboardInterrupt:
        if last and simulation.holds(last[0]):  # else the last checkpoint is what is left
            save(last[0])
        if folder is not None:
            folder.mark("interrupted")
        raise InterruptedRun(*_how_to_continue(folder, config, checkpoints)) from None
    except (DivergedError, WrongReplayError) as error:
        if folder is not None:
            folder.mark("diverged" if isinstance(error, DivergedError) else "wrong")
        raise


@contextmanager
def _kept_if_it_fails(folder: RunFolder | None, save: Callable[[], None]) -> Iterator[None]:
    """Save a checkpoint where a user's code raises: the run can continue from that very round."""
    try:
        yield
    except Exception:
        save()
        if folder is not None:
            folder.mark("interrupted")
        raise


def _how_to_continue(
    folder: RunFolder | None, config: RunConfig, checkpoints: Checkpoints | None
) -> tuple[Path | None, str | None]:
    """The folder, and the call where the command line cannot do it: only Python has the module and shards."""
    if folder is not None and checkpoints is not None and checkpoints.group is not None:
        return folder.path, "the same command."
    if folder is None or not config.started_from_python:
        return (folder.path if folder else None), None
    return folder.path, f"topdp.train(..., out={str(folder.path)!r}, resume=True)"
