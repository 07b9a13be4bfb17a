"""Hypothesis strategies: small random graphs, schedules, plans and configurations.

The strategies find protocols and configuration keys by introspection: a new one needs no entry here.
"""

from __future__ import annotations

import types
import typing
from typing import Any, Literal

import annotated_types as limits
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from builders import PROTOCOLS, registered_names
from topdp import topology
from topdp.plan import NOBODY, PerRound, Plan, Schedule, learning_rates, schedule, step_decay
from topdp.plan.schedules import FADING_KINDS
from topdp.runs.config import RunConfig, Section
from topdp.topology import Topology

seeds = st.integers(0, 2**32 - 1)
shares = st.floats(0.0, 1.0)
deviations = st.just(0.0) | st.floats(1e-3, 3.0)
lengths = st.integers(1, 6)


@st.composite
def graphs(draw: st.DrawFn, largest: int = 7) -> Topology:
    agents = draw(st.integers(3, largest))
    family = draw(st.sampled_from(["random", "ring", "star", "tree", "complete"]))
    if family == "random":
        return topology.random(agents, draw(st.floats(0.3, 1.0)), draw(seeds))
    made: Topology = getattr(topology, family)(agents)
    return made


@st.composite
def schedules(draw: st.DrawFn, rounds: st.SearchStrategy[int] = lengths) -> Schedule:
    T = draw(rounds)
    rates = learning_rates(
        draw(st.floats(0.01, 2.0)), T, draw(st.sampled_from(FADING_KINDS)), draw(st.integers(1, 3))
    )
    decay = step_decay(draw(st.floats(0.1, 1.0)), draw(st.integers(1, 4)), T)
    return schedule(rates, decay, draw(st.sampled_from(["gradient", "estimate"])))


@st.composite
def written_plans(draw: st.DrawFn, rounds: st.SearchStrategy[int] = lengths) -> Plan:
    """A plan of any protocol; agents may have no noise, or different noise."""
    graph = draw(graphs())
    deviation = draw(st.lists(deviations, min_size=graph.agents, max_size=graph.agents))
    if draw(st.booleans()):
        deviation = deviation[:1] * graph.agents
    protocol = PROTOCOLS[draw(st.sampled_from(sorted(PROTOCOLS)))](draw(shares))
    return protocol.plan(graph, draw(schedules(rounds)), np.array(deviation), draw(seeds))


@st.composite
def custom_plans(draw: st.DrawFn) -> Plan:
    """A plan that no protocol of topdp writes: any number of sources and readers, temporary rows,
    and draws that several rows share with either sign."""
    numbers = np.random.default_rng(draw(seeds))
    n, R = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    m, draws = n + draw(st.integers(0, 5)), draw(st.integers(1, 6))
    wide, noisy, read = (draw(st.integers(1, 3)) for _ in range(3))
    source = np.full((R, m, wide), NOBODY)
    exists = numbers.random((R, m)) < 0.7
    exists[:, :n] = True
    for r in range(R):
        before = np.flatnonzero(exists[r - 1]) if r else np.arange(m)
        source[r, exists[r]] = numbers.choice(before, (exists[r].sum(), wide))
        spare = exists[r][:, None] & (np.arange(wide) > 0) & (numbers.random((m, wide)) < 0.3)
        source[r][spare] = NOBODY
    weight = numbers.normal(size=(R, m, wide)) * (numbers.random((R, m, wide)) < 0.8)
    return Plan(
        agents=n,
        owner=np.concatenate([np.arange(n), numbers.integers(0, n, m - n)]),
        source=PerRound.each(source),
        weight=PerRound.each(weight),
        carries=PerRound.each(numbers.random((R, m)) < 0.5),
        rate=numbers.random(R),
        draw=PerRound.each(numbers.integers(NOBODY, draws, (R, m, noisy))),
        std=PerRound.same(numbers.normal(size=(m, noisy)), R),
        scale=numbers.random(R),
        known_by=numbers.integers(NOBODY, n, (draws, 2)),
        readers=PerRound.each(numbers.integers(NOBODY, n, (R, m, read))),
    )


plans = st.one_of(written_plans(), custom_plans())


def values(annotation: Any, metadata: tuple[Any, ...] | list[Any] = ()) -> st.SearchStrategy[Any]:
    """Valid values of a key of this type."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        inside = [one for part in arguments[1:] for one in getattr(part, "metadata", [part])]
        return values(arguments[0], [*metadata, *inside])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(one) for one in arguments])
    if origin is list:
        return st.lists(values(arguments[0]), min_size=1, max_size=4)
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return sections(annotation)
    if names := registered_names(metadata):
        return st.sampled_from(names)
    if annotation is str:
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    if annotation is type(None):
        return st.none()
    if annotation is bool:
        return st.booleans()
    return _numbers(annotation, list(metadata))


def _numbers(kind: type, metadata: list[Any]) -> st.SearchStrategy[Any]:
    least = {one.ge: False for one in metadata if isinstance(one, limits.Ge)}
    least |= {one.gt: True for one in metadata if isinstance(one, limits.Gt)}
    most = {one.le: False for one in metadata if isinstance(one, limits.Le)}
    most |= {one.lt: True for one in metadata if isinstance(one, limits.Lt)}
    (low, above), (high, below) = [*least.items(), (None, False)][0], [*most.items(), (None, False)][0]
    if kind is int:
        return st.integers(low + above, 10**6 if high is None else high - below)
    return st.floats(low, high, exclude_min=above, exclude_max=below, allow_nan=False, allow_infinity=False)


@st.composite
def sections(draw: st.DrawFn, section: type[Section]) -> Section:
    """Any valid section: each key is missing or has a valid value."""
    fields: dict[str, FieldInfo] = section.model_fields
    chosen = {
        name: draw(values(field.annotation, field.metadata))
        for name, field in fields.items()
        if field.is_required() or draw(st.booleans())
    }
    try:
        if "sigma" in chosen:
            chosen.pop("epsilon", None)  # one source cannot set both
        return section(**chosen)
    except ValidationError:  # keys that contradict each other
        assume(False)
        raise


configurations = sections(RunConfig)
