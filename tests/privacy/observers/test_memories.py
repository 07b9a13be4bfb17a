"""Accounts of plans whose optimisers have memories: compared with the dense oracle, and general laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_adaptive import GRAPHS, NEAR, assert_equal_to_dense, dense_mu, plan_on, unit

from topdp import topology
from topdp.plan import Optimiser, Schedule, optimised
from topdp.privacy import adaptive, outsider, view, worst_case
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.observers.adaptive import in_the_open, most_learned
from topdp.privacy.observers.observer_filter import Public
from topdp.privacy.observers.survivors import survivors
from topdp.privacy.published.claims import noise_multipliers
from topdp.privacy.query import Query
from topdp.privacy.residual_noise import residual_noise
from topdp.protocols import Central, Correlated

KINDS = {
    "momentum": Optimiser("momentum", momentum=0.7),
    "nesterov": Optimiser("nesterov", momentum=0.7),
    "decay": Optimiser(weight_decay=0.3),
    "all": Optimiser("momentum", momentum=0.5, weight_decay=0.1, average=0.6),
}
HIDING = ["top-sync", "top-async", "plain-async"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", HIDING)
def test_hidden_rows_with_memories_equal_the_dense_formula(protocol, kind):
    for family in ("ring", "grid"):
        plain = plan_on(GRAPHS[family], protocol, rounds=5)
        plan = optimised(plain, KINDS[kind], plain.rate)
        for owner, J in ((0, (1,)), (3, (5,)), (2, (0, 4))):
            assert_equal_to_dense(plan, owner, J, Public.NOTHING)
            assert_equal_to_dense(plan, owner, J, Public.ESTIMATES)
        assert_equal_to_dense(plan, 1, (), Public.LINKS)


def test_momentum_changes_what_hidden_rows_reveal():
    """Otherwise the test above would show nothing: momentum sends the same noise again."""
    plain = plan_on(GRAPHS["ring"], "top-sync", rounds=8)
    plan = optimised(plain, KINDS["momentum"], plain.rate)
    before, after = (dense_mu(p, 0, (1,), "nothing")["aligned"] for p in (plain, plan))
    assert abs(after / before - 1) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", ["plain-sync", "dsgd", "muffliato", "correlated"])
def test_memories_reveal_nothing_more_if_every_row_is_seen(protocol, kind):
    plain = plan_on(GRAPHS["random"], protocol)
    plan = optimised(plain, KINDS[kind], plain.rate)
    for answer in (adaptive, outsider):
        np.testing.assert_allclose(answer(plan, unit(plan)).worst(), answer(plain, unit(plain)).worst())
    np.testing.assert_allclose(worst_case(plan, unit(plan)).mu, worst_case(plain, unit(plain)).mu)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", ["top-sync", "top-async"])
def test_memories_do_not_change_the_worst_case(protocol, kind):
    plain = plan_on(GRAPHS["grid"], protocol)
    plan = optimised(plain, KINDS[kind], plain.rate)
    np.testing.assert_allclose(worst_case(plan, unit(plan)).mu, worst_case(plain, unit(plain)).mu)
    found, least = adaptive(plan, unit(plan)).worst(), view(plan, unit(plan)).worst()
    assert (least <= found * (1 + NEAR)).all()
    assert (found <= worst_case(plan, unit(plan)).mu * (1 + NEAR)).all()


def correlated(kind: str = "adam"):
    schedule = Schedule(np.full(5, 0.3), np.full(5, 0.3))
    optimiser = Optimiser("adam") if kind == "adam" else KINDS[kind]
    protocol = Correlated(secrets="all", pair_noise=3.0, gossip=2)
    plain = protocol.plan(topology.ring(5), optimiser.inner(schedule), np.linspace(1, 2, 5), 0)
    return plain, optimised(plain, optimiser, schedule.rate)


@pytest.mark.parametrize("kind", ["adam", "momentum", "all"])
def test_shared_noise_hides_equally_well_with_memories(kind):
    plain, plan = correlated(kind)
    assert in_the_open(plan)
    for colluders in (0, 1, 2):
        found, expected = (adaptive(p, unit(p), Query(colluders=colluders)).worst() for p in (plan, plain))
        np.testing.assert_allclose(found, expected)
    noisy = plan.rate > 0
    np.testing.assert_allclose(most_learned(plan)[noisy], most_learned(plain)[plain.rate > 0])
    left, expected = survivors(plan, [1]), survivors(plain, [1])
    np.testing.assert_allclose(most_learned(left)[noisy], most_learned(expected)[plain.rate > 0])


def test_plans_with_adam_have_no_view_and_no_residual_noise():
    _, plan = correlated()
    with pytest.raises(NotCovered, match="Not covered: Adam"):
        view(plan, unit(plan))
    with pytest.raises(ValueError, match="Adam"):
        residual_noise(plan)


def test_adam_does_not_change_the_loss_of_central_training():
    schedule = Schedule(np.full(5, 0.3), np.full(5, 0.3))
    optimiser = Optimiser("adam")
    plain = Central().plan(topology.single(), optimiser.inner(schedule), np.ones(1), 0)
    plan = optimised(plain, optimiser, schedule.rate)
    found, expected = (adaptive(p, unit(p), Query(colluders=0)).worst() for p in (plan, plain))
    np.testing.assert_allclose(found, expected)


def test_claims_cover_plain_steps_only():
    plain = plan_on(GRAPHS["ring"], "top-sync")
    noise_multipliers(plain, unit(plain))
    with pytest.raises(NotCovered, match="top-sync momentum"):
        noise_multipliers(optimised(plain, KINDS["momentum"], plain.rate), unit(plain))


def test_a_row_with_readers_noise_or_foreign_sources_is_no_memory():
    plain = plan_on(GRAPHS["ring"], "plain-sync")
    plan = optimised(plain, KINDS["momentum"], plain.rate)
    n = plan.agents
    readers, std, draw = (plan.readers.values.copy(), plan.std.values.copy(), plan.draw.values.copy())
    readers[0, n, 0] = 1
    std[0, n + 1, 0], draw[0, n + 1, 0] = 1.0, 1
    source = plan.source.values.copy()
    source[-1, n + 2, 1] = 0  # another agent's estimate
    for field, values, row in (("readers", readers, n), ("draw", draw, n + 1), ("source", source, n + 2)):
        changed = replace(plan, **{field: replace(getattr(plan, field), values=values)})
        assert not changed.memories[row] and changed.memories[n:].sum() == n - 1


def test_momentum_in_a_long_plan_leaves_the_answer_exactly_unchanged():
    """Rounding errors must not grow along the memories, because these follow from visible estimates."""
    plain = plan_on(GRAPHS["random"], "top-sync", rounds=80)
    plan = optimised(plain, Optimiser("momentum", momentum=0.9), plain.rate)
    np.testing.assert_array_equal(adaptive(plan, unit(plan)).upper, adaptive(plain, unit(plain)).upper)
