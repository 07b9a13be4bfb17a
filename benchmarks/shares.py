"""What a round of agents goes into, beside the simulator's on the same job.

    python benchmarks/shares.py [--agents 6] [--rounds 20] [--set KEY=VALUE ...] [--json]

The demonstration: one process per agent over gRPC and mutual TLS, ledgers with fsync. Then the simulator, on
one thread, with the same plan and data. Agents compute with one thread each, and with more agents than cores
they wait for one: that counts as the part that waits, mostly `compute` and `network`. Hence processor time as
well: what computing takes, and everything else that the process does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any


def agents(config: Any, out: Path) -> dict[str, Any]:
    from topdp.agents.development import federation_demo

    found = federation_demo.run(config, out)
    processor = [each["processor_milliseconds_per_round"] for each in found["agents"]]
    return {
        "wall_ms": found["milliseconds_per_round"],
        "processor_ms": {
            part: statistics.mean(each[part] for each in processor) for part in ("compute", "rest")
        },
    }


def simulator(config: Any) -> float:
    """Milliseconds a round, of all agents, on one thread."""
    import torch

    from topdp.runs.assembly import Assembly
    from topdp.runs.planning import plan_and_account

    torch.set_num_threads(1)
    parts = Assembly.of(config)
    plan, _ = plan_and_account(parts.run)
    engine = parts.engine(plan)
    state = engine.advance(engine.start(parts.flat.flatten()))
    begun = time.perf_counter()
    for _ in range(config.rounds):
        state = engine.advance(state)
    return 1e3 * (time.perf_counter() - begun) / config.rounds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    from topdp.runs import config as configurations

    changes = [*options.changes, f"topology.agents={options.agents}", f"rounds={options.rounds}"]
    config = configurations.read(None, None, changes)
    with tempfile.TemporaryDirectory() as place:
        found = agents(config, Path(place) / "run")
    found |= {"simulator_ms": simulator(config), "load": os.getloadavg()[0], "cores": os.cpu_count()}
    wall, processor = found["wall_ms"], found["processor_ms"]
    found["compute_share"] = {
        "wall": wall["compute"] / sum(wall.values()),
        "processor": processor["compute"] / sum(processor.values()),
    }
    if options.json:
        print(json.dumps(found))
        return
    told = ", ".join(f"{part} {value:.1f} ms" for part, value in wall.items())
    print(f"an agent's round:  {told}; compute is {found['compute_share']['wall']:.0%}")
    told = ", ".join(f"{part} {value:.1f} ms" for part, value in processor.items())
    print(f"of a processor:    {told}; compute is {found['compute_share']['processor']:.0%}")
    print(f"simulator:         {found['simulator_ms']:.1f} ms for all {options.agents} agents, one thread")
    print(f"load {found['load']:.1f} on {found['cores']} cores")


if __name__ == "__main__":
    main()
