"""The loop of a run: it computes all rounds, and evaluates, saves checkpoints and handles signals in between.

`run.py` decides what is run; the engine computes the rounds.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """A run that Ctrl-C or SIGTERM interrupted. With a `folder`, it can be resumed from there.

    `how`: how to continue, for the message; None: with `topdp run --resume`.
    """

    def __init__(self, folder: Path | None, how: str | None = None) -> None:
        how = how or f"topdp run --resume {folder}"
        super().__init__(f"Interrupted. Continue with: {how}" if folder else "Interrupted.")
        self.folder = folder


def train_to_the_end(
    simulation: Simulation,
    start: torch.Tensor,
    metrics: list[Metrics],
    run: Running,
    folder: RunFolder | None,
    progress: Progress,
    callbacks: Callbacks,
    checkpoints: Checkpoints | None,
) -> tuple[State, Best | None, Stopped | None]:
    """Compute all releases, from the newest of `checkpoints` or else from `start`.

    Return the last state, the best evaluation, and the stop by a callback, if any.

    A callback may stop the run earlier. Evaluations are appended to `metrics`, which `run` shows to
    callbacks. In a run over several ranks, each rank calls this function with its `RankedEngine`, and all
    take the same steps in the same order; only rank 0 has a folder.
    """
    config = run.config
    group = None if checkpoints is None else checkpoints.group
    each = simulation.plan.releases_per_round
    state = _begin(simulation, start, metrics, folder, checkpoints)
    best = BestSoFar(
        folder, bool(metrics), notes=notes_of(run.flat), larger=run.larger_is_better, group=group
    )
    callbacks.start(run)
    intervals = (config.train.evaluate_every, config.train.checkpoint_every, *([1] if callbacks else []))
    stopped: Stopped | None = None
    with (
        _saving_checkpoints(simulation, folder, metrics, best, config, checkpoints) as note_state,
        _stop_signals(group) as must_stop,
    ):
        while state.releases < simulation.plan.releases:
            state = simulation.advance(
                state, releases_until_due(state.releases, each, config.rounds, *intervals)
            )
            t, within = divmod(state.releases - each, each)  # t rounds of the loop are complete after round 0
            if within:
                note_state(state, False)  # the rows of the last round are overwritten soon
                continue
            due = t % config.train.evaluate_every == 0 or t == config.rounds
            due = due and simulation.has_test_records
            if due:
                metrics.append(metrics_of(t, simulation.evaluate(state)))
                best.see(metrics[-1], partial(simulation.reported, state))
            note_state(state, t % config.train.checkpoint_every == 0)
            progress("training", t, config.rounds, unit="round", metrics=metrics[-1] if metrics else None)
            if must_stop():
                raise KeyboardInterrupt
            run.advance(t, due, partial(simulation.reported, state))
            with _saved_on_error(folder, partial(note_state, state, True)):
                callbacks.after_round(run)
            if run.stopped is not None and t < config.rounds:
                stopped = run.stopped
                note_state(state, True)
                break
    best.save()
    return state, best.best, stopped


def _begin(
    simulation: Simulation,
    start: torch.Tensor,
    metrics: list[Metrics],
    folder: RunFolder | None,
    checkpoints: Checkpoints | None,
) -> State:
    """Return the state from which the loop begins: that of the newest checkpoint, or else that of `start`.

    The evaluations before the checkpoint are appended to `metrics`.
    """
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
    """Yield a function that returns whether Ctrl-C or SIGTERM came.

    The loop calls it between rounds, when no state is incomplete. In a single process, a second signal stops
    the run at once. Several ranks all stop if one of them got a signal. There, a second signal does nothing
    more, because torchrun sends signals to processes that may have got them already.
    """
    received = False

    def handle(signum: int, frame: object) -> None:
        nonlocal received
        if received and group is None:
            raise KeyboardInterrupt
        received = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: received if group is None else group.any(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _saving_checkpoints(
    simulation: Simulation,
    folder: RunFolder | None,
    metrics: list[Metrics],
    best: BestSoFar,
    config: RunConfig,
    checkpoints: Checkpoints | None,
) -> Iterator[Callable[[State, bool], None]]:
    """Yield a function that notes the last state, and saves a checkpoint of it if it is due.

    If the body is interrupted, save a checkpoint and raise InterruptedRun. If the body diverges or a recorded
    round is wrong, store that in the run folder.
    """
    last: list[State] = []

    def save(state: State) -> None:
        if folder is not None:
            folder.save_metrics(metrics)
            best.save()
        if checkpoints is not None:
            checkpoints.save(folder, state)

    def note_state(state: State, due: bool) -> None:
        last[:] = [state]
        if due:
            save(state)

    try:
        yield note_state
    except KeyboardInterrupt:
        if last and simulation.holds(last[0]):  # otherwise the run continues from the last checkpoint
            save(last[0])
        if folder is not None:
            folder.mark("interrupted")
        path = None if folder is None else folder.path
        raise InterruptedRun(path, _how_to_continue(folder, config, checkpoints)) from None
    except (DivergedError, WrongReplayError) as error:
        if folder is not None:
            folder.end("diverged" if isinstance(error, DivergedError) else "wrong")
        raise


@contextmanager
def _saved_on_error(folder: RunFolder | None, save: Callable[[], None]) -> Iterator[None]:
    """Call `save` if the body, which runs a user's code, raises an error. The run can then continue from the
    current round.
    """
    try:
        yield
    except Exception:
        save()
        if folder is not None:
            folder.mark("interrupted")
        raise


def _how_to_continue(run: RunFolder | None, config: RunConfig, checkpoints: Checkpoints | None) -> str | None:
    """Return how to continue the run; None: with `topdp run --resume`."""
    if checkpoints is not None and checkpoints.group is not None:
        return "the same command."
    if run is not None and config.started_from_python:
        return f"topdp.train(..., out={str(run.path)!r}, resume=True)"
    return None
