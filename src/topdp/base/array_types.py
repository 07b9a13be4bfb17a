"""Array types for annotations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
# Integers of any width, because plans keep their index arrays small.
Indices = NDArray[np.integer[Any]]
AnyArray = NDArray[Any]
