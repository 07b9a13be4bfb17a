"""The scattering transform of images, of order two: which waves of which direction are where.

|x ∗ ψ| shows where a wave is. An average makes it insensitive to small shifts, and a second round of both
recovers what the average blurs (Bruna and Mallat 2013). Nothing is learned, and nothing is computed from more
than one image. The filters are in `wavelet_filters`; `feature_maps` normalises the result.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from topdp.base.array_types import Floats
from topdp.data.features import wavelet_filters

SCATTERING_VERSION = 1  # increase when the values change
STRIDE = wavelet_filters.SCATTERING_STRIDE
MIRRORED_PIXELS = 4  # pixels mirrored at each edge, so that a wave does not wrap around to the opposite edge
SCATTERING_CHANNELS = (
    1 + wavelet_filters.WAVELET_SCALES * wavelet_filters.WAVELET_ANGLES + wavelet_filters.WAVELET_ANGLES**2
)
MIN_IMAGE_SIDE = 8


@final
class Scattering:
    """The transform of grey images [m, height, width]: [m, 81, height // 4, width // 4].

    Channel 0 is the average; 1-8 and 9-16 are the waves of scale 0 and 1 by direction; 17 + 8·k + l is, of
    the waves of scale 0 in direction k, those of scale 1 in direction l.

    >>> Scattering(28, 28)(torch.rand(2, 28, 28)).shape
    torch.Size([2, 81, 7, 7])
    """

    def __init__(self, height: int, width: int, device: torch.device | str = "cpu") -> None:
        padded = (
            _round_up_to_even(height + 2 * MIRRORED_PIXELS),
            _round_up_to_even(width + 2 * MIRRORED_PIXELS),
        )
        self._pad = (
            MIRRORED_PIXELS,
            padded[1] - width - MIRRORED_PIXELS,
            MIRRORED_PIXELS,
            padded[0] - height - MIRRORED_PIXELS,
        )

        def pairs(values: Floats) -> Tensor:  # one real factor for each part of a complex number
            return torch.from_numpy(values).float().unsqueeze(-1).repeat_interleave(2, -1).to(device)

        self._fine = pairs(wavelet_filters.wavelets(*padded, scale=0))
        self._coarse = [
            part.contiguous() for part in _quarters(pairs(wavelet_filters.wavelets(*padded, scale=1)))
        ]
        self._rows, self._columns = (
            [
                torch.from_numpy(wavelet_filters.averages(size, MIRRORED_PIXELS, whole, step))
                .float()
                .to(device)
                for step in (1, 2)
            ]
            for size, whole in zip((height, width), padded, strict=True)
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
        """Return |· ∗ ψ| at scale 1. Dropping pixels adds up the quarters of a spectrum."""
        first, *others = zip(_quarters(spectrum), self._coarse, strict=True)
        folded = first[0] * first[1]
        for part, wave in others:
            folded.addcmul_(part, wave)
        return _wave_modulus(folded.mul_(1 / 4))

    def _average(self, maps: Tensor, level: int) -> Tensor:
        return self._rows[level] @ (maps @ self._columns[level].mT)


def _quarters(spectrum: Tensor) -> list[Tensor]:
    """Return the four quarters [..., h, w, 2] of [..., 2h, 2w, 2]."""
    return [part for rows in spectrum.chunk(2, -3) for part in rows.chunk(2, -2)]


def _wave_modulus(spectrum: Tensor) -> Tensor:
    """Return the modulus, in space, of waves given in frequency as pairs of real numbers."""
    squares = torch.view_as_real(torch.fft.ifft2(torch.view_as_complex(spectrum))).square_()
    return (squares[..., 0] + squares[..., 1]).sqrt_()


def _round_up_to_even(size: int) -> int:
    return size + size % 2
