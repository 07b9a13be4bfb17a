"""Places where an agent can be made to die, for tests: `TOPDP_FAILPOINT=after_ledger:3` kills at pass three.

A process that reads the variable dies by SIGKILL, as in a power cut: nothing is flushed, no handler runs.
Tests in one process give an action of their own, which abandons the agent instead.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable

from topdp.errors import InputError

VARIABLE = "TOPDP_FAILPOINT"

ROUNDS = (
    "before_compute",
    "before_ledger",
    "in_ledger",
    "after_ledger",
    "before_send",
    "after_send",
    "before_receive",
    "after_receive",
)
"""The places on the way of a planned round, in the order in which an agent passes them."""

PAIRING = ("after_propose", "after_prepare", "before_commit", "after_commit", "after_told")
"""The places on the way of a pairing."""

SHARING = ("after_key", "after_mark")
"""The places on the way of an agent that shares draws."""

ALL = ROUNDS + PAIRING + SHARING


class Failpoints:
    """Counts passes, and acts at the chosen one. Without a choice it does nothing."""

    def __init__(self, choice: str | None = None, act: Callable[[str], None] | None = None) -> None:
        self.passes: Counter[str] = Counter()
        self.name, self.at = parse(choice) if choice else ("", 0)
        self._act = act or _kill

    @classmethod
    def from_environment(cls) -> Failpoints:
        return cls(os.environ.get(VARIABLE))

    def reached(self, name: str) -> None:
        self.passes[name] += 1
        if name == self.name and self.passes[name] == self.at:
            self._act(name)


def parse(choice: str) -> tuple[str, int]:
    """`after_ledger:3` -> ("after_ledger", 3)."""
    name, _, count = choice.partition(":")
    if name not in ALL or not count.isdigit() or int(count) < 1:
        raise InputError(f"Expected {VARIABLE}=NAME:COUNT with NAME one of {', '.join(ALL)}, got {choice!r}.")
    return name, int(count)


def _kill(name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
