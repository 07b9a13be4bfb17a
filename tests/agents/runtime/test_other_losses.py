"""Tests that agents use the loss of the manifest, and that losses given in Python are refused."""

import pytest
import torch
from history import federation

from topdp.errors import DataError
from topdp.learning.gradients import ClippedGradients
from topdp.runs.config import ConfigError


def test_an_agent_computes_gradients_of_the_loss_in_the_manifest(tmp_path):
    made = federation(tmp_path, "train.loss=mse", 'train.metrics=["r2"]')
    mine = made.context(2)
    x, y = made.shards.inputs[2], made.shards.targets[2].float()
    clipped = ClippedGradients(made.setup.model(tuple(x.shape[1:]), 1), 1.0, "mse")
    expected = clipped.clipped_sum(mine.start[None], x[None], y[None])[0] / len(y)
    torch.testing.assert_close(mine.gradients.mean(0, mine.start).float(), expected)


def test_an_agent_refuses_records_that_do_not_fit_its_loss(tmp_path):
    with pytest.raises(DataError, match="expected targets from 0 to 1 for bce, got 2"):
        federation(tmp_path, "train.loss=bce").context(0)


def test_a_manifest_with_a_loss_given_in_python_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"expected a name, got .given in Python., which stands for a Python function"
    ):
        federation(tmp_path, 'train.loss="given in Python"')
