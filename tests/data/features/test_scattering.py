"""The scattering transform, compared with direct convolution, and the properties of its filters."""

import math

import numpy as np
import pytest
import torch

from topdp.data.features import feature_maps
from topdp.data.features.feature_maps import MIRRORED_PIXELS, SCATTERING_CHANNELS, Scattering


def morlet(height, width, scale, k):
    """A wavelet sampled in space and wrapped around the grid: a wave times a Gaussian, minus its mean."""
    deviation, frequency, angle = 0.8 * 2**scale, 0.75 * np.pi / 2**scale, np.pi * k / 8
    wave, still = np.zeros((height, width), complex), np.zeros((height, width))
    for m in range(-4, 5):
        for n in range(-4, 5):
            y = np.arange(height)[:, None] + m * height
            x = np.arange(width)[None, :] + n * width
            along = x * np.cos(angle) + y * np.sin(angle)
            across = y * np.cos(angle) - x * np.sin(angle)
            envelope = np.exp(-(along**2 + (across / 2) ** 2) / (2 * deviation**2)) / (
                2 * np.pi * deviation**2 * 2
            )
            still += envelope
            wave += envelope * np.exp(1j * frequency * along)
    return wave - wave.sum() / still.sum() * still


def convolved(image, kernel):
    """Convolution on a torus, pixel by pixel of the kernel."""
    total = np.zeros(image.shape, complex)
    for y in range(image.shape[0]):
        for x in range(image.shape[1]):
            total += kernel[y, x] * np.roll(image, (y, x), (0, 1))
    return total


def averaged(image, height, width, step):
    def weights(size, count):
        points = (np.arange(size // 4) + 0.5) * size / (size // 4) - 0.5
        there = np.arange(count) * step - 4
        bell = np.exp(-((points[:, None] - there) ** 2) / (2 * 1.6**2))
        return bell / bell.sum(1, keepdims=True)

    return weights(height, image.shape[0]) @ image @ weights(width, image.shape[1]).T


def oracle(image):
    height, width = image.shape
    end = [4 + size % 2 for size in image.shape]
    x = np.pad(image, ((4, end[0]), (4, end[1])), mode="reflect")
    banks = [[morlet(*x.shape, scale, k) for k in range(8)] for scale in (0, 1)]
    fine = [np.abs(convolved(x, kernel)) for kernel in banks[0]]
    channels = [averaged(x, height, width, 1)]
    channels += [averaged(one, height, width, 1) for one in fine]
    for source in (x, *fine):
        channels += [averaged(np.abs(convolved(source, k))[::2, ::2], height, width, 2) for k in banks[1]]
    return np.stack(channels)


@pytest.mark.parametrize("height, width", [(8, 8), (9, 14), (28, 28)])
def test_scattering_equals_direct_convolutions(height, width):
    image = np.random.default_rng(0).normal(size=(height, width))
    found = Scattering(height, width)(torch.from_numpy(image).float().unsqueeze(0))[0].double().numpy()
    expected = oracle(image)
    assert found.shape == expected.shape == (81, height // 4, width // 4)
    np.testing.assert_allclose(found, expected, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("size", [16, 36, 40, 50])
def test_all_filters_together_nearly_preserve_energy(size):
    """Littlewood-Paley: Σ|filter|² is at most 1.01, and small only in the corners of the plane."""
    omega = 2 * np.pi * np.fft.fftfreq(size)
    radius = np.hypot(omega[:, None], omega[None, :])
    total = np.exp(-(1.6**2) * radius**2)
    for scale in (0, 1):
        power = (feature_maps.wavelets(size, size, scale) ** 2).sum(0)
        opposite = np.roll(power[::-1, ::-1], (1, 1), (0, 1))  # the other half plane, for real images
        total += (power + opposite) / 2
    assert total.max() < 1.01
    assert total[radius < 0.7 * np.pi].min() > 0.6


@pytest.mark.parametrize("scale", [0, 1])
def test_wavelets_have_mean_zero_and_different_directions(scale):
    bank = feature_maps.wavelets(36, 36, scale)
    assert np.abs(bank[:, 0, 0]).max() < 1e-12
    omega = 2 * np.pi * np.fft.fftfreq(36)
    for k, one in enumerate(bank):
        y, x = np.unravel_index(one.argmax(), one.shape)
        assert math.isclose(math.atan2(omega[y], omega[x]) % math.pi, math.pi * k / 8, abs_tol=0.12)
        assert math.isclose(math.hypot(omega[y], omega[x]), 0.75 * math.pi / 2**scale, rel_tol=0.12)


def test_averages_are_means_around_evenly_spaced_points():
    for size in (8, 9, 28, 33):
        weights = feature_maps.averages(size, MIRRORED_PIXELS, size + 2 * MIRRORED_PIXELS, 1)
        np.testing.assert_allclose(weights.sum(1), 1)
        centres = weights @ (np.arange(size + 2 * MIRRORED_PIXELS) - MIRRORED_PIXELS)
        np.testing.assert_allclose(centres + centres[::-1], size - 1, atol=1e-2)


def test_a_small_shift_changes_features_less_than_pixels():
    """Images are rough: a shifted image is nearly unrelated in pixels, but close in features."""
    images = torch.from_numpy(np.random.default_rng(1).normal(size=(20, 29, 29))).float()
    transform = Scattering(28, 28)
    one, other = transform(images[:, :28, :28]), transform(images[:, 1:, :28])
    features = (one - other).norm() / one.norm()
    pixels = (images[:, :28] - images[:, 1:]).norm() / images[:, :28].norm()
    assert pixels > 1.3 and features < 0.35


def test_rotating_an_image_by_a_right_angle_permutes_channels():
    image = torch.from_numpy(np.random.default_rng(2).normal(size=(32, 32))).float()
    transform = Scattering(32, 32)
    one = transform(image.unsqueeze(0))[0]
    turned = transform(image.rot90(1, (0, 1)).unsqueeze(0))[0]
    for k in range(8):
        torch.testing.assert_close(turned[1 + (k + 4) % 8], one[1 + k].rot90(1, (0, 1)), atol=1e-5, rtol=1e-4)


def test_features_of_an_image_do_not_depend_on_other_images():
    images = torch.rand(70, 12, 17)
    transform = Scattering(12, 17)
    together = transform(images)
    assert together.shape == (70, SCATTERING_CHANNELS, 3, 4)
    images[1:] = 1e6
    torch.testing.assert_close(transform(images)[0], together[0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(transform(images[:1])[0], together[0], atol=1e-6, rtol=1e-5)
