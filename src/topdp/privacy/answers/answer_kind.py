"""The abstract class of all privacy answers, and the class of the numbers that an answer gives for a plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from topdp.base.array_types import Floats
from topdp.plan import Plan
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.basics.privacy_loss import Loss
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.observers.observer_filter import Public
from topdp.privacy.observers.view import Bound, View
from topdp.privacy.published.claims import Analysis
from topdp.privacy.query import Query

if TYPE_CHECKING:
    from topdp.privacy.budget_excess import Writer
    from topdp.privacy.spending_curve import Spending


class Status(StrEnum):
    """Whether an answer is a number, and if not, why; for programs. `Answer.reason` explains it to people.

    >>> from topdp.privacy import Answer
    >>> Answer(None, "No analysis covers it.").status is Status.REFUSED
    True
    """

    FINITE = "finite"
    # There is an agent that noise does not hide.
    INFINITE = "infinite"
    # No analysis covers the plan.
    REFUSED = "refused"
    # The answer was not requested, and was not computed.
    NOT_ASKED = "not asked"


@dataclass(frozen=True, eq=False)
class Answer:
    """The numbers of one answer: `epsilon` [agents], or None if the answer was refused or not requested.

    `reason`: why `epsilon` is None or infinite. `losses`: the loss of each agent, which gives ε at any δ;
    empty if only ε at one δ is known. `observers`: for each agent the observer that learns most about it.
    `view`: the loss of every agent to every observer.

    >>> import numpy as np
    >>> Answer(np.array([0.5, 1.0])).largest
    1.0
    >>> from topdp.privacy.basics.privacy_loss import GaussianLoss
    >>> exact = Answer(np.array([1.0]), losses=(GaussianLoss(0.268),))
    >>> exact.mu.tolist(), exact.power(0.05).round(3).tolist()
    ([0.268], [0.084])
    """

    epsilon: Floats | None
    reason: str | None = None
    _: KW_ONLY
    losses: tuple[Loss, ...] = ()
    observers: tuple[tuple[int, ...], ...] | None = None
    asked: bool = True
    view: View | None = None
    warnings: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        if not self.asked:
            return Status.NOT_ASKED
        if self.epsilon is None:
            return Status.REFUSED
        return Status.FINITE if np.isfinite(self.epsilon).all() else Status.INFINITE

    @property
    def largest(self) -> float | None:
        """The largest ε over all agents; None if the answer is refused, not requested or infinite."""
        return largest_finite(self.epsilon)

    @property
    def mu(self) -> Floats | None:
        """The μ of Gaussian differential privacy [agents]; nan if no μ is known (amplified samples)."""
        return np.array([loss.mu for loss in self.losses]) if self.losses else None

    def power(self, false_alarms: float) -> Floats | None:
        """Return the power of the best test for one record of each agent, at this false-positive rate.

        The result is [agents], or None if no losses are known.
        """
        if not self.losses:
            return None
        return np.array([loss.power(false_alarms) for loss in self.losses])


NOT_ASKED = Answer(None, "Not asked for: name it in privacy.answers.", asked=False)


def largest_finite(values: Floats | None) -> float | None:
    """Return the largest of `values`; None if `values` is None, or the largest value is not finite."""
    if values is None:
        return None
    largest = float(values.max())
    return largest if np.isfinite(largest) else None


@dataclass(frozen=True, eq=False)
class AnswerKind(ABC):
    """One answer to "how private is this plan?": the observer, the assumptions, and how to compute it.

    Everything else (configuration, accounts, tables, pages, agents) iterates over `ANSWERS` or reads these
    attributes. A new answer is a new subclass in a file of its own, and an entry of `ANSWERS`.

    >>> from topdp.privacy import ANSWERS
    >>> [kind.name for kind in ANSWERS.values() if kind.takes_budget]
    ['claimed', 'view', 'adaptive', 'worst-case']
    """

    # The name in configurations and messages, such as `worst-case`.
    name: ClassVar[str]
    # The observer and the assumptions, in sentences, for an account.
    assumptions: ClassVar[str]
    # The observer and the assumptions, in a phrase that continues "ε is ...", for any number of colluders.
    scope: ClassVar[str]
    # The position in order of reliability; 0 is the most reliable answer.
    rank: ClassVar[int]
    # What the observer reads in addition to the rows that it receives and makes.
    public: ClassVar[Public]

    # Whether the answer holds without assumptions on models or data.
    proved: ClassVar[bool] = True
    # Whether ε at one δ determines μ, if batches are not sampled.
    has_mu: ClassVar[bool] = True
    # Whether the answer takes long to compute, and is computed only on request.
    on_request: ClassVar[bool] = False
    # Whether the answer can be a guarantee, to which noise is calibrated and by which agents charge.
    takes_budget: ClassVar[bool] = True
    # Whether noise of other agents counts. If so, the answer holds only for the plan as written.
    relies_on_others: ClassVar[bool] = True
    # Whether the observers are coalitions of the configured number of colluders.
    counts_colluders: ClassVar[bool] = False

    @property
    def key(self) -> str:
        """The key in JSON, such as `worst_case`."""
        return self.name.replace("-", "_")

    @property
    def label(self) -> str:
        """The name in tables and on pages, such as `worst case`."""
        return self.name.replace("-", " ")

    @abstractmethod
    def against(self, colluders: int) -> str:
        """Return the observer in words that continue "the guarantee against ..."."""

    @abstractmethod
    def supports(self, plan: Plan, query: Query) -> str | None:
        """Return None, or the reason why the answer does not cover the plan."""

    def covers(self, analysis: Analysis) -> str | None:
        """Return None, or the reason why the answer does not cover the adjacency and batches of `analysis`.

        Most answers cover both adjacencies and all batches. If no amplification by sampling is known, they
        count a sampled record as if it were in every round.
        """
        return None

    @abstractmethod
    def account(
        self, plan: Plan, analysis: Analysis, deltas: Floats, query: Query, view: View | None = None
    ) -> Answer:
        """Return the answer for `plan`. `deltas` [agents]: the δ of each agent's ε. `view`: the losses to the
        observers, if already computed.
        """

    def observe(self, plan: Plan, exposure: Exposure, query: Query, bound: Bound = "upper") -> View:
        """Return the loss of every owner to every observer. `bound`: which bound to compute, as in `view`."""
        raise NotCovered(f"The {self.name} answer has no observers.")

    def closed_form_noise(
        self, write: Writer, analysis: Analysis, epsilon: Floats, deltas: Floats
    ) -> Floats | None:
        """Return the full-scale standard deviations [agents] that meet the budgets (ε, δ) of all agents.

        Return None if they can be found only by a search over plans.
        """
        return None

    def spending_curve(self, spending: Spending, releases: Sequence[int]) -> Floats | list[float]:
        """Return for each r in `releases` the ε if the owner's data enter no release after r."""
        raise NotCovered(f"The {self.name} answer has no cost by releases.")

    def work(self, plan: Plan, query: Query) -> float:
        """Return the estimated number of operations of `observe`, in the unit of `view_work`.

        It is 0 if the answer is immediate or refused.
        """
        return 0.0

    def curve_seconds(self, plan: Plan, query: Query) -> float:
        """Return the estimated seconds that `spending_curve` takes on one core."""
        return 0.5

    def hides_rows(self, plan: Plan, colluders: int) -> bool:
        """Return whether the answer relies on noise in hidden rows, which some observer does not see."""
        return False

    def composes_releases(self, plan: Plan) -> bool:
        """Return whether the answer composes single releases, also if agents are missing (`in_the_open`)."""
        return False


@dataclass(frozen=True, eq=False)
class ObservedAnswer(AnswerKind):
    """Base class of the answers that compute the loss to each observer separately."""

    on_request = True

    @final
    def account(
        self, plan: Plan, analysis: Analysis, deltas: Floats, query: Query, view: View | None = None
    ) -> Answer:
        if view is None:
            view = query.observe(self, plan, analysis.exposure(), query, "upper")
        epsilon, owners = view.worst_epsilon(deltas), range(plan.agents)
        warnings = [f"{self.name}: {view.note}"] if view.note else []
        if any(epsilon[i] < loss.epsilon(float(deltas[i])) for i, loss in view.samples.items()):
            warnings.append(
                f"{self.name}: Poisson samples count as if each record were in every round: no amplification "
                "is known where noise is reused. Full batches need less noise."
            )
        return Answer(
            epsilon,
            losses=tuple(view.largest(i) for i in owners),
            observers=tuple(view.observers[view.sees_most(i)] for i in owners),
            view=view,
            warnings=tuple(warnings),
        )
