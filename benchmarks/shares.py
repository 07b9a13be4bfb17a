"""Parts of an agent's round: computation, ledger and network, compared with the simulator on the same job.

    python benchmarks/shares.py [--agents 6] [--rounds 20]

The federation has one process per agent, gRPC with mutual TLS, and ledgers with fsync. The simulator then
executes the same plan on the same data with one thread. Each agent computes with one thread; if there are
more agents than cores, an agent also waits for a core, which increases the wall time of `compute` and
`network`. The CPU times do not contain this wait: `compute` is the computation, `rest` everything else in the
process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any


def federation_milliseconds(config: Any, out: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Run a federation; return wall time and CPU time of an agent's round, by part."""
    from topdp.agents.development import federation_demo

    result = federation_demo.run(config, out)
    cpu_times = [agent["processor_milliseconds_per_round"] for agent in result["agents"]]
    cpu = {part: statistics.mean(times[part] for times in cpu_times) for part in ("compute", "rest")}
    return result["milliseconds_per_round"], cpu


def simulator_milliseconds(config: Any) -> float:
    """Return the wall time of a round of all agents in the simulator, with one thread."""
    import torch

    from topdp.runs.assembly import Assembly
    from topdp.runs.planning import plan_and_account

    torch.set_num_threads(1)
    assembly = Assembly.of(config)
    plan, _ = plan_and_account(assembly.run)
    engine = assembly.engine(plan)
    state = engine.advance(engine.start(assembly.flat.flatten()))
    start = time.perf_counter()
    for _ in range(config.rounds):
        state = engine.advance(state)
    return 1e3 * (time.perf_counter() - start) / config.rounds


def parts_text(milliseconds: dict[str, float]) -> str:
    parts = ", ".join(f"{part} {value:.1f} ms" for part, value in milliseconds.items())
    return f"{parts}; compute is {milliseconds['compute'] / sum(milliseconds.values()):.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    from topdp.runs import config

    settings = config.read(changes=[f"topology.agents={options.agents}", f"rounds={options.rounds}"])
    with tempfile.TemporaryDirectory() as folder:
        wall, cpu = federation_milliseconds(settings, Path(folder) / "run")
    print(f"agent's round, wall time:  {parts_text(wall)}")
    print(f"agent's round, CPU time:   {parts_text(cpu)}")
    milliseconds = simulator_milliseconds(settings)
    print(f"simulator:                 {milliseconds:.1f} ms for all {options.agents} agents, one thread")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
