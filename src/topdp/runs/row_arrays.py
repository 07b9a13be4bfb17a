"""Conversion of rows between torch tensors and the numpy arrays that files contain.

numpy has no bfloat16, so an array stores the bits of such numbers as uint16. `tensor_files.py` writes and
reads the files, without torch.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def as_array(rows: Tensor) -> NDArray[Any]:
    """Return the rows as an array; bfloat16 as its bits. The array shares the memory of rows on a CPU."""
    rows = rows.detach().cpu()
    return (rows.view(torch.uint16) if rows.dtype == torch.bfloat16 else rows).numpy()


def as_tensor(rows: NDArray[Any]) -> Tensor:
    """Return the tensor from which `as_array` made `rows`; it shares their memory.

    >>> as_tensor(as_array(torch.tensor([1.0, -3.0], dtype=torch.bfloat16))).tolist()
    [1.0, -3.0]
    """
    tensor = torch.from_numpy(rows)
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
