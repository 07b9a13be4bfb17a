"""Tests that hidden rows are exact sums, whatever neighbours send, and that no agent starts otherwise."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from history import CARDS, Wire, federation, on_virtual_time, sharing
from test_planned_loop import alone, ended

from topdp import topology
from topdp.agents.agreement import federation_manifest as federations
from topdp.agents.agreement.hidden_rows import max_exact_norm, relies_on_hidden_rows
from topdp.agents.agreement.manifest import Rules
from topdp.agents.agreement.run_setup import RunSetup
from topdp.agents.runtime.agent_draws import AgentDraws
from topdp.agents.runtime.agent_rows import grid_of, make_rows, shorten
from topdp.agents.runtime.row_guards import NORM_TOLERANCE, expect_exact, hidden_norm_limits, mixing_share
from topdp.agents.wire import row_payload
from topdp.errors import InputError
from topdp.runs import config
from topdp.runs.config import ConfigError

pytestmark = pytest.mark.usefixtures("quick")
TOP = ("method.name=top", "method.offline=0")


def hiding(folder, *changes, guarantee="adaptive", **how):
    return federation(folder, *TOP, *changes, guarantee=guarantee, agents=5, **how)


class Known(AgentDraws):
    """Draws that a test can subtract; the second of two worlds shifts them by `shift` deviations."""

    seeded = False

    def __init__(self, shift=0.0):
        self.shift, self.made = shift, {}

    def add(self, row, std, round, draw):
        z = torch.randn(len(row), dtype=torch.float64, generator=torch.Generator().manual_seed(draw))
        self.made[draw] = std * (z + self.shift)
        row.add_(self.made[draw])

    def sample(self, batches, agent, round):
        raise AssertionError


def longest(kit, row, round=1):
    """The longest row that neighbours may send, all in one number, where rounding is coarsest."""
    value = torch.zeros_like(kit.start)
    value[3] = kit.limits.limit_of(round, row) * (1 - 1e-9)
    return value


def messages(made, draws):
    """The hidden rows of round 2, made from the longest accepted rows, and their sources."""
    kit = made.context(0)
    part, own = kit.part, {row: longest(kit, row) for row in kit.part.own_rows(1)}
    received = {row: longest(kit, row) for row in part.read_rows[1].values()}
    rows = make_rows(part, 2, own, received, None, draws)
    return kit, {row: value for row, value in rows.items() if row >= part.plan.agents}, {**received, **own}


def test_noise_of_hidden_rows_survives_beside_the_longest_accepted_rows(tmp_path):
    """A neighbour sends rows whose last float32 digit is many deviations. In float32 a hidden row would lose
    its noise, and later rows that rely on this noise would show what is below it.
    """
    made, first, second = hiding(tmp_path, largest_norm=1e6), Known(), Known(shift=0.25)
    _, one, before = messages(made, first)
    kit, other, _ = messages(made, second)
    assert one and all(row.dtype == torch.float64 for row in one.values())
    for row in one:
        std = float(np.abs(kit.part.plan[2].std[row]).max())
        assert float(np.spacing(np.float32(one[row][3]))) > 0.25 * std  # in float32 both would be equal
        exact = sum(
            Fraction(weight) * Fraction(float(before[source][3]))
            for source, weight in kit.part.sources(2, row)
        )
        left = Fraction(float(one[row][3])) - exact  # the noise as it was sent
        assert abs(float(left) - float(first.made[row][3])) < std * 2.0**-19
        moved = (other[row] - one[row]) / std
        torch.testing.assert_close(moved, torch.full_like(moved, 0.25), rtol=0, atol=2.0**-18)
        assert (
            row_payload.decode(row_payload.encode(one[row].numpy()), len(one[row]), "float64")[3]
            == one[row][3]
        )


@pytest.mark.parametrize(
    ("guarantee", "changes"),
    [
        ("adaptive", ()),
        ("adaptive", ("train.optimiser=momentum",)),
        ("adaptive", ("method.alpha=0.1",)),
        ("view", ("method.alpha=0.1",)),
    ],
)
def test_no_hidden_row_exceeds_its_limit_whatever_neighbours_send(tmp_path, guarantee, changes):
    made = hiding(tmp_path, *changes, guarantee=guarantee, rounds=6, largest_norm=60.0)
    kit = made.context(0)
    part, plan = kit.part, kit.part.plan
    own, received = {0: kit.start}, {}
    for round in range(plan.releases):
        rows = make_rows(part, round, own, received, kit.gradients, Known())
        for row, value in rows.items():
            seen = guarantee == "adaptive" and row < plan.agents
            if not plan.memories[row] and not seen:
                assert float(value.norm()) <= kit.limits.limit_of(round, row) <= 60.0
        own = {
            row: value if plan.memories[row] else shorten(value, kit.limits.limit_of(round, row))
            for row, value in rows.items()
        }
        received = {row: longest(kit, row, round) for row in part.read_rows[round].values()}


def test_a_row_above_the_limit_of_its_round_is_refused_and_one_at_the_limit_accepted(tmp_path):
    made = hiding(tmp_path, rounds=4)

    async def scene():
        agent, task = await alone(made, 0, Wire())
        kit = agent.context
        (peer, row), *_ = ((made.names[k], row) for k, row in kit.part.read_rows[1].items())
        agent._check_row(peer, 1, row_payload.encode(longest(kit, row).numpy()))
        assert kit.limits.limit_of(1, row) < 1e4
        # Two ways to add squares differ in the last digits: honest rows that were shortened are accepted.
        at_most = longest(kit, row) / (1 - 1e-9)
        agent._check_row(peer, 1, row_payload.encode((at_most * (1 + 1e-14)).numpy()))
        with pytest.raises(InputError, match="norm at most"):
            agent._check_row(peer, 1, row_payload.encode((longest(kit, row) * 1.001).numpy()))
        with pytest.raises(InputError, match="F64"):
            agent._check_row(peer, 1, row_payload.encode(longest(kit, row).float().numpy()))
        await ended(agent, task)

    on_virtual_time(scene())


def test_without_reliance_on_hidden_rows_the_limits_stay_as_configured(tmp_path):
    for name, guarantee, tolerates_silence in (("top", "worst-case", False), ("plain", "adaptive", False)):
        made = federation(
            tmp_path / name, f"method.name={name}", guarantee=guarantee, tolerates_silence=tolerates_silence
        )
        assert not relies_on_hidden_rows(guarantee, made.setup.plan, 1, not tolerates_silence)
        kit = made.context(0)
        assert kit.start.dtype == torch.float32 and kit.limits.limit_of(0, 0) == 1e4
    assert not relies_on_hidden_rows("adaptive", hiding(tmp_path).setup.plan, 1, follows_plan=False)


def test_rules_under_which_hidden_rows_are_not_exact_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"rules\.dtype: expected \"float64\""):
        hiding(tmp_path, dtype="float32").context(0)
    with pytest.raises(InputError, match=r"largest_norm: expected at most .* must not be rounded"):
        hiding(tmp_path, largest_norm=1e14).context(0)
    with pytest.raises(InputError, match=r"largest_norm: expected at least .* honest rows may reach"):
        hiding(tmp_path, largest_norm=0.5).context(0)
    assert federation(tmp_path, *TOP, dtype="float64").context(0).start.dtype == torch.float64


def test_rows_that_are_too_large_for_links_are_refused_before_a_charge(tmp_path):
    made = hiding(tmp_path, largest_body=1800)
    with pytest.raises(
        ConfigError, match=r"largest_body: expected at least \d+, the bytes of a row of 51 fl"
    ):
        made.context(0)
    federation(tmp_path / "float32", *TOP, largest_body=1800).context(0)


def test_float64_holds_the_longest_rows_as_multiples_of_their_steps(tmp_path):
    plan = hiding(tmp_path).setup.plan
    least = min(float(std[std > 0].min()) for std in (np.abs(plan[r].std) for r in range(plan.releases)))
    most = 2.0**53 * grid_of(least)
    expect_exact(plan, most)
    with pytest.raises(InputError):
        expect_exact(plan, most * 1.001)
    step = grid_of(least)
    assert most - step != most and math.nextafter(most, 0) == most - step


def test_a_manifest_gets_a_largest_norm_that_its_noise_allows(tmp_path):
    """With almost no noise no agent could start under the default norm, and no command sets another."""
    wanted = config.read(changes=[*TOP, "topology.agents=6", "rounds=4", "privacy.sigma=1e-7"])
    made, _, remarks = federations.build_manifest(CARDS, topology.ring(6), (100,) * 6, wanted, Rules())
    plan = RunSetup.of(made).plan
    assert made.rules.largest_norm == max_exact_norm(plan) < 1e4
    assert any("rules.largest_norm" in words for words in remarks)
    expect_exact(plan, made.rules.largest_norm)
    plain = config.read(changes=["method.name=plain", "topology.agents=6", "rounds=4", "privacy.sigma=1e-7"])
    assert federations.build_manifest(CARDS, topology.ring(6), (100,) * 6, plain, Rules())[0].rules == Rules()


def test_the_rounding_of_mixing_grows_with_rows_and_shrinks_with_noise(tmp_path):
    plan = hiding(tmp_path).setup.plan
    share = mixing_share(plan, 1e4, 0.3)
    assert 0 < share < 1e-6 and mixing_share(plan, 1e10, 0.3) == pytest.approx(1e6 * share)
    assert mixing_share(plan.noise_scaled(10.0), 1e4, 0.3) == pytest.approx(share / 10)


def test_limits_of_norms_grow_by_what_honest_agents_add(tmp_path):
    plan = hiding(tmp_path, rounds=6).setup.plan
    near, far = (hidden_norm_limits(plan, "view", 1.0, d, 1e4, 1.0) for d in (50, 5000))
    assert (np.diff(near.others) > 0).all() and near.others[-1] == pytest.approx(1e4)
    assert near.others[0] > far.others[0]


def test_limits_of_rows_without_noise_admit_averages_of_the_longest_rows(tmp_path):
    """Averages of rows at the limit are at the limit too, and their last digits may exceed it."""
    made = federation(
        tmp_path, "method.name=muffliato", "method.gossip=3", "method.chebyshev=false", guarantee="view"
    )
    plan = made.setup.plan
    every = hidden_norm_limits(plan, "view", 1.0, 50, 1e4, 1.0)
    quiet = [r for r in range(1, plan.releases) if not plan[r].std.any()]
    assert quiet
    for r in quiet:
        assert every.others[r] > every.accepted_norm(r - 1, 0) * (1 + NORM_TOLERANCE / 2)


def test_with_pair_noise_only_the_view_answer_relies_on_hidden_rows(tmp_path):
    plan = sharing(tmp_path, gossip=1).setup.plan
    assert relies_on_hidden_rows("view", plan, 1, True) and not relies_on_hidden_rows(
        "adaptive", plan, 1, True
    )


def test_noise_smaller_than_the_steps_of_other_rows_is_refused(tmp_path):
    """Where a row on a grid enters a row with less noise than the grid step, finer values would show."""
    sigmas = [1.0, 1.0, 1e-6, 1.0, 1.0]
    uneven = hiding(tmp_path, f"privacy.sigma={sigmas}").setup.plan
    with pytest.raises(InputError, match="grid steps"):
        expect_exact(uneven, 1.0)
    wanted = config.read(changes=[*TOP, "topology.agents=5", "rounds=4", f"privacy.sigma={sigmas}"])
    with pytest.raises(InputError, match="grid steps"):
        federations.build_manifest(CARDS[:5], topology.ring(5), (100,) * 5, wanted, Rules())
    sigmas[2] = 1e-4
    expect_exact(hiding(tmp_path, f"privacy.sigma={sigmas}").setup.plan, 1.0)
