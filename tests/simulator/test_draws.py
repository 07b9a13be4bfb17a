"""Theorems and oracles for the simulator's noise: normal far into the tails, and named by what it is for."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy import stats

from topdp.simulator import draws
from topdp.simulator.draws import BLOCK, Noise


def drawn(count, round=3, draw=0, seed=0, dtype=torch.float32):
    return Noise(seed, 50, 100).fill(torch.empty(count, dtype=dtype), round, draw)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_standard_normal(dtype):
    count = 2 * BLOCK + 77_777
    z = drawn(count, dtype=dtype).double()
    moments = {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96), 6: (15, 10_170)}
    for power, (expected, variance) in moments.items():
        assert abs((z**power).mean() - expected) < 5 * math.sqrt(variance / count), power
    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-4
    # One after the other, and the two of a pair, which share their radius.
    half = BLOCK // 2
    for one, other in ((z[:-1], z[1:]), (z[:half], z[half:BLOCK])):
        for power in (1, 2):
            correlation = torch.corrcoef(torch.stack([one**power, other**power]))[0, 1]
            assert abs(correlation) < 5 / math.sqrt(len(one)), power


def test_tails_are_as_heavy_as_they_should_be():
    z = drawn(4_000_000).abs()
    for edge in (3.0, 4.0, 4.5):
        expected = len(z) * 2 * stats.norm.sf(edge)
        assert abs(int((z > edge).sum()) - expected) < 5 * math.sqrt(expected), edge


def test_tails_reach_beyond_six_deviations_on_all_sides():
    """The least radius bits give the longest draws; angles 0, 1/4, 1/2 and 3/4 of a turn."""
    angles = np.array([0, 2**30, -(2**31), -(2**30)], np.int32)
    out = np.empty(8, np.float32)
    draws._normals(out, np.concatenate([np.zeros(4, np.int32), angles]))
    longest = math.sqrt(2 * math.log(2**32))
    assert longest > 6.5
    np.testing.assert_allclose(out, longest * np.array([1, 0, -1, 0, 0, 1, 0, -1]), atol=1e-5)
    draws._normals(out, np.full(8, -1, np.int32))  # the shortest: no logarithm of more than 1
    assert np.isfinite(out).all() and abs(out).max() < 1e-3


def test_it_is_named_by_seed_round_and_draw():
    names = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    made = [drawn(9, round, draw, seed) for seed, round, draw in names]
    assert len({tuple(z.tolist()) for z in made}) == len(names)
    torch.testing.assert_close(drawn(9, dtype=torch.float64).float(), drawn(9))
    noise = Noise(0, 50, 100)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda k: noise.fill(torch.empty(5000), 0, k), range(40)))
    for k, z in enumerate(together):
        assert torch.equal(z, drawn(5000, 0, k))


def test_blocks_of_a_long_draw_differ():
    z = drawn(3 * BLOCK)
    assert len({tuple(part[:3].tolist()) for part in z.split(BLOCK)}) == 3


def test_draws_are_independent_of_each_other():
    many = torch.stack([drawn(4000, round, draw) for round in range(6) for draw in range(50)])
    correlation = torch.corrcoef(many) - torch.eye(len(many))
    assert correlation.abs().max() < 6 / 4000**0.5


def test_other_types_of_numbers_have_the_same_draws():
    assert torch.equal(drawn(100, dtype=torch.bfloat16), drawn(100).bfloat16())


def test_more_draws_than_it_can_tell_apart_are_refused():
    with pytest.raises(ValueError, match="draws"):
        Noise(0, 2**31 + 1, 2)
