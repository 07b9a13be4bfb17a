"""Settings of the adaptive steps in a plan: one class for each non-linear optimiser.

`optimised` (optimisers.py) adds the adaptive steps to a plan. `simulator/adaptive_step.py` contains the
arithmetic, which simulated runs and real agents share.

**Guarantees.** None by itself. An adaptive step of an agent reads only the agent's own rows. These rows were
released, or are computed from rows that were released. An adaptive step is not linear: `Plan.needs` states
that the plan has adaptive steps, and accounts of hidden rows refuse such a plan.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, fields
from typing import ClassVar, final

import numpy as np

from topdp.base.array_types import Floats


@dataclass(frozen=True, eq=False, kw_only=True)
class AdaptiveSteps(ABC):
    """Base class: the settings of the adaptive steps, which are the releases with `rate` > 0.

    In an adaptive step, each agent replaces its estimate and its memory rows by functions of these rows.
    The sources of an estimate are the estimate and the `memories` memory rows, in this order.

    >>> AdamSettings.title, AdamSettings.memories
    ('Adam', 3)
    """

    title: ClassVar[str]
    # The name of the array of settings in plan files and digests.
    stored_as: ClassVar[str]
    # The number of memory rows per agent; the first is the estimate at which the round began.
    memories: ClassVar[int]

    rate: Floats  # [releases] the step size; 0 in releases of other kinds

    def settings(self) -> Floats:
        """Return the values of all fields except `rate`, in the order of the fields."""
        return np.array([getattr(self, field.name) for field in fields(self) if field.name != "rate"], float)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class AdamSettings(AdaptiveSteps):
    """Adam (Kingma and Ba 2015) with decoupled weight decay (Loshchilov and Hutter 2019).

    >>> import numpy as np
    >>> adam = AdamSettings(
    ...     rate=np.array([0.0, 0.1]), momentum=0.9, second_moment=0.75, floor=0.5, weight_decay=0.0
    ... )
    >>> adam.settings().tolist()
    [0.9, 0.75, 0.5, 0.0]
    """

    title: ClassVar[str] = "Adam"
    stored_as: ClassVar[str] = "adam"
    # The estimate at the start of the round, the average of its changes, and the average of their squares.
    memories: ClassVar[int] = 3

    momentum: float
    second_moment: float
    floor: float  # added to the square root of the second moment
    weight_decay: float


# The class of each optimiser name. `optimised` copies the settings from the fields of the same names.
ADAPTIVE_OPTIMISERS: dict[str, type[AdaptiveSteps]] = {"adam": AdamSettings}
