"""The records of all agents as padded tensors on one device, checked once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from topdp.base.array_types import AnyArray, Ints
from topdp.data._datasets import Dataset
from topdp.data.person_records import PersonRecords, largest_number_of_sites, number_persons
from topdp.data.preparation import Preparation
from topdp.data.readers.raw_tables import object_array, read_frame
from topdp.data.readers.record_paths import (
    SiteRecords,
    read_site_files,
    read_site_frames,
    site_paths,
    split_by_site,
)
from topdp.data.readers.table_schema import EMPTY_SCHEMA, Schema
from topdp.data.readers.torch_loaders import read_items
from topdp.data.record_checks import (
    check_identifiers,
    check_labels,
    check_records,
    check_same_shape,
    is_numbering,
)
from topdp.errors import DataError

AgentRecords = tuple[Any, Any]
_NUMPY_TYPES = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64}


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Shards:
    """The records of n agents, and optionally test records.

    Agent i holds `inputs[i, :counts[i]]` and `targets[i, :counts[i]]`; the rest of its row is zero padding.
    Every record has been checked: its numbers are finite, and all records have one shape. If `classes` is not
    None, the targets are labels in 0..classes-1. Further requirements on targets depend on the loss.

    >>> import numpy as np
    >>> x, y = np.zeros((8, 2)), np.arange(8) % 2
    >>> shards = Shards.from_arrays([(x[:5], y[:5]), (x[5:], y[5:])])
    >>> shards.agents, shards.counts, shards.classes
    (2, (5, 3), 2)
    >>> Shards.from_arrays([(x, np.zeros((8, 3)))]).targets.shape  # three real numbers to predict
    torch.Size([1, 8, 3])
    """

    inputs: Tensor
    """[n, N_max, ...], float32 unless another dtype was requested."""
    targets: Tensor
    """[n, N_max, ...]: int64, float32 or float64."""
    counts: tuple[int, ...]
    classes: int | None
    """The number of classes if the targets are labels (one integer of at least 0 per record), else None."""
    test_inputs: Tensor | None = None
    """[M, ...], or None."""
    test_targets: Tensor | None = None
    origin: str | None = None
    """If the inputs are features: the digest of the records and of the feature map. Otherwise None."""
    persons: Tensor | None = None
    """[n, N_max], int64: the number of each record's person, the same at all agents; -1 for padding.

    None if the unit of protection is the record.
    """
    input_length: float | None = None
    """The length of a usual input, as is publicly known; None: unknown."""
    labels: tuple[str, ...] | None = None
    """The name of each agent's site, if the sites have names."""
    preparation: Preparation | None = None
    """How the records were prepared, so that new records can be prepared for predictions."""

    def __repr__(self) -> str:
        """Return shapes and counts, and no record."""
        targets = tuple(self.targets.shape[2:])
        kind = str(self.inputs.dtype).removeprefix("torch.")
        described = f"targets {targets}" if self.classes is None else f"{self.classes} classes"
        tests = 0 if self.test_inputs is None else len(self.test_inputs)
        return (
            f"Shards({self.agents} agents, {sum(self.counts)} records ({min(self.counts)} to "
            f"{max(self.counts)} per agent), inputs {tuple(self.inputs.shape[2:])} {kind}, {described}, "
            f"{tests} test records)"
        )

    @property
    def agents(self) -> int:
        return len(self.counts)

    @property
    def device(self) -> torch.device:
        return self.inputs.device

    @cached_property
    def person_records(self) -> PersonRecords | None:
        """The persons of each agent and their records; None if the unit of protection is the record."""
        return None if self.persons is None else PersonRecords(self._numbers_of_persons(self.persons))

    @property
    def unit_counts(self) -> tuple[int, ...]:
        """The number of persons of each agent, or of records if these are the unit of protection."""
        return self.counts if self.person_records is None else self.person_records.counts

    @property
    def sites_per_person(self) -> int:
        """The largest number of agents that hold records of one person; 1 without persons."""
        return 1 if self.persons is None else largest_number_of_sites(self._numbers_of_persons(self.persons))

    def _numbers_of_persons(self, persons: Tensor) -> list[Ints]:
        values = persons.cpu().numpy()
        return [values[agent, :count] for agent, count in enumerate(self.counts)]

    def digest(self) -> str:
        """Return the SHA-256 of all records of all agents, in their order.

        For features, the digest is that of the records from which they are computed, because the last digits
        of features differ between machines. Never publish the digest. It is only for the folders of simulated
        runs, where the seed discloses as much about the records.
        """
        if self.origin is not None:
            return self.origin
        sha = hashlib.sha256(self.heading(self.counts))
        for agent in range(self.agents):
            for values in self.digested(agent):
                sha.update(values.data)
        return sha.hexdigest()

    def digested(self, agent: int) -> tuple[AnyArray, ...]:
        """Return the arrays of one agent that enter a digest: records, and the sizes and order of persons."""
        if self.person_records is None:
            return self.records(agent)
        sizes = self.person_records.sizes(agent)
        order = self.person_records.records_of(agent, np.arange(len(sizes)))
        return (*self.records(agent), sizes.astype("<i8"), order.astype("<i8"))

    def heading(self, counts: tuple[int, ...]) -> bytes:
        """Return the first bytes of a digest of agents with `counts` records: counts, types and shapes."""
        inputs, targets = ((len(counts), *values.shape[1:]) for values in (self.inputs, self.targets))
        head = f"{counts} {self.inputs.dtype} {inputs}"
        if self.targets.dim() != 2 or self.targets.dtype != torch.int64:
            head += f" {self.targets.dtype} {targets}"
        return (head if self.persons is None else f"{head} persons").encode()

    def records(self, agent: int) -> tuple[AnyArray, AnyArray]:
        """Return the inputs and the targets of one agent, without padding."""
        count = self.counts[agent]
        inputs, targets = (
            values[agent, :count].cpu().contiguous().numpy() for values in (self.inputs, self.targets)
        )
        return inputs, targets

    def padded(self, longest: int) -> Shards:
        """Return the same shards with room for `longest` records per agent."""
        inputs, targets = (
            functional.pad(values, (*[0] * (2 * values.dim() - 4), 0, longest - values.shape[1]))
            for values in (self.inputs, self.targets)
        )
        persons = self.persons
        if persons is not None:
            persons = functional.pad(persons, (0, longest - persons.shape[1]), value=-1)
        return replace(self, inputs=inputs, targets=targets, persons=persons)

    def to(self, device: str | torch.device, dtype: torch.dtype | None = None) -> Shards:
        """Return the same shards on another device, with floating-point numbers of type `dtype` if given."""
        moved: Any = {
            name: value.to(device, dtype if value.is_floating_point() else None)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **moved)

    def pooled(self) -> Shards:
        """Return shards in which a single agent has all records."""
        inputs, targets, persons = (
            None
            if values is None
            else torch.cat([values[agent, :count] for agent, count in enumerate(self.counts)])[None]
            for values in (self.inputs, self.targets, self.persons)
        )
        assert inputs is not None and targets is not None
        origin = None if self.origin is None else f"{self.origin} pooled"
        return replace(
            self,
            inputs=inputs,
            targets=targets,
            counts=(len(targets[0]),),
            origin=origin,
            persons=persons,
            labels=None,
        )

    @staticmethod
    def from_dataset(
        dataset: Dataset,
        parts: Sequence[Ints],
        held_out: Ints | None = None,
        only: Sequence[int] | None = None,
    ) -> Shards:
        """Return shards of `dataset`, scaled by its public constants. Agent i holds the records `parts[i]`.

        If `held_out` is given, these training records replace the test records. If `only` is given, the
        shards contain only these agents, with the same padding as for all agents.
        """
        records, counts = len(dataset.train_targets), _counts(parts)
        for agent, part in enumerate(parts):
            if part.min() < 0 or part.max() >= records:
                raise DataError(
                    f"agent {agent}: expected record indices in 0..{records - 1}, got indices in "
                    f"{part.min()}..{part.max()}."
                )
        _expect_disjoint(parts if held_out is None else [*parts, held_out])
        longest = max(counts)
        if only is not None:
            parts, counts = [parts[agent] for agent in only], tuple(counts[agent] for agent in only)
        shape = dataset.train_inputs.shape[1:]
        kind = torch.from_numpy(dataset.scale(dataset.train_inputs[:1])).dtype
        inputs = torch.zeros(len(parts), longest, *shape, dtype=kind)
        like = torch.from_numpy(dataset.train_targets[:1])
        targets = torch.zeros(len(parts), longest, *like.shape[1:], dtype=like.dtype)
        persons = None if dataset.persons is None else torch.full((len(parts), longest), -1)
        for agent, part in enumerate(parts):
            inputs[agent, : len(part)] = torch.from_numpy(dataset.scale(dataset.train_inputs[part]))
            targets[agent, : len(part)] = torch.from_numpy(dataset.train_targets[part])
            if persons is not None and dataset.persons is not None:
                persons[agent, : len(part)] = torch.from_numpy(dataset.persons[part])
        test = dataset.test()
        if held_out is not None:
            test = dataset.scale(dataset.train_inputs[held_out]), dataset.train_targets[held_out]
        shards = _make_shards(inputs, targets, counts, dataset.classes, test, persons)
        table, ranges = _table_facts(dataset.schema)
        preparation = Preparation(
            shape=(),
            dtype="",
            schema=table,
            class_names=dataset.class_names,
            bytes_divided=dataset.train_inputs.dtype == np.uint8,
            mean=dataset.mean,
            deviation=dataset.deviation,
            target_ranges=ranges or (dataset.target_range,),
        )
        return replace(shards, preparation=preparation.like(inputs), input_length=dataset.input_length)

    @staticmethod
    def from_arrays(
        agents: Sequence[AgentRecords],
        test: AgentRecords | None = None,
        classes: int | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        persons: Sequence[Any] | None = None,
    ) -> Shards:
        """Return shards of a user's own arrays or tensors: one pair (inputs, targets) per agent.

        Inputs are not scaled. They are converted to `dtype`: float32, float64, or int64 for inputs that are
        indices, such as tokens. Targets may have any shape after the first axis. Integers and booleans become
        int64, other targets float32 or float64. If `classes` is given, targets must be labels. If not,
        targets that are one integer of at least 0 per record are labels, and the number of classes is the
        largest + 1.

        `persons`: for each agent, the identifier of each record's person, such as a patient number. It makes
        the person the unit of protection (`unit="person"`). The shards contain numbers instead of
        identifiers.

        >>> import torch
        >>> x, y = torch.zeros(3, 2), torch.tensor([0, 1, 0])
        >>> shards = Shards.from_arrays([(x, y), (x, y)], persons=[["a", "a", "b"], ["c", "d", "d"]])
        >>> shards.unit_counts, shards.sites_per_person
        ((2, 2), 1)
        """
        _expect_sequence(agents)
        pairs = {f"agent {agent}": pair for agent, pair in enumerate(agents)}
        if test is not None:
            pairs["test records"] = test
        checked, names = [_checked_pair(pair, dtype, name) for name, pair in pairs.items()], list(pairs)
        for (inputs, targets), name in zip(checked, names, strict=True):
            check_same_shape(inputs, checked[0][0].shape[1:], name, "agent 0")
            check_same_shape(targets, checked[0][1].shape[1:], name, "agent 0", "targets")
        all_inputs, all_targets = map(list, zip(*checked, strict=True))
        if classes is None:
            classes = _classes(all_targets[: len(agents)])
        if classes is not None:
            all_targets = [
                check_labels(part, name, classes) for part, name in zip(all_targets, names, strict=True)
            ]
        common = np.result_type(*all_targets)
        all_targets = [part.astype(common) for part in all_targets]
        held_out = None if test is None else (all_inputs.pop(), all_targets.pop())
        counts = _counts(all_targets)
        padded_inputs, padded_targets = (
            pad_sequence([torch.from_numpy(part) for part in parts], batch_first=True)
            for parts in (all_inputs, all_targets)
        )
        numbers = None if persons is None else _numbers_of_persons(persons, counts)
        return _make_shards(padded_inputs, padded_targets, counts, classes, held_out, numbers)

    @staticmethod
    def from_torch(
        agents: Sequence[TorchDataset[Any] | DataLoader[Any]],
        test: TorchDataset[Any] | DataLoader[Any] | None = None,
        classes: int | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        persons: Sequence[Any] | None = None,
    ) -> Shards:
        """Return shards of one torch `Dataset` of (input, target) items, or one `DataLoader`, per agent.

        This call reads each item once, so a random transform is drawn once and not in every round. It
        iterates over a loader once, in the order of the loader.
        """
        _expect_sequence(agents)
        pairs = [read_items(source, f"agent {agent}") for agent, source in enumerate(agents)]
        held_out = None if test is None else read_items(test, "test records")
        return Shards.from_arrays(pairs, held_out, classes, dtype=dtype, persons=persons)

    @staticmethod
    def from_files(
        agents: Sequence[str | os.PathLike[str]],
        test: str | os.PathLike[str] | None = None,
        schema: Schema | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        person: str | None = None,
    ) -> Shards:
        """Return shards of one file or folder per agent: CSV, Parquet, `.npz`, or folders of images.

        `schema` states what is publicly known of the records. It alone determines how records become numbers;
        the records never do. The files that match a pattern such as `sites/*.csv` are in sorted order. Their
        names without suffixes are the names of the sites (`labels`), unless two are equal.

        `person`: the column, or the array of an `.npz` file, with the identifier of each record's person. It
        makes the person the unit of protection.
        """
        stated = Schema.of(schema or EMPTY_SCHEMA)
        shards = _prepared(read_site_files(agents, test, stated, person), stated)
        names = [path.stem for path in site_paths(agents)]
        return replace(shards, labels=tuple(names) if len(set(names)) == len(names) else None)

    @staticmethod
    def from_frames(
        agents: Sequence[Any],
        test: Any = None,
        schema: Schema | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        person: str | None = None,
    ) -> Shards:
        """Return shards of one frame per agent: pandas, polars, Hugging Face, or a dictionary of columns.

        `person`: as for `from_files`.

        >>> frames = [{"age": [30, 55], "ill": ["no", "yes"]}, {"age": [80, 10], "ill": ["yes", "no"]}]
        >>> schema = {"target": "ill", "classes": ["no", "yes"], "ranges": {"age": [0, 100]}}
        >>> Shards.from_frames(frames, schema=schema).inputs[1, :, 0].tolist()
        [0.6000000238418579, -0.800000011920929]
        """
        _expect_sequence(agents)
        stated = Schema.of(schema or EMPTY_SCHEMA)
        return _prepared(read_site_frames(agents, test, stated, person), stated)

    @staticmethod
    def from_frame(
        frame: Any,
        site: str,
        test: Any = None,
        schema: Schema | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        person: str | None = None,
    ) -> Shards:
        """Return shards of one frame, of which the column `site` states who holds each record.

        Each value of that column is one agent, in sorted order (`labels`). The column is no input of the
        model. `frame`, `test` and `person` are as for `from_frames`; the test records may lack the column.

        >>> frame = {"age": [30, 80, 55], "ill": ["no", "yes", "no"], "hospital": ["north", "south", "north"]}
        >>> schema = {"target": "ill", "classes": ["no", "yes"], "ranges": {"age": [0, 100]}}
        >>> shards = Shards.from_frame(frame, site="hospital", schema=schema)
        >>> shards.labels, shards.counts
        (('north', 'south'), (2, 1))
        """
        stated = Schema.of(schema or EMPTY_SCHEMA)
        if site in {*stated.targets, *stated.inputs}:
            raise DataError(
                f"site: expected a column that the schema does not use, got {site!r}. Which site holds a "
                "record must not be an input or a target of the model."
            )
        parts = split_by_site(frame, site)
        held_out = None if test is None else read_frame(test, "test records")
        if held_out is not None:
            held_out.columns.pop(site, None)
        declared = getattr(frame, "features", None)
        records = read_site_frames(
            list(parts.values()), held_out, stated, person, labels=list(parts), declared=declared
        )
        return replace(_prepared(records, stated), labels=tuple(parts))


def _prepared(records: SiteRecords, schema: Schema) -> Shards:
    """Return the shards of records that `schema` prepared."""
    shards = Shards.from_arrays(
        records.agents,
        records.test,
        records.classes,
        dtype=_input_type(schema),
        persons=records.persons,
    )
    table, ranges = _table_facts(schema)
    preparation = Preparation(
        shape=(),
        dtype="",
        schema=table,
        class_names=records.class_names,
        bytes_divided=records.bytes_divided,
        target_ranges=ranges,
    )
    return replace(shards, preparation=preparation.like(shards.inputs), input_length=schema.input_length)


def _table_facts(schema: Schema) -> tuple[Schema | None, tuple[tuple[float, float] | None, ...]]:
    """Return the schema if it is that of a table, and the ranges of its targets unless they are classes."""
    if schema.targets == ("",):
        return None, ()
    ranges = () if schema.classes is not None else tuple(map(schema.ranges.get, schema.targets))
    return schema, ranges


def _numbers_of_persons(persons: Sequence[Any], counts: tuple[int, ...]) -> Tensor:
    """Return numbers [n, N_max] in place of the identifiers of persons, -1 for padding."""
    if isinstance(persons, str | Tensor | np.ndarray) or len(persons) != len(counts):
        raise DataError(
            f"Expected persons as a list with one array of identifiers for each of {len(counts)} agents, got "
            f"{type(persons).__name__}{f' of length {len(persons)}' if isinstance(persons, Sized) else ''}."
        )
    checked = [
        check_identifiers(_identifiers(each), count, f"agent {agent}")
        for agent, (each, count) in enumerate(zip(persons, counts, strict=True))
    ]
    numbers = [torch.from_numpy(each) for each in number_persons(checked)]
    return pad_sequence(numbers, batch_first=True, padding_value=-1)


def _identifiers(values: Any) -> AnyArray:
    return object_array(list(values)) if isinstance(values, list | tuple) else _as_array(values)


def _make_shards(
    inputs: Tensor,
    targets: Tensor,
    counts: tuple[int, ...],
    classes: int | None,
    test: AgentRecords | None,
    persons: Tensor | None = None,
) -> Shards:
    test_inputs, test_targets = (None, None) if test is None else map(torch.from_numpy, test)
    return Shards(
        inputs=inputs,
        targets=targets,
        counts=counts,
        classes=classes,
        test_inputs=test_inputs,
        test_targets=test_targets,
        persons=persons,
        preparation=Preparation(shape=(), dtype="").like(inputs),
    )


def _expect_sequence(agents: Any) -> None:
    if isinstance(agents, TorchDataset | DataLoader | Tensor | np.ndarray) or not isinstance(
        agents, Sequence
    ):
        raise DataError(
            f"Expected a list with the records of each agent, got {type(agents).__name__}. For one agent "
            "give [records]; for several agents split the records."
        )
    if not agents:
        raise DataError("Expected the records of at least one agent, got none.")


def _input_type(schema: Schema) -> torch.dtype:
    """Return the type of inputs; token ids stay integers."""
    return torch.float32 if schema.text is None else torch.int64


def _counts(parts: Sequence[AnyArray]) -> tuple[int, ...]:
    if not parts:
        raise DataError("Expected the records of at least one agent, got none.")
    for agent, part in enumerate(parts):
        if len(part) == 0:
            raise DataError(f"agent {agent}: expected at least one record, got none.")
    return tuple(len(part) for part in parts)


def _expect_disjoint(parts: Sequence[Ints]) -> None:
    """Raise DataError if two agents hold the same record.

    Such a record would be protected half as well as the accounts state.
    """
    all_indices = np.concatenate(parts)
    records, holders = np.unique(all_indices, return_counts=True)
    if len(records) != len(all_indices):
        repeated = records[holders > 1][0]
        agents = [agent for agent, part in enumerate(parts) for _ in range(int((part == repeated).sum()))]
        raise DataError(f"Expected every record at one agent only, got record {repeated} at agents {agents}.")


def _classes(targets: Sequence[AnyArray]) -> int | None:
    """Return the largest label + 1, or None if the targets are not labels but numbers to predict."""
    labels = all(part.ndim == 1 and part.dtype == np.int64 and part.min() >= 0 for part in targets)
    return max(int(part.max()) for part in targets) + 1 if labels and is_numbering(targets) else None


def _checked_pair(pair: AgentRecords, dtype: torch.dtype, what: str) -> tuple[AnyArray, AnyArray]:
    if isinstance(pair, TorchDataset | DataLoader):
        raise DataError(
            f"{what}: expected a pair (inputs, targets) of arrays, got {type(pair).__name__}. Use "
            "Shards.from_torch for it."
        )
    try:
        first, second = pair
    except (TypeError, ValueError):
        length = f" of length {len(pair)}" if isinstance(pair, Sized) else ""
        raise DataError(
            f"{what}: expected a pair (inputs, targets) of arrays, got {type(pair).__name__}{length}."
        ) from None
    try:
        inputs, targets = _as_array(first), _as_array(second)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what}: expected inputs and targets as arrays, got: {error}.") from error
    inputs, targets = check_records(inputs, targets, what)
    if dtype not in _NUMPY_TYPES:
        raise DataError(f"Expected one of the dtypes {', '.join(map(str, _NUMPY_TYPES))}, got {dtype}.")
    converted = inputs.astype(_NUMPY_TYPES[dtype])
    if dtype == torch.int64 and not np.array_equal(converted, inputs):
        position = int(np.flatnonzero(converted != inputs)[0])
        raise DataError(f"{what}: expected integer inputs for {dtype}, got {inputs.flat[position]}.")
    return converted, targets


def _as_array(values: Any) -> AnyArray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
