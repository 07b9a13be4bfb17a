"""Tests that canaries replace records: at the same places, in the same batches, with the same norm."""

import itertools

import numpy as np
import pytest
import torch
from subjects import Audited

from topdp.audit.canaries import AuditError, canary_count, plant_canaries
from topdp.audit.canary_scores import execute
from topdp.data import batch_selection
from topdp.plan import Cycle, Full, Poisson
from topdp.plan.noise_key import NoiseKey

BATCHES = {"full": Full(90), "cycle": Cycle(90, 20), "poisson": Poisson(90, 20)}
ONES = {"full": np.ones(1), "cycle": np.array([3.0, 1.0, 2.0, 0.0, 4.0]), "poisson": np.ones(1)}


def plant(kind, count=50, replaced=False, seed=0):
    return plant_canaries(
        1,
        [BATCHES[kind]] * 3,
        ONES[kind],
        count=count,
        dimension=200,
        replace_one=replaced,
        seed=seed,
        order=0,
    )


KEY = NoiseKey.of_seed(0)


@pytest.mark.parametrize("kind", BATCHES)
def test_a_canary_is_used_instead_of_its_record_in_the_same_batches(kind):
    canaries, batches = plant(kind), [BATCHES[kind]] * 3
    for round in range(12):
        before = batch_selection.select(batches, 5, round, key=KEY)
        after = canaries.select(batches, 5, round, torch.device("cpu"), KEY)
        indices = np.arange(90) if before.indices is None else before.indices[1].numpy()
        weights = np.ones(len(indices)) if before.weights is None else before.weights[1].numpy()
        chosen = set(indices[weights > 0].tolist())
        assert set(canaries.records[after.used].tolist()) == chosen & set(canaries.records.tolist())
        left = set(indices[after.weights[1].numpy() > 0].tolist())
        assert left == chosen - set(canaries.records.tolist())
        for other in (0, 2):
            assert before.weights is None or torch.equal(after.weights[other], before.weights[other])
        assert torch.equal(after.divisor, before.divisor)


def test_a_coin_changes_the_sum_by_the_clip_or_by_twice_the_clip():
    for replaced, moved in ((False, 2.0), (True, 4.0)):
        canaries = plant("full", replaced=replaced)
        flipped = plant("full", replaced=replaced)
        flipped.push[7] = {1.0: -1.0 if replaced else 0.0}.get(canaries.push[7], 1.0)
        sums = []
        for one in (canaries, flipped):
            total = torch.zeros(3, 200, dtype=torch.float64)
            one.add(total[1], 2.0, np.array([1.0, -1.0]), np.arange(50))
            sums.append(total)
        assert float((sums[0] - sums[1]).norm()) == pytest.approx(moved)
        assert sums[0][[0, 2]].abs().sum() == 0


def test_canaries_take_the_most_informative_places_and_none_without_information():
    canaries, batches = plant("cycle", count=70), [BATCHES["cycle"]] * 3
    used = [canaries.select(batches, 0, r, torch.device("cpu"), KEY).used.tolist() for r in range(5)]
    assert sorted(itertools.chain(*used)) == list(range(70)) and list(map(len, used)) == [20, 20, 20, 0, 10]
    with pytest.raises(AuditError, match="at most 70, got 71"):
        canary_count(71, 1, batches, ONES["cycle"], 200, 0)


def test_coins_are_fair_and_no_canaries_share_a_parameter():
    many = [plant("full", seed=seed) for seed in range(40)]
    assert all(len(set(one.coordinates.tolist())) == len(one) for one in many)
    share = np.mean([one.present.mean() for one in many])
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(40 * 50)


def test_the_number_of_canaries_is_the_largest_that_fits_and_at_least_the_minimum():
    full = [Full(300)] * 3
    assert canary_count(None, 0, full, np.ones(1), 5000, 0) == 270  # a tenth stays for planted records
    assert canary_count(300, 0, full, np.ones(1), 5000, 0) == 300
    assert canary_count(None, 0, [Full(42)] * 3, np.ones(1), 5000, 0) == 40
    assert canary_count(None, 0, [Full(1050)] * 3, np.ones(1), 5000, 0) == 950
    assert canary_count(None, 0, [Full(3000)] * 3, np.ones(1), 5000, 0) == 1000
    assert canary_count(None, 0, full, np.ones(1), 100, 0) == 100
    for asked, records, dimension, said in (
        (301, 300, 999, "300 usable records"),
        (101, 300, 100, "100 parameters"),
    ):
        with pytest.raises(AuditError, match=said):
            canary_count(asked, 0, [Full(records)] * 3, np.ones(1), dimension, 0)
    with pytest.raises(AuditError, match="at least 40, got 20"):
        canary_count(None, 0, [Full(20)] * 3, np.ones(1), 100, 0)


def test_without_present_canaries_the_gradients_are_those_of_the_other_records():
    """The coins alone decide what is planted: if all are 0, only the other records contribute."""
    made = Audited.of()
    owner, canaries = made.audit.owner, made.audit.plant(3, order=3)
    canaries.push[:] = 0.0
    first = next(execute(made.parts, made.plan, canaries, made.audit.signs, 3))
    weights = torch.ones(4, 160)
    weights[owner, canaries.records] = 0.0
    shards, rows = made.parts.shards, made.parts.start.expand(4, -1).contiguous()
    sums = made.parts.gradients.clipped_sum(rows, shards.inputs, shards.targets, weights)
    np.testing.assert_allclose(first.gradients, sums[:, canaries.coordinates] / 160, atol=1e-7)
