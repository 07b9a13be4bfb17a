"""The untrained state of a model: frozen parameters and buffers, which rows do not contain."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from topdp.learning.models import FlatModel


def frozen_tensors(flat: FlatModel) -> dict[str, Tensor]:
    """Return the frozen parameters and the buffers of a model by their names in its state dictionary.

    >>> from torch import nn
    >>> backbone = nn.Linear(2, 1).requires_grad_(False)
    >>> sorted(frozen_tensors(FlatModel(nn.Sequential(backbone, nn.Linear(1, 1)))))
    ['0.bias', '0.weight']
    """
    trained = {id(part) for part in flat.module.parameters() if part.requires_grad}
    return {
        name: value.detach().cpu()
        for name, value in flat.module.state_dict(keep_vars=True).items()
        if isinstance(value, Tensor) and id(value) not in trained
    }


def frozen_digest(flat: FlatModel) -> str | None:
    """Return the SHA-256 of `frozen_tensors`; None if everything is trained."""
    tensors = frozen_tensors(flat)
    if not tensors:
        return None
    sha = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        sha.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        sha.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()
