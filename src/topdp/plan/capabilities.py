"""Kinds of releases, and the capabilities that a plan needs from executors, accountants and transports.

A plan states the capabilities that it needs (`Plan.needs`). An executor or an accountant lists the
capabilities that it supports, and has one function `supports(plan)`, which returns None or the reason why the
plan is not supported. A plan that needs any other capability is refused with an error that names it.
Transports support every plan, because they carry encoded rows.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topdp.plan.plan import Plan


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
    >>> topdp.plan.prune(plan).needs == {Capability.PRUNED_ROWS}
    True
    """

    ADAPTIVE_STEPS = "adaptive steps"
    ROBUST_MIXING = "robust mixing"
    ROUNDED_ROWS = "rounded rows"
    SHARED_DRAWS = "shared draws"
    PRUNED_ROWS = "pruned rows"


def unsupported(plan: Plan, supported: Collection[Capability]) -> str | None:
    """Return a description of the first capability that `plan` needs and `supported` lacks, or None.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(3, 0.5), noise=np.full(3, 0.5))
    >>> plan = topdp.protocols.Dsgd().plan(topdp.topology.ring(4), schedule, np.ones(4), seed=0)
    >>> unsupported(plan, ()), unsupported(topdp.plan.prune(plan), ())
    (None, 'pruned rows')
    """
    need = next((need for need in Capability if need in plan.needs and need not in supported), None)
    if need is Capability.ADAPTIVE_STEPS and plan.adaptive is not None:
        return plan.adaptive.title
    if need is Capability.ROBUST_MIXING and plan.robust is not None:
        return f"{need.value} ({plan.robust.rule})"
    if need is Capability.ROUNDED_ROWS:
        return f"rows rounded to {plan.rounded}"
    return None if need is None else need.value
