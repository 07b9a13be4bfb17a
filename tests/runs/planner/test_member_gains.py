"""What each member gains, compared with plans of each member alone, and with plans without a member."""

import numpy as np
import pytest

from builders import plan_answers
from topdp import topology
from topdp.plan import Plan
from topdp.privacy.residual_noise import residual_noise
from topdp.runs.config import read
from topdp.runs.planning import plan_and_account
from topdp.runs.recommend import pooled_noise
from topdp.runs.resolve import resolve

SIZES = [200, 120, 70, 40, 26]
HOSPITALS = ["topology.agents=5", "topology.kind=complete", "rounds=6", "privacy.clip=1"]


def settings(*changes: str, sizes: list[int] = SIZES):
    dealt = ["data.name=breast-cancer", "data.partition=sizes", f"data.sizes={sizes}"]
    return read(changes=[*HOSPITALS, *dealt, f"topology.agents={len(sizes)}", *changes])


def gains(*changes: str):
    return plan_answers(settings(*changes), quick=True)["gains"]


def average_noise(sizes: list[int], *changes: str) -> float:
    """The noise in the average per length of its steps, from a plan of its own."""
    run = resolve(settings(*changes, sizes=sizes), topology.complete(len(sizes)), tuple(sizes))
    plan, _ = plan_and_account(run)
    return float(residual_noise(plan).average[-1]) / run.total_weight**2


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["privacy.epsilon=[1,2,0.5,1,3]"],
        ["train.optimiser=momentum"],
        ["train.average=0.9"],
        ["data.batch={poisson=13}"],
        ["privacy.guarantee=worst-case", "privacy.adjacency=replace-one"],
    ],
)
def test_noise_alone_is_that_of_central_on_the_members_own_records(changes):
    config = settings("method.name=correlated", *changes)
    found = gains("method.name=correlated", *changes)
    unit = pooled_noise(config, tuple(SIZES))
    epsilon = np.broadcast_to(config.privacy.epsilon, 5)
    for member, size in enumerate(SIZES):
        own = config.model_copy(
            update={"privacy": config.privacy.model_copy(update={"epsilon": float(epsilon[member])})}
        )
        assert found["alone"][member] == pytest.approx(pooled_noise(own, (size,)) / unit, rel=2e-3), member


def test_noise_together_is_that_of_each_estimate_of_the_plan():
    found = plan_answers(settings("method.name=dsgd", "topology.kind=star"), quick=True)
    run = resolve(settings("method.name=dsgd", "topology.kind=star"), None, tuple(SIZES))
    plan, _ = plan_and_account(run)
    variances = estimates_as_sums_of_draws(plan) / pooled_noise(run.config, tuple(SIZES))
    np.testing.assert_allclose(found["gains"]["together"], variances, rtol=1e-9)
    mean = found["noise"]["average"] + found["noise"]["between"]
    assert np.mean(found["gains"]["together"]) == pytest.approx(mean, rel=1e-9)


def estimates_as_sums_of_draws(plan: Plan) -> np.ndarray:
    rows = np.zeros((plan.rows, plan.releases, plan.draws))
    for r, this in enumerate(plan):
        rows = np.einsum("mw,mwrd->mrd", np.where(this.source >= 0, this.weight, 0), rows[this.source])
        for row, draw in zip(*np.nonzero(this.draw >= 0), strict=True):
            rows[row, r, this.draw[row, draw]] += this.std[row, draw]
    return np.asarray(np.square(rows).sum(axis=(1, 2))[: plan.agents])


def test_with_weights_by_records_every_member_of_unequal_shards_gains():
    found = gains("method.name=correlated")
    assert max(found["together"]) < 1.35 and min(found["alone"]) > 5
    assert found["costly"] == []


@pytest.mark.parametrize(
    ("changes", "named", "tolerance"),
    [
        (["method.name=dsgd"], [3, 4], 0.005),
        (["method.name=correlated", "train.weighting=agents"], [4], 0.1),
        (["method.name=dsgd", "privacy.epsilon=[1,1,1,1,0.1]", "privacy.weights=equal"], [4], 0.005),
        (["method.name=correlated", "privacy.epsilon=[1,1,1,1,0.1]", "privacy.weights=equal"], [4], 0.1),
        (["method.name=correlated", "privacy.epsilon=[1,1,1,1,0.1]"], [], 0.1),
        (["method.name=correlated", "train.weighting=agents", "privacy.colluders=3"], [4], 0.15),
    ],
)
def test_members_without_whom_the_others_have_less_noise_are_named(changes, named, tolerance):
    """The estimate is compared with plans without each member."""
    found = gains(*changes)
    assert [cost["agent"] for cost in found["costly"]] == named
    together = average_noise(SIZES, *changes)
    epsilon = np.broadcast_to(settings(*changes).privacy.epsilon, 5)
    for member in range(5):
        rest = [size for other, size in enumerate(SIZES) if other != member]
        budgets = [float(value) for other, value in enumerate(epsilon) if other != member]
        exact = average_noise(rest, *changes, f"privacy.epsilon={budgets}") / together
        if member in named:
            cost = next(cost for cost in found["costly"] if cost["agent"] == member)
            assert cost["noise_of_others"] == pytest.approx(exact, rel=tolerance)
        else:
            assert exact > 0.98 - tolerance


def test_a_stated_budget_weight_or_setting_makes_a_member_harmless():
    base = ["method.name=dsgd", "privacy.weights=equal"]
    (small,) = [cost for cost in gains(*base)["costly"] if cost["agent"] == 4]
    assert small["settings"] == ["method.name=correlated"]
    without = average_noise(SIZES[:4], *base)
    assert average_noise(SIZES, *base) > 1.05 * without
    assert average_noise(SIZES, *base, f"privacy.epsilon=[1,1,1,1,{small['epsilon']}]") == pytest.approx(
        without, rel=0.01
    )
    weighted = f"privacy.weights=[1,1,1,1,{small['weight']}]"
    assert average_noise(SIZES, *base, weighted) == pytest.approx(without, rel=0.01)
    worst = gains(*base, "privacy.guarantee=worst-case")["costly"]
    assert [cost["settings"] for cost in worst] == [[], []]  # all others together know pair noise
    by_agents = gains("method.name=correlated", "train.weighting=agents")["costly"]
    assert by_agents[0]["settings"] == ["train.weighting=records"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (["method.name=central"], "central has no members"),
        (["method.name=alone"], "alone has no members"),
        (["method.name=dsgd", "privacy.sigma=0.1"], "no budget"),
        (["method.name=muffliato", "train.optimiser=adam"], "Adam"),
    ],
)
def test_without_anything_to_compare_there_are_no_gains_and_a_reason(changes, reason):
    found = gains(*changes)
    assert found["alone"] is None and found["costly"] == [] and reason in found["reason"]
