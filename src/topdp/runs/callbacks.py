"""Callbacks: functions and objects of a user that a run calls while it runs.

A callback is an object with any of the methods below, or a plain function, which is called after every round.

    on_start(run)       before the first round, also of a run that is resumed
    on_round(run)       after every round; round 0 is the release before the loop
    on_evaluation(run)  after rounds in which estimates were tested
    on_end(result)      when the run is done or was stopped, and everything is on disk
    on_break(error)     when Ctrl-C or an error ends the run instead

`run` is a `Running`: round, metrics, estimates, plan, configuration and account. It has no gradients, losses
or other statistics of training records. It returns copies, so that a callback can change the run only with
`run.stop(reason)`. Only the simulator calls callbacks; real agents stop by their plan and budget alone.

**Guarantees.** A run that a callback stops reports the ε of its whole plan. This ε is an upper bound for the
following reason. The releases before the stop are a part of all releases of the plan. The round of the stop
is a function of public records and of the estimates. The answers `adaptive`, `outsider` and `worst_case`
assume that observers read the estimates of every round, so the stop tells these observers nothing more. The
rounds before the stop alone would cost less, but that cost holds for a number of rounds that is fixed in
advance, not for a number chosen during the run; it is not reported. `view` and `claimed` do not assume that
observers read estimates, and do not cover a stop. No answer covers a rule that reads private records; test
records count as public.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, final

from torch import Tensor, nn

from topdp.errors import InputError
from topdp.learning.models import FlatModel
from topdp.plan import Plan
from topdp.privacy.accounting import Account
from topdp.runs.best_estimates import first_metric, metric_of
from topdp.runs.config import ConfigError, RunConfig, did_you_mean
from topdp.runs.result import Metrics, Stopped

CALLBACK_METHODS = ("on_start", "on_round", "on_evaluation", "on_end", "on_break")


@final
@dataclass(eq=False, repr=False, kw_only=True)
class Running:
    """A running run, as callbacks see it: read-only, except for `stop`.

    >>> import torch, topdp
    >>> x = torch.rand(4, 50, 3)  # three agents and a test set
    >>> y = (x.sum(2) > 1.5).long()
    >>> shards = topdp.Shards.from_arrays(list(zip(x[:3], y[:3])), test=(x[3], y[3]))
    >>> def watch(run):
    ...     print(run.round, "of", run.rounds, tuple(run.estimates.shape))
    ...     if run.round == 1:
    ...         run.stop("seen enough")
    >>> ring, model = topdp.topology.ring(3), torch.nn.Linear(3, 2)
    >>> result = topdp.train(model, shards, ring, sigma=0.1, rounds=9, callbacks=[watch])
    0 of 9 (3, 8)
    1 of 9 (3, 8)
    >>> result.stopped.round, result.stopped.reason
    (1, 'seen enough')
    """

    config: RunConfig
    plan: Plan
    privacy: Account
    """The account of the whole plan, computed before the first round."""
    flat: FlatModel  # of the whole model, frozen layers included
    folder: Path | None
    lines: InitVar[list[Metrics]]
    """All evaluations; the training loop appends to this list."""
    stopped_at: int | None
    """The round after which a callback stopped this run earlier; None: the run was not stopped."""
    larger_is_better: dict[str, bool | None]
    """For every metric, whether more is better; None: neither."""
    round: int | None = field(default=None, init=False)
    """The last complete round; None before the first release."""
    evaluated: bool = field(default=False, init=False)
    """Whether the last complete round was evaluated, so that `metrics` belong to it."""
    _rows: Callable[[], Tensor] | None = field(default=None, init=False)
    _estimates: Tensor | None = field(default=None, init=False)
    _reason: str | None = field(default=None, init=False)

    def __post_init__(self, lines: list[Metrics]) -> None:
        self._history = lines

    @property
    def rounds(self) -> int:
        return self.config.rounds

    @property
    def history(self) -> list[Metrics]:
        """All evaluations so far, as lines of metrics.jsonl, including those before the run was resumed."""
        return copy.deepcopy(self._history)

    @property
    def metrics(self) -> Metrics | None:
        """The last evaluation; None before the first, or without test records."""
        return copy.deepcopy(self._history[-1]) if self._history else None

    @property
    def estimates(self) -> Tensor:
        """The estimates after this round [agents, d], as a copy on the CPU that is made on first use."""
        if self._rows is None:
            raise InputError("Expected a complete round before estimates are read, got none. Use on_round.")
        if self._estimates is None:
            self._estimates = self._rows().detach().cpu().clone()
        return self._estimates.clone()

    def model(self, agent: int) -> nn.Module:
        """Return the network of one agent after this round."""
        return self.flat.load(self.estimates[agent])

    def stop(self, reason: str) -> None:
        """End the run after this round. The run can be resumed, and then continues to its last round."""
        self._reason = self._reason or str(reason)

    @property
    def stopped(self) -> Stopped | None:
        if self._reason is None or self.round is None:
            return None
        return Stopped(self.round, self._reason)

    def advance(self, round: int, evaluated: bool, rows: Callable[[], Tensor]) -> None:
        """Store that `round` is complete. `rows` returns its estimates."""
        self.round, self.evaluated = round, evaluated
        self._rows, self._estimates = rows, None


@final
class Callbacks:
    """The callbacks of one run, which are checked before the run is planned, and called in their order."""

    def __init__(self, given: Iterable[object] = ()) -> None:
        self._given = [_checked(callback) for callback in given]

    def __len__(self) -> int:
        return len(self._given)

    def start(self, run: Running) -> None:
        self._call("on_start", run, "before the first round")

    def after_round(self, run: Running) -> None:
        """Call all callbacks, even if one of them stops the run."""
        where = f"after round {run.round}"
        self._call("on_round", run, where)
        if run.evaluated:
            self._call("on_evaluation", run, where)

    def end(self, result: Any) -> None:
        self._call("on_end", result, "at the end")

    def broke(self, error: BaseException) -> None:
        """Call `on_break` of all callbacks with the error that ended the run.

        If `on_break` itself raises an error, `error` gets a note about it.
        """
        for callback in self._given:
            if (method := getattr(callback, "on_break", None)) is not None:
                try:
                    method(error)
                except Exception as another:
                    error.add_note(f"Then {_name(callback)}.on_break raised {another!r}.")

    def _call(self, name: str, argument: Any, where: str) -> None:
        for callback in self._given:
            is_function = name == "on_round" and not _has_methods(callback)
            method = callback if is_function else getattr(callback, name, None)
            if method is None:
                continue
            try:
                method(argument)  # type: ignore[operator]
            except Exception as error:
                called = _name(callback) if is_function else f"{_name(callback)}.{name}"
                error.add_note(f"Raised by the callback {called} {where}.")
                raise


@final
class StopEarly:
    """A callback that stops a run when `metric` has not become better in the last `patience` evaluations.

    It uses the mean of the metric over agents on test records, which count as public. It raises InputError if
    the run has no test records. A run that is resumed after an interruption stops after the same round as
    without the interruption. A run that is resumed after a stop waits for `patience` further evaluations.

    >>> StopEarly(patience=3)
    StopEarly(patience=3, metric=None)
    """

    def __init__(self, patience: int = 5, metric: str | None = None) -> None:
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise InputError(f"Expected patience to be a whole number >= 1, got {patience!r}.")
        self.patience = patience
        self.metric = metric
        self._after = -1

    def __repr__(self) -> str:
        return f"StopEarly(patience={self.patience}, metric={self.metric!r})"

    def on_start(self, run: Running) -> None:
        self._after = -1 if run.stopped_at is None else run.stopped_at

    def on_round(self, run: Running) -> None:
        if run.metrics is None:
            raise InputError(
                "StopEarly: expected shards with a test set, got none. Add a test set, or remove StopEarly."
            )

    def on_evaluation(self, run: Running) -> None:
        lines = [line for line in run.history if line["round"] > self._after]
        name = self.metric or first_metric(lines[-1], run.larger_is_better)
        values = [metric_of(line, name, run.larger_is_better) for line in lines]
        better = [-math.inf if math.isnan(value) else value for value in values]
        evaluations = len(better) - 1 - better.index(max(better))
        if evaluations >= self.patience:
            run.stop(f"{name} has not become better in {evaluations} evaluations")


def expect_list(given: Iterable[object]) -> list[object]:
    """Return the callbacks as a list. Raise ConfigError for a callback that is not in a list."""
    if callable(given) or _has_methods(given) or not isinstance(given, Iterable):
        raise ConfigError(f"callbacks: expected a list of callbacks, got {given!r:.80}. Use [callback].")
    return list(given)


def _checked(callback: object) -> object:
    if inspect.isclass(callback):
        raise ConfigError(
            f"callbacks: expected an object, got the class {callback.__name__}. Use {callback.__name__}()."
        )
    named = [
        name for name in dir(callback) if name.startswith("on_") and callable(getattr(callback, name, None))
    ]
    for name in named:
        if name not in CALLBACK_METHODS:
            raise ConfigError(
                f"callbacks: {_name(callback)} has a method {name!r}, which nothing calls."
                f"{did_you_mean(name, list(CALLBACK_METHODS))}"
            )
    if not named and not callable(callback):
        raise ConfigError(
            f"callbacks: expected functions, or objects with a method {', '.join(CALLBACK_METHODS[:-1])} or "
            f"{CALLBACK_METHODS[-1]}, got {callback!r:.80}."
        )
    return callback


def _has_methods(callback: object) -> bool:
    return any(hasattr(callback, name) for name in CALLBACK_METHODS)


def _name(callback: object) -> str:
    return getattr(callback, "__name__", type(callback).__name__)
