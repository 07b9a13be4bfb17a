"""Digits: nothing that depends on data is rounded before it has its noise, and no draw shows its own."""

import math

import numpy as np
import pytest
import torch
from history import abandon, federation
from memory_transport import MemoryNetwork

from topdp.agents.agreement.hidden_rows import GRID_STEP_PER_STD
from topdp.agents.runtime.agent import Agent
from topdp.agents.runtime.agent_draws import AgentDraws, _normals, random_words
from topdp.agents.runtime.agent_rows import add_noise, grid_of, make_rows, mix_rows
from topdp.errors import InputError

pytestmark = pytest.mark.usefixtures("quick")
HUGE = 524288.1  # in float32 a unit in the last place is 0.06


class Cancelling(AgentDraws):
    """Noise that takes away all but the step: what is left shows how it was added up."""

    seeded = False

    def __init__(self, mix):
        self.mix = mix

    def add(self, row, std, round, draw):
        row.sub_(self.mix)

    def sample(self, batches, agent, round):
        raise AssertionError


def far(like, number=HUGE):
    return torch.full_like(like, number)


def test_a_step_far_below_a_unit_of_the_row_enters_whole(tmp_path):
    made = federation(tmp_path, "method.name=plain", agents=3, rounds=2)
    kit = made.context(0)
    own, received = {0: kit.start}, {1: far(kit.start), 2: far(kit.start, -HUGE / 3)}
    mix = mix_rows(kit.part.sources(1, 0), {**received, **own}, kit.start)
    assert float(mix.abs().max()) > 1e5
    row = make_rows(kit.part, 1, own, received, kit.gradients, Cancelling(mix))[0]
    step = float(kit.part.plan[1].step[0]) * kit.gradients.mean(1, kit.start)
    grid = grid_of(float(kit.part.plan[1].std[0][0]))
    assert 1e-3 < float(step.abs().max()) < 0.1
    torch.testing.assert_close(row.double(), step, rtol=2.0**-23, atol=grid / 2 + 1e-9)


def test_a_step_enters_whole_in_meetings_too(tmp_path):
    made = federation(tmp_path, "method.name=plain", "method.mode=async", agents=3, rounds=2)
    mine = made.context(0)
    agent = Agent(
        mine,
        made.state(0),
        transport=MemoryNetwork().transport("ada"),
        live_pairing=True,
        private=made.private(0),
    )
    loop, start = agent.loop, mine.start
    loop.estimate = lambda: far(start)
    object.__setattr__(loop.context, "draws", Cancelling(far(start).double()))
    row = loop._job(1, None, 0.01, 0.5)()
    step = -0.5 * mine.gradients.mean(1, far(start))
    torch.testing.assert_close(row.double(), step, rtol=0, atol=grid_of(0.01))
    assert float(step.abs().max()) > 1e-3
    abandon(agent)


def test_numbers_of_a_row_with_noise_are_multiples_of_a_public_step():
    """Where mix and draw cancel, float32 would show all digits of float64 that are left."""
    row = torch.full((5,), 1 / 3, dtype=torch.float64)

    class Known:
        """Together, the two draws are these numbers."""

        def __init__(self, numbers):
            self.numbers = numbers

        def add(self, noise, std, round, draw):
            noise.add_(self.numbers, alpha=0.5)

    noise = [(0.3, 0, 0), (-0.1, 0, 1)]
    found = add_noise(row, Known(-1 / 3 + 1e-9 * torch.arange(5)), noise, torch.float32)
    assert found.tolist() == [0.0] * 5 and found.dtype == torch.float32
    found = add_noise(row * 0 + 1e5 / 3, Known(torch.full((5,), -1e5)), noise, torch.float64)
    grid = grid_of(0.1)
    assert GRID_STEP_PER_STD * 0.05 < grid <= GRID_STEP_PER_STD * 0.1 and math.frexp(grid)[0] == 0.5
    assert float(found[0]) / grid == round(float(found[0]) / grid) and abs(float(found[0]) + 2e5 / 3) <= grid
    assert add_noise(row.clone(), None, [], torch.float64).equal(row)  # no noise, no grid


def test_draws_are_those_of_exact_arithmetic_far_below_the_step():
    """What docs/privacy.md says of Box and Muller in float64: off by less than 2⁻⁴⁸ of a deviation."""
    key, count = bytes(range(32)), 2**14
    bits = random_words(count, key)
    u = ((bits[: count // 2] >> np.uint64(1)).astype(np.longdouble) + 1) / np.longdouble(2) ** 63
    turn = bits[count // 2 :].view(np.int64).astype(np.longdouble) / np.longdouble(2) ** 63
    pi = np.longdouble("3.14159265358979323846264338327950288")
    exact = np.sqrt(-2 * np.log(u)) * np.stack([np.cos(pi * turn), np.sin(pi * turn)])
    ordinary = u < 1 - 2.0**-12  # nearer to 1 the digits of u are fewer; one in 4,000
    off = np.abs(_normals(count, key).numpy().reshape(2, -1) - exact)[:, ordinary].max()
    assert np.finfo(np.longdouble).eps < 2e-19 and off < 2.0**-48


def test_a_run_whose_records_drown_in_rounding_is_refused_at_the_start(tmp_path):
    tiny = federation(tmp_path / "tiny", "method.name=plain", "privacy.clip=1e-9", agents=3, rounds=2)
    with pytest.raises(InputError, match=r"rounding of .* Use a norm below .* a larger clip"):
        tiny.context(0)
    federation(
        tmp_path / "small", "method.name=plain", "privacy.clip=1e-9", agents=3, rounds=2, largest_norm=10.0
    ).context(0)
