"""What is public about the records that a configuration names: shape, type and target of one record."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from topdp.runs.auto_values import with_keys
from topdp.runs.named_records import load_shards
from topdp.runs.run_outline import RunOutline

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class RecordKind:
    """The public facts about one record, before features are computed."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    # The length of a usual input; None: unknown.
    length: float | None
    # The number of classes; None: numbers are predicted.
    classes: int | None
    # The number of values of a target.
    values: int

    @property
    def is_text(self) -> bool:
        return not self.dtype.is_floating_point

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3

    @classmethod
    def of(cls, outline: RunOutline) -> RecordKind:
        """Return the kind of the records of a run. A user's own files are read for it."""
        import torch

        from topdp.data.catalogue import CATALOGUE

        if (entry := CATALOGUE.get(outline.config.data.name)) is not None:
            return cls(
                shape=entry.shapes["train_inputs"][1:],
                dtype=torch.int64 if entry.tokens else torch.float32,
                length=entry.input_length,
                classes=entry.classes,
                values=1,
            )
        raw = replace(outline, config=with_keys(outline.config, data={"features": "none"}))
        shards = load_shards(raw)
        return cls(
            shape=tuple(shards.inputs.shape[2:]),
            dtype=shards.inputs.dtype,
            length=shards.input_length,
            classes=shards.classes,
            values=math.prod(shards.targets.shape[2:]),
        )
