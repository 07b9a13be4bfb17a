"""Which records belong to which person of an agent, and the weights of records if the person is the unit.

A *selection* of persons (`batch_selection`) becomes one of their records here. Identifiers become numbers in
`number_persons`, and are not kept.

**Guarantees.** A record of a person with r records has the weight 1/r, rounded down. Weights are applied to
clipped gradients, so one person moves a sum by at most the clip, however many records the person has. A
selection either has all records of a person or none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np
import torch

from topdp.base.array_types import AnyArray, Ints
from topdp.data.batch_selection import Selection


def person_weights(records: Ints) -> AnyArray:
    """Return 1/r for each number of records r, in float32, rounded down so that r weights are at most 1.

    >>> from fractions import Fraction
    >>> all(r * Fraction(float(person_weights(np.array([r]))[0])) <= 1 for r in range(1, 1000))
    True
    """
    weights = (1 / records).astype(np.float32)
    too_large = weights.astype(np.float64) * records > 1  # exact: 24 + 29 bits fit into a float64
    return np.where(too_large, np.nextafter(weights, np.float32(0)), weights)


@final
class PersonRecords:
    """The persons of some agents, each numbered 0, 1, ... by first appearance among the agent's records.

    >>> persons = PersonRecords([np.array([7, 7, 3]), np.array([5])])
    >>> persons.counts, persons.records_of(0, np.array([0])).tolist()
    ((2, 1), [0, 1])
    """

    def __init__(self, persons: Sequence[Ints]) -> None:
        """`persons`: for each agent, a number of the person of each record, equal for equal persons."""
        numbered = [_by_first_appearance(each) for each in persons]
        self._order = [np.argsort(each, kind="stable") for each in numbered]
        self._sizes = [np.bincount(each) for each in numbered]
        self._starts = [np.concatenate([[0], np.cumsum(sizes)]) for sizes in self._sizes]
        self.counts = tuple(len(sizes) for sizes in self._sizes)
        """The number of persons of each agent."""
        self.single = all(bool((sizes == 1).all()) for sizes in self._sizes)
        """Whether every person has one record, so that persons are records."""
        shape = (len(numbered), max(map(len, numbered)))
        self._person, self._weight = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape)
        for agent, (numbers, sizes) in enumerate(zip(numbered, self._sizes, strict=True)):
            self._person[agent, : len(numbers)] = torch.from_numpy(numbers)
            self._weight[agent, : len(numbers)] = torch.from_numpy(person_weights(sizes)[numbers])

    def sizes(self, agent: int) -> Ints:
        """Return the number of records of each person of `agent`."""
        return self._sizes[agent]

    def records_of(self, agent: int, persons: Ints) -> Ints:
        """Return the records of `persons` of `agent`, person after person."""
        starts, order = self._starts[agent], self._order[agent]
        parts = [order[starts[person] : starts[person + 1]] for person in persons]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def nth_record(self, agent: int, persons: Ints, n: int) -> tuple[Ints, AnyArray]:
        """Return record number n of each of `persons` of `agent`, and its weight.

        For persons with fewer records, it is their first record with the weight 0.
        """
        starts, sizes = self._starts[agent][persons], self._sizes[agent][persons]
        has = sizes > n
        return self._order[agent][starts + np.where(has, n, 0)], np.where(has, person_weights(sizes), 0)

    def of_selection(self, selection: Selection) -> Selection:
        """Return the records, with weights, of a selection of persons.

        A selection may have several copies of the agents, one after the other, if it uses all persons.
        """
        if self.single:
            return selection
        device = selection.divisor.device
        if selection.indices is None:
            copies = len(selection.divisor) // len(self.counts)
            weights = self._weight.to(device).repeat(copies, 1)
            if selection.weights is not None:
                person = self._person.to(device).repeat(copies, 1)
                weights = weights * selection.weights.gather(1, person)
            return replace(selection, weights=weights)
        assert selection.weights is not None
        chosen, used = selection.indices.cpu().numpy(), selection.weights.cpu().numpy() > 0
        records = [self.records_of(agent, chosen[agent][used[agent]]) for agent in range(len(chosen))]
        width = max(chosen.shape[1], *map(len, records))
        indices, weights = torch.zeros(len(chosen), width, dtype=torch.int64), torch.zeros(len(chosen), width)
        for agent, own in enumerate(records):
            indices[agent, : len(own)] = torch.from_numpy(own)
            weights[agent, : len(own)] = self._weight[agent, own]
        return replace(selection, indices=indices.to(device), weights=weights.to(device))


def number_persons(identifiers: Sequence[AnyArray]) -> list[Ints]:
    """Return, for each agent, the number of the person of each record; equal identifiers get one number.

    Persons are numbered by first appearance, over all agents. `identifiers`: texts.

    >>> number_persons([np.array(["b", "a", "b"]), np.array(["a", "c"])])
    [array([0, 1, 0]), array([1, 2])]
    """
    numbers: dict[str, int] = {}
    return [
        np.array([numbers.setdefault(value, len(numbers)) for value in each], np.int64)
        for each in identifiers
    ]


def largest_number_of_sites(persons: Sequence[Ints]) -> int:
    """Return the largest number of agents that hold records of one person.

    >>> largest_number_of_sites([np.array([0, 0, 1]), np.array([1])])
    2
    """
    of_agents = np.concatenate([np.unique(each) for each in persons])
    return int(np.unique(of_agents, return_counts=True)[1].max())


def _by_first_appearance(persons: Ints) -> Ints:
    _, first, inverse = np.unique(persons, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return rank[inverse]
