"""Plans: saving and loading, the digest, pruning, scaled noise, descriptions, and rejected plans."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from builders import PROTOCOLS, constant_schedule
from topdp import plan as plans
from topdp import topology
from topdp.plan import (
    NOBODY,
    Capability,
    Optimiser,
    PerRound,
    Plan,
    PlanError,
    Robust,
    optimised,
    prune,
    unsupported,
)
from topdp.protocols import Correlated, Dsgd, Muffliato, PlainAsynchronous, TopSynchronous
from topdp.topology import ring


@pytest.fixture
def small() -> Plan:
    return TopSynchronous(0.25).plan(topology.ring(5), constant_schedule(4), np.full(5, 0.5), seed=0)


@settings(max_examples=40)
@given(strategies.plans)
def test_a_plan_is_unchanged_by_saving_and_loading(tmp_path_factory, plan):
    file = tmp_path_factory.getbasetemp() / "plan.npz"
    plans.save(plan, file)
    loaded = plans.load(file)
    assert loaded.digest() == plan.digest()
    assert (loaded.protocol, loaded.pruned, loaded.agents) == (plan.protocol, plan.pruned, plan.agents)
    for before, after in zip(plan, loaded, strict=True):
        for one, other in zip(vars(before).values(), vars(after).values(), strict=True):
            np.testing.assert_array_equal(one, other)


ARRAYS = [
    field.name
    for field in fields(Plan)
    if field.name
    not in ("agents", "owner", "protocol", "pruned", "reported", "adaptive", "robust", "rounded")
]  # not the owners, because those of the estimates are fixed


@settings(max_examples=40)
@given(strategies.plans, st.data())
def test_the_digest_covers_every_number(plan, data):
    """Each element of each array, and the smallest possible change of it."""
    name = data.draw(st.sampled_from(ARRAYS))
    part = getattr(plan, name)
    array = (part.values if isinstance(part, PerRound) else part).copy()
    place = data.draw(st.integers(0, array.size - 1))
    value = array.flat[place]
    if array.dtype.kind == "f":
        array.flat[place] = np.nextafter(value, np.inf)
    else:
        array.flat[place] = not value if array.dtype.kind == "b" else (0 if value == NOBODY else NOBODY)
    changed = PerRound(array, part.which) if isinstance(part, PerRound) else array
    assert replace(plan, **{name: changed}).digest() != plan.digest()
    assert replace(plan, **{name: part}).digest() == plan.digest()


def test_the_digest_covers_the_protocol_and_whether_the_plan_was_pruned(small):
    assert replace(small, protocol="another").digest() != small.digest()
    assert replace(small, pruned=True).digest() != small.digest()


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 half a zip"])
def test_files_that_are_no_plans_are_rejected_by_name(content, tmp_path):
    file = tmp_path / "plan.npz"
    file.write_bytes(content)
    with pytest.raises(PlanError, match=r"plan\.npz"):
        plans.load(file)


def test_archives_without_a_complete_plan_are_rejected(tmp_path, small):
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
def test_plans_with_impossible_arrays_are_rejected(small, field, change):
    part = getattr(small, field)
    with pytest.raises(PlanError, match=field), np.errstate(invalid="ignore"):
        replace(small, **{field: PerRound(change(part), part.which)})


def test_invalid_rates_scales_and_noise_factors_are_rejected(small):
    with pytest.raises(PlanError, match="rate"):
        replace(small, rate=-small.rate)
    with pytest.raises(PlanError, match="scale"):
        replace(small, scale=small.scale * np.nan)
    with pytest.raises(PlanError, match="factor"):
        small.noise_scaled(float("inf"))


def executed(plan: Plan, seed: int) -> np.ndarray:
    """[releases, agents, 3]: the estimates, by the recursion at the top of plan.py; rows that are not made
    are NaN, so that the test fails if a row uses them."""
    numbers = np.random.default_rng(seed)
    landscape = numbers.normal(size=(plan.agents, 3, 3))
    rows = np.broadcast_to(numbers.normal(size=3), (plan.rows, 3))
    estimates = []
    for this in plan:
        draws = numbers.normal(size=(plan.draws, 3))
        gradients = np.tanh(np.einsum("nij,nj->ni", landscape, rows[: plan.agents]))
        made = np.full_like(rows, np.nan)
        for m in np.flatnonzero(this.exists):
            mixed = zip(this.source[m], this.weight[m], strict=True)
            noise = zip(this.draw[m], this.std[m], strict=True)
            made[m] = sum(w * rows[k] for k, w in mixed if k != NOBODY and w)
            made[m] += this.step[m] * gradients[plan.owner[m]]
            made[m] += sum(std * draws[k] for k, std in noise if k != NOBODY)
        rows = made
        estimates.append(rows[: plan.agents])
    return np.stack(estimates)


@settings(max_examples=60)
@given(strategies.plans, strategies.seeds)
def test_prune_keeps_the_estimates_and_only_the_messages_that_they_need(plan, seed):
    pruned = plans.prune(plan)
    assert pruned.pruned and not plan.pruned
    np.testing.assert_array_equal(executed(pruned, seed), executed(plan, seed))
    assert plans.prune(pruned).digest() == pruned.digest()
    messages = np.arange(plan.rows) >= plan.agents
    for r in range(plan.releases):
        then = pruned[r + 1] if r + 1 < plan.releases else None
        used = then.source[then.weight != 0] if then else NOBODY
        assert not (pruned.exists[r] & messages & ~np.isin(np.arange(plan.rows), used)).any()


def test_pruning_keeps_about_a_third_of_the_messages_on_the_papers_graph():
    graph = topology.random(30, 0.2, 0)
    plan = TopSynchronous(0.25).plan(graph, constant_schedule(200), np.ones(30), 0)
    messages = plan.rows - 30
    live = plans.prune(plan).exists[1:-1, 30:].sum(axis=1).mean()
    assert 0.25 < live / messages < 0.45  # docs/design.md: 61 of 185 at rate 0.2


FACTORS = st.just(0.0) | st.floats(1e-6, 1e6)


@settings(max_examples=40)
@given(strategies.plans, FACTORS, FACTORS)
def test_scaling_the_noise_changes_only_the_deviations(plan, factor, further):
    scaled = plan.noise_scaled(factor)
    for before, after in zip(plan, scaled, strict=True):
        np.testing.assert_allclose(after.std, before.std * factor, rtol=1e-12, atol=0)
    assert replace(scaled, scale=plan.scale).digest() == plan.digest()
    np.testing.assert_allclose(
        scaled.noise_scaled(further).scale, plan.noise_scaled(factor * further).scale, rtol=1e-12
    )
    assert plan.noise_scaled(1.0).digest() == plan.digest()


@settings(max_examples=40)
@given(
    strategies.graphs(),
    strategies.schedules(),
    st.sampled_from(sorted(PROTOCOLS)),
    strategies.shares,
    st.floats(0.1, 10.0),
    strategies.seeds,
)
def test_a_protocol_with_scaled_deviations_writes_the_scaled_plan(graph, schedule, name, alpha, factor, seed):
    unit = np.linspace(0.0, 2.0, graph.agents)
    asked, plan = (PROTOCOLS[name](alpha).plan(graph, schedule, std, seed) for std in (unit * factor, unit))
    for one, other in zip(asked, plan.noise_scaled(factor), strict=True):
        # The difference of nearly equal variances in Eq. (5b) consists of rounding errors.
        np.testing.assert_allclose(one.std, other.std, rtol=1e-6, atol=1e-6 * factor)
        np.testing.assert_array_equal(one.source, other.source)


@settings(max_examples=40)
@given(strategies.plans, st.booleans())
def test_describe_prints_one_line_per_row(plan, pruned):
    plan = plans.prune(plan) if pruned else plan
    lines = plans.describe(plan).splitlines()
    assert not any("→-1" in line or ",-1" in line for line in lines)
    assert len(lines) == 1 + plan.releases + plan.exists.sum()
    assert [line for line in lines if line.startswith("round")] == [
        f"round {r}" for r in range(plan.releases)
    ]


def test_describe_prints_the_update_rule(small):
    text = plans.describe(small, range(3))
    assert "round 0\n  0 = 1·x0 - 0.1·g0 + N(0.05) ⇒ 1,4" in text
    assert "  0→1 = 0.25·0 + 0.75·4→0 - 0.1·g0 + N(0.03307) ⇒ 1" in text
    assert "round 3" not in text


def test_a_plan_can_contain_a_shared_draw_with_opposite_signs():
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


@pytest.mark.parametrize(
    ("protocol", "optimiser", "kinds", "rounds"),
    [
        (Dsgd(), Optimiser(), "gradient " * 4, 3),
        (Muffliato(gossip=2), Optimiser(), "gradient gossip gossip " * 4, 3),
        (Correlated(degree=2, gossip=1), Optimiser("adam"), "gradient gossip adaptive " * 4, 3),
        (TopSynchronous(0.5), Optimiser("momentum"), "gradient " * 4, 3),
        (PlainAsynchronous(0.5, offline=0.99), Optimiser(), "gradient " * 4, 3),  # all offline after round 0
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_number_of_rounds_follows_from_the_release_kinds(protocol, optimiser, kinds, rounds):
    schedule = constant_schedule(3)
    plan = optimised(
        protocol.plan(ring(6), optimiser.inner(schedule), np.ones(6), 0), optimiser, schedule.rate
    )
    assert [kind.value for kind in plan.kinds] == kinds.split()
    assert plan.rounds == rounds and plan.releases == (rounds + 1) * plan.releases_per_round
    assert prune(plan).kinds == plan.kinds


def test_a_plan_states_the_capabilities_that_it_needs():
    schedule = constant_schedule(3)
    correlated = Correlated(degree=2, gossip=1, chebyshev=False)
    plan = correlated.plan(ring(6), schedule, np.ones(6), 0)
    assert set(plan.needs) == {Capability.SHARED_DRAWS}
    assert set(prune(plan).needs) == {Capability.SHARED_DRAWS, Capability.PRUNED_ROWS}
    robust = replace(plan, robust=Robust("trimmed"))
    assert unsupported(robust, {Capability.SHARED_DRAWS}) == "robust mixing (trimmed)"
    assert unsupported(robust, {Capability.SHARED_DRAWS, Capability.ROBUST_MIXING}) is None
    rounded = replace(Dsgd().plan(ring(6), schedule, np.ones(6), 0), rounded="bfloat16")
    assert unsupported(rounded, ()) == "rows rounded to bfloat16"
