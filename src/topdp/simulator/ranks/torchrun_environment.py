"""The environment variables that torchrun sets. Needs no torch."""

from __future__ import annotations

import os

from topdp.errors import InputError

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

DEFAULT_RANK_TIMEOUT_SECONDS = 300.0  # a rank that is silent for longer counts as lost


class RankError(InputError):
    """An error for ranks that cannot continue: one of them is lost, has failed, or executes another run."""


def started_together() -> bool:
    """Return whether torchrun, or another launcher that sets its variables, started this process."""
    return all(name in os.environ for name in TORCHRUN_VARIABLES)


def leads() -> bool:
    """Return whether this process prints: it is rank 0, or was started without other ranks."""
    return not started_together() or os.environ["RANK"] == "0"


def others() -> int:
    """Return the number of other processes that torchrun started together with this one."""
    size = os.environ.get("WORLD_SIZE", "1")
    return max(0, int(size) - 1) if size.isdecimal() else 0


def local_rank() -> int:
    """Return the number of this process among the ranks of this machine."""
    return int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")))


def restarts() -> int:
    """Return the number of times that torchrun has restarted all processes."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def expect_one_process(command: str) -> None:
    """Raise RankError if several processes were started, which would all write to the folder of `command`."""
    if started_together() and os.environ["WORLD_SIZE"] != "1":
        size = os.environ["WORLD_SIZE"]
        raise RankError(
            f"topdp {command} runs in one process, got {size} ranks. Use torchrun only for topdp run."
        )


def timeout_of_environment() -> float:
    """Return the seconds to wait for another rank, from TOPDP_RANK_TIMEOUT or the default.

    Raise InputError if the variable is not a number of seconds.
    """
    text = os.environ.get("TOPDP_RANK_TIMEOUT", str(DEFAULT_RANK_TIMEOUT_SECONDS))
    try:
        timeout = float(text)
    except ValueError:
        timeout = 0.0
    if not 0 < timeout < 1e6:
        raise InputError(f"TOPDP_RANK_TIMEOUT: expected a number of seconds > 0, got {text!r}.")
    return timeout
