"""What is written down before the first record is read: the plan, and what it is written from.

A `Plan` says which rows are made of what, under which noise, and who reads them; a `Schedule` says what
changes along the rounds; `stream` gives every random choice its own generator.
"""

from topdp.plan.plan import (
    FORMAT,
    NOBODY,
    PerRound,
    Plan,
    PlanError,
    Round,
    describe,
    load,
    prune,
    save,
)
from topdp.plan.schedules import Schedule, learning_rates, schedule, step_decay
from topdp.plan.streams import stream

__all__ = [
    "FORMAT",
    "NOBODY",
    "PerRound",
    "Plan",
    "PlanError",
    "Round",
    "Schedule",
    "describe",
    "learning_rates",
    "load",
    "prune",
    "save",
    "schedule",
    "step_decay",
    "stream",
]
