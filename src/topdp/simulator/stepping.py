"""How far an engine may go before somebody looks, and how it goes: several rounds at once on a GPU, else one.

For the loops of runs and stacks. What is done in one go is in `stretches.py`, which needs Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from topdp.simulator.engine import Engine, State
from topdp.simulator.ranks.ranked_engine import RankedEngine

Advance = Callable[[State, int], State]
"""(where a run stands, how many releases may be made before it is looked at): one of them, or several."""


def advancing(engine: Engine | RankedEngine) -> Advance:
    """The fastest way there is for `engine`; a state that went in is not valid afterwards."""
    if isinstance(engine, Engine) and engine.device.type == "cuda" and find_spec("triton") is not None:
        from topdp.simulator.cuda_replay import Stretches

        return Stretches(engine).advance
    return lambda state, at_most: engine.advance(state)


def until_seen(releases: int, each: int, rounds: int, *every: int) -> int:
    """Releases that are left until round t is done, `each` for a round: the next multiple of one of `every`,
    or the last of all `rounds`. Round 0 is the first, and a multiple of all.

    >>> [until_seen(releases, 1, 25, 10) for releases in (0, 1, 10, 11, 21, 25)]
    [1, 10, 1, 10, 5, 1]
    >>> until_seen(5, 3, 25, 10), until_seen(4, 3, 25, 10, 1)
    (28, 2)
    """
    done = releases // each - 1  # rounds that are complete
    seen = min(rounds, *(done + number - done % number for number in every))
    return (seen + 1) * each - releases
