"""Kinds of releases, and the capabilities that a plan needs from executors, accountants and transports.

A plan states the capabilities that it needs (`Plan.needs`). The outline of a run states those that follow
from its settings, before there is a plan. An executor or an accountant lists the capabilities that it
supports, and has one function `supports`, which returns None or the reason why the plan is not supported. Its
caller then refuses the plan with an error that names the reason.
Transports support every plan, because they carry encoded rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from topdp.plan.adaptive_steps import AdaptiveSteps
    from topdp.plan.robust_rules import Robust


class ReleaseKind(Enum):
    """What a release does. Every round begins with a gradient release.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(2, 0.5), noise=np.full(2, 0.5))
    >>> plan = topdp.protocols.Muffliato(gossip=1).plan(topdp.topology.ring(4), schedule, np.ones(4), seed=0)
    >>> [kind.value for kind in plan.kinds]
    ['gradient', 'gossip', 'gradient', 'gossip']
    """

    GRADIENT = "gradient"  # rows carry gradients and noise; or all agents are offline
    GOSSIP = "gossip"  # rows are only mixed
    ADAPTIVE = "adaptive"  # every agent makes a new estimate from its own rows, as in Adam


class Capability(Enum):
    """A feature that a plan may need beyond linear mixing, gradients and own noise.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(2, 0.5), noise=np.full(2, 0.5))
    >>> plan = topdp.protocols.Dsgd().plan(topdp.topology.ring(4), schedule, np.ones(4), seed=0)
    >>> topdp.plan.prune(plan).needs
    {<Capability.PRUNED_ROWS: 'pruned rows'>: 'pruned rows'}
    """

    ADAPTIVE_STEPS = "adaptive steps"
    ROBUST_MIXING = "robust mixing"
    ROUNDED_ROWS = "rounded rows"
    SHARED_DRAWS = "shared draws"
    PRUNED_ROWS = "pruned rows"


class Planned(Protocol):
    """A plan, or the settings from which it will be written.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(2, 0.5), noise=np.full(2, 0.5))
    >>> plan: Planned = topdp.protocols.Dsgd().plan(topdp.topology.ring(4), schedule, np.ones(4), seed=0)
    >>> plan.needs
    {}
    """

    @property
    def needs(self) -> Mapping[Capability, str]: ...


def needs_of(
    adaptive: AdaptiveSteps | type[AdaptiveSteps] | None,
    robust: Robust | None,
    rounded: str | None,
    others: Collection[Capability] = (),
) -> dict[Capability, str]:
    """Return the capabilities that these settings need, and the `others`, each with a description.

    >>> list(needs_of(adaptive=None, robust=None, rounded="bfloat16").values())
    ['rows rounded to bfloat16']
    """
    needs = {
        Capability.ADAPTIVE_STEPS: None if adaptive is None else adaptive.title,
        Capability.ROBUST_MIXING: robust and f"{Capability.ROBUST_MIXING.value} ({robust.rule})",
        Capability.ROUNDED_ROWS: rounded and f"rows rounded to {rounded}",
    }
    return {need: words for need, words in needs.items() if words} | {need: need.value for need in others}


def unsupported(plan: Planned, supported: Collection[Capability]) -> str | None:
    """Return a description of the first capability that `plan` needs and `supported` lacks, or None.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(3, 0.5), noise=np.full(3, 0.5))
    >>> plan = topdp.protocols.Dsgd().plan(topdp.topology.ring(4), schedule, np.ones(4), seed=0)
    >>> unsupported(plan, ()), unsupported(topdp.plan.prune(plan), ())
    (None, 'pruned rows')
    """
    return next((words for need, words in plan.needs.items() if need not in supported), None)
