"""How many numbers a row has, from the settings alone. Nothing is built, and torch is not imported.

Not for models of one's own, whose size only the model knows: for those the answer is a reason.
"""

from __future__ import annotations

import math

from topdp.data.catalogue import CATALOGUE
from topdp.runs.config import ConfigError, RunConfig, did_you_mean

MLP_HIDDEN_UNITS = 100  # of the mlp (`learning/models.py`)
SCATTERED, STRIDE = 81, 4  # channels of features for each channel of an image, and pixels between them


def numbers_in_a_row(config: RunConfig) -> tuple[int | None, str]:
    """The parameters of the model, and why they are not known where they are not.

    >>> numbers_in_a_row(RunConfig())
    (79510, '')
    """
    name = config.model.name
    if name not in ROW_SIZES:
        if ":" not in name:
            raise ConfigError(
                f"model.name: got {name!r}.{did_you_mean(name, [*ROW_SIZES, 'module:factory'])}"
            )
        return None, f"Only the model itself knows its size: {name} is not built before a run."
    if config.data.name not in CATALOGUE:
        return None, "The shape of records of your own is not known before they are read."
    entry = CATALOGUE[config.data.name]
    shape = entry.shapes["train_inputs"][1:]
    if config.data.features == "scattering":
        if len(shape) != 3:
            return None, "Scattering features are of images alone."
        shape = (shape[0] * SCATTERED, shape[1] // STRIDE, shape[2] // STRIDE)
    elif config.data.features != "none":
        return None, "The shape of features that are given in Python is not known before."
    loss = config.train.loss
    if loss == "cross-entropy" and entry.classes is None:
        return None, f"{entry.name} has numbers to predict, not classes: choose train.loss = mse or huber."
    return ROW_SIZES[name](shape, entry.classes if loss == "cross-entropy" and entry.classes else 1)


def _mlp(shape: tuple[int, ...], outputs: int) -> tuple[int | None, str]:
    return (math.prod(shape) + 1) * MLP_HIDDEN_UNITS + (MLP_HIDDEN_UNITS + 1) * outputs, ""


def _linear(shape: tuple[int, ...], outputs: int) -> tuple[int | None, str]:
    return math.prod(shape) * outputs, ""


def _cnn(shape: tuple[int, ...], outputs: int) -> tuple[int | None, str]:
    if len(shape) != 3 or shape[1] != shape[2] or shape[1] < 16:
        return None, f"The cnn takes square images of at least 16x16, got records of shape {shape}."
    side = ((shape[1] - 4) // 2 - 4) // 2
    convolutions = (25 * shape[0] + 1) * 6 + (25 * 6 + 1) * 16
    return convolutions + (16 * side * side + 1) * 120 + 121 * 84 + 85 * outputs, ""


ROW_SIZES = {"mlp": _mlp, "linear": _linear, "cnn": _cnn}
"""The models that have a name, as functions of a record's shape and the number of outputs."""
