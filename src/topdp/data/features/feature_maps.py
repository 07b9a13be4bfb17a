"""Feature maps by name: functions that turn a record into the input of a model. `user_features` has users'
own.

A feature map is fixed before data are read, and it processes one record at a time. It therefore costs no
privacy: a record changes only its own features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, final

import torch
from torch import Tensor

from topdp.data.features import _scattering as scattering
from topdp.data.features._scattering import MIN_IMAGE_SIDE, SCATTERING_CHANNELS, Scattering
from topdp.errors import InputError
from topdp.learning.core_threads import single_threaded_pool

Shape = tuple[int, ...]

SCATTERING_GROUPS = 27
# Added to the variance of a group, which is computed for a record of variance 1. It is small because the
# second-order coefficients of such a record are small.
VARIANCE_EPSILON = 1e-9
MAX_PIXELS_PER_PART = 1 << 15  # pixels of the images that one thread transforms at a time


class FeatureMap(Protocol):
    """A function of one record, applied to many.

    **Guarantees.** Row i of the result is a function of record i alone.
    """

    @property
    def identity(self) -> str | None:
        """A text that determines the values of the map, version included; None if no text determines them."""

    def shape(self, example: Tensor) -> Shape:
        """Return the shape of the features of `example`. Raise InputError if the map cannot process it."""

    def __call__(self, records: Tensor) -> Tensor:
        """Return the features [m, *features] of `records` [m, *record], on the device of the records."""


@final
class ScatteringFeatures:
    """The scattering transform of an image, normalised in groups of channels; the features have norm 1.

    Each record is first brought to mean 0 and variance 1. Then it is transformed channel by channel, and
    normalised within each of `groups` groups of neighbouring channels, over all channels and pixels of the
    group. The norm of the features is then √(their number) for every record. Finally, they are divided by
    that norm.

    **Guarantees.** The features of a record follow from that record alone, and have a norm of at most 1. No
    constant here comes from data.

    >>> import torch
    >>> features = ScatteringFeatures()(torch.rand(5, 3, 32, 32))
    >>> features.shape, bool((features.flatten(1).norm(dim=1) - 1).abs().max() < 1e-3)
    (torch.Size([5, 243, 8, 8]), True)
    """

    def __init__(self, groups: int = SCATTERING_GROUPS) -> None:
        self.groups = groups
        self._pool: ThreadPoolExecutor | None = None
        self._transforms: dict[tuple[int, int, torch.device], Scattering] = {}

    @property
    def identity(self) -> str:
        return f"scattering {scattering.SCATTERING_VERSION}, groups {self.groups}"

    def shape(self, example: Tensor) -> Shape:
        """Return (channels · 81, height // 4, width // 4), for images of at least 8x8."""
        record = tuple(example.shape)
        if len(record) not in (2, 3) or 0 in record:
            raise InputError(
                f"Expected images [channels, height, width] for the features 'scattering', got records of "
                f'shape {record}. Use data.features = "none".'
            )
        *channels, height, width = record
        if min(height, width) < MIN_IMAGE_SIDE:
            hint = " Channels come first." if len(record) == 3 and width in (1, 3, 4) else ""
            raise InputError(
                f"Expected images of at least {MIN_IMAGE_SIDE}x{MIN_IMAGE_SIDE} for the features "
                f"'scattering', got "
                f'{height}x{width} (records of shape {record}).{hint} Use data.features = "none".'
            )
        count = math.prod(channels) * SCATTERING_CHANNELS
        if self.groups < 1 or count % self.groups:
            raise InputError(
                f"Expected data.feature_groups to divide the {count} channels of features, got {self.groups}."
            )
        return count, height // scattering.SCATTERING_STRIDE, width // scattering.SCATTERING_STRIDE

    def __call__(self, records: Tensor) -> Tensor:
        shape = self.shape(records[0])
        height, width = records.shape[-2:]
        key = height, width, records.device
        if key not in self._transforms:
            self._transforms[key] = Scattering(height, width, records.device)

        def work(part: Tensor) -> Tensor:
            images = _standardise(part.float()).reshape(-1, height, width)
            coefficients = self._transforms[key](images).reshape(len(part), self.groups, -1)
            coefficients -= coefficients.mean(2, keepdim=True)
            coefficients *= (
                coefficients.square().mean(2, keepdim=True) + VARIANCE_EPSILON
            ).rsqrt_() / math.sqrt(math.prod(shape))
            return coefficients.reshape(len(part), *shape)

        # A part is small enough for the cache of a processor core; a GPU processes larger parts.
        pixels = max(1, math.prod(records.shape[1:]))
        parts = torch.split(
            records,
            max(1, (MAX_PIXELS_PER_PART if not records.is_cuda else 64 * MAX_PIXELS_PER_PART) // pixels),
        )
        workers = 1 if records.is_cuda else min(len(parts), torch.get_num_threads())
        if workers == 1:
            return torch.cat([work(part) for part in parts])
        if self._pool is None:
            self._pool = single_threaded_pool(torch.get_num_threads())
        return torch.cat(list(self._pool.map(work, parts)))


def _standardise(records: Tensor) -> Tensor:
    """Return every record brought to mean 0 and variance 1.

    The variance is smaller for records that are nearly constant. A record that is constant up to rounding
    becomes 0.
    """
    flat = records.flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    floor = 1e-3 * flat.square().mean(1, keepdim=True).sqrt_()
    deviation = centred.square().mean(1, keepdim=True).sqrt_()
    return (centred / (deviation + floor).clamp_min_(torch.finfo(flat.dtype).tiny)).view_as(records)


FEATURE_MAPS: dict[str, Callable[[int], FeatureMap | None]] = {
    "none": lambda groups: None,
    "scattering": ScatteringFeatures,
}
