"""The choice of the fastest simulation, and of the number of releases until a run loop must act."""

from __future__ import annotations

from importlib.util import find_spec

from topdp.simulator.engine import Engine
from topdp.simulator.simulation import Simulation


def fastest(simulation: Simulation) -> Simulation:
    """Return `simulation`, or a CUDA replay of it, where a GPU and Triton are available."""
    triton = find_spec("triton") is not None
    if triton and isinstance(simulation, Engine) and simulation.device.type == "cuda":
        from topdp.simulator.cuda_replay import CudaReplay

        return CudaReplay(simulation)
    return simulation


def releases_until_due(releases: int, per_round: int, rounds: int, *every: int) -> int:
    """Return the number of releases until the next round that is a multiple of one of `every`, or the last.

    `releases`: the number made so far. `per_round` releases make a round; `rounds` is the number of rounds.
    Round 0 is the first, and a multiple of all.

    >>> [releases_until_due(releases, 1, 25, 10) for releases in (0, 1, 10, 11, 21, 25)]
    [1, 10, 1, 10, 5, 1]
    >>> releases_until_due(5, 3, 25, 10), releases_until_due(4, 3, 25, 10, 1)
    (28, 2)
    """
    complete = releases // per_round - 1  # the last complete round
    due = min(rounds, *(complete + number - complete % number for number in every))
    return (due + 1) * per_round - releases
