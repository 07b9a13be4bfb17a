"""Tests of twins: one plan gives the same estimates in the simulator and on agents, up to rounding."""

import asyncio

import numpy as np
import pytest
import sites
import torch
from history import IDENTITIES, faults, federation, live, on_virtual_time, sharing

from builders import PROTOCOLS, SETTINGS
from topdp import topology
from topdp.agents.development.development_hooks import SeededDraws
from topdp.agents.runtime.agent_rows import PlanPart, make_rows, rows_needed_later

pytestmark = pytest.mark.usefixtures("quick")


GRAPHS = {"ring": topology.ring(6), "random": topology.random(6, 0.5, 1), "complete": topology.complete(4)}
# Each protocol once, and covering rules also on graphs where they differ or where nothing is covered.
TWINS = [(protocol, "random") for protocol in PROTOCOLS] + [("top-sync", "complete"), ("top-async", "ring")]


def close(federation):
    """Tolerates rounding: gradients of one agent and of all agents are added in different orders."""
    torch.testing.assert_close(
        federation.estimates(), federation.simulated(), rtol=1e-5, atol=1e-6, check_dtype=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "graph"), TWINS)
def test_agents_in_memory_end_with_the_simulators_estimates(tmp_path, protocol, graph):
    made = federation(tmp_path, *SETTINGS[protocol], graph=GRAPHS[graph], rounds=8)
    run = on_virtual_time(live(made))
    close(made)
    assert faults(run) == []
    assert all(result["seeded"] and "tests only" in result["warning"] for result in made.results())


@pytest.mark.parametrize("batch", ["{cycle=7}", "{poisson=10}"])
def test_agents_use_the_same_batches_as_the_simulator(tmp_path, batch):
    made = federation(tmp_path, f"data.batch={batch}", "method.name=plain", agents=4, rounds=5)
    on_virtual_time(live(made))
    close(made)


MEMORIES = {
    "momentum": ("method.name=top",),
    "nesterov": ("method.name=top", "method.mode=async", "train.weight_decay=0.1"),
    "sgd": ("method.name=plain", "train.average=0.8", "train.learning_rate=[0.1,0.2,0.3,0.2,0.1,0.1]"),
    # The larger floor keeps roots of small moments from enlarging what rounding differs by.
    "adam": (
        "method.name=muffliato",
        "method.gossip=2",
        "train.learning_rate=0.05",
        "train.average=0.5",
        "train.floor=0.01",
    ),
}


@pytest.mark.parametrize("optimiser", MEMORIES)
def test_optimisers_with_memory_agree_with_the_simulator(tmp_path, optimiser):
    changes = *MEMORIES[optimiser], f"train.optimiser={optimiser}"
    made = federation(tmp_path, *changes, graph=GRAPHS["ring"], rounds=6)
    run = on_virtual_time(live(made))
    close(made)
    assert faults(run) == []


def test_unseeded_noise_differs_from_the_simulator_and_between_runs(tmp_path):
    ends = []
    for attempt in ("first", "second"):
        made = federation(tmp_path / attempt, agents=3, rounds=2)
        on_virtual_time(live(made, options={i: {"seeded": False} for i in range(3)}))
        ends.append(made.estimates())
        assert not any(result["seeded"] or "warning" in result for result in made.results())
    assert not torch.allclose(ends[0], ends[1], atol=1e-3)
    assert not torch.allclose(ends[0], made.simulated(), atol=1e-3)


def test_plans_that_agents_cannot_execute_are_refused():
    from dataclasses import replace

    from builders import constant_schedule
    from topdp.plan import PerRound, PlanError, prune
    from topdp.protocols import PlainSynchronous

    plan = PlainSynchronous(0.5).plan(topology.ring(4), constant_schedule(3), np.ones(4), 0)
    PlanPart(plan, 0)
    readers = PerRound.same(np.full_like(plan.readers[0], -1), plan.releases)
    with pytest.raises(PlanError, match="never receives"):
        PlanPart(replace(plan, readers=readers), 0)
    with pytest.raises(PlanError, match="pruned"):
        PlanPart(prune(plan), 0)
    assert PlanPart(replace(plan, known_by=np.array([[0, 1], [1, -1], [2, -1], [3, -1]])), 0).partner == {
        0: 1
    }
    for knows in ([0, 1, 2], [1, 2, -1], [1, -1, -1], [-1, -1, -1]):
        others = [[k, -1, -1] for k in range(1, 4)]
        with pytest.raises(PlanError, match="its own or shared with one other agent, got draw 0"):
            PlanPart(replace(plan, known_by=np.array([knows, *others])), 0)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_agents_over_grpc_end_with_the_simulators_estimates(tmp_path, mode):
    """The same agents as in memory, but over another transport."""
    identities = over_grpc()
    cards = [one.card for one in identities.values()][:4]
    made = federation(tmp_path, f"method.mode={mode}", graph=topology.ring(4), rounds=5, cards=cards)
    made.identities = identities
    assert codes(made) == [0] * 4
    close(made)


def over_grpc():
    """Identities with addresses on this machine."""
    return {name: sites.at(made, sites.free_address()) for name, made in IDENTITIES.items()}


def codes(made):
    """The exit codes of all agents of a federation, each over gRPC and mutual TLS."""

    async def all_of_them():
        agents = []
        for number, name in enumerate(made.names):
            transport = sites.GrpcTransport(made.identities[name], made.setup.manifest)
            agents.append(made.agent(number, transport))
        return await asyncio.gather(*(agent.run() for agent in agents))

    return [outcome.code for outcome in sites.run(all_of_them())]


def test_six_agents_with_pair_noise_over_grpc_end_with_the_simulators_estimates(tmp_path):
    """All pairs share secrets, and edges form a ring along which keys are forwarded."""
    identities = over_grpc()
    made = sharing(tmp_path, cards=[one.card for one in identities.values()], rounds=3, gossip=2)
    made.identities = identities
    assert codes(made) == [0] * 6
    close(made)


def test_an_agent_that_skips_to_an_adaptive_step_continues_from_its_estimate(tmp_path):
    """After skipped rounds (`_catch_up`), the ledger contains what the next round needs."""
    changes = *MEMORIES["adam"], "train.optimiser=adam"
    part = federation(tmp_path, *changes, graph=GRAPHS["ring"], rounds=6).context(0).part
    before, after = np.flatnonzero(part.plan.adaptive.rate)[:2].tolist()
    own = {row: torch.full((3,), 0.5) for row in part.own_rows(before)}
    left = rows_needed_later(part, before, own)
    assert set(part.own_rows(after)) - set(left)  # where the round began
    rows = make_rows(part, after, left, {}, None, SeededDraws(0, part.plan))
    assert rows.keys() == set(part.own_rows(after)) and all(
        torch.isfinite(row).all() for row in rows.values()
    )
