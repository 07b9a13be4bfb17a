"""The simulator's noise: normal far into the tails, and determined by seed, round and draw."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from topdp.plan.noise_key import NoiseKey
from topdp.simulator import normal_draws
from topdp.simulator.normal_draws import BLOCK_NUMBERS, BLOCK_PAIRS
from topdp.simulator.simulated_noise import SimulatedDraws


def drawn(count, round=3, draw=0, seed=0, dtype=torch.float32):
    return SimulatedDraws(NoiseKey.of_seed(seed), 50, 100).fill(torch.empty(count, dtype=dtype), round, draw)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_are_standard_normal(dtype):
    count = 300 * BLOCK_NUMBERS + 777
    z = drawn(count, dtype=dtype).double()
    moments = {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96), 6: (15, 10_170)}
    for power, (expected, variance) in moments.items():
        assert abs((z**power).mean() - expected) < 5 * math.sqrt(variance / count), power
    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-4
    # Consecutive numbers; the two of a pair, which share their radius; equal places in consecutive blocks.
    pairs = z[: 300 * BLOCK_NUMBERS].view(-1, 2, BLOCK_PAIRS)
    neighbours = (
        (z[:-1], z[1:]),
        (pairs[:, 0].flatten(), pairs[:, 1].flatten()),
        (z[:-BLOCK_NUMBERS], z[BLOCK_NUMBERS:]),
    )
    for one, other in neighbours:
        for power in (1, 2):
            correlation = torch.corrcoef(torch.stack([one**power, other**power]))[0, 1]
            assert abs(correlation) < 5 / math.sqrt(len(one)), power


def test_tails_have_the_normal_probabilities():
    z = drawn(4_000_000).abs()
    for edge in (3.0, 4.0, 4.5):
        expected = len(z) * 2 * stats.norm.sf(edge)
        assert abs(int((z > edge).sum()) - expected) < 5 * math.sqrt(expected), edge


def made_of(radii, angles):
    """The pairs [2, n] from n radii and angles of 32 bits each."""
    words, out = np.zeros(BLOCK_PAIRS, np.uint64), np.empty(BLOCK_NUMBERS, np.float32)
    bits = words.view(np.int32).reshape(2, BLOCK_PAIRS)
    bits[0, : len(radii)], bits[1, : len(angles)] = radii, angles
    normal_draws.pairs_of(words, out)
    return out.reshape(2, BLOCK_PAIRS)[:, : len(radii)]


def test_tails_reach_beyond_six_deviations_in_all_directions():
    """The smallest radius bits give the longest draws; angles 0, 1/4, 1/2 and 3/4 of a turn."""
    out = made_of(np.zeros(4, np.int32), np.array([0, 2**30, -(2**31), -(2**30)], np.int32))
    longest = math.sqrt(2 * math.log(2**32))
    assert longest > 6.5
    np.testing.assert_allclose(out[0], longest * np.array([1, 0, -1, 0]), atol=1e-5)
    np.testing.assert_allclose(out[1], longest * np.array([0, -1, 0, 1]), atol=1e-5)
    # The shortest: the argument of the logarithm never exceeds 1.
    shortest = made_of(np.full(4, -1, np.int32), np.arange(4, dtype=np.int32))
    assert np.isfinite(shortest).all() and abs(shortest).max() < 1e-3


def test_draws_equal_the_box_muller_formula():
    """The oracle is the formula in float64, on random bits."""
    radii, angles = np.random.default_rng(0).integers(-(2**31), 2**31, (2, BLOCK_PAIRS)).astype(np.int32)
    u = ((radii & 0x7FFFFFFF) + 0.5) * 2.0**-31
    radius = np.sqrt(-2 * np.log(u))
    first, second = made_of(radii, angles).astype(np.float64)
    # Near u = 1 float32 has no more precision.
    np.testing.assert_allclose(np.hypot(first, second), radius, rtol=1e-6, atol=2e-6)
    # By quarter turns: v from -½ to ½ of a quarter, then rotated.
    v = ((angles.astype(np.int64) << 2 & 0xFFFFFFFF) ^ 2**31) - 2**31
    y = v * (math.pi / 4 * 2.0**-31)
    turned = (angles.astype(np.int64) >> 30 & 1) == 1
    sign = np.where(angles < 0, -1, 1)
    np.testing.assert_allclose(first, sign * radius * np.where(turned, np.sin(y), np.cos(y)), atol=2e-6)
    np.testing.assert_allclose(second, sign * radius * np.where(turned, -np.cos(y), np.sin(y)), atol=2e-6)


def test_random_words_are_the_keystream_of_chacha20():
    """The oracle is the cipher of another library; its nonce contains the first counter."""
    key, words = np.arange(8, dtype=np.uint32) * 0x01030507 + 9, np.empty(BLOCK_PAIRS, np.uint64)
    for block, round, draw in ((0, 0, 0), (3, 2**32 - 1, 2**40 + 7), (2**20, 5, 2**31)):
        normal_draws.words_of(key, round, draw, block, words)
        nonce = np.array([64 * block, round, draw % 2**32, draw >> 32], "<u4").tobytes()
        cipher = Cipher(algorithms.ChaCha20(key.tobytes(), nonce), mode=None).encryptor()
        stream = np.frombuffer(cipher.update(bytes(8 * BLOCK_PAIRS)), "<u4").reshape(-1, 16)
        np.testing.assert_array_equal(words.view(np.uint32), stream.T.flatten())


def test_every_bit_of_the_key_changes_the_draws():
    """No path between the key and the numbers may shorten the key."""
    secret, made = bytes(range(32)), set()
    for bit in range(256):
        flipped = bytearray(secret)
        flipped[bit // 8] ^= 1 << bit % 8
        noise = SimulatedDraws(NoiseKey(bytes(flipped)), 1, 1)
        made.add((noise.keys.tobytes(), noise.fill(torch.empty(4), 0, 0).numpy().tobytes()))
    assert len({keys for keys, _ in made}) == len({numbers for _, numbers in made}) == 256


def test_draws_are_the_same_on_every_machine():
    """The expected bits were recorded once; they must not depend on the machine."""
    assert drawn(4).numpy().tobytes().hex() == "7518993d4ad617bfac3b1b40ebe782bf"


def test_seed_round_and_draw_determine_the_numbers():
    names = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    made = [drawn(9, round, draw, seed) for seed, round, draw in names]
    assert len({tuple(z.tolist()) for z in made}) == len(names)
    torch.testing.assert_close(drawn(9, dtype=torch.float64).float(), drawn(9))
    noise = SimulatedDraws(NoiseKey.of_seed(0), 50, 100)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda k: noise.fill(torch.empty(5000), 0, k), range(40)))
    for k, z in enumerate(together):
        assert torch.equal(z, drawn(5000, 0, k))


def test_blocks_differ_and_a_short_draw_is_the_beginning_of_a_long_one():
    z = drawn(3 * BLOCK_NUMBERS + 5)
    assert len({tuple(part[:3].tolist()) for part in z.split(BLOCK_NUMBERS)}) == 4
    assert torch.equal(drawn(BLOCK_NUMBERS + 9), z[: BLOCK_NUMBERS + 9])


def test_draws_are_independent_of_each_other():
    many = torch.stack([drawn(4000, round, draw) for round in range(6) for draw in range(50)])
    correlation = torch.corrcoef(many) - torch.eye(len(many))
    assert correlation.abs().max() < 6 / 4000**0.5


def test_bfloat16_draws_are_the_rounded_float32_draws():
    assert torch.equal(drawn(100, dtype=torch.bfloat16), drawn(100).bfloat16())


def test_too_many_draws_are_rejected():
    with pytest.raises(ValueError, match="draws"):
        SimulatedDraws(NoiseKey.of_seed(0), 2**31 + 1, 2)


def test_the_default_dtype_of_torch_does_not_change_draws():
    expected = SimulatedDraws(NoiseKey.of_seed(0), 1, 1).fill(torch.empty(40), 0, 0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        row = SimulatedDraws(NoiseKey.of_seed(0), 1, 1).fill(torch.empty(40, dtype=torch.bfloat16), 0, 0)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(row, expected.to(torch.bfloat16))
