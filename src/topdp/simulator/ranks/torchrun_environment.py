"""What torchrun says to the processes that it starts, and what we refuse there. Needs no torch."""

from __future__ import annotations

import os

from topdp.errors import InputError

STARTED_BY = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

PATIENCE = 300.0
"""Seconds after which a rank that says nothing counts as lost; TOPDP_RANK_TIMEOUT says otherwise."""


class RankError(InputError):
    """Ranks that cannot go on together: one is lost, failed or is not doing the same."""


def started_together() -> bool:
    """Whether torchrun (or who sets its variables) has started this process."""
    return all(name in os.environ for name in STARTED_BY)


def leads() -> bool:
    """Whether this is rank 0, which speaks to people; so does a process that was started alone."""
    return not started_together() or os.environ["RANK"] == "0"


def others() -> int:
    """How many processes were started beside this one."""
    said = os.environ.get("WORLD_SIZE", "1")
    return max(0, int(said) - 1) if said.isdecimal() else 0


def local_rank() -> int:
    """The number among the ranks of this machine."""
    return int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")))


def restarts() -> int:
    """How often torchrun has started all of them again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def expect_one_process(command: str) -> None:
    """Refuses a command that several processes would each do on their own, into one folder."""
    if started_together() and os.environ["WORLD_SIZE"] != "1":
        size = os.environ["WORLD_SIZE"]
        raise RankError(f"topdp {command} is for one process, got {size} ranks: torchrun is for topdp run.")


def patience_of_environment() -> float:
    """Seconds to wait for another rank."""
    said = os.environ.get("TOPDP_RANK_TIMEOUT", str(PATIENCE))
    try:
        patience = float(said)
    except ValueError:
        patience = 0.0
    if not 0 < patience < 1e6:
        raise InputError(f"TOPDP_RANK_TIMEOUT: expected a number of seconds > 0, got {said!r}.")
    return patience
