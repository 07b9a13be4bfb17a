"""The interface through which run loops advance a simulation, whatever executes it.

`Engine` implements it in one process, `RankedEngine` in several processes, and `CudaReplay` by replaying
recorded rounds on a GPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from topdp.learning.metrics import Metric
from topdp.plan import Plan
from topdp.simulator.evaluation import Evaluation


class State(NamedTuple):
    """The progress of a run: the number of releases made, and the rows of the last one in the plan's order.

    The rows are in one of two buffers, which later releases overwrite in turn; `Simulation.holds` states
    whether the rows are intact.
    """

    releases: int
    rows: Tensor


class Simulation(ABC):
    """The execution of a plan, release by release. Methods take a state and return the next one."""

    plan: Plan
    # The metrics that `evaluate` reports in addition to the loss.
    metrics: Sequence[Metric]
    has_test_records: bool

    @abstractmethod
    def start(self, start: Tensor) -> State:
        """Return the state before round 0; `start` is the public start: one row [d] for all agents, or
        [agents, d].
        """

    @abstractmethod
    def resume(self, releases: int, rows: Tensor) -> State:
        """Return the state of an interrupted run that made `releases` releases; `rows` are those of the last.

        Raise InputError if `rows` do not fit the plan.
        """

    @abstractmethod
    def advance(self, state: State, at_most: int = 1) -> State:
        """Return the state after the next release, or after several, at most `at_most`.

        The rows of `state` may be overwritten.
        """

    @abstractmethod
    def holds(self, state: State) -> bool:
        """Return whether the rows of `state` are intact: later rows have overwritten no part of them."""

    @abstractmethod
    def evaluate(self, state: State) -> Evaluation:
        """Return loss and metrics of each agent on the common test records."""

    @abstractmethod
    def reported(self, state: State) -> Tensor:
        """Return [agents, d] the rows that users get: the averages of estimates if the plan has averages, and
        otherwise the estimates.
        """

    @abstractmethod
    def release_buffers(self) -> None:
        """Free the memory of rows that no state refers to; the next release allocates it again."""


class SimulationWrapper(Simulation):
    """A simulation that calls another one. Subclasses define `advance`, and override other methods."""

    def __init__(self, inner: Simulation) -> None:
        self._inner = inner
        self.plan, self.metrics, self.has_test_records = inner.plan, inner.metrics, inner.has_test_records

    def start(self, start: Tensor) -> State:
        return self._inner.start(start)

    def resume(self, releases: int, rows: Tensor) -> State:
        return self._inner.resume(releases, rows)

    def holds(self, state: State) -> bool:
        return self._inner.holds(state)

    def evaluate(self, state: State) -> Evaluation:
        return self._inner.evaluate(state)

    def reported(self, state: State) -> Tensor:
        return self._inner.reported(state)

    def release_buffers(self) -> None:
        self._inner.release_buffers()
