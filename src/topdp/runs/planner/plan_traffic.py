"""What a plan sends: rows and bytes of each agent and of all, in a round. Not what links add to that.

A row is sent to each of its readers that did not make it. Its bytes are those of its numbers in float32 with
the header of one row; what encryption, receipts and repeated messages add is not counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topdp.base.array_types import Floats
from topdp.plan import Plan

ROW_HEADER_BYTES = 72
"""Bytes before the numbers of a row on the wire (`agents/wire/row_payload.py`), more or less."""


def messages(plan: Plan) -> Floats:
    """[agents] rows that each sends in the whole plan.

    >>> from topdp import protocols, topology
    >>> from topdp.plan import Schedule
    >>> steps = Schedule(rate=np.ones(3), noise=np.ones(3))
    >>> messages(protocols.Dsgd().plan(topology.ring(4), steps, np.ones(4), seed=0)).tolist()
    [6.0, 6.0, 6.0, 6.0]
    """
    sent = np.zeros(plan.agents)
    made, kinds = plan.exists, plan.readers
    for kind, readers in enumerate(kinds.values):
        others = ((readers >= 0) & (readers != plan.owner[:, None])).sum(axis=1)
        times = made[kinds.which == kind].sum(axis=0)
        np.add.at(sent, plan.owner, others * times)
    return sent


def traffic(plan: Plan, rounds: int, numbers: int | None, reason: str) -> dict[str, Any]:
    """Rows and bytes a round: of the agent that sends most, and of all; and in the whole run.

    A round is one step of training with all its steps of averaging; the release before the loop counts, too.
    """
    sent, each = messages(plan), None if numbers is None else 4 * numbers + ROW_HEADER_BYTES
    most, everybody = float(sent.max()) / (rounds + 1), float(sent.sum()) / (rounds + 1)

    def as_bytes(rows: float) -> int | None:
        return None if each is None else round(rows * each)

    return {
        "numbers_in_a_row": numbers,
        "rows_a_round": {"agent": most, "all": everybody},
        "bytes_a_round": {"agent": as_bytes(most), "all": as_bytes(everybody)},
        "bytes_in_all": as_bytes(float(sent.sum())),
        **({"reason": reason} if reason else {}),
    }
