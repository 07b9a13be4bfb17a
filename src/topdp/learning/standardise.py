"""A fixed first layer that standardises records with constants that were released before training."""

from __future__ import annotations

from typing import Self, final

from torch import Tensor, nn


@final
class Standardise(nn.Module):
    """The layer (x - mean) / deviation, number by number. Its constants are neither trained nor sent.

    It treats records one by one, and always runs in evaluation mode, so that its outputs may be computed once
    (`pretrained_models.split_backbone`).

    >>> import torch
    >>> layer = Standardise(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 1.0]))
    >>> layer(torch.tensor([[3.0, 5.0]]))
    tensor([[1., 5.]])
    """

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.mean = nn.Parameter(mean, requires_grad=False)
        self.deviation = nn.Parameter(deviation, requires_grad=False)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode."""
        return super().train(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs - self.mean) / self.deviation
