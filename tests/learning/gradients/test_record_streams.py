"""Random numbers inside of models: no record changes those of another record.

A clipped gradient has a length of at most 1 here, so one record may move a sum by at most 2 if replaced.
"""

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from topdp.agents.runtime.agent_gradients import ExactGradients
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients
from topdp.learning.models import FlatModel

pytestmark = pytest.mark.filterwarnings("ignore:Per-example gradients", "ignore:Examples of a batch")

RECORDS = 12
LARGE = 1e20  # no made-up record of the checks is between this and 1e25


class Noisy(nn.Module):
    """A network whose output depends on random numbers. `act` is called with each record first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def act(self, x: Tensor) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        self.act(x)
        return self.layer(x.clamp(-1, 1) + torch.randn(4))


class Seeds(Noisy):
    """Sets the seed of torch from a record, so that it chooses the random numbers of all later ones."""

    def act(self, x: Tensor) -> None:
        torch.manual_seed(int(1000 * x.abs().clamp(max=1).sum()))


class SeedsRarely(Noisy):
    def act(self, x: Tensor) -> None:
        if LARGE < float(x.max()) < 1e25:
            torch.manual_seed(3)


class Counts(Noisy):
    """Draws as many numbers as the record says, so that it moves the random numbers of all later ones."""

    def act(self, x: Tensor) -> None:
        torch.rand(int(50 * x[0, 0].abs().clamp(max=1)))


class DrawsInPython(Noisy):
    def act(self, x: Tensor) -> None:
        random.random()


class DrawsInNumpy(Noisy):
    def act(self, x: Tensor) -> None:
        np.random.rand(2)


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(1, RECORDS, 4, generator=generator), torch.randint(3, (1, RECORDS), generator=generator)


def sums(model: nn.Module, changed: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The sums of clipped gradients with the first record as it is, and changed."""
    x, y = data()
    gradients = ClippedGradients(model, 1.0)
    row, results = gradients.flat.flatten()[None], []
    for first in (x[0, 0], changed):
        x[0, 0] = first
        torch.manual_seed(5)
        results.append(gradients.clipped_sum(row, x.clone(), y, weights))
    return results[0], results[1]


OTHERS = torch.ones(1, RECORDS).index_fill(1, torch.tensor([0]), 0)


def test_a_record_that_draws_more_numbers_does_not_move_the_gradients_of_others():
    before, after = sums(Counts(), torch.zeros(4), OTHERS)
    assert torch.equal(before, after)
    before, after = sums(Counts(), torch.zeros(4))
    assert float((before - after).norm()) <= 2


@pytest.mark.parametrize(
    ("model", "words"),
    [(Seeds, "torch.manual_seed"), (DrawsInPython, "generator of Python"), (DrawsInNumpy, "of NumPy")],
)
def test_models_that_seed_torch_or_use_other_generators_are_refused(model, words):
    with pytest.raises(InputError, match=words):
        sums(model(), torch.zeros(4))


def test_seeding_on_an_unusual_record_is_refused_too():
    before, after = sums(SeedsRarely(), torch.zeros(4), OTHERS)
    assert torch.equal(before, after)
    with pytest.raises(InputError, match=r"torch\.manual_seed"):
        sums(SeedsRarely(), torch.full((4,), 2 * LARGE))


def test_without_the_refusal_seeding_would_not_move_the_gradients_of_others_either(monkeypatch):
    """The streams are the defence; the refusal is a second one."""
    monkeypatch.setattr(
        "topdp.learning.gradients.record_streams.RecordStreams.expect_unseeded", lambda self: None
    )
    before, after = sums(Seeds(), torch.zeros(4), OTHERS)
    assert torch.equal(before, after)


def test_real_agents_have_the_same_protection():
    x, y = data()
    flat, results = FlatModel(Counts().double()), []
    for first in (x[0, 0], torch.zeros(4)):
        x[0, 0] = first
        exact = ExactGradients(flat, 1.0, loss="cross-entropy", clipping="flat", record=x[0, :1])
        torch.manual_seed(5)
        results.append(exact.sum(flat.flatten(), x[0], y[0], OTHERS[0].double())[0])
    assert torch.equal(*results)


@pytest.mark.parametrize("dropout", [False, True])
def test_a_record_on_which_the_model_fails_does_not_change_the_others(dropout):
    """Neither their masks nor their last digits: the others are computed in the same batch."""
    gradients = ClippedGradients(
        nn.Sequential(*[nn.Dropout(0.5)] * dropout, nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), 1.0
    )
    (x, y), row, results = data(), gradients.flat.flatten()[None], []
    for target in (1, 99):  # there is no class 99
        y[0, 0] = target
        torch.manual_seed(5)
        results.append(gradients.clipped_sum_and_statistics(row, x, y.clone(), OTHERS))
    (before, _), (after, statistics) = results
    assert gradients.fast and torch.equal(before, after)
    assert statistics.ignored.tolist() == [0]  # its weight is 0
    _, statistics = gradients.clipped_sum_and_statistics(row, x, y)
    assert statistics.ignored.tolist() == [1]


def test_numbers_differ_between_examples_blocks_and_calls():
    class Shows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return (self.weight * torch.randn(4)).sum(dim=-1, keepdim=True).expand(len(x), 1)

    gradients = ClippedGradients(Shows(), 1e6, "mse")
    row = gradients.flat.flatten()[None]
    seen = []
    for weights in torch.eye(6).repeat(2, 1):
        torch.manual_seed(7)
        x, y = torch.zeros(1, 6, 4), torch.zeros(1, 6, 1)
        seen.append(tuple(gradients.clipped_sum(row, x, y, weights[None], microbatch=2)[0].tolist()))
    assert seen[:6] == seen[6:] and len(set(seen)) == 6
    again = gradients.clipped_sum(row, x, y, weights[None], microbatch=2)
    assert tuple(again[0].tolist()) not in seen
