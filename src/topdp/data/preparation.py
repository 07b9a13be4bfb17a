"""How raw records become inputs of a model, so that a prediction prepares its records as training did.

**Guarantees.** A preparation contains only public facts: a schema, names of classes, published constants, and
the shape of a record. Record k of a result depends on record k alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from topdp.base.array_types import AnyArray, Floats
from topdp.data._datasets import scale_inputs
from topdp.data.readers.record_paths import read_inputs
from topdp.data.readers.table_schema import Schema
from topdp.data.record_checks import check_inputs
from topdp.errors import DataError

if TYPE_CHECKING:
    from topdp.data.features.feature_maps import FeatureMap

NEW_RECORDS = "new records"

TargetRange = tuple[float, float]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Preparation:
    """What is done to a record before a model sees it, and what the model's targets mean.

    >>> prepared = Preparation(shape=(2,), dtype="float32")
    >>> prepared.records([[1, 2], [3, 4]])
    tensor([[1., 2.],
            [3., 4.]])
    >>> prepared.records([1, 2])
    Traceback (most recent call last):
        ...
    topdp.errors.DataError: new records: expected an array of shape [records, 2], as in training, got \
shape (2,). For one record, add an axis: record[None].
    """

    shape: tuple[int, ...]
    """Of one record, before features are computed."""
    dtype: str
    """The type of the records in torch: float32, float64 or int64."""
    schema: Schema | None = None
    """The schema of a table; None: the records are arrays."""
    class_names: tuple[str, ...] | None = None
    bytes_divided: bool = False
    """Whether the records were bytes, which are divided by 255."""
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    target_ranges: tuple[TargetRange | None, ...] = ()
    """For each target, the range that became [-1, 1]; None: the target was not scaled."""
    features: FeatureMap | None = None

    def like(self, records: Tensor) -> Preparation:
        """Return the same preparation for records like `records` [agents, records, ...]."""
        dtype = str(records.dtype).removeprefix("torch.")
        return replace(self, shape=tuple(records.shape[2:]), dtype=dtype)

    def records(self, given: Any) -> Tensor:
        """Return new records [records, ...] as the model's records were before features were computed.

        `given`: an array, a tensor or nested lists; or, if a schema prepared the records, a frame or the path
        of a table. A frame needs the input columns of the schema, and may have others.
        """
        schema = self.schema
        if schema is not None:
            inputs = read_inputs(given, schema, NEW_RECORDS)
        else:
            inputs = self._converted(self._as_records(given))
        return torch.from_numpy(np.ascontiguousarray(inputs))

    def numbers(self, targets: Floats) -> Floats:
        """Return predicted targets [records] or [records, targets] in their own units instead of [-1, 1]."""
        if not any(self.target_ranges):
            return targets
        limits = [(-1.0, 1.0) if limits is None else limits for limits in self.target_ranges]
        low, high = np.array(limits).T
        return np.asarray(low + (targets.reshape(len(targets), -1) + 1) / 2 * (high - low)).reshape(
            targets.shape
        )

    def labels(self, indices: AnyArray) -> AnyArray:
        """Return the names of classes for their indices; whole numbers if the names are such or missing.

        >>> Preparation(shape=(1,), dtype="float32", class_names=("no", "yes")).labels(np.array([1, 0]))
        array(['yes', 'no'], dtype='<U3')
        """
        names = self.class_names
        return indices if names is None else np.array(_plain_names(names))[indices]

    def tree(self) -> dict[str, Any]:
        """Return all fields but `features`, for JSON."""
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "schema": None if self.schema is None else self.schema.tree(),
            "class_names": None if self.class_names is None else list(self.class_names),
            "bytes_divided": self.bytes_divided,
            "mean": list(self.mean),
            "deviation": list(self.deviation),
            "target_ranges": [None if limits is None else list(limits) for limits in self.target_ranges],
        }

    @classmethod
    def of(cls, tree: Mapping[str, Any], features: FeatureMap | None = None) -> Preparation:
        """Return the preparation that `tree` wrote, with its feature map."""
        schema, names = tree["schema"], tree["class_names"]
        return cls(
            shape=tuple(map(int, tree["shape"])),
            dtype=str(tree["dtype"]),
            schema=None if schema is None else Schema.of(schema),
            class_names=None if names is None else tuple(map(str, names)),
            bytes_divided=bool(tree["bytes_divided"]),
            mean=tuple(map(float, tree["mean"])),
            deviation=tuple(map(float, tree["deviation"])),
            target_ranges=tuple(
                None if limits is None else (float(limits[0]), float(limits[1]))
                for limits in tree["target_ranges"]
            ),
            features=features,
        )

    def _as_records(self, given: Any) -> AnyArray:
        expected = f"[records, {', '.join(map(str, self.shape))}]"
        if hasattr(given, "columns") or hasattr(given, "column_names") or isinstance(given, Mapping):
            raise DataError(
                f"{NEW_RECORDS}: expected an array of shape {expected}, because the model was trained on "
                f"arrays and has no schema, got {type(given).__name__}. Give the columns in the order of "
                "training, for example frame[columns].to_numpy()."
            )
        try:
            array = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
        except (TypeError, ValueError) as error:
            raise DataError(f"{NEW_RECORDS}: expected an array of shape {expected}, got: {error}.") from error
        if array.dtype.kind not in "uifb":
            got = f"{type(given).__name__} of dtype {array.dtype}"
            advice = " Make a list of it first." if hasattr(given, "__next__") else ""
            raise DataError(f"{NEW_RECORDS}: expected numbers of shape {expected}, got {got}.{advice}")
        if array.shape[1:] != self.shape or array.ndim == 0:
            advice = " For one record, add an axis: record[None]." if array.shape == self.shape else ""
            raise DataError(
                f"{NEW_RECORDS}: expected an array of shape {expected}, as in training, got shape "
                f"{array.shape}.{advice}"
            )
        return check_inputs(array, NEW_RECORDS)

    def _converted(self, array: AnyArray) -> AnyArray:
        if self.bytes_divided:
            return scale_inputs(_as_bytes(array), self.mean, self.deviation)
        converted = array.astype(self.dtype)
        if self.dtype == "int64" and not np.array_equal(converted, array):
            position = int(np.flatnonzero(converted != array)[0])
            raise DataError(
                f"{NEW_RECORDS}: expected whole numbers, as in training, got {array.flat[position]}."
            )
        return converted


def _as_bytes(array: AnyArray) -> AnyArray:
    """Return images as bytes, or as numbers from 0 to 1. Raise DataError for other numbers."""
    if array.dtype == np.uint8:
        return array
    smallest, largest = float(array.min()), float(array.max())
    if array.dtype.kind in "ui" and smallest >= 0 and largest <= 255:
        return array.astype(np.uint8)
    if array.dtype.kind == "f" and smallest >= 0 and largest <= 1:
        return array
    raise DataError(
        f"{NEW_RECORDS}: expected bytes from 0 to 255, as in training, or real numbers from 0 to 1, got "
        f"{array.dtype} from {smallest:g} to {largest:g}. Give the images as they were before any scaling."
    )


def _plain_names(names: tuple[str, ...]) -> list[Any]:
    """Return names as whole numbers if all of them are written as such, because the labels were numbers."""
    return [int(name) for name in names] if all(_is_whole(name) for name in names) else list(names)


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isdecimal() and str(int(name)) == name
