"""Partitions: ways to deal the records of a data set out to agents. Only targets are read, never inputs.

Every partition returns one array of record indices per agent. No two agents hold the same record, because
accountants count a record once, at the agent that holds it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from topdp.base.array_types import AnyArray, Ints
from topdp.errors import DataError, InputError
from topdp.plan.random_streams import stream


def partition(labels: AnyArray, agents: int, kind: str, seed: int, **options: Any) -> list[Ints]:
    """Return the record indices of each agent, dealt out by the partition `kind` of `PARTITIONS`.

    `labels`: the target of each record. `options`: the further parameters of the partition.

    >>> import numpy as np
    >>> [len(part) for part in partition(np.arange(10) % 2, 3, "iid", seed=0)]
    [3, 3, 3]
    """
    if kind not in PARTITIONS:
        raise InputError(f"Expected one of the partitions {', '.join(PARTITIONS)}, got {kind!r}.")
    deal = PARTITIONS[kind]
    accepted = list(inspect.signature(deal).parameters)[3:]
    unknown = sorted(set(options) - set(accepted))
    if unknown:
        raise InputError(
            f"Expected for {kind!r} only the options {', '.join(accepted) or '(none)'}, got "
            f"{', '.join(unknown)}. Remove the other options."
        )
    return deal(labels, agents, seed, **options)


def iid(labels: AnyArray, agents: int, seed: int) -> list[Ints]:
    """Shuffle the records and cut them into shards of equal size, floor(records / agents), as in the paper.

    The remaining records (records mod agents) go to no agent, so that all sizes are equal.
    """
    _expect_enough_records(labels, agents)
    size = len(labels) // agents
    order = stream(seed, "partition").permutation(len(labels))
    return list(order[: size * agents].reshape(agents, size))


def sizes(
    labels: AnyArray, agents: int, seed: int, sizes: Sequence[float] | None = None, ratio: float | None = None
) -> list[Ints]:
    """Shuffle the records and cut them into shards of unequal size. Give exactly one of `sizes` and `ratio`.

    `sizes` has one number per agent: counts (integers), or fractions of all records. The sum of fractions is
    at most 1, and their counts are rounded down. `ratio` makes sizes fall geometrically: agent 0 holds
    `ratio` times as many records as the last agent. Then all records are dealt out, except for fewer than one
    per agent.
    """
    _expect_enough_records(labels, agents)
    records = len(labels)
    if (sizes is None) == (ratio is None):
        got = "none" if sizes is None else "both"
        raise InputError(
            f"Expected exactly one of the options 'sizes' and 'ratio' for the partition 'sizes', got {got}."
        )
    if ratio is not None:
        if not (math.isfinite(ratio) and ratio >= 1):
            raise InputError(f"Expected ratio >= 1, got {ratio}.")
        shares = ratio ** -(np.arange(agents) / max(agents - 1, 1))
        counts = np.floor(records * shares / shares.sum() + 1e-9).astype(np.int64)
    else:
        requested = np.asarray(sizes)
        if requested.shape != (agents,) or requested.dtype.kind not in "uif":
            raise InputError(f"Expected one size for each of {agents} agents, got {sizes}.")
        if requested.dtype.kind == "f":
            if not np.all((requested > 0) & (requested <= 1)) or requested.sum() > 1 + 1e-9:
                raise InputError(f"Expected fractions above 0 with a sum of at most 1, got {sizes}.")
            counts = np.floor(requested * records + 1e-9).astype(np.int64)
        else:
            counts = requested.astype(np.int64)
    if counts.min() < 1:
        agent = int(counts.argmin())
        raise DataError(
            f"Expected at least 1 record for every agent, got {counts[agent]} of {records} for agent "
            f"{agent}. Use fewer agents or less unequal sizes."
        )
    if counts.sum() > records:
        raise DataError(f"Expected sizes with a sum of at most {records} records, got {counts.sum()}.")
    order = stream(seed, "partition").permutation(records)[: counts.sum()]
    return np.split(order, np.cumsum(counts)[:-1])


def dirichlet(
    labels: AnyArray, agents: int, seed: int, alpha: float = 0.5, minimum: int = 1, attempts: int = 1000
) -> list[Ints]:
    """Deal the records of each label out in proportions drawn from Dirichlet(`alpha`, ..., `alpha`).

    With a small `alpha`, agents have few labels and unequal sizes; with a large one, the partition is nearly
    iid. All records are dealt out. The proportions are drawn again, up to `attempts` times in total, until
    every agent holds at least `minimum` records. Raise DataError if that never happens.
    """
    _expect_enough_records(labels, agents, minimum)
    if not (math.isfinite(alpha) and alpha > 0):
        raise InputError(f"Expected alpha > 0, got {alpha}.")
    generator = stream(seed, "partition")
    records_by_label = _records_by_label(labels, generator)
    counts = np.array([len(records) for records in records_by_label])
    best = 0
    for _ in range(attempts):
        shares = generator.dirichlet(np.full(agents, alpha), len(records_by_label))
        # Cumulative shares are rounded, so that every record of a label is dealt out, and counts deviate from
        # the shares by less than one.
        cuts = np.rint(np.cumsum(shares, axis=1) * counts[:, None]).astype(np.int64)
        cuts[:, -1] = counts
        totals = np.diff(cuts, axis=1, prepend=0).sum(axis=0)
        best = max(best, int(totals.min()))
        if totals.min() >= minimum:
            pieces = [
                np.split(records, cut[:-1]) for records, cut in zip(records_by_label, cuts, strict=True)
            ]
            return [generator.permutation(np.concatenate(parts)) for parts in zip(*pieces, strict=True)]
    raise DataError(
        f"Expected every agent to hold at least {minimum} records; in {attempts} draws of Dirichlet({alpha}) "
        f"over {agents} agents and {len(labels)} records the smallest agent never held more than {best}. "
        "Use a larger alpha, fewer agents or a smaller minimum."
    )


def label(labels: AnyArray, agents: int, seed: int, labels_per_agent: int = 2) -> list[Ints]:
    """Give each agent records of only `labels_per_agent` labels.

    Agents take turns in random order. Each takes the labels that the fewest agents have taken so far, with
    ties decided at random, so that labels are shared evenly. The records of a label are divided among the
    agents that took it, in shares that differ by at most one record. If agents * labels_per_agent is smaller
    than the number of labels, no agent takes some of the labels, and their records go to no agent.
    """
    _expect_enough_records(labels, agents)
    generator = stream(seed, "partition")
    by_label = _records_by_label(labels, generator)
    if not 1 <= labels_per_agent <= len(by_label):
        raise DataError(f"Expected labels_per_agent in 1..{len(by_label)}, got {labels_per_agent}.")
    holders: list[list[int]] = [[] for _ in by_label]
    for agent in generator.permutation(agents):
        popularity = np.array([len(group) for group in holders]) + generator.random(len(by_label))
        for chosen in np.argsort(popularity)[:labels_per_agent]:
            holders[chosen].append(int(agent))
    pieces: list[list[Ints]] = [[] for _ in range(agents)]
    for records, group in zip(by_label, holders, strict=True):
        if len(group) > len(records):
            raise DataError(
                f"Expected at least one record of label {labels[records[0]]} for each of the {len(group)} "
                f"agents that hold it, got {len(records)}. Use fewer agents or fewer labels per agent."
            )
        for agent, share in zip(group, np.array_split(records, len(group)) if group else [], strict=True):
            pieces[agent].append(share)
    return [generator.permutation(np.concatenate(parts)) for parts in pieces]


PARTITIONS: dict[str, Callable[..., list[Ints]]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "label": label,
    "sizes": sizes,
}


def _expect_enough_records(labels: AnyArray, agents: int, minimum: int = 1) -> None:
    if agents < 1:
        raise InputError(f"Expected at least 1 agent, got {agents}.")
    if minimum < 1:
        raise InputError(f"Expected minimum >= 1, got {minimum}.")
    if len(labels) < agents * minimum:
        each = f" with {minimum} records each" if minimum > 1 else ""
        raise DataError(
            f"Fewer records than agents need: expected at least {agents * minimum} records for {agents} "
            f"agents{each}, got {len(labels)}. Use fewer agents or more data."
        )


def _records_by_label(labels: AnyArray, generator: np.random.Generator) -> list[Ints]:
    """Return, for each label that occurs, the indices of its records in random order."""
    if labels.ndim != 1 or labels.dtype.kind not in "uib":
        raise DataError(
            "Expected one integer label for each record to deal them out by label, got targets of shape "
            f"{labels.shape} and type {labels.dtype}. Use the partition iid or sizes."
        )
    order = generator.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    _, starts = np.unique(labels[order], return_index=True)
    return np.split(order, starts[1:])
