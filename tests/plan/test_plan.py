from dataclasses import replace

import numpy as np
import pytest

from builders import GRAPHS, PROTOCOLS, constant_schedule
from topdp import topology
from topdp.plan import NOBODY, PerRound, Plan, PlanError
from topdp.plan import plan as plans
from topdp.protocols import TopSynchronous


@pytest.fixture
def small() -> Plan:
    return TopSynchronous(0.25).plan(topology.ring(5), constant_schedule(4), np.full(5, 0.5), seed=0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_saved_and_loaded_plans_are_the_same_plan(protocol, tmp_path):
    plan = PROTOCOLS[protocol](0.5).plan(GRAPHS["random"], constant_schedule(20), np.linspace(0.1, 1, 12), 3)
    plans.save(plan, tmp_path / "plan.npz")
    loaded = plans.load(tmp_path / "plan.npz")
    assert loaded.digest() == plan.digest()
    assert (loaded.protocol, loaded.pruned, loaded.agents) == (protocol, False, 12)


def test_the_digest_sees_every_number(small):
    scaled = small.noise_scaled(1 + 1e-12)
    assert scaled.digest() != small.digest()
    assert replace(small, rate=small.rate).digest() == small.digest()
    assert replace(small, protocol="another").digest() != small.digest()
    assert replace(small, pruned=True).digest() != small.digest()


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 half a zip"])
def test_foreign_files_are_refused_by_name(content, tmp_path):
    file = tmp_path / "plan.npz"
    file.write_bytes(content)
    with pytest.raises(PlanError, match=r"plan\.npz"):
        plans.load(file)


def test_an_archive_that_is_no_plan_is_refused(tmp_path, small):
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    with pytest.raises(PlanError, match=r"other\.npz"):
        plans.load(tmp_path / "other.npz")
    plans.save(small, tmp_path / "plan.npz")
    with np.load(tmp_path / "plan.npz") as archive:
        arrays = {name: archive[name] for name in archive.files if name != "rate"}
    np.savez(tmp_path / "part.npz", **arrays)
    with pytest.raises(PlanError, match="complete plan"):
        plans.load(tmp_path / "part.npz")


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("source", lambda p: p.values + 100),
        ("readers", lambda p: p.values + 5),
        ("draw", lambda p: p.values - 2),
        ("std", lambda p: p.values * np.nan),
        ("weight", lambda p: p.values * np.inf),
        ("std", lambda p: p.values[:, :-1]),
    ],
)
def test_impossible_plans_are_refused(small, field, change):
    part = getattr(small, field)
    with pytest.raises(PlanError, match=field), np.errstate(invalid="ignore"):
        replace(small, **{field: PerRound(change(part), part.which)})


def test_negative_rates_and_scales_are_refused(small):
    with pytest.raises(PlanError, match="rate"):
        replace(small, rate=-small.rate)
    with pytest.raises(PlanError, match="scale"):
        replace(small, scale=small.scale * np.nan)
    with pytest.raises(PlanError, match="factor"):
        small.noise_scaled(float("inf"))


def test_prune_keeps_estimates_and_what_they_need(small):
    pruned = plans.prune(small)
    assert pruned.pruned and not small.pruned
    assert pruned.exists[:, : small.agents].all()
    assert pruned.exists.sum() < small.exists.sum()
    for r in range(1, small.releases):
        used = pruned.source[r][pruned.exists[r]]
        assert pruned.exists[r - 1][used[used >= 0]].all()
    # nobody needs a message after the last round
    assert not pruned.exists[-1, small.agents :].any()


def test_on_the_papers_graph_about_a_third_of_the_messages_is_live():
    graph = topology.random(30, 0.2, 0)
    plan = TopSynchronous(0.25).plan(graph, constant_schedule(200), np.ones(30), 0)
    messages = plan.rows - 30
    live = plans.prune(plan).exists[1:-1, 30:].sum(axis=1).mean()
    assert 0.25 < live / messages < 0.45  # docs/design.md: 61 of 185 at rate 0.2


def test_describe_reads_like_the_update_rule(small):
    text = plans.describe(small, range(3))
    assert "round 0\n  0 = 1·x0 - 0.1·g0 + N(0.05) ⇒ 1,4" in text
    assert "  0→1 = 0.25·0 + 0.75·4→0 - 0.1·g0 + N(0.03307) ⇒ 1" in text
    assert "round 3" not in text


def test_a_plan_can_hold_a_draw_that_two_agents_know_with_opposite_signs():
    own = np.arange(2)
    plan = Plan(
        agents=2,
        owner=own,
        source=PerRound.same(own[:, None], 2),
        weight=PerRound.same(np.ones((2, 1)), 2),
        carries=PerRound.same(np.ones(2, bool), 2),
        rate=np.ones(2),
        draw=PerRound.same(np.array([[0, 2], [1, 2]]), 2),
        std=PerRound.same(np.array([[0.1, 1.0], [0.1, -1.0]]), 2),
        scale=np.ones(2),
        known_by=np.array([[0, NOBODY], [1, NOBODY], [0, 1]]),
        readers=PerRound.same(np.array([[1], [0]]), 2),
    )
    assert plan.draws == 3
    assert "N(-1)[draw 2, known by [0, 1]]" in plans.describe(plan)
