"""The plan of a configuration, for any noise. No data, no torch, no accounting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from topdp.base.array_types import Floats
from topdp.plan import Plan, optimised
from topdp.runs import builders
from topdp.runs.config import RunConfig
from topdp.topology import Topology


def plan_writer(config: RunConfig, graph: Topology, counts: tuple[int, ...]) -> Callable[[Floats], Plan]:
    """The plan of the configuration as a function of its noise; every call makes the same random choices."""
    protocol, schedule = builders.protocol(config), builders.schedule(config, min(counts))
    optimiser, robust, rounded = builders.optimiser(config), builders.robust(config), builders.rounded(config)
    inner = optimiser.inner(schedule)

    def write(deviation: Floats) -> Plan:
        plan = optimised(protocol.plan(graph, inner, deviation, config.seed), optimiser, schedule.rate)
        if robust is None and rounded is None:
            return plan
        return replace(plan, robust=robust, rounded=rounded)

    return write
