"""The contract of every loss in `LOSSES`: one value per example, which depends only on that example."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients
from topdp.learning.losses import LOSSES, MAX_TRANSPOSED_CLASSES, cross_entropy, is_named_loss, named_loss

CLASSES = 4
EXAMPLES = {
    "cross-entropy": lambda count: torch.randint(CLASSES, (count,)),
    "mse": lambda count: torch.randn(count, CLASSES, dtype=torch.float64),
    "huber": lambda count: 2 * torch.randn(count, CLASSES, dtype=torch.float64),
    "bce": lambda count: torch.randint(2, (count, CLASSES)),
    "linear": lambda count: torch.randn(count, CLASSES, dtype=torch.float64),
}
"""For each loss, targets that go with outputs [count, CLASSES]. A new loss needs a line here."""

every_loss = pytest.mark.parametrize("name", LOSSES)


def test_every_loss_has_examples():
    assert EXAMPLES.keys() == LOSSES.keys()


@every_loss
def test_a_loss_is_one_number_per_example_and_depends_only_on_that_example(name):
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
    inputs, targets, clip = torch.randn(6, 3, dtype=torch.float64), EXAMPLES[name](6), 0.3
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


TORCHS = {
    "mse": functional.mse_loss,
    "huber": functional.huber_loss,
    "bce": functional.binary_cross_entropy_with_logits,
}


@pytest.mark.parametrize("name", TORCHS)
@pytest.mark.parametrize("targets", [(6,), (6, 1), (6, 1, 1)])
@pytest.mark.parametrize("outputs", [(6,), (6, 1), (6, 1, 1)])
def test_single_numbers_are_never_broadcast(name, outputs, targets):
    torch.manual_seed(0)
    said, true = torch.randn(6, dtype=torch.float64), torch.randint(2, (6,))
    found = named_loss(name)(said.view(outputs), true.view(targets))
    torch.testing.assert_close(found, TORCHS[name](said, true.double(), reduction="none"))


@pytest.mark.parametrize("name", TORCHS)
@pytest.mark.parametrize(
    ("outputs", "targets"),
    [((6, 2), (6,)), ((6,), (6, 6)), ((6, 1), (6, 3)), ((1, 6), (6, 1)), ((6, 2, 3), (6, 3, 2))],
)
def test_shapes_that_differ_are_refused(name, outputs, targets):
    with pytest.raises(
        InputError, match=r"Expected outputs in the shape of the targets, got .* Make the model"
    ):
        named_loss(name)(torch.zeros(outputs), torch.zeros(targets))


def test_several_numbers_of_a_record_are_averaged():
    outputs, targets = torch.randn(5, 2, 3), torch.randn(5, 2, 3)
    torch.testing.assert_close(named_loss("mse")(outputs, targets), (outputs - targets).square().mean((1, 2)))


def test_a_loss_can_be_given_by_name_former_name_or_function():
    assert named_loss("cross-entropy") == named_loss(LOSSES["cross-entropy"])
    assert is_named_loss(named_loss("cross-entropy"))
    own = named_loss(lambda outputs, targets: outputs[:, 0] - targets)
    assert own.name == "own" and not is_named_loss(own) and named_loss(own) is own
    with pytest.raises(
        InputError, match=r"'cross-entropy' or 'mse' or 'huber' or 'bce' or 'linear' or a function .* 'msee'"
    ):
        named_loss("msee")


@pytest.mark.parametrize(
    ("loss", "came"),
    [
        (lambda outputs, targets: (outputs - targets).square().mean(), r"shape \(\)"),
        (lambda outputs, targets: (outputs - targets[:, None]).square(), r"shape \(3, 1\)"),
        (lambda outputs, targets: (outputs - targets).square(), r"shape \(3, 3\)"),
        (lambda outputs, targets: 1.0, "float"),
    ],
)
def test_a_loss_without_one_value_per_record_is_refused(loss, came):
    with pytest.raises(InputError, match=rf"Expected one loss per example \(3,\), got {came}"):
        named_loss(loss)(torch.zeros(3, 1), torch.zeros(3))


@pytest.mark.parametrize("classes", [2, 10, MAX_TRANSPOSED_CLASSES, MAX_TRANSPOSED_CLASSES + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cross_entropy_equals_that_of_torch_for_any_number_of_classes(classes, dtype):
    outputs = torch.randn(70, classes, dtype=dtype).mul_(5).requires_grad_()
    targets = torch.randint(classes, (70,))
    weights = torch.rand(70, dtype=dtype)
    found = []
    for losses in (
        cross_entropy(outputs, targets),
        functional.cross_entropy(outputs, targets, reduction="none"),
    ):
        found.append((losses.detach(), *torch.autograd.grad(losses @ weights, outputs)))
    torch.testing.assert_close(*found)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_example_has_the_same_bits_at_any_position(name, dtype):
    """So an agent's numbers do not depend on how many other agents there are, nor on their order."""
    count = 301
    outputs, targets = 5 * torch.randn(count, CLASSES, dtype=dtype), EXAMPLES[name](count)
    targets = targets.to(dtype) if targets.is_floating_point() else targets

    def both(some):
        leaf = outputs[some].clone().requires_grad_()
        losses = LOSSES[name](leaf, targets[some])
        return losses.detach(), torch.autograd.grad(losses.sum(), leaf)[0]

    losses, gradients = both(slice(None))
    for first, last in ((at, at + 1 + at % 37) for at in range(0, 260, 3)):
        some = both(slice(first, last))
        assert torch.equal(some[0], losses[first:last]) and torch.equal(some[1], gradients[first:last])
