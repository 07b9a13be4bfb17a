"""Sums of clipped gradients: a record moves them by what the clip allows, to the last digits that count."""

from fractions import Fraction
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from history import federation
from torch import nn

from topdp.agents.runtime.agent_draws import SystemDraws
from topdp.agents.runtime.agent_gradients import AgentGradients, ExactGradients, count_terms
from topdp.agents.runtime.row_guards import MAX_ROUNDED_SHARE, rounded_share
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients
from topdp.learning.gradients.per_example_path import PerExamplePath
from topdp.learning.models import FlatModel
from topdp.plan.batches import Full

CLIP = 4.0


def moving(plan, moved, period=1):
    """The spending of agent 0, as far as `rounded_share` reads it: a record moves its mean by `moved`."""
    return SimpleNamespace(plan=plan, owner=0, sensitivity=moved, batches=SimpleNamespace(period=period))


def excess(summed, targets):
    """By how many clips the first record moves a sum beside its own gradient; in exact arithmetic."""
    without = targets.clone()
    without[0] = 0  # a record that is not there: its gradient is zero
    moved = Fraction(float(summed(targets))) - Fraction(float(summed(without)))
    return float(abs(moved + 2 * Fraction(float(targets[0])))) / CLIP


def test_one_record_changes_how_all_others_are_rounded_in_float32_and_no_more_in_float64():
    """One weight, at 0: the gradient of (w - y)² is -2y, a number of float32, below the clip."""
    flat, records = FlatModel(nn.Linear(1, 1, bias=False)), 8000
    ones, start = torch.ones(records, 1), torch.zeros(1)
    targets = 0.75 + torch.rand(records, 1, generator=torch.Generator().manual_seed(1)) / 4
    rough = ClippedGradients(flat, CLIP, "mse")
    exact = ExactGradients(flat, CLIP, loss="mse", clipping="flat", record=ones[:1])
    before = excess(lambda y: rough.clipped_sum(start[None], ones[None], y[None])[0, 0], targets)
    after = excess(lambda y: exact.sum(start, ones, y)[0][0], targets)
    assert before > 1e-5 and after <= exact.rounding_bound(records, CLIP, 1) / CLIP < 1e-7


class Tagged(nn.Module):
    """Every record has a token of its own: so its gradient can be seen in the sum of all."""

    def __init__(self, records):
        super().__init__()
        self.tags = nn.Parameter(torch.randn(records, 7))
        self.rest = nn.Sequential(nn.Linear(7, 300), nn.ReLU(), nn.Linear(300, 3))

    def forward(self, x):
        return self.rest(self.tags[x[..., 0].long()] + x[..., 1:])


@pytest.mark.parametrize(
    "how", ["another class", "no finite gradient", "the model raises", "the loss raises"]
)
def test_what_one_record_is_changes_no_digit_of_anothers_gradient(how):
    records = 50
    torch.manual_seed(0)
    flat = FlatModel(Tagged(records))
    inputs = torch.stack([torch.arange(records).float(), torch.rand(records)], dim=1)
    row, classes = flat.flatten(), torch.arange(records) % 3
    exact = ExactGradients(flat, 0.1, loss="cross-entropy", clipping="flat", record=inputs[:1])

    def found():
        own = AgentGradients(
            exact, (inputs, classes), batches=(Full(records),), agent=0, seed=0, draws=SystemDraws()
        )
        return own.mean(1, row)[: 7 * records].view(records, 7)

    before = found()
    if how in ("another class", "the loss raises"):
        classes = classes.index_fill(0, torch.tensor([17]), 0 if how == "another class" else 3)
    else:
        inputs[17] = {"no finite gradient": torch.tensor([17, torch.inf]), "the model raises": 999}[how]
    with mock.patch.object(PerExamplePath, "one_by_one", side_effect=AssertionError("by another path")):
        after = found()
    others = torch.arange(records) != 17
    assert after[others].equal(before[others]) and not after[17].equal(before[17])


def test_what_rounding_is_left_is_in_the_bound_that_is_checked_at_the_start(tmp_path):
    made = federation(tmp_path, "method.name=plain", agents=3, rounds=2)
    mine = made.context(0)
    off, moved = mine.gradients.exact.rounding_bound(2000, 1.0, 2000), 1 / 2000
    facts = (moving(made.setup.plan, moved), mine.meter.planned, 1.0, 1e-9)
    shares = [rounded_share(*facts, added, together=True) for added in (0.0, off)]
    assert 0 < shares[1] - shares[0] < 1e-8 < MAX_ROUNDED_SHARE
    with (
        mock.patch.object(ExactGradients, "rounding_bound", lambda *_: moved),
        pytest.raises(InputError, match="smaller batches"),
    ):
        made.context(0)


def test_what_a_record_adds_up_by_itself_is_counted():
    image, words = torch.zeros(1, 1, 6, 6), torch.zeros(1, 9, dtype=torch.int64)
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 2))
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    text = nn.Sequential(nn.Embedding(5, 8), layer, nn.Flatten(), nn.Linear(72, 2))
    assert count_terms(FlatModel(conv), image) == 16 and count_terms(FlatModel(text), words) >= 9
    exact = ExactGradients(FlatModel(conv), 1.0, loss="cross-entropy", clipping="flat", record=image)
    assert exact.rounding_bound(2000, 1.0, 2000) * 2000 < MAX_ROUNDED_SHARE / 10


class Narrow(nn.Linear):
    def forward(self, x):
        return super().forward(x.float())


def test_a_model_that_cannot_run_in_float64_is_refused():
    with pytest.raises(InputError, match=r"also runs in float64.*no \.float\(\)"):
        ExactGradients(
            FlatModel(Narrow(3, 2)), 1.0, loss="cross-entropy", clipping="flat", record=torch.zeros(1, 3)
        )


class Tied(nn.Module):
    """One weight in two layers: what one record does to it may cancel."""

    def __init__(self):
        super().__init__()
        self.there, self.back = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.back.weight = self.there.weight

    def forward(self, x):
        return self.back(torch.tanh(self.there(x)))


def test_a_weight_that_two_layers_have_in_common_is_used_twice():
    assert count_terms(FlatModel(Tied()), torch.zeros(1, 3)) == 2


def test_the_share_is_that_of_the_rounds_that_use_a_record(tmp_path):
    """Steps become smaller, and rounding next to them larger: the last class of rounds has most of it."""
    plan = federation(tmp_path, "train.fading=linear", rounds=5).setup.plan
    even = np.ones(plan.releases)
    facts = (even, 1.0, 1e4, 0.0)
    alone = [
        rounded_share(moving(plan, 1e-3, k + 1), even[: k + 1], *facts[1:], together=True) for k in range(6)
    ]
    assert alone[-1] == pytest.approx(rounded_share(moving(plan, 1e-3), *facts, together=False))
    assert alone[-1] > 1.2 * rounded_share(moving(plan, 1e-3), *facts, together=True)


def test_rows_that_a_rule_takes_number_by_number_may_be_longer(tmp_path):
    shares = [
        rounded_share(moving(made.setup.plan, 1e-3), np.ones(made.setup.plan.releases), 1.0, 1e4, 0.0, True)
        for made in (
            federation(tmp_path, "method.name=dsgd"),
            federation(tmp_path, "method.name=dsgd", "robust.rule=trimmed"),
        )
    ]
    assert shares[1] > 1.2 * shares[0]


def test_a_start_longer_than_rows_may_be_is_refused(tmp_path):
    made = federation(tmp_path, "method.name=plain", largest_norm=1e-3)
    with pytest.raises(InputError, match=r"largest_norm: expected at least .* the norm of the public start"):
        made.context(0)


class Picky(nn.Linear):
    def forward(self, x):
        assert x.dtype == torch.float32
        return super().forward(x)


def test_a_model_that_asks_for_float32_is_refused_in_words_whatever_it_raises():
    with pytest.raises(InputError, match=r"also runs in float64.*AssertionError"):
        ExactGradients(
            FlatModel(Picky(3, 2)), 1.0, loss="cross-entropy", clipping="flat", record=torch.zeros(1, 3)
        )
