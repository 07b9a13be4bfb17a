"""The query: settings of an account, such as the number of colluders and whether slow answers are allowed.

The budget and δ are not part of the query; functions take them as separate arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from topdp.base.progress import Progress, silent

if TYPE_CHECKING:
    from topdp.plan import Plan
    from topdp.privacy.answers import AnswerKind
    from topdp.privacy.basics.exposure import Exposure
    from topdp.privacy.observers.view import Bound, View


# A function that returns the loss of every owner to every observer of an answer.
Observe: TypeAlias = "Callable[[AnswerKind, Plan, Exposure, Query, Bound], View]"


def observe(kind: AnswerKind, plan: Plan, exposure: Exposure, query: Query, bound: Bound) -> View:
    """Return the loss of every owner to every observer of the answer `kind`."""
    return kind.observe(plan, exposure, query, bound)


@dataclass(frozen=True, kw_only=True)
class Query:
    """The settings of an account.

    `colluders`: the size of the coalitions, in answers that depend on it. `allow_slow`: also compute answers
    that take very long; otherwise they are refused, or replaced by an upper bound. `progress` is called
    after each step. `observe` computes the losses to observers; it can be replaced by a cache.

    >>> Query(colluders=2).allow_slow
    False
    """

    colluders: int = 1
    allow_slow: bool = False
    progress: Progress = silent
    observe: Observe = observe


# One colluder; answers that take very long are refused or replaced by an upper bound.
DEFAULT_QUERY = Query()

# One colluder; no answer is refused because it takes very long.
UNHURRIED_QUERY = Query(allow_slow=True)
