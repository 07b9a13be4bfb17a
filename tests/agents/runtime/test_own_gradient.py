"""Tests of the agent's own gradient: what one of its records may not do to the others, and what is logged."""

import logging

import torch
from torch import nn

from topdp.agents.runtime.agent_draws import SystemDraws
from topdp.agents.runtime.agent_gradients import AgentGradients, ExactGradients
from topdp.learning.models import FlatModel
from topdp.plan.batches import Full


def gradient(inputs, labels):
    torch.manual_seed(0)
    flat = FlatModel(nn.Linear(3, 2))
    exact = ExactGradients(flat, 1.0, loss="cross-entropy", clipping="flat", record=inputs[:1])
    own = AgentGradients(
        exact, (inputs, labels), batches=(Full(len(inputs)),), agent=0, seed=0, draws=SystemDraws()
    )
    return own.mean(5, flat.flatten())


def test_a_record_without_a_finite_gradient_is_logged_and_ignored(caplog):
    inputs, labels = torch.rand(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])
    inputs[4] = 0
    with caplog.at_level(logging.WARNING, logger="topdp.agents"):
        gradient(inputs, labels)
        assert not caplog.records
        inputs[4, 1] = torch.inf
        found = gradient(inputs, labels)
    (record,) = caplog.records
    assert record.event == "ignored" and record.round == 5 and "1 records" in record.getMessage()
    finite = torch.arange(6) != 4
    torch.testing.assert_close(found, gradient(inputs[finite], labels[finite]) * 5 / 6)
