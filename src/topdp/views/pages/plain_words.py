"""Words and numbers for people who are not statisticians: states of runs, rounded bounds, file names."""

from __future__ import annotations

import math
import os

RUN_STATES = {
    "starting": "The run was about to start. Nothing is computed yet.",
    "running": "The run is not finished. It still runs, or it ended without a message.",
    "interrupted": "The run was interrupted and can be continued with topdp run --resume.",
    "stopped": "The run was stopped before its last round.",
    "diverged": "The run diverged: its steps were too large, and its models are useless.",
    "wrong": "A recorded round of the run was wrong: none of its results may be used.",
    "done": "The run is done.",
}


def at_most(share: float) -> str:
    """Return an upper bound in percent, rounded up.

    >>> at_most(0.08428), at_most(0.02)
    ('8.43', '2.00')
    """
    return f"{math.ceil(1e4 * share - 1e-7) / 100:.2f}"


def no_less(epsilon: float) -> str:
    """Return ε as text with four digits, rounded up; digits beyond the sixth are ignored.

    >>> no_less(0.50004), no_less(2.0000000001), no_less(123456.0), no_less(0.0)
    ('0.5001', '2', '1.235e+05', '0')
    """
    if epsilon == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 3)
    return f"{math.ceil(epsilon / unit * (1 - 1e-6)) * unit:.4g}"


def small(delta: float) -> str:
    """Return a small number as short text.

    >>> small(1e-5), small(0.001)
    ('1e-5', '0.001')
    """
    return f"{delta:g}".replace("e-0", "e-")


def state_in_words(state: str) -> str:
    return RUN_STATES.get(state, f"The state of the run is {state}.")


def in_utf8(name: str) -> str:
    """Return the name of a file as valid text; invalid bytes become replacement characters.

    >>> in_utf8(os.fsdecode(b"m\\xfcll"))
    'm\ufffdll'
    """
    return os.fsencode(name).decode(errors="replace")
