"""What an agent's noise costs: a cipher keyed by the operating system, beside numpy's generator and a round.

    python benchmarks/agent_noise.py [--numbers 79510] [--repeats 30] [--json]

The ways to add noise take turns in one process with one thread, and the best time of each counts. The round
is one agent's in the default job (30 agents, full batches of 2,000 records, MLP 784-100-10): its gradient and
all its rows, with random numbers for records.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from topdp.agents.agreement import identity, manifest
from topdp.agents.agreement.federation_manifest import complete_config
from topdp.agents.agreement.run_setup import RunSetup
from topdp.agents.runtime import agent_draws
from topdp.agents.runtime.agent_context import AgentContext, build_context
from topdp.agents.runtime.agent_draws import AgentDraws, SystemDraws
from topdp.agents.runtime.agent_rows import make_rows
from topdp.runs import config
from topdp.runs.run_outline import RunOutline


class FastDraws(AgentDraws):
    """numpy's PCG64DXSM in the row's own type: what agents used before. Fast, and no secret keeper."""

    seeded = False

    def __init__(self, dtype: type) -> None:
        self.dtype, self.generator = dtype, np.random.Generator(np.random.PCG64DXSM())

    def add(self, row: Tensor, std: float, round: int, draw: int) -> None:
        row.add_(torch.from_numpy(self.generator.standard_normal(len(row), dtype=self.dtype)), alpha=std)

    def sample(self, batches: object, agent: int, round: int) -> Tensor:
        raise NotImplementedError


def agent() -> tuple[AgentContext, int]:
    """An agent of the default job, and the round in which it makes most rows."""
    wanted = config.read(changes=["privacy.guarantee=worst-case", "privacy.epsilon=10.0", "rounds=4"])
    graph = RunOutline.of(wanted).graph
    complete, _ = complete_config(wanted, graph, (2000,) * graph.agents, manifest.Rules())
    cards = [identity.generate(f"agent{i}", f"127.0.0.1:{7000 + i}").card for i in range(graph.agents)]
    links = [(cards[i].name, cards[j].name) for i, j in graph.edges.tolist()]
    setup = RunSetup.of(manifest.new_manifest(cards, links, complete))
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(2000, 1, 28, 28, generator=generator)
    labels = torch.randint(0, 10, (2000,), generator=generator)
    rows = [sum(setup.plan.owner[setup.plan.exists[1]] == i) for i in range(graph.agents)]
    typical = int(np.argsort(rows)[len(rows) // 2])
    return build_context(setup, typical, (inputs, labels), 10), int(rows[typical])


def round_of(mine: AgentContext, draws: AgentDraws) -> Callable[[], object]:
    part = mine.part
    own = {part.agent: mine.start}
    received = {row: mine.start.clone() for row in part.read_rows[0].values()}
    return lambda: make_rows(part, 1, own, received, mine.gradients, draws)


def best(contestants: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Milliseconds."""
    found = dict.fromkeys(contestants, float("inf"))
    for _ in range(repeats):
        for name, run in contestants.items():
            begun = time.perf_counter()
            run()
            found[name] = min(found[name], 1e3 * (time.perf_counter() - begun))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--numbers", type=int, default=79_510, help="of a row; the default model's")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    row = torch.zeros(options.numbers)
    system, single, double = SystemDraws(), FastDraws(np.float32), FastDraws(np.float64)
    mine, rows = agent()
    chunks = [
        min(agent_draws.NUMBERS_PER_KEY, options.numbers - k)
        for k in range(0, options.numbers, agent_draws.NUMBERS_PER_KEY)
    ]
    noise = best(
        {
            "agents: ChaCha20, float64": lambda: system.add(row, 0.1, 0, 0),
            "of which the cipher": lambda: [agent_draws.random_words(count) for count in chunks],
            "PCG64DXSM, float32": lambda: single.add(row, 0.1, 0, 0),
            "PCG64DXSM, float64": lambda: double.add(row, 0.1, 0, 0),
        },
        options.repeats,
    )
    whole = best(
        {
            "agents: ChaCha20, float64": round_of(mine, system),
            "PCG64DXSM, float32": round_of(replace(mine, draws=single), single),
        },
        max(3, options.repeats // 6),
    )
    ours = "agents: ChaCha20, float64"
    report = {
        "numbers": options.numbers,
        "milliseconds_per_row": {name: round(value, 3) for name, value in noise.items()},
        "ratio_to_float32": round(noise[ours] / noise["PCG64DXSM, float32"], 2),
        "ratio_to_float64": round(noise[ours] / noise["PCG64DXSM, float64"], 2),
        "rows_in_a_round": rows,
        "milliseconds_per_round": {name: round(value, 1) for name, value in whole.items()},
        "share_of_a_round": round(rows * noise[ours] / whole[ours], 4),
    }
    if options.json:
        print(json.dumps(report))
        return
    for name, value in noise.items():
        print(f"{name:28} {value:7.3f} ms a row of {options.numbers}")
    print(f"ratio: {report['ratio_to_float32']} to float32, {report['ratio_to_float64']} to float64")
    for name, value in whole.items():
        print(f"{name:28} {value:7.1f} ms a round with {rows} rows")
    print(f"noise is {report['share_of_a_round']:.1%} of a round")


if __name__ == "__main__":
    main()
