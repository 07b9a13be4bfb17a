"""Random numbers of one record never move the gradients of others: in samplers that reject, and samples."""

import pytest
import torch
from torch import nn

import topdp
from topdp.errors import InputError
from topdp.learning.gradients.clipped_gradients import ClippedGradients
from topdp.learning.gradients.record_streams import seeded_streams


class Draws(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.layer, self.draw = nn.Linear(5, 2), draw

    def forward(self, x):
        return self.layer(self.draw(x))


@pytest.mark.filterwarnings("ignore:Examples of a batch", "ignore:Per-example gradients of this model")
@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.poisson(x * 20),
        lambda x: x + torch._standard_gamma(x + 0.1),
        lambda x: torch.distributions.Gamma(x + 0.1, 1.0).rsample(),
        lambda x: torch.binomial(torch.full_like(x, 50.0), x.clamp(0.05, 0.95)),
        lambda x: torch.ops.aten.poisson(x * 20),
    ],
    ids=["poisson", "gamma", "Gamma.rsample", "binomial", "aten.poisson"],
)
def test_a_sampler_that_rejects_does_not_move_the_gradients_of_other_records(draw):
    """Such a sampler draws more numbers for some records than for others (5 to 13 clips before)."""
    sums = []
    for value in (0.1, 3.0):
        torch.manual_seed(0)
        inputs, weights = torch.rand(1, 60, 5) + 0.1, torch.ones(1, 60)
        inputs[0, 0], weights[0, 0] = value, 0.0  # the sum is over the other records
        gradients = ClippedGradients(Draws(draw), 1.0)
        rows = gradients.flat.flatten()[None]
        with seeded_streams(5):
            sums.append(gradients.clipped_sum(rows, inputs, torch.randint(2, (1, 60)), weights))
    assert torch.equal(*sums)


def test_poisson_samples_of_a_model_with_dropout_are_refused():
    """Whether a sample contains one record would change the masks of others (up to 3 clips before)."""
    inputs = torch.rand(3, 40, 4)
    shards = topdp.Shards.from_arrays([(x, (x.sum(1) > 2).long()) for x in inputs])
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    with pytest.raises(InputError, match=r"data\.batch: expected .*model with dropout, got Poisson"):
        topdp.train(
            model, shards, topdp.topology.ring(3), guarantee="worst-case", batch={"poisson": 10}, rounds=2
        )
