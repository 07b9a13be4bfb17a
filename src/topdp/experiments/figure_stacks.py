"""The stacks of figures: runs with the noise that was calibrated before, and how much of a device they take.

How runs become one is `runs/run_stacks.py`; which runs there are, the figures say.
"""

from __future__ import annotations

from collections.abc import Sequence

from topdp.experiments.shared_plans import shared_plans
from topdp.runs import run_stacks
from topdp.runs.config import RunConfig
from topdp.runs.methods import METHODS
from topdp.runs.run_stacks import Dealer, Stack


def assembled(dealer: Dealer, configs: list[RunConfig], sigmas: list[float], test_records: int) -> Stack:
    """All runs as one, each with its σ, tested on the first records of the test set."""
    runs = dealer.assemblies(configs)
    plans = shared_plans(configs, [one.graph for one in runs], [one.shards.counts for one in runs], sigmas)
    return Stack.of(runs, plans, test_records)


def stackable(configs: Sequence[RunConfig], limit: float) -> list[list[RunConfig]]:
    """The runs in groups that can go together, each within a limit of bytes."""
    return run_stacks.stackable(configs, limit, _bytes)


def _bytes(config: RunConfig) -> tuple[float, float]:
    """Roughly: of the records of the agents, and of two buffers of rows with gradients."""
    agents = config.topology.agents
    image = 3072 if "cifar10" in config.data.name else 784
    if config.data.features == "scattering":
        image *= 5  # 81 numbers in the place of 16
    parameters = {"linear": 10 * image, "mlp": 100 * image}.get(config.model.name, 80_000)
    records = config.data.records or 60_000 // agents
    rows = agents * (4 if METHODS[config.method.name].reuses_noise else 1)
    return 4.0 * agents * records * image, 4.0 * parameters * (2 * rows + 2 * agents)
