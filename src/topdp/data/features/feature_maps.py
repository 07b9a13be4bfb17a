"""Feature maps by name, which turn a record into the input of a model, and the scattering transform.

A feature map is fixed before data are read, and it processes one record at a time. It therefore costs no
privacy: a record changes only its own features. A user's own map is in `user_features`.

The scattering transform of an image has order two. It shows where in the image waves of each direction are.
|x ∗ ψ| shows where the wave ψ occurs in the image x. Its average is insensitive to small shifts. A second
wavelet and average recover what the first average blurs (Bruna and Mallat 2013). Nothing is learned, and
nothing is computed from more than one image. `ScatteringFeatures` normalises the result.

The filters are Morlet wavelets and an averaging Gaussian, computed in float64. Scale j has wavelets of
wavelength 2^j·8/3 pixels in `WAVELET_ANGLES` directions. The average has a width of 2^(WAVELET_SCALES-1)·0.8
pixels and leaves one value per 2^WAVELET_SCALES pixels of each axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from topdp.base.array_types import Floats
from topdp.errors import InputError
from topdp.learning.core_threads import single_threaded_pool

Shape = tuple[int, ...]

WAVELET_SCALES = 2
WAVELET_ANGLES = 8
SCATTERING_STRIDE = 2**WAVELET_SCALES
ENVELOPE_WIDTH = 0.8  # deviation of the envelope at scale 0, in pixels
WAVE_FREQUENCY = 3 * np.pi / 4  # of the wave at scale 0, in radians per pixel
ENVELOPE_ELONGATION = WAVELET_ANGLES / 4  # of the envelope across the wave: more directions, longer crests
ALIASED_COPIES = 3  # a pixel grid folds this many copies of the spectrum, on either side, into one
SCATTERING_VERSION = 1  # increase when the values change
MIRRORED_PIXELS = 4  # pixels mirrored at each edge, so that a wave does not wrap around to the opposite edge
SCATTERING_CHANNELS = 1 + WAVELET_SCALES * WAVELET_ANGLES + WAVELET_ANGLES**2
MIN_IMAGE_SIDE = 8
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
        return f"scattering {SCATTERING_VERSION}, groups {self.groups}"

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
                f"Expected images for 'scattering' of at least {MIN_IMAGE_SIDE}x{MIN_IMAGE_SIDE}, got "
                f'{height}x{width} (records of shape {record}).{hint} Use data.features = "none".'
            )
        count = math.prod(channels) * SCATTERING_CHANNELS
        if self.groups < 1 or count % self.groups:
            raise InputError(
                f"Expected data.feature_groups to divide the {count} channels of features, got "
                f"{self.groups}. Choose a divisor of that number."
            )
        return count, height // SCATTERING_STRIDE, width // SCATTERING_STRIDE

    def __call__(self, records: Tensor) -> Tensor:
        shape = self.shape(records[0])
        height, width = records.shape[-2:]
        key = height, width, records.device
        if key not in self._transforms:
            self._transforms[key] = Scattering(height, width, records.device)

        def transform(part: Tensor) -> Tensor:
            images = _standardise(part.float()).reshape(-1, height, width)
            coefficients = self._transforms[key](images).reshape(len(part), self.groups, -1)
            coefficients -= coefficients.mean(2, keepdim=True)
            coefficients *= (
                coefficients.square().mean(2, keepdim=True) + VARIANCE_EPSILON
            ).rsqrt_() / math.sqrt(math.prod(shape))
            return coefficients.reshape(len(part), *shape)

        # A part is small enough for the cache of a processor core; a GPU processes larger parts.
        pixels = max(1, math.prod(records.shape[1:]))
        largest = 64 * MAX_PIXELS_PER_PART if records.is_cuda else MAX_PIXELS_PER_PART
        parts = torch.split(records, max(1, largest // pixels))
        workers = 1 if records.is_cuda else min(len(parts), torch.get_num_threads())
        if workers == 1:
            return torch.cat([transform(part) for part in parts])
        if self._pool is None:
            self._pool = single_threaded_pool(torch.get_num_threads())
        return torch.cat(list(self._pool.map(transform, parts)))


@final
class Scattering:
    """The function that maps grey images [m, height, width] to coefficients [m, 81, height // 4, width // 4].

    Every channel is an average: channel 0 of the image, channels 1-8 and 9-16 of the modulus of its waves of
    scale 0 and of scale 1, by direction. Channel 17 + 8·k + l is computed like channel 9 + l, but from the
    modulus of the waves of scale 0 in direction k instead of the image.

    >>> Scattering(28, 28)(torch.rand(2, 28, 28)).shape
    torch.Size([2, 81, 7, 7])
    """

    def __init__(self, height: int, width: int, device: torch.device | str = "cpu") -> None:
        # The padded sides are even.
        tall, wide = (side + side % 2 + 2 * MIRRORED_PIXELS for side in (height, width))
        self._pad = (
            MIRRORED_PIXELS,
            MIRRORED_PIXELS + width % 2,
            MIRRORED_PIXELS,
            MIRRORED_PIXELS + height % 2,
        )

        def pairs(values: Floats) -> Tensor:  # one real factor for each part of a complex number
            return torch.from_numpy(values).float().unsqueeze(-1).repeat_interleave(2, -1).to(device)

        self._fine = pairs(wavelets(tall, wide, scale=0))
        self._coarse = [part.contiguous() for part in _quarters(pairs(wavelets(tall, wide, scale=1)))]
        self._rows, self._columns = (
            [
                torch.from_numpy(averages(size, MIRRORED_PIXELS, padded, step)).float().to(device)
                for step in (1, 2)
            ]
            for size, padded in ((height, tall), (width, wide))
        )

    def __call__(self, images: Tensor) -> Tensor:
        x = functional.pad(images.unsqueeze(1), self._pad, mode="reflect")
        spectrum = torch.view_as_real(torch.fft.fft2(x))
        fine = _wave_modulus(spectrum * self._fine)
        coarse = self._on_every_second_pixel(spectrum)
        spectra = torch.view_as_real(torch.fft.fft2(fine)).unsqueeze(2)
        second = self._on_every_second_pixel(spectra).flatten(1, 2)
        return torch.cat(
            [self._average(x, 0), self._average(fine, 0), self._average(coarse, 1), self._average(second, 1)],
            1,
        )

    def _on_every_second_pixel(self, spectrum: Tensor) -> Tensor:
        """Return |x ∗ ψ| at scale 1 on every second pixel, given the spectrum of x.

        Dropping every second pixel adds up the four quarters of the spectrum.
        """
        first, *others = zip(_quarters(spectrum), self._coarse, strict=True)
        folded = first[0] * first[1]
        for part, wave in others:
            folded.addcmul_(part, wave)
        return _wave_modulus(folded.mul_(1 / 4))

    def _average(self, maps: Tensor, level: int) -> Tensor:
        return self._rows[level] @ (maps @ self._columns[level].mT)


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


def _quarters(spectrum: Tensor) -> list[Tensor]:
    """Return the four quarters [..., h, w, 2] of `spectrum` [..., 2h, 2w, 2]."""
    return [part for rows in spectrum.chunk(2, -3) for part in rows.chunk(2, -2)]


def _wave_modulus(spectrum: Tensor) -> Tensor:
    """Return the modulus of waves at each pixel, given their spectrum as pairs of real numbers."""
    squares = torch.view_as_real(torch.fft.ifft2(torch.view_as_complex(spectrum))).square_()
    return (squares[..., 0] + squares[..., 1]).sqrt_()


def wavelets(height: int, width: int, scale: int) -> Floats:
    """Return the Fourier transforms [angles, height, width] of the wavelets of one scale on a periodic grid.

    All of them are real.

    A Morlet wavelet is a wave under a Gaussian, minus a term that makes its mean zero (Bruna and Mallat
    2013): ψ̂(ω) = ĝ(ω - ξ) - ĝ(-ξ)/ĝ(0) · ĝ(ω), with ĝ folded by the grid.

    >>> bank = wavelets(16, 16, scale=1)
    >>> bank.shape, bool(np.abs(bank[:, 0, 0]).max() < 1e-12)
    ((8, 16, 16), True)
    """
    deviation, frequency = ENVELOPE_WIDTH * 2**scale, WAVE_FREQUENCY / 2**scale
    bank = []
    for k in range(WAVELET_ANGLES):
        angle = np.pi * k / WAVELET_ANGLES
        wave = _folded_gaussian(height, width, deviation, angle, frequency)
        still = _folded_gaussian(height, width, deviation, angle, 0.0)
        bank.append(wave - wave[0, 0] / still[0, 0] * still)
    return np.stack(bank)


def _folded_gaussian(height: int, width: int, deviation: float, angle: float, frequency: float) -> Floats:
    """Return a Gaussian [height, width] around `frequency` in the direction `angle`, folded by the grid."""
    y = 2 * np.pi * np.fft.fftfreq(height)[:, None]
    x = 2 * np.pi * np.fft.fftfreq(width)[None, :]
    total = np.zeros((height, width))
    for m in range(-ALIASED_COPIES, ALIASED_COPIES + 1):
        for n in range(-ALIASED_COPIES, ALIASED_COPIES + 1):
            v, u = y + 2 * np.pi * m, x + 2 * np.pi * n
            along = u * np.cos(angle) + v * np.sin(angle) - frequency
            across = v * np.cos(angle) - u * np.sin(angle)
            total += np.exp(-0.5 * deviation**2 * (along**2 + (ENVELOPE_ELONGATION * across) ** 2))
    return total


def averages(size: int, margin: int, padded: int, step: int) -> Floats:
    """Return a matrix [size // SCATTERING_STRIDE, padded // step] of weights.

    Each row is a Gaussian average around one of the points that are spread evenly over an axis of `size`
    pixels. The columns are the pixels 0, step, 2·step... of the padded axis, which begins `margin` pixels
    before that axis.
    """
    count = size // SCATTERING_STRIDE
    points = (np.arange(count) + 0.5) * size / count - 0.5
    pixels = np.arange(0, padded, step) - margin
    deviation = ENVELOPE_WIDTH * 2 ** (WAVELET_SCALES - 1)
    weights = np.exp(-0.5 * ((points[:, None] - pixels[None, :]) / deviation) ** 2)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float64)


FEATURE_MAPS: dict[str, Callable[[int], FeatureMap | None]] = {
    "none": lambda groups: None,
    "scattering": ScatteringFeatures,
}
