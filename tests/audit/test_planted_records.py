"""Tests that planted records have the predicted gradient, and are planted only where there is one."""

import numpy as np
import pytest
import torch
from subjects import Audited, subject

from topdp.audit import AuditRequest
from topdp.audit.planted_records import PLANTED_RECORDS, plant_records
from topdp.data import batch_selection
from topdp.learning.gradients import ClippedGradients
from topdp.plan.noise_key import NoiseKey


class Shaky(torch.nn.Linear):
    """A layer that draws random numbers itself."""

    def __init__(self):
        super().__init__(16, 3)

    def forward(self, x):
        return super().forward(x.flatten(1)) + torch.rand(3)


def planted(free=40, **options):
    parts, *_ = subject(method={"name": "plain"}, **options)
    return parts, plant_records(parts.gradients, parts.shards, parts.start, 1, np.arange(60, 60 + free))


@pytest.mark.parametrize("clipping", ["flat", "per-layer", "normalised"])
def test_the_predicted_gradient_is_the_one_that_the_engine_computes(clipping):
    parts, probe = planted(privacy={"clipping": clipping, "clip": 0.5})
    for row in (parts.start, parts.start + 0.1 * torch.randn(parts.start.shape)):
        inputs, targets = probe.input[None, None], probe.target[None, None]
        engine = parts.gradients.clipped_sum(row[None], inputs, targets)[0]
        predicted = probe.clipped_gradient(row)
        np.testing.assert_allclose(predicted, engine, atol=2e-6)
    assert float(predicted.norm()) <= 0.5 * (1 + 1e-12)
    long = ClippedGradients(parts.flat, 1e6, parts.gradients.loss).clipped_sum(
        parts.start[None], inputs, targets
    )
    assert float(long.norm()) > 1.5 * 0.5  # clipping changes it


def test_records_are_planted_in_at_most_half_of_the_free_places():
    assert [len(planted(free)[1].places) for free in (2, 41, 100)] == [1, 20, PLANTED_RECORDS]
    for free in (0, 1):
        assert planted(free)[1] is None
    parts, probe = planted(10)
    shards = probe.planted_in(parts.shards)
    changed = (shards.inputs != parts.shards.inputs).flatten(2).any(2)
    assert changed.nonzero().tolist() == [[1, record] for record in range(60, 65)]
    assert shards.targets[1, 60:65].unique().numel() == 1


def test_models_without_a_predictable_gradient_get_no_planted_records():
    parts, _ = planted()
    free = np.arange(40)
    dropout = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3), torch.nn.Dropout(0.5))
    for model, clip in ((dropout, 1.0), (Shaky(), 1.0), (parts.flat, 1e6)):  # random, or within the clip
        gradients = ClippedGradients(model, clip)
        start = gradients.flat.flatten()
        assert plant_records(gradients, parts.shards, start, 0, free) is None


@pytest.mark.parametrize("batch", ["full", {"cycle": 40}, {"poisson": 40}])
def test_the_planted_and_the_other_records_of_a_round_are_told_apart(batch):
    made = Audited.of(AuditRequest(canaries=100), method={"name": "plain"}, data={"batch": batch})
    parts, canaries = made.parts, made.audit.plant(0, order=0)
    free = np.setdiff1d(np.arange(160), canaries.records)
    probe = plant_records(parts.gradients, parts.shards, parts.start, made.audit.owner, free)
    shards, device = probe.planted_in(parts.shards), torch.device("cpu")
    key, counts = NoiseKey.of_seed(0), []
    for round in range(8):
        selection = canaries.select(parts.run.batches, 0, round, device, key)
        before = batch_selection.select(parts.run.batches, 0, round, key=key)
        used = np.arange(160) if before.indices is None else before.indices[probe.owner].numpy()
        if before.weights is not None:
            used = used[before.weights[probe.owner].numpy() > 0]
        counts.append(probe.count(selection))
        assert counts[-1] == len(np.intersect1d(used, probe.places))
        others = np.setdiff1d(used, [*probe.places, *canaries.records])
        row, own = parts.start, (shards.inputs[probe.owner], shards.targets[probe.owner])
        expected = parts.gradients.clipped_sum(row[None], *(part[None, others] for part in own))[0]
        np.testing.assert_allclose(probe.without(selection, row, shards), expected, atol=1e-5)
    assert max(counts) > 0


def test_without_free_records_clipping_is_not_checked():
    kinds = []
    for canaries in (160, 100):
        made = Audited.of(AuditRequest(canaries=canaries), method={"name": "plain"})
        kinds.append({check.name for check in made.run(0).checks})
    assert kinds[1] - kinds[0] == {"records"}
