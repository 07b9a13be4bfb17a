"""Tasks reject what does not fit the loss, and convert targets to the type that the loss needs."""

import pytest
import torch

from topdp.errors import DataError, InputError
from topdp.learning.metrics import Metric
from topdp.learning.tasks import Task


@pytest.mark.parametrize(
    ("loss", "given", "needed"),
    [
        ("cross-entropy", torch.tensor([0.0, 2.0]), torch.int64),
        ("cross-entropy", torch.tensor([[0, 2], [1, 1]]), torch.int64),
        ("bce", torch.tensor([0, 1]), torch.float32),
        ("bce", torch.tensor([[0.5, 1.0]], dtype=torch.float64), torch.float64),
        ("mse", torch.tensor([-3, 7]), torch.float32),
        ("huber", torch.tensor([0.5], dtype=torch.float64), torch.float64),
        (lambda outputs, targets: outputs[:, 0] * targets, torch.tensor([-3, 7]), torch.int64),
    ],
)
def test_targets_are_converted_to_the_type_that_the_loss_needs(loss, given, needed):
    found = Task.of(loss).targets(given, "agent 0")
    assert found.dtype == needed and torch.equal(found.double(), given.double())


@pytest.mark.parametrize(
    ("loss", "given", "reason"),
    [
        ("cross-entropy", torch.tensor([0.0, 1.5]), "whole numbers of at least 0.*got 1.5 at index 1.*mse"),
        ("cross-entropy", torch.tensor([0, 3, -1]), "got -1 at index 2"),
        ("cross-entropy", torch.tensor([[0, 1], [1, -2]]), "got -2 at index 1"),
        ("bce", torch.tensor([0, 1, 2]), "from 0 to 1 for bce, got 2.*cross-entropy"),
        ("bce", torch.tensor([0.5, -0.25]), "from 0 to 1 for bce, got -0.25.*mse"),
    ],
)
def test_unsuitable_targets_are_refused(loss, given, reason):
    with pytest.raises(DataError, match=f"agent 7: expected .*{reason}"):
        Task.of(loss).targets(given, "agent 7")


@pytest.mark.parametrize(
    ("loss", "targets", "classes", "outputs"),
    [
        ("cross-entropy", torch.tensor([0, 4]), 7, 7),
        ("cross-entropy", torch.tensor([[0, 4]]), None, 5),
        ("bce", torch.zeros(3), None, 1),
        ("bce", torch.zeros(3, 4), None, 4),
        ("mse", torch.zeros(3, 2, 4), None, 8),
        (lambda outputs, targets: outputs[:, 0], torch.tensor([0, 4]), 5, 5),
        (lambda outputs, targets: outputs[:, 0], torch.zeros(2, 3), None, 3),
    ],
)
def test_the_number_of_outputs_follows_from_loss_and_targets(loss, targets, classes, outputs):
    assert Task.of(loss).outputs(targets, classes) == outputs


ONE = torch.tensor([1])
FIT = [
    ("cross-entropy", (1, 3), ONE, 3),
    ("cross-entropy", (1, 3, 5), torch.zeros(1, 5, dtype=torch.long), 3),
    ("bce", (1, 1), torch.zeros(1), None),
    ("mse", (1,), torch.zeros(1, 1), None),
    ("mse", (1, 2, 3), torch.zeros(1, 2, 3), None),
]
MISFIT = [
    ("cross-entropy", (1, 2), ONE, 3, r"each of the 3 classes, got outputs of shape \(1, 2\)"),
    ("cross-entropy", (1, 1), ONE, 2, "each of the 2 classes.* For one logit use the loss bce"),
    ("cross-entropy", (1,), ONE, 2, r"\[batch, classes\], got .*For one logit use the loss bce"),
    ("cross-entropy", (3,), ONE, 3, r"\[batch, classes\], got .*squeeze\(-1\), not squeeze"),
    ("cross-entropy", (1, 5, 3), ONE, 3, r"\[batch, classes\], got outputs of shape \(1, 5, 3\)"),
    ("cross-entropy", (1, 5, 3), torch.zeros(1, 5).long(), 3, r"classes, 5\].*movedim\(-1, 1\)"),
    ("bce", (1, 3), torch.zeros(1), None, r"shape \(1, 3\) for targets of shape \(1,\)"),
    ("mse", (1, 2), torch.zeros(1), None, r"shape \(1, 2\) for targets of shape \(1,\)"),
    ("huber", (1, 2), torch.zeros(1, 3), None, r"Make the model return \[batch, 3\]"),
]


@pytest.mark.parametrize(("loss", "outputs", "targets", "classes"), FIT)
def test_suitable_outputs_are_accepted(loss, outputs, targets, classes):
    Task.of(loss).expect_outputs(torch.zeros(outputs), targets, classes)


@pytest.mark.parametrize(("loss", "outputs", "targets", "classes", "reason"), MISFIT)
def test_unsuitable_outputs_are_rejected(loss, outputs, targets, classes, reason):
    with pytest.raises(InputError, match=reason):
        Task.of(loss).expect_outputs(torch.zeros(outputs), targets, classes)


def test_a_failing_loss_is_reported_with_its_arguments():
    def loss(outputs, targets):
        return outputs @ targets

    with pytest.raises(InputError, match=r"shape \(1, 2\) .*targets of shape \(1, 3\).*RuntimeError"):
        Task.of(loss).expect_outputs(torch.zeros(1, 2), torch.zeros(1, 3), None)


@pytest.mark.parametrize(
    ("loss", "metrics", "reason"),
    [
        ("cross-entropy", ["r2"], "one of accuracy, .* for the loss cross-entropy, got 'r2'"),
        ("mse", ["mae", "auroc"], "one of mae, mse, r2 for the loss mse, got 'auroc'"),
        ("mse", ["mae", "mae"], "unique names.* got 'mae' twice"),
        ("mse", [Metric("loss", lambda outputs, targets: 0)], "unique names.* got 'loss'"),
        (
            "mse",
            [lambda o, t: 0, lambda o, t: 1],
            r"got 'lambda' twice. .* name with topdp.Metric\(name, function\)",
        ),
    ],
)
def test_unsuitable_metrics_are_rejected(loss, metrics, reason):
    with pytest.raises(InputError, match=reason):
        Task.of(loss, metrics)


def test_the_default_metrics_depend_on_the_loss():
    usual = {loss: [one.name for one in Task.of(loss).metrics] for loss in ("cross-entropy", "bce", "huber")}
    assert usual == {"cross-entropy": ["accuracy"], "bce": ["accuracy"], "huber": ["mae", "r2"]}
    assert Task.of(lambda outputs, targets: outputs[:, 0]).metrics == ()
    assert Task.of("mse", []).metrics == ()
    assert [one.name for one in Task.of("mse", "r2").metrics] == ["r2"]
