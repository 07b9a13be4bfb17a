"""Settings of the steps of non-linear optimisers in a plan: one class for each optimiser.

`optimised` (optimisers.py) writes their releases into a plan; the arithmetic is in
`simulator/adaptive_step.py`, for runs and for agents.

**Guarantees.** None by itself: an adaptive step reads rows of its owner only, and those were released or
follow from rows that were. It is not linear, so `Plan.needs` states it and accounts of hidden rows refuse it.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, fields
from typing import ClassVar, final

import numpy as np

from topdp.base.array_types import Floats


@dataclass(frozen=True, eq=False, kw_only=True)
class AdaptiveSteps(ABC):
    """Base class: the settings of adaptive releases, those with `rate` > 0.

    In such a release each agent replaces its estimate and its memory rows by functions of these rows. The
    sources of an estimate are, in this order, the estimate and the `memories` memory rows.

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
    memories: ClassVar[int] = 3  # the start of the round, and the averages of changes and of their squares

    momentum: float
    second_moment: float
    floor: float  # added to the root of the second moment
    weight_decay: float


# By the name of the optimiser. `optimised` takes the settings from the fields of the same names.
ADAPTIVE_OPTIMISERS: dict[str, type[AdaptiveSteps]] = {"adam": AdamSettings}
