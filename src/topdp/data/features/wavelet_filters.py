"""The filters of a scattering transform: Morlet wavelets in frequency, and the averaging Gaussian.

Only numbers, in float64 and without torch; `scattering` applies them to images. Scale j has wavelets of
wavelength 2^j·8/3 pixels in `WAVELET_ANGLES` directions. The average has a width of 2^(WAVELET_SCALES-1)·0.8
pixels and leaves one value per 2^WAVELET_SCALES pixels of each axis.
"""

from __future__ import annotations

import numpy as np

from topdp.base.array_types import Floats

WAVELET_SCALES = 2
WAVELET_ANGLES = 8
SCATTERING_STRIDE = 2**WAVELET_SCALES
ENVELOPE_WIDTH = 0.8  # deviation of the envelope at scale 0, in pixels
WAVE_FREQUENCY = 3 * np.pi / 4  # of the wave at scale 0, in radians per pixel
ENVELOPE_ELONGATION = WAVELET_ANGLES / 4  # of the envelope across the wave: more directions, longer crests
ALIASED_COPIES = 3  # copies of the spectrum on either side that a pixel grid folds into one


def wavelets(height: int, width: int, scale: int) -> Floats:
    """Return [angles, height, width]: Fourier transforms of the wavelets of one scale on a periodic grid, all
    real.

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
    """Return [height, width]: a Gaussian around `frequency` in the direction `angle`, folded by the grid."""
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
    """Return [size // SCATTERING_STRIDE, padded // step]: Gaussian means around points spread evenly over an
    axis of `size`.

    The columns are the pixels 0, step, 2·step... of the padded axis, which begins `margin` before the axis.
    """
    count = size // SCATTERING_STRIDE
    points = (np.arange(count) + 0.5) * size / count - 0.5
    pixels = np.arange(0, padded, step) - margin
    deviation = ENVELOPE_WIDTH * 2 ** (WAVELET_SCALES - 1)
    weights = np.exp(-0.5 * ((points[:, None] - pixels[None, :]) / deviation) ** 2)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float64)
