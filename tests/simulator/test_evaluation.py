"""Evaluation: each agent's loss and metrics are those of its model on all test records, in any chunks."""

import numpy as np
import pytest
import torch
from torch import nn

from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients, clipped_gradients
from topdp.learning.metrics import METRICS, Metric
from topdp.learning.tasks import Task
from topdp.simulator import evaluation
from topdp.simulator.evaluation import evaluate

RECORDS, AGENTS = 23, 5
TARGETS = {
    "cross-entropy": (torch.arange(RECORDS) % 3, 3),
    "bce": (torch.rand(RECORDS, 2, generator=torch.Generator().manual_seed(1)).round(), 2),
    "mse": (torch.randn(RECORDS, generator=torch.Generator().manual_seed(2)), 1),
}


def agents(loss, outputs):
    torch.manual_seed(0)
    gradients = ClippedGradients(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs)), 1.0, loss)
    rows = gradients.flat.flatten() + torch.randn(AGENTS, gradients.flat.dimension)
    return gradients, rows, torch.randn(RECORDS, 4)


@pytest.mark.parametrize("kept", [1, 2 * RECORDS * 3, 1 << 24])
@pytest.mark.parametrize("chunk", [4, 1000])
@pytest.mark.parametrize("loss", TARGETS)
def test_loss_and_metrics_are_those_of_each_model_on_all_records(monkeypatch, loss, chunk, kept):
    monkeypatch.setattr(evaluation, "TEST_CHUNK_RECORDS", chunk)
    monkeypatch.setattr(evaluation, "MAX_HELD_OUTPUTS", kept)
    targets, outputs = TARGETS[loss]
    gradients, rows, inputs = agents(loss, outputs)
    about = Task.of(loss).metrics[0].about
    metrics = [metric for metric in METRICS.values() if metric.about == about and "top-5" not in metric.name]
    found = evaluate(gradients, metrics, rows, inputs, targets)
    assert list(found.metrics) == [metric.name for metric in metrics]
    for agent, row in enumerate(rows):
        said = gradients.flat.load(row)(inputs).detach()
        assert found.loss[agent] == pytest.approx(gradients.loss(said, targets).mean().item(), rel=1e-5)
        for metric in metrics:
            np.testing.assert_allclose(
                found.metrics[metric.name][agent],
                metric(said, targets).numpy(),
                rtol=1e-5,
                err_msg=metric.name,
            )


def test_a_users_loss_is_computed_one_record_at_a_time():
    """torch broadcasts [b, 1] - [b] to [b, b], which is correct for one record, but not for several."""
    targets, _ = TARGETS["mse"]
    gradients, rows, inputs = agents(lambda o, t: (o - t).square().mean(1), 1)
    found = evaluate(gradients, [], rows, inputs, targets)
    for agent, row in enumerate(rows):
        said = gradients.flat.load(row)(inputs).detach()[:, 0]
        assert found.loss[agent] == pytest.approx((said - targets).square().mean().item(), rel=1e-5)


def test_metric_functions_get_all_outputs_of_one_agent_and_return_a_number():
    seen = []

    def spy(outputs, targets):
        seen.append((tuple(outputs.shape), tuple(targets.shape)))
        return np.float32(outputs.numpy().max())

    targets, _ = TARGETS["mse"]
    gradients, rows, inputs = agents("mse", 1)
    found = evaluate(gradients, [Metric("spy", spy)], rows, inputs, targets)
    assert seen == [((RECORDS, 1), (RECORDS,))] * AGENTS and found.metrics["spy"].shape == (AGENTS,)
    for wrong, reason in (
        (lambda o, t: o - t[:, None], r"metric wrong: expected one number, .* got shape \(23, 1\)"),
        (lambda o, t: 1 / 0, r"metric wrong: .* error for outputs of shape \(23, 1\).*ZeroDivisionError"),
        (lambda o, t: "high", "metric wrong: expected a value, got an error"),
    ):
        with pytest.raises(InputError, match=reason):
            evaluate(gradients, [Metric("wrong", wrong)], rows, inputs, targets)


class Squeezing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x):
        return self.linear(x).squeeze()


@pytest.mark.parametrize("records", [1, 2, 3])
def test_a_model_that_squeezes_outputs_can_have_one_record_in_a_chunk(monkeypatch, records):
    monkeypatch.setattr(evaluation, "TEST_CHUNK_RECORDS", 2)
    gradients = ClippedGradients(Squeezing(), 1.0, "mse")
    rows, inputs, targets = torch.randn(3, 5), torch.randn(records, 4), torch.randn(records)
    found = evaluate(gradients, [METRICS["mae"], METRICS["r2"]], rows, inputs, targets)
    expected = (inputs @ rows[:, :4].T + rows[:, 4] - targets[:, None]).abs().mean(0)
    np.testing.assert_allclose(found.metrics["mae"], expected, rtol=1e-5)


def test_an_agents_outputs_do_not_depend_on_the_number_of_agents(monkeypatch):
    """Bit for bit, whatever fits into memory at once, because ranks hold different numbers of agents."""
    model = torch.nn.Sequential(torch.nn.Linear(20, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    gradients = ClippedGradients(model, 1.0)
    torch.manual_seed(0)
    rows = torch.zeros(9, 80)[:, : gradients.flat.dimension]  # like the rows of the engine
    rows.copy_(torch.randn(rows.shape))
    inputs = torch.randn(200, 20)
    whole = gradients.outputs(rows, inputs)
    for elements in (1 << 24, 1 << 11, 1 << 14):
        monkeypatch.setattr(
            clipped_gradients, "_activation_budget", lambda device, elements=elements: elements
        )
        for some in (slice(0, 9), slice(0, 4), slice(4, 9), slice(2, 5)):
            assert torch.equal(gradients.outputs(rows[some], inputs), whole[some])
