"""Plans and their inputs: everything that is fixed before the first record is read.

A `Plan` states from which rows and with which noise each row is made, and which agents read it. A `Schedule`
contains the step sizes and noise scales of all releases. `Full`, `Cycle` and `Poisson` state which records of
an agent a release uses. `stream` returns a separate random generator for every purpose.
"""

from typing import TYPE_CHECKING

from topdp.base.lazy_exports import lazy_exports
from topdp.plan.adaptive_steps import AdamSettings, AdaptiveSteps
from topdp.plan.batches import Adjacency, Batches, Cycle, Full, Poisson
from topdp.plan.capabilities import Capability, Planned, ReleaseKind, needs_of, unsupported
from topdp.plan.optimisers import Optimiser, optimised
from topdp.plan.plan import NOBODY, PerRound, Plan, PlanError, Round, prune
from topdp.plan.random_streams import stream
from topdp.plan.robust_rules import Robust
from topdp.plan.schedules import Schedule, for_curvature, learning_rates, power_of_rate, schedule, step_decay

if TYPE_CHECKING:
    from topdp.plan.description import describe
    from topdp.plan.plan_file import load, save

__all__ = [
    "NOBODY",
    "AdamSettings",
    "AdaptiveSteps",
    "Adjacency",
    "Batches",
    "Capability",
    "Cycle",
    "Full",
    "Optimiser",
    "PerRound",
    "Plan",
    "PlanError",
    "Planned",
    "Poisson",
    "ReleaseKind",
    "Robust",
    "Round",
    "Schedule",
    "describe",
    "for_curvature",
    "learning_rates",
    "load",
    "needs_of",
    "optimised",
    "power_of_rate",
    "prune",
    "save",
    "schedule",
    "step_decay",
    "stream",
    "unsupported",
]

__getattr__ = lazy_exports(__name__, {"description": ["describe"], "plan_file": ["load", "save"]})


def __dir__() -> list[str]:
    return __all__
