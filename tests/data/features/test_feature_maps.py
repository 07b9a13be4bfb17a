"""Named feature maps: every record has length 1, and records that are not images are refused."""

import numpy as np
import pytest
import torch

from topdp.data.features.feature_maps import FEATURE_MAPS, ScatteringFeatures
from topdp.errors import InputError


@pytest.mark.parametrize(
    "record, expected",
    [
        ((1, 28, 28), (81, 7, 7)),
        ((28, 28), (81, 7, 7)),
        ((3, 32, 32), (243, 8, 8)),
        ((1, 8, 8), (81, 2, 2)),
        ((3, 9, 31), (243, 2, 7)),
        ((2, 64, 48), (162, 16, 12)),
    ],
)
def test_images_of_any_size(record, expected):
    features = ScatteringFeatures()
    found = features(torch.rand(3, *record))
    assert found.shape == (3, *expected) == (3, *features.shape(torch.empty(record)))
    torch.testing.assert_close(found.flatten(1).norm(dim=1), torch.ones(3), atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    "record, words",
    [
        ((784,), "Expected images"),
        ((1, 1, 28, 28), "Expected images"),
        ((0, 28, 28), "Expected images"),
        ((1, 7, 28), "at least 8x8"),
        ((1, 28, 7), "at least 8x8"),
        ((32, 32, 3), "Channels come first"),
    ],
)
def test_records_that_are_not_images_are_refused(record, words):
    with pytest.raises(InputError, match=words):
        ScatteringFeatures().shape(torch.empty(record))


def test_groups_must_divide_the_channels():
    assert ScatteringFeatures(9).shape(torch.empty(1, 8, 8)) == (81, 2, 2)
    with pytest.raises(InputError, match="feature_groups to divide the 81 channels"):
        ScatteringFeatures(10).shape(torch.empty(1, 8, 8))


def strokes(records, size=28):
    """Faint, smooth images, which have very small second-order features."""
    y, x = np.mgrid[:size, :size]
    centres = np.random.default_rng(3).uniform(8, size - 8, (records, 2, 1, 1))
    bumps = np.exp(-((x - centres[:, 0]) ** 2 + (y - centres[:, 1]) ** 2) / 18)
    return torch.from_numpy(bumps).float().unsqueeze(1)


def test_groups_of_small_numbers_are_normalised_fully():
    """Each group has mean 0 and its share of the length; too large an epsilon would make some smaller."""
    for images in (torch.rand(20, 1, 28, 28), strokes(20)):
        groups = ScatteringFeatures()(images).reshape(20, 27, -1)
        torch.testing.assert_close(groups.mean(2), torch.zeros(20, 27), atol=1e-5, rtol=0)
        assert (groups.norm(dim=2) * 27**0.5 - 1).abs().max() < 0.02


def test_features_ignore_brightness_contrast_and_unit():
    images = torch.rand(5, 1, 28, 28)
    features = ScatteringFeatures()
    for other in (images * 255, images * 1e-4, images * 3 + 1):
        torch.testing.assert_close(features(other), features(images), atol=2e-4, rtol=0.02)


def test_flat_images_have_finite_features_of_length_at_most_1():
    for value in (0.0, 0.3, 1.0, 255.0):
        found = ScatteringFeatures()(torch.full((2, 1, 28, 28), value))
        assert torch.isfinite(found).all() and found.flatten(1).norm(dim=1).max() <= 1.0001


def test_features_of_a_record_do_not_depend_on_other_records():
    """Bit for bit, with one thread or more: each agent computes its own features."""
    images = torch.rand(150, 1, 28, 28)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = ScatteringFeatures()(images)
        parts = [ScatteringFeatures()(images[i:j]) for i, j in ((0, 1), (1, 50), (50, 150))]
        torch.set_num_threads(2)
        threads = ScatteringFeatures()(images)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(threads, alone)
    torch.testing.assert_close(torch.cat(parts), alone, atol=1e-7, rtol=1e-5)


def test_every_name_gives_a_feature_map():
    assert FEATURE_MAPS["none"](27) is None
    assert FEATURE_MAPS["scattering"](9).identity != FEATURE_MAPS["scattering"](27).identity
