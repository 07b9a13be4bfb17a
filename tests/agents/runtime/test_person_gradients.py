"""Tests of an agent's gradient if the person is the unit: what one person changes, and for whom."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from history import faults, federation, live, on_virtual_time
from torch import nn

from builders import blobs
from topdp.agents.runtime.agent_draws import SystemDraws
from topdp.agents.runtime.agent_gradients import (
    MAX_RECORDS_PER_PERSON,
    AgentGradients,
    ExactGradients,
)
from topdp.data import Shards
from topdp.data.batch_selection import select
from topdp.data.person_records import PersonRecords
from topdp.errors import DataError
from topdp.learning.models import FlatModel
from topdp.plan.batches import Cycle, Full, Poisson
from topdp.plan.noise_key import NoiseKey

pytestmark = pytest.mark.usefixtures("quick")

CLIP, PERSONS = 0.5, 150
KINDS = {
    "full": Full(PERSONS, mean_records=100.0),
    "cycle": Cycle(PERSONS, 30, mean_records=100.0),
    "poisson": Poisson(PERSONS, 30, mean_records=100.0),
}


class Draws(SystemDraws):
    """Poisson samples that are the same for two data sets."""

    def sample(self, batches, agent, round):
        chosen = select(batches, 0, round, key=NoiseKey.of_seed(0))
        return chosen.indices[agent][chosen.weights[agent] > 0]


class OwnColumns(nn.Module):
    """Each person has columns of its own, so that its share of a sum can be read off."""

    def __init__(self):
        super().__init__()
        self.tags = nn.Parameter(torch.randn(PERSONS, 7))
        self.rest = nn.Sequential(nn.Linear(7, 300), nn.ReLU(), nn.Linear(300, 3))

    def forward(self, x):
        return self.rest(self.tags[x[..., 0].long()] + x[..., 1:])


def person_records(records):
    """Person 40 has `records` records, all the same; others have one to three. Inputs, labels, persons."""
    sizes = np.where(np.arange(PERSONS) == 40, records, 1 + np.arange(PERSONS) % 3)
    persons = np.repeat(np.arange(PERSONS), sizes)
    inputs = torch.from_numpy(np.stack([persons, np.sin(persons)], 1)).float()
    return inputs, torch.from_numpy(persons % 3), persons


def gradient(flat, batches, inputs, labels, persons, round, loss="cross-entropy", clip=CLIP):
    exact = ExactGradients(flat, clip, loss=loss, clipping="flat", record=inputs[:1])
    own = AgentGradients(
        exact,
        (inputs, labels),
        batches=(batches,),
        agent=0,
        seed=0,
        draws=Draws(),
        persons=None if persons is None else PersonRecords([persons]),
    )
    return own.mean(round, flat.flatten())


def model():
    torch.manual_seed(0)
    return FlatModel(OwnColumns())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("records", [2, 500])
def test_the_records_of_one_person_change_no_digit_of_another_persons_gradient(kind, records):
    flat, batches, moved = model(), KINDS[kind], 0
    for round in range(6):
        one, other = (
            gradient(flat, batches, *person_records(count), round)[: 7 * PERSONS].view(PERSONS, 7)
            for count in (1, records)
        )
        others = torch.arange(PERSONS) != 40
        assert one[others].equal(other[others])
        moved += int(one[40].any())
        torch.testing.assert_close(one[40], other[40], rtol=1e-6, atol=1e-12)
    assert moved


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("records", [1, 2, 500])
def test_one_person_moves_the_mean_by_no_more_than_the_sensitivity(kind, records):
    """One weight at 0: the gradient of (w - y)² is -2y, longer than the clip."""
    flat, batches = FlatModel(nn.Linear(1, 1, bias=False)), KINDS[kind]
    with torch.no_grad():
        flat.module.weight.zero_()
    persons = person_records(records)[2]
    ones = torch.ones(len(persons), 1)
    targets = torch.from_numpy(np.where(persons == 40, -8.0, 0.2 + persons / 1000))[:, None]
    absent = torch.where(torch.from_numpy(persons == 40)[:, None], 0.0, targets)
    sensitivity, largest = Fraction(CLIP) * Fraction(1) / Fraction(batches.divisor), 0.0
    exact = ExactGradients(flat, CLIP, loss="mse", clipping="flat", record=ones[:1])
    bound = exact.rounding_bound(batches.max_records, CLIP, batches.divisor, True)
    for round in range(8):
        one, other = (
            gradient(flat, batches, ones, y.float(), persons, round, "mse") for y in (targets, absent)
        )
        moved = abs(Fraction(float(one[0])) - Fraction(float(other[0])))
        assert moved <= sensitivity + Fraction(bound)
        largest = max(largest, float(moved / sensitivity))
    assert largest > 1 - 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_persons_with_one_record_give_the_bits_of_records(kind):
    flat, persons = model(), np.arange(PERSONS)
    inputs, labels, _ = person_records(1)
    inputs, labels = inputs[:PERSONS], labels[:PERSONS]
    inputs[:, 0] = torch.arange(PERSONS)
    for round in range(4):
        found = [gradient(flat, KINDS[kind], inputs, labels, own, round) for own in (None, persons)]
        assert found[0].equal(found[1])


def test_a_record_on_which_the_model_fails_counts_as_zero_and_the_others_of_its_person_do_not():
    flat = model()
    inputs, labels, persons = person_records(4)
    whole = gradient(flat, KINDS["full"], inputs, labels, persons, 0)[7 * 40 : 7 * 41]
    labels = labels.clone()
    labels[np.flatnonzero(persons == 40)[1]] = 3  # no such class
    torch.testing.assert_close(
        gradient(flat, KINDS["full"], inputs, labels, persons, 0)[7 * 40 : 7 * 41], 0.75 * whole
    )


def test_the_bound_of_rounding_covers_every_number_of_records_of_a_person():
    exact = ExactGradients(model(), CLIP, loss="cross-entropy", clipping="flat", record=torch.zeros(1, 2))
    of_records, of_persons = (exact.rounding_bound(2000, CLIP, 2000, who) for who in (False, True))
    assert of_records < of_persons < 2 * of_records * (1 + MAX_RECORDS_PER_PERSON / 2000)


# Real agents

SIZES = [30, 7, 18, 25, 3, 12]


def shards_with_persons(seed=0):
    """Unequal shards in which persons have 1 to 9 records."""
    plain, random = blobs(6, records=max(SIZES)), np.random.default_rng(seed)
    records = [plain.records(agent) for agent in range(6)]
    persons = [
        [f"{agent}-{number}" for number in random.permutation(np.minimum(np.arange(size) // 3, size // 4))]
        for agent, size in enumerate(SIZES)
    ]
    cut = [(x[:size], y[:size]) for (x, y), size in zip(records, SIZES, strict=True)]
    return Shards.from_arrays(cut, (plain.test_inputs, plain.test_targets), 3, persons=persons)


@pytest.mark.parametrize("batch", ['"full"', "{cycle=2}", "{poisson=2}"])
def test_six_agents_with_unequal_shards_and_persons_equal_the_simulator(tmp_path, batch):
    shards = shards_with_persons()
    assert len(set(shards.unit_counts)) > 3 and shards.unit_counts != shards.counts
    made = federation(
        tmp_path,
        "privacy.unit=person",
        f"data.batch={batch}",
        "method.name=top",
        *(["privacy.guarantee=worst-case"]),
        shards=shards,
        rounds=6,
    )
    assert made.setup.counts == shards.unit_counts
    run = on_virtual_time(live(made))
    assert faults(run) == []
    torch.testing.assert_close(made.estimates(), made.simulated(), rtol=1e-5, atol=1e-6, check_dtype=False)


def test_an_agent_with_other_persons_than_the_manifest_does_not_start(tmp_path):
    made = federation(tmp_path, "privacy.unit=person", "method.name=plain", shards=shards_with_persons())
    count = made.shards.counts[0]
    records = made.shards.inputs[0, :count], made.shards.targets[0, :count]
    from topdp.agents.runtime.agent_context import build_context

    with pytest.raises(DataError, match="records with persons, because the manifest"):
        build_context(made.setup, 0, records, 3)
    with pytest.raises(DataError, match=r"Expected 8 persons, as the manifest says for ada, got 30"):
        build_context(made.setup, 0, records, 3, persons=PersonRecords([np.arange(count)]))
    many = np.zeros(MAX_RECORDS_PER_PERSON + 1, np.int64)
    with pytest.raises(DataError, match=r"at most 10000 records of one person, got 10001"):
        build_context(made.setup, 0, records, 3, persons=PersonRecords([many]))
