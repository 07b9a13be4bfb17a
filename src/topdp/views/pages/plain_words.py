"""Words for people who are not statisticians: who an answer is about, what a state means. No numbers."""

from __future__ import annotations

import math
import os

STATES = {
    "starting": "The run was about to start: nothing is computed yet.",
    "running": "The run is not finished: it is going on, or was broken off without a word.",
    "interrupted": "The run was interrupted and can be continued with topdp run --resume.",
    "stopped": "The run was stopped before its last round.",
    "diverged": "The run diverged: its steps were too large, and its models are of no use.",
    "wrong": "A recorded round of the run was wrong: nothing that it kept may be used.",
    "done": "The run is done.",
}


def at_most(share: float) -> str:
    """A bound in percent, never less than it is.

    >>> at_most(0.08428), at_most(0.02)
    ('8.43', '2.00')
    """
    return f"{math.ceil(1e4 * share - 1e-7) / 100:.2f}"


def no_less(epsilon: float) -> str:
    """Four digits, never less than it is; what is beyond the sixth is rounding.

    >>> no_less(0.50004), no_less(2.0000000001), no_less(123456.0), no_less(0.0)
    ('0.5001', '2', '1.235e+05', '0')
    """
    if epsilon == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 3)
    return f"{math.ceil(epsilon / unit * (1 - 1e-6)) * unit:.4g}"


def small(delta: float) -> str:
    """
    >>> small(1e-5), small(0.001)
    ('1e-5', '0.001')
    """
    return f"{delta:g}".replace("e-0", "e-")


def state_in_words(state: str) -> str:
    return STATES.get(state, f"The run says that it is {state}.")


def in_utf8(name: str) -> str:
    """The name of a file for people: bytes in it that are no text are shown as such.

    >>> in_utf8(os.fsdecode(b"m\\xfcll"))
    'm\ufffdll'
    """
    return os.fsencode(name).decode(errors="replace")
