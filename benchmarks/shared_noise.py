"""What own noise is left in the agents' average where partners share noise, over that of pooled records.

    python benchmarks/shared_noise.py [--agents 30] [--strength 10] [--seeds 5]

For each number of partners and of colluders: the graph of secrets is drawn with several seeds, own noise is
allocated, the plan is accounted against every coalition, and what it leaves in the average is scaled to the
account. 1 is what a trusted party would need; the number of agents what everybody alone would. `strength` is
τ², the variance of all pairs' noise in a row over what an agent needs alone.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from topdp import topology
from topdp.plan import Schedule
from topdp.privacy import adaptive, exposure
from topdp.privacy.noise_allocation import allocate
from topdp.privacy.query import Query
from topdp.privacy.residual_noise import residual_noise
from topdp.protocols import Correlated
from topdp.protocols.pair_secrets import hangs_together, secret_pairs

DEGREES = (4, 8, 12)
COLLUDERS = (1, 2, 4)


def over_central(agents: int, degree: int, colluders: int, strength: float, seed: int) -> float | None:
    """The variance that stays in the average, over that of pooled records; None where colluders can cut."""
    graph = topology.complete(agents)
    pairs = secret_pairs("regular", graph, degree, seed)
    if not hangs_together(pairs, agents, colluders):
        return None
    found = allocate(pairs, np.ones(agents), colluders, strength)
    once = Schedule(rate=np.ones(1), noise=np.ones(1))
    plan = Correlated("regular", degree, found.pair_noise, gossip=0).plan(graph, once, found.own, seed)
    mu = float(
        adaptive(plan, exposure(agents, 1.0), Query(colluders=colluders, allow_slow=True)).worst().max()
    )
    return float(residual_noise(plan).average[-1]) * agents**2 * mu**2


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--agents", type=int, default=30)
    arguments.add_argument("--strength", type=float, default=10.0)
    arguments.add_argument("--seeds", type=int, default=5)
    asked = arguments.parse_args()
    print(
        f"{asked.agents} agents, pairs' noise τ² = {asked.strength:g}; over {asked.seeds} graphs of secrets"
    )
    print("partners  colluders   median   least    most   seconds each")
    for degree in DEGREES:
        for colluders in COLLUDERS:
            began = time.perf_counter()
            found = [
                over_central(asked.agents, degree, colluders, asked.strength, s) for s in range(asked.seeds)
            ]
            took = (time.perf_counter() - began) / asked.seeds
            uncut = [one for one in found if one is not None]
            if not uncut:
                print(f"{degree:8} {colluders:10}   colluders can cut them")
                continue
            said = f"{np.median(uncut):8.3f} {min(uncut):7.3f} {max(uncut):7.3f}"
            print(f"{degree:8} {colluders:10} {said} {took:9.1f}", flush=True)


if __name__ == "__main__":
    main()
