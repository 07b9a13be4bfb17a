"""The records of all sites, one file or frame each, combined: what they must have in common."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from topdp.data.readers.record_paths import Records, expand_paths, read_records, records_of_frame
from topdp.data.readers.table_schema import Schema
from topdp.data.record_checks import Array
from topdp.errors import DataError

RecordPair = tuple[Array, Array]


class SiteRecords(NamedTuple):
    """(inputs, targets) of each agent and of the test set, ready for `Shards.from_arrays`."""

    agents: list[RecordPair]
    test: RecordPair | None
    classes: int | None
    tokens: bool
    """Whether inputs are token ids, which stay integers."""


def read_site_files(
    agents: Sequence[str | os.PathLike[str]], test: str | os.PathLike[str] | None, schema: Schema | None
) -> SiteRecords:
    """Read one file or folder per agent."""
    if isinstance(agents, str | os.PathLike):
        agents = [agents]
    paths = expand_paths(agents)
    if test is not None and Path(test).expanduser().resolve() in [path.resolve() for path in paths]:
        raise DataError(
            f"Expected test records that no agent holds, got {test}. Metrics on them, and the choice of "
            "the best round, would disclose private records without noise. Give other records, or none."
        )
    names = [str(path) for path in paths]
    site_records = [read_records(path, schema) for path in paths]
    return _combine_sites(site_records, names, None if test is None else read_records(test, schema), schema)


def read_site_frames(agents: Sequence[Any], test: Any, schema: Schema) -> SiteRecords:
    """Read one frame per agent."""
    if not isinstance(agents, list | tuple):
        raise DataError(f"Expected a list with one frame per agent, got a {type(agents).__name__}.")
    names = [f"agent {agent}" for agent in range(len(agents))]
    site_records = [records_of_frame(frame, schema, name) for frame, name in zip(agents, names, strict=True)]
    held_out = None if test is None else records_of_frame(test, schema, "test records")
    return _combine_sites(site_records, names, held_out, schema)


def scale_images(inputs: Array) -> Array:
    """Scale bytes of images to [0, 1]; all else is unchanged."""
    return inputs.astype(np.float32) / np.float32(255) if inputs.dtype == np.uint8 else inputs


def _combine_sites(
    site_records: list[Records], names: list[str], test: Records | None, schema: Schema | None
) -> SiteRecords:
    if not site_records:
        raise DataError("Expected the records of at least one agent, got none.")
    for name, records in zip(
        [*names, "test records"], [*site_records, *([] if test is None else [test])], strict=False
    ):
        if records.class_names != site_records[0].class_names:
            raise DataError(
                f"{name}: expected the classes of {names[0]}, {_list_classes(site_records[0])}; got "
                f"{_list_classes(records)}. State all classes in a schema."
            )
    return SiteRecords(
        [(scale_images(records.inputs), records.targets) for records in site_records],
        None if test is None else (scale_images(test.inputs), test.targets),
        site_records[0].classes,
        schema is not None and schema.text is not None,
    )


def _list_classes(records: Records) -> str:
    return ", ".join(records.class_names or ("none",))
