"""The abstract class of all privacy answers, and the numbers that one of them gives for a plan."""

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
    """What kind of number an answer is: for programs, as `reason` is for people.

    >>> from topdp.privacy import Answer
    >>> Answer(None, "No analysis covers it.").status is Status.REFUSED
    True
    """

    FINITE = "finite"
    # Noise does not hide some agent.
    INFINITE = "infinite"
    # No analysis covers the plan.
    REFUSED = "refused"
    # It was not asked for, and not computed.
    NOT_ASKED = "not asked"


@dataclass(frozen=True, eq=False)
class Answer:
    """[agents] ε; None where the accountant refused or was not asked, and `reason` says why.

    `losses`: one per agent, where more is known than ε at one δ. `observers`: the observer that learns most
    of each agent. `view`: what every observer learns of every agent.

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
        """The largest ε over all agents; None when refused or infinite."""
        return largest_finite(self.epsilon)

    @property
    def mu(self) -> Floats | None:
        """[agents] the μ of Gaussian differential privacy; nan where none is known (amplified samples)."""
        return np.array([loss.mu for loss in self.losses]) if self.losses else None

    def power(self, false_alarms: float) -> Floats | None:
        """[agents] the power at which a record can be told from none at this rate of false alarms."""
        if not self.losses:
            return None
        return np.array([loss.power(false_alarms) for loss in self.losses])


NOT_ASKED = Answer(None, "Not asked for: name it in privacy.answers.", asked=False)


def largest_finite(values: Floats | None) -> float | None:
    """The largest of some numbers; None where there are none or it is infinite."""
    if values is None:
        return None
    largest = float(values.max())
    return largest if np.isfinite(largest) else None


class AnswerKind(ABC):
    """One answer to "how private is this plan?": the observer, the assumptions, and how to compute it.

    Everything else (configuration, accounts, tables, pages, agents) iterates over `ANSWERS` or reads these
    attributes. A new answer is a new subclass in a file of its own, and an entry of `ANSWERS`.

    >>> from topdp.privacy import ANSWERS
    >>> [kind.name for kind in ANSWERS.values() if kind.takes_budget]
    ['claimed', 'view', 'adaptive', 'worst-case']
    """

    # In configurations and messages, as `worst-case`.
    name: ClassVar[str]
    # In JSON, as `worst_case`.
    key: ClassVar[str]
    # Observer and assumptions in sentences, for an account.
    assumptions: ClassVar[str]
    # Its place where answers are listed by how far one can rely on them.
    rank: ClassVar[int]
    # What its observer reads beside what it receives and makes.
    public: ClassVar[Public]

    # Whether it holds without assumptions on models or data.
    proved: ClassVar[bool] = True
    # Whether it takes time, and is computed only where somebody asks for it.
    on_request: ClassVar[bool] = False
    # Whether a budget can be put on it: noise is calibrated to it, and agents charge by it.
    takes_budget: ClassVar[bool] = True
    # Whether noise of other agents counts: then it holds for the plan as written alone.
    relies_on_others: ClassVar[bool] = True
    # Whether it is against as many colluders as the configuration names.
    counts_colluders: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """In tables and on pages, as `worst case`."""
        return self.name.replace("-", " ")

    @abstractmethod
    def against(self, colluders: int) -> str:
        """The observer in words, as the object of a sentence."""

    @abstractmethod
    def supports(self, plan: Plan, query: Query) -> str | None:
        """Why the answer does not cover the plan; None where it does."""

    @abstractmethod
    def account(
        self, plan: Plan, analysis: Analysis, delta: float, query: Query, view: View | None = None
    ) -> Answer:
        """ε of every agent; `view`: what observers learn, where that is known already."""

    def observe(self, plan: Plan, exposure: Exposure, query: Query, bound: Bound = "upper") -> View:
        """What the observers learn of every owner; `bound` as in `view`."""
        raise NotCovered(f"The {self.name} answer has no observers.")

    def closed_form_noise(
        self, write: Writer, analysis: Analysis, epsilon: Floats, delta: float
    ) -> Floats | None:
        """Full-scale noise [agents] that meets the budgets, where it needs no search over plans."""
        return None

    def spending_curve(self, spending: Spending, releases: Sequence[int]) -> Floats | list[float]:
        """ε of an owner whose data enter no release after each of `releases`."""
        raise NotCovered(f"The {self.name} answer has no cost by releases.")

    def work(self, plan: Plan, query: Query) -> float:
        """Roughly the operations that `observe` takes, as `view_work`; 0 if it is immediate or refused."""
        return 0.0

    def curve_seconds(self, plan: Plan, query: Query) -> float:
        """Roughly how long `spending_curve` takes on one core."""
        return 0.5

    def hides_rows(self, plan: Plan, colluders: int) -> bool:
        """Whether the answer counts on rows that some observer does not see."""
        return False

    def composes_releases(self, plan: Plan) -> bool:
        """Whether it is the sum of the releases that were made, whoever is missing (`in_the_open`)."""
        return False


class ObservedAnswer(AnswerKind):
    """An answer that looks at observers one by one."""

    on_request = True

    @final
    def account(
        self, plan: Plan, analysis: Analysis, delta: float, query: Query, view: View | None = None
    ) -> Answer:
        if view is None:
            view = query.observe(self, plan, analysis.exposure(), query, "upper")
        epsilon, owners = view.worst_epsilon(delta), range(plan.agents)
        warnings = [f"{self.name}: {view.note}"] if view.note else []
        if any(epsilon[i] < loss.epsilon(delta) for i, loss in view.samples.items()):
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
