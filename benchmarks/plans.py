"""How long does it take to write a plan, for every protocol? Processor seconds of one core, and digests.

    python benchmarks/plans.py            # 10,000 rounds of 30 agents, 100 rounds of 10,000 agents; --json
    python benchmarks/plans.py --quick    # a tenth of both

It ends with 1 where a plan takes longer than it is allowed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

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

LONG, LARGE = 0.5, 20.0
"""Seconds that a plan of many rounds, and one of many agents, may take."""

MANY_ROUNDS: dict[str, Protocol] = {
    "top": TopSynchronous(0.25),
    "plain": PlainSynchronous(0.5),
    "top in pairs": TopAsynchronous(0.5),
    "plain in pairs": PlainAsynchronous(0.5),
    "dsgd": Dsgd(),
    "muffliato": Muffliato(),
    "correlated": Correlated(),
}
MANY_AGENTS = {name: MANY_ROUNDS[name] for name in ("top", "plain", "dsgd", "correlated", "top in pairs")}


def timed(protocol: Protocol, graph: Callable[[], topology.Topology], rounds: int) -> tuple[float, str]:
    steps = Schedule(rate=np.full(rounds + 1, 0.1), noise=np.full(rounds + 1, 0.1))
    start = time.process_time()
    where = graph()
    plan = protocol.plan(where, steps, np.ones(where.agents), seed=0)
    return time.process_time() - start, plan.digest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds and agents")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--only", default="", help="protocols whose name contains this")
    chosen = parser.parse_args()
    share = 10 if chosen.quick else 1
    found, missed = {}, []
    jobs = [
        (f"{10_000 // share} rounds, 30 agents", MANY_ROUNDS, 30, 10_000 // share, LONG),
        (f"100 rounds, {10_000 // share} agents", MANY_AGENTS, 10_000 // share, 100, LARGE),
    ]
    for title, protocols, agents, rounds, most in jobs:
        known = topology.random(30, 0.2, seed=0) if agents == 30 else None

        def graph(known: topology.Topology | None = known, agents: int = agents) -> topology.Topology:
            return known if known is not None else topology.regular(agents, 4, seed=0)

        for name, protocol in protocols.items():
            if chosen.only not in name:
                continue
            seconds, digest = timed(protocol, graph, rounds)
            found[f"{title}, {name}"] = {"seconds": seconds, "digest": digest}
            late = seconds > most
            missed += [name] if late else []
            print(
                f"{title}, {name:16} {seconds:8.2f} s  {digest[:12]}{'  too long' if late else ''}",
                flush=True,
            )
    if chosen.json:
        print(json.dumps(found))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
