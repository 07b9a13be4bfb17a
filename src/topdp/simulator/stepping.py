"""The choice of the fastest simulation, and the number of releases until a run loop must act."""

from __future__ import annotations

from importlib.util import find_spec

from topdp.simulator.engine import Engine
from topdp.simulator.simulation import Simulation


def fastest(simulation: Simulation) -> Simulation:
    """Return a CUDA replay of `simulation` if it runs on a GPU and Triton is available; otherwise itself."""
    triton = find_spec("triton") is not None
    if triton and isinstance(simulation, Engine) and simulation.device.type == "cuda":
        from topdp.simulator.cuda_replay import CudaReplay

        return CudaReplay(simulation)
    return simulation


def releases_until_due(releases: int, per_round: int, rounds: int, *every: int) -> int:
    """Return how many releases remain until the end of the next round at which a run loop must act.

    This is the next round whose number is a multiple of one of the numbers `every`, or the last round.
    `releases`: the number of releases made so far. `per_round`: the number of releases of a round. `rounds`:
    the number of the last round. Round 0 is the first round, and a multiple of every number.

    >>> [releases_until_due(releases, 1, 25, 10) for releases in (0, 1, 10, 11, 21, 25)]
    [1, 10, 1, 10, 5, 1]
    >>> releases_until_due(5, 3, 25, 10), releases_until_due(4, 3, 25, 10, 1)
    (28, 2)
    """
    complete = releases // per_round - 1  # the last complete round
    due = min(rounds, *(complete + number - complete % number for number in every))
    return (due + 1) * per_round - releases
