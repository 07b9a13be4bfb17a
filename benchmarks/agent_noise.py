"""Duration of an agent's noise from a cipher, compared with numpy's generator and with a whole round.

    python benchmarks/agent_noise.py [--repeats 30]

The generators are timed in turns, in one process with one thread; the best time of each counts. The round is
that of one agent in the default job (30 agents, full batches of 2,000 records, MLP 784-100-10): its gradient
and all its rows. The records are random numbers.
"""

from __future__ import annotations

import argparse
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

ROW_NUMBERS = 79_510  # the parameters of the default model
RECORDS_PER_AGENT = 2000
CIPHER, SINGLE, DOUBLE = "ChaCha20, float64 (agents)", "PCG64DXSM, float32", "PCG64DXSM, float64"


class NumpyDraws(AgentDraws):
    """Draws of numpy's PCG64DXSM, which is no cryptographic generator. Only for comparison."""

    seeded = False

    def __init__(self, dtype: type) -> None:
        self.dtype, self.generator = dtype, np.random.Generator(np.random.PCG64DXSM())

    def add(self, row: Tensor, std: float, round: int, draw: int) -> None:
        row.add_(torch.from_numpy(self.generator.standard_normal(len(row), dtype=self.dtype)), alpha=std)

    def sample(self, batches: object, agent: int, round: int) -> Tensor:
        raise NotImplementedError


def typical_agent() -> tuple[AgentContext, int]:
    """Return the agent of the default job with the median number of rows per round, and this number."""
    wanted = config.read(changes=["privacy.guarantee=worst-case", "privacy.epsilon=10.0", "rounds=4"])
    graph = RunOutline.of(wanted).graph
    complete, _ = complete_config(wanted, graph, (RECORDS_PER_AGENT,) * graph.agents, manifest.Rules())
    cards = [identity.generate(f"agent{i}", f"127.0.0.1:{7000 + i}").card for i in range(graph.agents)]
    links = [(cards[i].name, cards[j].name) for i, j in graph.edges.tolist()]
    setup = RunSetup.of(manifest.new_manifest(cards, links, complete))
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(RECORDS_PER_AGENT, 1, 28, 28, generator=generator)
    labels = torch.randint(0, 10, (RECORDS_PER_AGENT,), generator=generator)
    rows = [sum(setup.plan.owner[setup.plan.exists[1]] == i) for i in range(graph.agents)]
    median_agent = int(np.argsort(rows)[len(rows) // 2])
    return build_context(setup, median_agent, (inputs, labels), 10), int(rows[median_agent])


def round_of(context: AgentContext, draws: AgentDraws) -> Callable[[], object]:
    """Return a function that makes the rows of one round."""
    part = context.part
    own = {part.agent: context.start}
    received = {row: context.start.clone() for row in part.read_rows[0].values()}
    return lambda: make_rows(part, 1, own, received, context.gradients, draws)


def best_milliseconds(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            best[name] = min(best[name], 1e3 * (time.perf_counter() - start))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    row = torch.zeros(ROW_NUMBERS)
    system, single, double = SystemDraws(), NumpyDraws(np.float32), NumpyDraws(np.float64)
    context, rows = typical_agent()
    key_chunks = [
        min(agent_draws.NUMBERS_PER_KEY, ROW_NUMBERS - start)
        for start in range(0, ROW_NUMBERS, agent_draws.NUMBERS_PER_KEY)
    ]
    per_row = best_milliseconds(
        {
            CIPHER: lambda: system.add(row, 0.1, 0, 0),
            "only the cipher": lambda: [agent_draws.random_words(count) for count in key_chunks],
            SINGLE: lambda: single.add(row, 0.1, 0, 0),
            DOUBLE: lambda: double.add(row, 0.1, 0, 0),
        },
        options.repeats,
    )
    per_round = best_milliseconds(
        {CIPHER: round_of(context, system), SINGLE: round_of(replace(context, draws=single), single)},
        max(3, options.repeats // 6),
    )
    for name, milliseconds in per_row.items():
        print(f"{name:28} {milliseconds:7.3f} ms per row of {ROW_NUMBERS:,} numbers")
    to_single, to_double = per_row[CIPHER] / per_row[SINGLE], per_row[CIPHER] / per_row[DOUBLE]
    print(f"ratio: {to_single:.2f} to float32, {to_double:.2f} to float64")
    for name, milliseconds in per_round.items():
        print(f"{name:28} {milliseconds:7.1f} ms per round with {rows} rows")
    print(f"noise takes {rows * per_row[CIPHER] / per_round[CIPHER]:.1%} of a round")


if __name__ == "__main__":
    main()
