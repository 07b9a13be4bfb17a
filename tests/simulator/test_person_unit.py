"""The person as the unit in the engine: what one person changes, and equality with records."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from builders import blobs, constant_schedule, linear_model
from topdp import topology
from topdp.data import Shards
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients
from topdp.plan import Cycle, Full, Poisson
from topdp.plan.noise_key import NoiseKey
from topdp.protocols import PlainSynchronous
from topdp.simulator.engine import Engine
from topdp.simulator.run_stacking import StackedBatches, stack_shards

KINDS = {
    "full": lambda count, mean: Full(count, mean_records=mean),
    "cycle": lambda count, mean: Cycle(count, max(1, int(mean / 3)), mean_records=mean),
    "poisson": lambda count, mean: Poisson(count, max(1, int(mean / 3)), mean_records=mean),
}
MANY, CLIP = 10_000, 0.7


def engine_of(shards, kind, dtype=torch.float32, model=None, select=None):
    counts = shards.unit_counts
    batches = [KINDS[kind](count, sum(counts) / len(counts)) for count in counts]
    gradients = ClippedGradients((model or linear_model()).to(dtype), CLIP)
    plan = PlainSynchronous(0.25).plan(
        topology.complete(shards.agents), constant_schedule(5), np.full(shards.agents, 0.1), 0
    )
    return Engine(plan, gradients, shards, batches, seed=3, key=NoiseKey.of_seed(3), select=select)


def means(engine, round):
    state = engine.start(engine.gradients.flat.flatten())
    return engine.mean_gradients(state, engine.select(round, engine.device)).clone()


def with_person(records, long, others=300):
    """Agent 0 has `others` persons; agent 1 has one person with `records` records: all the same, or empty."""
    generator = np.random.default_rng(1)
    inputs, labels = generator.normal(size=(others, 16)), generator.integers(0, 3, others)
    own = np.full((records, 16), 50.0 if long else 0.0)
    return Shards.from_arrays(
        [(inputs, labels), (own, np.full(records, worst_label()))],
        classes=3,
        dtype=torch.float64,
        persons=[range_texts("a", others), ["b"] * records],
    )


def range_texts(letter, count):
    return [f"{letter}{number}" for number in range(count)]


def worst_label():
    """The label with the longest gradient for the records of the person."""
    return int(no_bias()(torch.full((1, 16), 50.0)).argmin())


def no_bias():
    """A model whose gradient for an empty record is zero."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3, bias=False))


@pytest.mark.parametrize(("kind", "records"), list(product(KINDS, [1, 2, 500])))
def test_one_person_moves_a_mean_by_no_more_than_the_sensitivity(kind, records):
    """One agent has one person, with many records that are all the same; the other has 10,000 persons."""
    largest = 0.0
    pair = [with_person(records, True, MANY), with_person(1, False, MANY)]
    engines = [engine_of(shards, kind, torch.float64, no_bias()) for shards in pair]
    sensitivity = CLIP * engines[0].batches[1].sensitivity()
    assert sensitivity == CLIP * engines[0].batches[0].sensitivity()
    for round in range(20):
        one, other = (means(engine, round) for engine in engines)
        assert torch.equal(one[0], other[0])
        largest = max(largest, float((one[1] - other[1]).norm()))
    assert largest <= sensitivity * (1 + 1e-6)  # the weights are in float32, rounded down
    assert largest >= sensitivity * (1 - 1e-6)  # otherwise the attack shows nothing


@pytest.mark.parametrize("kind", KINDS)
def test_without_weights_the_attack_would_succeed(kind):
    """The attack finds the fault that weights prevent: each record counts as one."""
    shards = with_person(500, True)
    engine = engine_of(shards, kind, torch.float64, no_bias())
    used = [engine.select(round, engine.device) for round in range(20)]
    weighted = [None if one.weights is None else one.weights.clone() for one in used]
    for one in used:
        one.weights[one.weights > 0] = 1
    state = engine.start(engine.gradients.flat.flatten())
    norms = [float(engine.mean_gradients(state, one)[1].norm()) for one in used]
    assert max(norms) > 100 * CLIP * engine.batches[1].sensitivity()
    assert all(float(weight[1].sum()) <= 1 for weight in weighted)


@pytest.mark.parametrize("kind", KINDS)
def test_a_person_among_others_moves_only_the_rounds_that_use_it(kind):
    generator = np.random.default_rng(2)
    owner = generator.permutation(np.repeat(np.arange(40), generator.integers(1, 9, 40)))
    inputs, labels = generator.normal(size=(len(owner), 16)), generator.integers(0, 3, len(owner))
    changed, target = inputs.copy(), int(owner[17])
    changed[owner == target] *= -30
    pair = [
        Shards.from_arrays(
            [(x, labels), (inputs, labels)], dtype=torch.float64, persons=[owner, owner + 1000]
        )
        for x in (inputs, changed)
    ]
    engines = [engine_of(shards, kind, torch.float64) for shards in pair]
    bound = CLIP * engines[0].batches[0].sensitivity("replace-one")
    moved = []
    for round in range(9):
        one, other = (means(engine, round) for engine in engines)
        moved.append(float((one[0] - other[0]).norm()))
        chosen = engines[0].select(round, engines[0].device)
        at = np.arange(len(owner)) if chosen.indices is None else chosen.indices[0].numpy()
        uses = target in owner[at[chosen.weights[0].numpy()[: len(at)] > 0]]
        assert (moved[-1] > 0) == uses
    assert 0 < max(moved) <= bound
    period = engines[0].batches[0].period
    assert sum(value > 0 for value in moved[:period]) == 1 or kind == "poisson"


@pytest.mark.parametrize("kind", KINDS)
def test_persons_with_one_record_give_the_bits_of_records(kind):
    plain = blobs(4, 24)
    records = [plain.records(agent) for agent in range(4)]
    sizes = [24, 9, 17, 2]
    cut = [(x[:size], y[:size]) for (x, y), size in zip(records, sizes, strict=True)]
    names = [range_texts(str(agent), size) for agent, size in enumerate(sizes)]
    states = []
    for persons in (None, names):
        engine = engine_of(Shards.from_arrays(cut, classes=3, persons=persons), kind)
        state = engine.start(engine.gradients.flat.flatten())
        while state.releases < engine.plan.releases:
            state = engine.advance(state)
        states.append(state.rows.clone())
    assert torch.equal(*states)


def test_batches_must_count_persons():
    shards = with_person(5, True)
    batches = [Full(count) for count in shards.counts]
    plan = PlainSynchronous(0.25).plan(topology.complete(2), constant_schedule(5), np.full(2, 0.1), 0)
    with pytest.raises(InputError, match=r"batches of the persons that agents hold, \[300, 1\]"):
        Engine(plan, ClippedGradients(linear_model(), 1.0), shards, batches, seed=0)


@pytest.mark.parametrize("kind", KINDS)
def test_stacked_runs_use_the_records_of_their_persons(kind):
    """A run with persons beside one without: each has the gradients that it has alone."""
    one, other = with_person(7, True), with_person(7, True)
    plain = Shards.from_arrays([other.records(agent) for agent in range(2)], classes=3, dtype=torch.float64)
    alone = [engine_of(shards, kind, torch.float64) for shards in (one, plain)]
    stacked = StackedBatches(tuple((engine.batches, 3, NoiseKey.of_seed(3)) for engine in alone))
    plan = PlainSynchronous(0.25).plan(topology.complete(4), constant_schedule(5), np.full(4, 0.1), 0)
    gradients = ClippedGradients(linear_model().double(), CLIP)
    both = Engine(plan, gradients, stack_shards([one, plain]), stacked.batches, seed=0, select=stacked.select)
    for round in range(3):
        expected = torch.cat([means(engine, round) for engine in alone])
        torch.testing.assert_close(means(both, round), expected, rtol=1e-12, atol=1e-12)


def test_copies_share_the_records_of_persons():
    shards = with_person(7, True)
    alone = engine_of(shards, "full", torch.float64)
    plan = PlainSynchronous(0.25).plan(topology.complete(4), constant_schedule(5), np.full(4, 0.1), 0)
    gradients = ClippedGradients(linear_model().double(), CLIP)
    twice = Engine(plan, gradients, shards, [*alone.batches, *alone.batches], seed=0, copies=2)
    expected = means(alone, 0).repeat(2, 1)
    torch.testing.assert_close(means(twice, 0), expected, rtol=1e-12, atol=1e-12)
