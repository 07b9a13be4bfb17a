"""The records that a configuration names: loaded, mapped to features, and distributed to agents.

Functions import torch only if they need it, so that records of the catalogue can be counted without torch.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from topdp.base.array_types import Ints
from topdp.base.progress import Progress, silent
from topdp.errors import DataError
from topdp.plan.random_streams import stream
from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.run_outline import RunOutline

if TYPE_CHECKING:
    import torch

    from topdp.data import Dataset, Shards
    from topdp.data.features.feature_maps import FeatureMap
    from topdp.data.readers.raw_tables import Table
    from topdp.data.readers.table_schema import Schema


def record_counts(outline: RunOutline) -> tuple[int, ...]:
    """Return the number of records of each agent, or of persons if these are the unit of protection.

    The records are not read if possible.
    """
    from topdp.data.catalogue import CATALOGUE

    data, holders = outline.config.data, outline.unpooled.graph.agents
    expect_identifiers(outline.config)
    if data.partition == "iid" and data.name in CATALOGUE:
        records = CATALOGUE[data.name].shapes["train_inputs"][0]
        share = (records - round((data.validation or 0.0) * records)) // holders
        each = min(share, data.records or share)
        return (each * holders,) if outline.method.pools else (each,) * holders
    if _agent_files(outline.config) is not None:
        return _shards_of_files(outline).unit_counts
    dataset = _dataset(outline.config)
    parts, _ = _parts(outline, dataset)
    persons = dataset.persons
    return tuple(len(part) if persons is None else len(np.unique(persons[part])) for part in parts)


def expect_identifiers(config: RunConfig) -> None:
    """Raise ConfigError if the person is the unit, and the named data set has no identifiers of persons."""
    from topdp.data.catalogue import CATALOGUE

    if config.person_column is not None and config.data.name in CATALOGUE:
        raise ConfigError(
            f'privacy.unit: expected "record" for {config.data.name}, whose records have no identifiers of '
            'persons, got "person". Use data of your own that states the person of each record.'
        )


def load_shards(
    outline: RunOutline,
    progress: Progress = silent,
    device: torch.device | str = "cpu",
    only: Sequence[int] | None = None,
) -> Shards:
    """Load the records and return the shards of the agents, or one shard if the method pools all records.

    Features are computed on `device`. `only`: the agents whose records are loaded; None: all.
    """
    from topdp.data import Shards, featured_shards

    expect_identifiers(outline.config)
    features = named_features(outline.config)
    if _agent_files(outline.config) is not None:
        shards = _shards_of_files(outline, only)
        return shards if features is None else featured_shards.of_shards(shards, features, device, progress)
    dataset = _dataset(outline.config, progress)
    parts, held_out = _parts(outline, dataset)
    if features is None:
        return Shards.from_dataset(dataset, parts, held_out, only)
    return featured_shards.of_dataset(dataset, parts, features, held_out, device, progress)


def named_features(config: RunConfig) -> FeatureMap | None:
    """Return the map from a record to the features that the model sees; None if the model sees records."""
    if config.data.features == "none":
        return None
    from topdp.data.features.feature_maps import FEATURE_MAPS

    if config.data.features == "given":
        raise ConfigError(
            'data.features: expected a name, got "given", which stands for a Python function. Call '
            "topdp.train(..., features=function)."
        )
    return FEATURE_MAPS[config.data.features](config.data.feature_groups)


def named_schema(config: RunConfig) -> Schema | None:
    """Return the schema of a user's own records, which states what is publicly known about them, or None."""
    from topdp.data.readers.table_schema import Schema

    return None if config.data.schema is None else Schema.of(config.data.schema, "data.schema")


def expect_unit(config: RunConfig, shards: Shards) -> None:
    """Raise an error unless the unit of protection is that of the records.

    It is a ConfigError if only one of both is the person, and a DataError if a person is at too many agents.
    """
    privacy = config.privacy
    if privacy.unit == "person" and shards.persons is None:
        raise ConfigError(
            'privacy.unit: expected "record" for shards without persons, got "person". State the person of '
            "each record: Shards.from_arrays(..., persons=[...]), or person=... with files and frames."
        )
    if privacy.unit == "record" and shards.persons is not None:
        raise ConfigError(
            'privacy.unit: expected "person" for shards that state persons, got "record", under which a '
            'person with several records is protected less. Use unit="person", or shards without persons.'
        )
    if (sites := shards.sites_per_person) > privacy.sites_per_person:
        raise DataError(
            f"Expected every person at no more than {privacy.sites_per_person} agents, got one at {sites}. "
            f"Give a person's records to one agent, or set privacy.sites_per_person = {sites}, which needs "
            "more noise."
        )


def site_tables(outline: RunOutline) -> list[Table]:
    """Return the table of each agent, with its values as they are: not encoded, with missing values.

    Raise ConfigError if the configuration names no tables.
    """
    from topdp.data.readers.raw_tables import TABLE_SUFFIXES, read_table, rows_of
    from topdp.data.readers.record_paths import expand_paths

    config = outline.config
    paths = expand_paths(_agent_files(config) or [config.data.name])
    if other := [path for path in paths if path.suffix not in TABLE_SUFFIXES]:
        raise ConfigError(
            f"Expected tables in data.name or data.sites ({', '.join(TABLE_SUFFIXES)}), got {other[0]}."
        )
    tables = [read_table(path, (config.data.schema or {}).get("delimiter")) for path in paths]
    if _agent_files(config) is not None or outline.method.pools:
        return tables
    parts, _ = _parts(outline, _dataset(config))
    return [rows_of(tables[0], part) for part in parts]


def _dataset(config: RunConfig, progress: Progress = silent) -> Dataset:
    from topdp import data

    if config.data.partition == "sizes" and config.data.sizes is None:
        raise ConfigError(
            'data.sizes: expected a list with one number per agent for partition = "sizes", got none. Give '
            "counts, or fractions of all records."
        )
    return data.load(
        config.data.name,
        progress=progress,
        schema=named_schema(config),
        test=config.data.test,
        person=config.person_column,
    )


def _agent_files(config: RunConfig) -> list[str] | None:
    """Return the files of the agents, or a pattern of their names; None if agents share one data set."""
    name = config.data.name
    if config.data.sites is not None:
        return config.data.sites
    return [name] if glob.has_magic(name) and not os.path.exists(name) else None


def _shards_of_files(outline: RunOutline, only: Sequence[int] | None = None) -> Shards:
    from topdp.data import Shards
    from topdp.data.readers.record_paths import expand_paths

    data, files, holders = outline.config.data, _agent_files(outline.config), outline.unpooled.graph.agents
    assert files is not None
    if data.partition != "iid" or data.validation is not None or data.records is not None:
        raise ConfigError(
            "data: expected no partition, validation or records if each agent has its own file, got at least "
            "one of them. Remove them: the files state the records of each agent, and data.test the test "
            "records."
        )
    paths = expand_paths(files)
    if len(paths) != holders:
        raise ConfigError(
            f"Expected a file for each of the {holders} agents of the graph, got {len(paths)} files. Set "
            f"topology.agents to {len(paths)}."
        )
    chosen = files if only is None else [glob.escape(str(paths[agent])) for agent in only]
    if only is not None and outline.config.person_column is not None:
        raise ConfigError(
            'privacy.unit: expected "record" on several processes if each agent has its own file, got '
            '"person": no process sees the persons of all agents. Use one process, or one file for all.'
        )
    shards = Shards.from_files(
        chosen, data.test, named_schema(outline.config), person=outline.config.person_column
    )
    shards = shards.pooled() if outline.method.pools else shards
    expect_unit(outline.config, shards)
    return shards


def _parts(outline: RunOutline, dataset: Dataset) -> tuple[list[Ints], Ints | None]:
    """Return the indices of the training records of each agent, and of the records held out (None: none).

    If the person is the unit, whole persons are held out and dealt to agents. The target of a person is that
    of its first record.
    """
    from topdp.data import partitions
    from topdp.data.person_records import PersonRecords

    config, data = outline.config, outline.config.data
    targets, held_out = dataset.train_targets, None
    persons = None if dataset.persons is None else PersonRecords([dataset.persons])
    if persons is not None:
        targets = targets[persons.nth_record(0, np.arange(persons.counts[0]), 0)[0]]
    training = np.arange(len(targets))
    if data.validation is not None:
        training, held_out = _split(len(targets), data.validation, config.seed)
    options: dict[str, dict[str, Any]] = {
        "dirichlet": {"alpha": data.concentration},
        "label": {"labels_per_agent": data.labels_per_agent},
        "sizes": {"sizes": data.sizes},
    }
    option = options.get(data.partition, {})
    holders = outline.unpooled.graph.agents
    parts = partitions.partition(targets[training], holders, data.partition, config.seed, **option)
    parts = [training[part[: data.records]] for part in parts]
    if persons is not None:
        parts = [persons.records_of(0, part) for part in parts]
        held_out = None if held_out is None else persons.records_of(0, held_out)
    return [np.concatenate(parts)] if outline.method.pools else parts, held_out


def _split(records: int, share: float, seed: int) -> tuple[Ints, Ints]:
    """Return the indices of the records for training and for validation.

    With validation records, settings can be chosen without the test set.
    """
    order = stream(seed, "validation").permutation(records)
    first = round(share * records)
    if not 0 < first < records:
        raise ConfigError(
            f"data.validation: expected a fraction that leaves records for training and validation, got "
            f"{share:g}, which is {first} of {records} records. Use another fraction."
        )
    return order[first:], order[:first]
