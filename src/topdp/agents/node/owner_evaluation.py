"""Evaluate an agent's model on its own site's records, for its owner alone.

It uses the test records of `--data` if there are any, else the training records; scores name which.

**Guarantees.** Nothing that is sent, charged or recorded depends on it: it has a model of its own, consumes
no random numbers of the agent, and runs beside the rounds. The scores are a function of the site's records
without noise: they stay on the machine, and publishing them is outside every guarantee.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from topdp.agents.agreement.run_setup import RunSetup
from topdp.data import Dataset
from topdp.data.featured_shards import of_records
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients
from topdp.learning.models import FlatModel
from topdp.runs.named_model import named_task
from topdp.runs.named_records import named_features
from topdp.simulator.evaluation import evaluate


class OwnerEvaluation:
    """Metrics of the manifest on this site's records, every `every` rounds."""

    def __init__(self, setup: RunSetup, dataset: Dataset, name: str, every: int) -> None:
        if every < 1:
            raise InputError(f"--evaluate: expected a number of rounds >= 1, got {every}.")
        config, self.every = setup.manifest.config, every
        test = dataset.test()
        inputs, targets = dataset.train() if test is None else test
        self.on = "training" if test is None else "test"
        self.records = len(targets)
        task = named_task(config)
        self._inputs = of_records(torch.from_numpy(inputs), named_features(config), name)
        self._targets = task.targets(torch.from_numpy(targets), name)
        outputs = task.outputs(self._targets, dataset.classes)
        flat = FlatModel(setup.model(tuple(self._inputs.shape[1:]), outputs))
        if self._inputs.is_floating_point():
            self._inputs = self._inputs.to(flat.dtype)
        self._gradients = ClippedGradients(flat, config.privacy.clip, task.loss, config.privacy.clipping)
        self._metrics = task.metrics

    def of(self, estimate: Tensor, round: int) -> dict[str, Any]:
        """Return loss and metrics of `estimate`, with its round and the records used."""
        row = estimate[None].to(self._gradients.flat.dtype)
        result = evaluate(self._gradients, self._metrics, row, self._inputs, self._targets)
        values = {name: value[0].tolist() for name, value in result.metrics.items()}
        facts = {"round": round, "on": self.on, "records": self.records}
        return {**facts, "loss": float(result.loss[0]), "metrics": values}
