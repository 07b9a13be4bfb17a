"""Words and numbers for people who are not statisticians: states of runs, rounded bounds, file names."""

from __future__ import annotations

import os

from topdp.runs.epsilon_text import delta_text

RUN_STATES = {
    "starting": "The run was about to start. Nothing is computed yet.",
    "running": "The run is not finished. It still runs, or it ended without a message.",
    "interrupted": "The run was interrupted and can be continued with topdp run --resume.",
    "stopped": "The run was stopped before its last round. Its folder has the noise key until the run is "
    "continued, or ended by topdp run --abandon: do not pass the folder on.",
    "diverged": "The run diverged: its steps were too large, and its models are useless.",
    "wrong": "A recorded round of the run was wrong: none of its results may be used.",
    "abandoned": "The run was abandoned, and cannot continue.",
    "done": "The run is done.",
}


def small(delta: float | list[float]) -> str:
    """Return a small number, or the range of a list of them, as short text.

    >>> small(1e-5), small(0.001), small([1e-5, 1e-6])
    ('1e-5', '0.001', '1e-6 to 1e-5')
    """
    return delta_text(delta).replace("e-0", "e-")


def state_in_words(state: str) -> str:
    return RUN_STATES.get(state, f"The state of the run is {state}.")


def in_utf8(name: str) -> str:
    """Return the name of a file as valid text; invalid bytes become replacement characters.

    >>> in_utf8(os.fsdecode(b"m\\xfcll"))
    'm\ufffdll'
    """
    return os.fsencode(name).decode(errors="replace")
