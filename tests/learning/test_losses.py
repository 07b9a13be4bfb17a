"""The contract of every loss in `LOSSES`: one value for each example, from that example alone."""

import pytest
import torch
from torch import nn

from topdp.learning.gradients import ClippedGradients
from topdp.learning.losses import LOSSES, named_loss

CLASSES = 4
EXAMPLES = {
    "cross_entropy": lambda count: torch.randint(CLASSES, (count,)),
}
"""For each loss, targets that go with outputs [count, CLASSES]. A new loss needs a line here."""

every_loss = pytest.mark.parametrize("name", LOSSES)


def test_every_loss_has_examples():
    assert EXAMPLES.keys() == LOSSES.keys()


@every_loss
def test_a_loss_is_one_number_for_each_example_and_of_that_example_alone(name):
    torch.manual_seed(0)
    outputs, targets = torch.randn(6, CLASSES, dtype=torch.float64), EXAMPLES[name](6)
    together = named_loss(name)(outputs, targets)
    alone = [named_loss(name)(outputs[i : i + 1], targets[i : i + 1]) for i in range(6)]
    torch.testing.assert_close(together, torch.cat(alone))
    assert len(together.unique()) == 6


@every_loss
def test_clipped_gradients_of_a_loss_are_those_of_a_loop_over_examples(name):
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()
    inputs, targets, clip = torch.randn(6, 3, dtype=torch.float64), EXAMPLES[name](6), 0.7
    expected, clipped = 0.0, []
    for i in range(6):
        network.zero_grad()
        LOSSES[name](network(inputs[i : i + 1]), targets[i : i + 1]).sum().backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
        clipped.append(bool(gradient.norm() > clip))
        expected = expected + gradient / max(1.0, float(gradient.norm()) / clip)
    gradients = ClippedGradients(network, clip, name)
    found = gradients.clipped_sum(gradients.flat.flatten()[None], inputs[None], targets[None])
    torch.testing.assert_close(found[0], expected)
    assert gradients.fast and any(clipped)
