"""The traffic of a plan in each round, in rows and bytes, and the number of parameters in a row.

A row is sent to each of its readers except the agent that made it. Its size is that of its numbers in float32
plus the header of one row. Encryption, receipts and repeated messages are not counted. The size of a row
follows from the settings alone, so that no model is made and torch is not imported.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from topdp.base.array_types import Floats
from topdp.data.catalogue import CATALOGUE
from topdp.plan import Plan
from topdp.runs.config import ConfigError, RunConfig, did_you_mean
from topdp.runs.named_model import WORD_COUNTS

# The approximate number of bytes that precede the numbers of a sent row (`agents/wire/row_payload.py`).
ROW_HEADER_BYTES = 72

MLP_HIDDEN_UNITS = 100  # of the model mlp (`learning/models.py`)
PLANNED_SCATTERING_CHANNELS = 81  # channels of features for each channel of an image
PLANNED_SCATTERING_STRIDE = 4  # pixels between two features


def messages(plan: Plan) -> Floats:
    """Return the number of rows that each agent sends in the whole plan [agents].

    >>> from topdp import protocols, topology
    >>> from topdp.plan import Schedule
    >>> steps = Schedule(rate=np.ones(3), noise=np.ones(3))
    >>> messages(protocols.Dsgd().plan(topology.ring(4), steps, np.ones(4), seed=0)).tolist()
    [6.0, 6.0, 6.0, 6.0]
    """
    sent = np.zeros(plan.agents)
    for kind, readers in enumerate(plan.readers.values):
        others = ((readers >= 0) & (readers != plan.owner[:, None])).sum(axis=1)
        times = plan.exists[plan.readers.which == kind].sum(axis=0)
        np.add.at(sent, plan.owner, others * times)
    return sent


def traffic(plan: Plan, config: RunConfig) -> dict[str, Any]:
    """Return the rows and bytes per round, for the agent that sends most and for all agents together, and the
    bytes of the whole run. Round 0 counts as a round.
    """
    numbers, reason = numbers_in_a_row(config)
    sent, rounds = messages(plan), config.rounds + 1
    rows = {"agent": float(sent.max()) / rounds, "all": float(sent.sum()) / rounds}
    size = None if numbers is None else 4 * numbers + ROW_HEADER_BYTES
    return {
        "numbers_in_a_row": numbers,
        "rows_a_round": rows,
        "bytes_a_round": {key: None if size is None else round(count * size) for key, count in rows.items()},
        "bytes_in_all": None if size is None else round(float(sent.sum()) * size),
        **({"reason": reason} if reason else {}),
    }


def numbers_in_a_row(config: RunConfig) -> tuple[int | None, str]:
    """Return the number of parameters of the model, or None and the reason why it is unknown before a run.

    >>> numbers_in_a_row(RunConfig())
    (79510, '')
    """
    name = config.model.name
    if name not in (*ROW_SIZES, WORD_COUNTS):
        if ":" not in name:
            names = [*ROW_SIZES, WORD_COUNTS, "module:factory"]
            raise ConfigError(f"model.name: got {name!r}.{did_you_mean(name, names)}")
        return None, f"The size of {name} is unknown, because the model is not made before a run."
    if config.data.name not in CATALOGUE:
        return None, "The shape of your own records is unknown before they are read."
    entry = CATALOGUE[config.data.name]
    shape = entry.shapes["train_inputs"][1:]
    if config.data.features == "scattering":
        if len(shape) != 3:
            return None, f"Scattering features need images, got records of shape {shape}."
        shape = (
            shape[0] * PLANNED_SCATTERING_CHANNELS,
            shape[1] // PLANNED_SCATTERING_STRIDE,
            shape[2] // PLANNED_SCATTERING_STRIDE,
        )
    elif config.data.features != "none":
        return None, "The shape of features from a Python function is unknown before a run."
    loss = config.train.loss
    if loss == "cross-entropy" and entry.classes is None:
        return None, f"{entry.name} has numbers as targets, not classes. Use train.loss = mse or huber."
    outputs = entry.classes if loss == "cross-entropy" and entry.classes else 1
    if name != WORD_COUNTS:
        return ROW_SIZES[name](shape, outputs)
    if not entry.tokens:
        return None, f"The model {WORD_COUNTS} needs texts, got records of shape {shape}."
    return entry.tokens * outputs, ""


def _mlp(shape: tuple[int, ...], outputs: int) -> tuple[int | None, str]:
    return (math.prod(shape) + 1) * MLP_HIDDEN_UNITS + (MLP_HIDDEN_UNITS + 1) * outputs, ""


def _cnn(shape: tuple[int, ...], outputs: int) -> tuple[int | None, str]:
    if len(shape) != 3 or shape[1] != shape[2] or shape[1] < 16:
        return None, f"The model cnn needs square images of at least 16x16, got records of shape {shape}."
    side = ((shape[1] - 4) // 2 - 4) // 2
    convolutions = (25 * shape[0] + 1) * 6 + (25 * 6 + 1) * 16
    return convolutions + (16 * side * side + 1) * 120 + 121 * 84 + 85 * outputs, ""


# For each named model, a function of a record's shape and the number of outputs that returns the number of
# parameters, or None and the reason why it is unknown.
ROW_SIZES = {
    "mlp": _mlp,
    "linear": lambda shape, outputs: (math.prod(shape) * outputs, ""),
    "affine": lambda shape, outputs: ((math.prod(shape) + 1) * outputs, ""),
    "cnn": _cnn,
}
