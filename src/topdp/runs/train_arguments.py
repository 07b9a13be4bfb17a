"""What `topdp.train` may be given: what is no shards, by name, with the way to make them; numpy's numbers.

Not for what is wrong inside shards: `record_checks` and `shards` say that. Settings are checked as
those of a file are (`runs/config.py`).
"""

from __future__ import annotations

import os
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from topdp.data.shards import Shards
from topdp.runs.config import ConfigError

WAYS = {
    "arrays": "topdp.Shards.from_arrays([(inputs, targets), ...]), one pair of arrays or tensors per agent",
    "torch": "topdp.Shards.from_torch([dataset, ...]), one torch dataset per agent",
}


def expect_shards(value: Any) -> None:
    """Refuses what is no `Shards`, and says which function makes one of it.

    >>> expect_shards([1, 2])
    Traceback (most recent call last):
        ...
    topdp.runs.config.ConfigError: Expected shards to be a Shards, got a list of int: make them with \
topdp.Shards.from_arrays([(inputs, targets), ...]), one pair of arrays or tensors per agent.
    """
    if isinstance(value, Shards):
        return
    first = value[0] if isinstance(value, list | tuple) and value else value
    kind = "torch" if isinstance(first, DataLoader | TorchDataset) else "arrays"
    came = type(value).__name__ + ("" if first is value else f" of {type(first).__name__}")
    loader = " A loader's dataset is loader.dataset." if isinstance(first, DataLoader) else ""
    raise ConfigError(f"Expected shards to be a Shards, got a {came}: make them with {WAYS[kind]}.{loader}")


def expect_path_and_progress(out: Any, progress: Any) -> None:
    if out is not None and not isinstance(out, str | os.PathLike):
        raise ConfigError(f"Expected out to be the path of a folder, got a {type(out).__name__}.")
    if not callable(progress):
        raise ConfigError(
            "Expected progress to be a function of (stage, done, total, *, unit, metrics), got a "
            f"{type(progress).__name__}."
        )


def plain(value: Any) -> Any:
    """Numbers and arrays of numpy and torch, and tuples, as Python's own, which a configuration holds.

    >>> import numpy as np
    >>> plain(np.int64(3)), plain((1.0, np.float32(0.5)))
    (3, [1.0, 0.5])
    """
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value
