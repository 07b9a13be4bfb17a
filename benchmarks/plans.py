"""Duration of writing a plan, for every protocol, in CPU time; and the digests of the plans.

    python benchmarks/plans.py            # 10,000 rounds of 30 agents, and 100 rounds of 10,000 agents
    python benchmarks/plans.py --quick    # a tenth of both

Exit with 1 if a plan takes longer than the limit.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from topdp import topology
from topdp.plan import Schedule
from topdp.protocols import (
    Correlated,
    Dsgd,
    Muffliato,
    PlainAsynchronous,
    PlainSynchronous,
    Protocol,
    TopAsynchronous,
    TopSynchronous,
)

MAX_LONG_PLAN_SECONDS = 0.5  # many rounds
MAX_LARGE_PLAN_SECONDS = 20.0  # many agents

LONG_PLAN_PROTOCOLS: dict[str, Protocol] = {
    "top": TopSynchronous(0.25),
    "plain": PlainSynchronous(0.5),
    "top in pairs": TopAsynchronous(0.5),
    "plain in pairs": PlainAsynchronous(0.5),
    "dsgd": Dsgd(),
    "muffliato": Muffliato(),
    "correlated": Correlated(),
}
LARGE_PLAN_NAMES = ("top", "plain", "dsgd", "correlated", "top in pairs")


def time_plan(protocol: Protocol, agents: int, rounds: int) -> tuple[float, str]:
    """Return the CPU time to write a plan, and the digest of the plan.

    The time includes that of the graph if there are more than 30 agents.
    """
    schedule = Schedule(rate=np.full(rounds + 1, 0.1), noise=np.full(rounds + 1, 0.1))
    graph = topology.random(agents, 0.2, seed=0) if agents <= 30 else None
    start = time.process_time()
    graph = graph or topology.regular(agents, 4, seed=0)
    plan = protocol.plan(graph, schedule, np.ones(agents), seed=0)
    return time.process_time() - start, plan.digest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds and agents")
    options = parser.parse_args()
    many = 1000 if options.quick else 10_000
    cases = [(name, 30, many, MAX_LONG_PLAN_SECONDS) for name in LONG_PLAN_PROTOCOLS]
    cases += [(name, many, 100, MAX_LARGE_PLAN_SECONDS) for name in LARGE_PLAN_NAMES]
    too_long = 0
    for name, agents, rounds, max_seconds in cases:
        seconds, digest = time_plan(LONG_PLAN_PROTOCOLS[name], agents, rounds)
        too_long += seconds > max_seconds
        verdict = f"  more than {max_seconds:g} s" if seconds > max_seconds else ""
        print(
            f"{rounds:6} rounds, {agents:6} agents, {name:14} {seconds:8.2f} s  {digest[:12]}{verdict}",
            flush=True,
        )
    return int(too_long > 0)


if __name__ == "__main__":
    sys.exit(main())
