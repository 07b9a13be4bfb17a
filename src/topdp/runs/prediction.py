"""From new records to predictions: prepare the records as in training, apply a model, read its outputs.

How outputs are read follows from the loss of the run. A model is applied in evaluation mode, to one chunk of
records after the other; it treats the records of a chunk one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor, nn

from topdp.base.array_types import AnyArray, Floats
from topdp.data.preparation import Preparation
from topdp.errors import InputError
from topdp.learning.losses import CUSTOM_LOSS
from topdp.runs.config import GIVEN

if TYPE_CHECKING:
    from topdp.data import Shards
    from topdp.data.features.feature_maps import FeatureMap
    from topdp.learning.tasks import Task

RECORDS_PER_PREDICTION = 512


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Predictor:
    """How the models of a run are applied to new records, and what their outputs mean.

    `loss`: its name in a configuration. `target_shape`: of the target of one record. `classes`: None: the
    targets are no labels. `own_features`: whether the user's own function computes the model's inputs.
    """

    preparation: Preparation
    loss: str
    target_shape: tuple[int, ...]
    classes: int | None
    own_features: bool = False

    @classmethod
    def of(cls, shards: Shards, task: Task) -> Predictor | None:
        """Return the predictor for models that `task` trains on `shards`."""
        preparation = shards.preparation
        if preparation is None:
            return None
        features = preparation.features
        return cls(
            preparation=preparation,
            loss=GIVEN if task.loss.name == CUSTOM_LOSS else task.loss.name,
            target_shape=tuple(shards.targets.shape[2:]),
            classes=shards.classes,
            own_features=features is not None and features.identity is None,
        )

    @classmethod
    def of_tree(cls, tree: Mapping[str, Any], features: FeatureMap | None) -> Predictor:
        """Return the predictor that `tree` wrote, with its feature map."""
        classes = tree["classes"]
        return cls(
            preparation=Preparation.of(tree["preparation"], features),
            loss=str(tree["loss"]),
            target_shape=tuple(map(int, tree["target_shape"])),
            classes=None if classes is None else int(classes),
            own_features=bool(tree["own_features"]),
        )

    def tree(self) -> dict[str, Any]:
        """Return all fields for JSON, without the feature map."""
        return {
            "preparation": self.preparation.tree(),
            "loss": self.loss,
            "target_shape": list(self.target_shape),
            "classes": self.classes,
            "own_features": self.own_features,
        }

    def outputs(self, model: nn.Module, records: Any) -> Tensor:
        """Return the outputs [records, ...] of `model` for new records, as the loss receives them."""
        features = self.preparation.features
        if self.own_features and features is None:
            raise InputError(
                "Expected the function of the features, which no file contains, got none. Give it again: "
                "topdp.load(..., features=function)."
            )
        device, dtype = next((part.device, part.dtype) for part in model.parameters())
        model, chunks = model.eval(), []
        with torch.no_grad():
            for chunk in torch.split(self.preparation.records(records), RECORDS_PER_PREDICTION):
                inputs = chunk if features is None else features(chunk)
                inputs = inputs.to(device, dtype if inputs.is_floating_point() else None)
                chunks.append(model(inputs).cpu())
        return torch.cat(chunks)

    def predictions(self, model: nn.Module, records: Any) -> AnyArray:
        """Return the predicted target of each record: a class, labels of 0 and 1, or numbers in the units of
        the target.
        """
        outputs = self.outputs(model, records)
        if self.loss == "cross-entropy":
            return self.preparation.labels(self._scores(outputs).argmax(1).numpy())
        if self.loss == "bce":
            labels = (self._shaped(outputs) > 0).long().numpy()
            return self.preparation.labels(labels) if self._is_binary else labels
        if self.loss in ("mse", "huber"):
            return self.preparation.numbers(self._shaped(outputs).double().numpy())
        raise InputError(
            "Expected a run with a loss of topdp, whose outputs have a known meaning, got your own loss. "
            "Call result.outputs(records), and read the outputs yourself."
        )

    def probabilities(self, model: nn.Module, records: Any) -> Floats:
        """Return the probability of each class [records, classes, ...], or of each label [records, labels].

        For a single yes-or-no target, the classes are no and yes.
        """
        if self.loss not in ("cross-entropy", "bce"):
            kind = "your own loss" if self.loss == GIVEN else f"the loss {self.loss}, which predicts numbers"
            raise InputError(
                f"Expected a run with the loss cross-entropy or bce for probabilities, got {kind}. Call "
                "result.predict(records), or result.outputs(records)."
            )
        outputs = self.outputs(model, records).double()
        if self.loss == "cross-entropy":
            return np.asarray(torch.softmax(self._scores(outputs), 1).numpy())
        yes = torch.sigmoid(self._shaped(outputs)).numpy()
        return np.stack([1 - yes, yes], axis=1) if self._is_binary else np.asarray(yes)

    @property
    def _is_binary(self) -> bool:
        return self.target_shape == ()

    def _scores(self, outputs: Tensor) -> Tensor:
        """Return the scores of the classes; a model may have further outputs, which no label trained."""
        return outputs[:, : self.classes] if self.target_shape == () else outputs

    def _shaped(self, outputs: Tensor) -> Tensor:
        return outputs.reshape(len(outputs), *self.target_shape)
