"""Places where an agent can be made to die, for tests: `TOPDP_FAILPOINT=after_ledger:3` kills at the third
pass.

A process that reads the variable dies by SIGKILL, as in a power cut: nothing is flushed, no handler runs.
Tests in one process pass an action of their own instead, which abandons the agent.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable

from topdp.errors import InputError

FAILPOINT_VARIABLE = "TOPDP_FAILPOINT"

ROUND_POINTS = (
    "before_compute",
    "before_ledger",
    "in_ledger",
    "after_ledger",
    "before_send",
    "after_send",
    "before_receive",
    "after_receive",
)
"""The points of a planned round, in the order in which an agent passes them."""

PAIRING_POINTS = ("after_propose", "after_prepare", "before_commit", "after_commit", "after_told")
"""The points of an exchange."""

SHARING_POINTS = ("after_key", "after_mark")
"""The points of an agent that shares draws."""

ALL_POINTS = ROUND_POINTS + PAIRING_POINTS + SHARING_POINTS


class Failpoints:
    """Counts passes, and acts at the chosen one. Without a choice it does nothing."""

    def __init__(self, choice: str | None = None, act: Callable[[str], None] | None = None) -> None:
        self.passes: Counter[str] = Counter()
        self.name, self.at = parse(choice) if choice else ("", 0)
        self._act = act or _kill

    @classmethod
    def from_environment(cls) -> Failpoints:
        return cls(os.environ.get(FAILPOINT_VARIABLE))

    def reached(self, name: str) -> None:
        self.passes[name] += 1
        if name == self.name and self.passes[name] == self.at:
            self._act(name)


def parse(choice: str) -> tuple[str, int]:
    """`after_ledger:3` -> ("after_ledger", 3)."""
    name, _, count = choice.partition(":")
    if name not in ALL_POINTS or not count.isdigit() or int(count) < 1:
        raise InputError(
            f"Expected {FAILPOINT_VARIABLE}=NAME:COUNT with NAME one of {', '.join(ALL_POINTS)}, "
            f"got {choice!r}."
        )
    return name, int(count)


def _kill(name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
