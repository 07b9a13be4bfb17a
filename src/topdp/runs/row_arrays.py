"""Rows between torch and files: numpy has no bfloat16, so it holds the bits of such numbers as uint16.

Files are written and read in `tensor_files.py`, which needs no torch; here is the step to tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def as_array(rows: Tensor) -> NDArray[Any]:
    """The same memory as an array, where it is on a CPU; bfloat16 as its bits."""
    rows = rows.detach().cpu()
    return (rows.view(torch.uint16) if rows.dtype == torch.bfloat16 else rows).numpy()


def as_tensor(rows: NDArray[Any]) -> Tensor:
    """Return the tensor that `as_array` was given.

    >>> as_tensor(as_array(torch.tensor([1.0, -3.0], dtype=torch.bfloat16))).tolist()
    [1.0, -3.0]
    """
    tensor = torch.from_numpy(rows)
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
