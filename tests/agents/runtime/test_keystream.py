"""Tests of the noise of real agents: normal up to the tails, never repeated, and rounded once."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import stats

from topdp.agents.runtime import agent_draws
from topdp.agents.runtime.agent_draws import SystemDraws
from topdp.plan.batches import Poisson

MANY = 2_000_000
RARE = 1e-7
"""The probability with which a correct generator may fail each of these tests."""


@pytest.fixture(scope="module")
def draws():
    return torch.cat(list(agent_draws.normals(MANY))).numpy()


def within(value, mean, deviation):
    return abs(value - mean) <= stats.norm.isf(RARE / 2) * deviation


def test_the_bits_are_those_of_chacha20(monkeypatch):
    """RFC 7539, appendix A.1, test vectors 1 and 2: key, nonce and counter zero, then counter one."""
    monkeypatch.setattr(agent_draws.os, "urandom", bytes)
    expected = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    assert agent_draws.random_words(16).tobytes().hex() == expected


def test_draws_are_normal(draws):
    assert stats.kstest(draws, "norm").pvalue > RARE
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        variance = math.prod(range(1, 4 * power, 2)) - moment**2  # E z^2k = (2k-1)!!
        assert within((draws**power).mean(), moment, math.sqrt(variance / MANY)), power


@pytest.mark.parametrize("deviations", [2, 3, 4, 4.5])
def test_tails_have_the_probability_of_the_normal_distribution(draws, deviations):
    share = stats.norm.sf(deviations)
    for side in (1, -1):
        count = int((side * draws > deviations).sum())
        low, high = stats.binom.ppf(RARE, MANY, share), stats.binom.isf(RARE, MANY, share)
        assert low <= count <= high


def test_draws_are_uncorrelated(draws):
    for lag in (
        1,
        2,
        7,
        agent_draws.NUMBERS_PER_KEY // 2,
        agent_draws.NUMBERS_PER_KEY,
    ):  # half a chunk apart: two of one radius
        for one in (draws, draws**2, np.abs(draws) > 2):
            pair = np.corrcoef(one[:-lag].astype(float), one[lag:].astype(float))[0, 1]
            assert within(pair, 0, 1 / math.sqrt(MANY - lag)), lag


def test_the_largest_possible_draw_exceeds_nine_deviations_and_is_finite(monkeypatch):
    for word in (0, 2, 2**63 - 1, 2**63, 2**64 - 1):
        monkeypatch.setattr(
            agent_draws, "random_words", lambda count, key, word=word: np.full(count, word, np.uint64)
        )
        found = torch.cat(list(agent_draws.normals(4)))
        assert torch.isfinite(found).all()
        assert (found.abs().max() > 9.3) == (word == 0)


def test_each_piece_of_draws_has_its_own_key(monkeypatch):
    keys = []
    system = agent_draws.os.urandom
    monkeypatch.setattr(agent_draws.os, "urandom", lambda count: keys.append(system(count)) or keys[-1])
    monkeypatch.setattr(agent_draws, "NUMBERS_PER_KEY", 8)
    for count in (0, 1, 7, 8, 9, 31):
        before = len(keys)
        parts = list(agent_draws.normals(count))
        assert sum(map(len, parts)) == count and all(part.dtype == torch.float64 for part in parts)
        assert len(keys) - before == len(parts) == -(-count // 8)
    assert all(len(key) == 32 for key in keys) and len(set(keys)) == len(keys)


FORKED = """
import os
from topdp.agents.runtime.agent_draws import SystemDraws
import torch
draws, rows = SystemDraws(), []
draws.add(torch.zeros(4, dtype=torch.float64), 1.0, 0, 0)
def say():
    for source in (draws, SystemDraws()):
        row = torch.zeros(4, dtype=torch.float64)
        source.add(row, 1.0, 0, 0)
        os.write(1, (" ".join(map(repr, row.tolist())) + "\\n").encode())
for _ in range(2):
    if not (child := os.fork()):
        say()
        os._exit(0)
    os.waitpid(child, 0)
say()
"""


def test_draws_differ_between_instances_processes_and_forks():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")[:-1]
    numbers = [float(number) for line in lines for number in line.split()]
    here = torch.zeros(4, dtype=torch.float64)
    for _ in range(2):  # this process is the second one
        here.zero_()
        SystemDraws().add(here, 1.0, 0, 0)
        numbers += here.tolist()
    assert len(lines) == 6 and len(set(numbers)) == len(numbers) == 32


def test_rows_are_rounded_once_after_the_noise_is_added(monkeypatch):
    z = torch.tensor([1.0 + 2.0**-30, -3.0, 2.0**-26, 0.1], dtype=torch.float64)
    monkeypatch.setattr(
        "topdp.agents.runtime.agent_draws.normals", lambda count, key: iter([z[:3].clone(), z[3:].clone()])
    )
    row = torch.tensor([1.0, 0.1, 1.0, -0.3], dtype=torch.float32)
    exact = (row.double() + 0.7 * z).float()
    SystemDraws().add(row, 0.7, 0, 0)
    assert row.dtype == torch.float32 and torch.equal(row, exact)


def test_noise_has_the_given_deviation():
    for dtype in (torch.float32, torch.float64):
        row = torch.full((400_000,), 5.0, dtype=dtype)
        SystemDraws().add(row, 0.25, 0, 0)
        assert within(float(row.double().mean()), 5.0, 0.25 / math.sqrt(len(row)))
        assert within(float(row.double().std()), 0.25, 0.25 / math.sqrt(2 * len(row)))


def test_coins_fall_with_the_given_probability():
    assert not agent_draws.coin_flips(1000, 0.0).any() and agent_draws.coin_flips(1000, 1.0).all()
    for share in (0.01, 0.5):
        fallen = agent_draws.coin_flips(MANY, share)
        assert len(fallen) == MANY
        assert within(fallen.mean(), share, math.sqrt(share * (1 - share) / MANY))


def test_samples_include_each_record_independently():
    batches, rounds = (Poisson(50, 5), Poisson(30, 6)), 20_000
    used = np.zeros((rounds, 30))
    for r in range(rounds):
        used[r, SystemDraws().sample(batches, 1, r).numpy()] = 1
    assert (np.abs(used.mean(axis=0) - 0.2) < 6 * math.sqrt(0.16 / rounds)).all()
    together = np.corrcoef(used.T) - np.eye(30)
    assert np.abs(together).max() < 7 / math.sqrt(rounds)
    again = (used[1:] * used[:-1]).mean()
    assert within(again, 0.04, math.sqrt(0.04 / used[1:].size))
