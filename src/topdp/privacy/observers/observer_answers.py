"""The answers that look at observers one by one, by name. Not the claim and the worst case, which do not."""

from __future__ import annotations

from collections.abc import Callable, Collection

from topdp.base.progress import Progress
from topdp.plan import Plan
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.basics.refusals import NotCovered, PrivacyError
from topdp.privacy.observers.adaptive import adaptive, outsider
from topdp.privacy.observers.view import Bound, View, expect_viewable, view
from topdp.privacy.observers.view_effort import WIDEST, expect_bearable

ASKED = ("view", "adaptive", "outsider")
"""They take time: computed where they are asked for."""

Look = Callable[..., View]
"""Whoever answers as `observed` does, with its arguments: itself, or somebody who remembers what it said."""


def observed(
    answer: str,
    plan: Plan,
    exposure: Exposure,
    colluders: int = 1,
    patient: bool = False,
    progress: Progress | None = None,
    bound: Bound = "upper",
) -> View:
    """What the observers of `answer` learn of every owner; refused where that takes far too long.

    `bound`: as in `view`.
    """
    expect_answers([answer])
    if answer == "adaptive":
        return adaptive(plan, exposure, colluders, progress, patient, bound)
    if answer == "outsider":
        return outsider(plan, exposure, progress, patient)
    if plan.agents == 1:
        raise NotCovered("One party holds all records: no other agent reads anything. Ask for adaptive.")
    expect_viewable(plan)
    expect_bearable(plan, patient)
    widest = None if patient else WIDEST
    return view(plan, exposure, owners="all", bound=bound, progress=progress, widest=widest)


def expect_answers(answers: Collection[str]) -> None:
    """Refuses names of answers that do not exist."""
    for name in answers:
        if name not in ASKED:
            raise PrivacyError(
                f"Expected answers among {', '.join(ASKED)}, got {name!r}; claimed and worst_case are always "
                "there."
            )
