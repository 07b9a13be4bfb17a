"""Stacked runs: every run of a stack gives the same result as the run alone."""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from builders import PROTOCOLS, batches_of, blobs, constant_schedule, linear_model
from topdp import topology
from topdp.data import Shards
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients
from topdp.plan import Plan
from topdp.plan.noise_key import NoiseKey
from topdp.privacy.basics.exposure import exposure
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.observers.worst_case import worst_case
from topdp.simulator.engine import Engine
from topdp.simulator.run_stacking import StackedBatches, StackedNoise, stack_plans, stack_shards
from topdp.simulator.simulated_noise import SimulatedDraws

GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))

LONGER = ("muffliato", "correlated")  # more than one release per round: stacked only with each other


def single(name, graph, seed, deviation=0.0, rate=0.5, rounds=6):
    schedule = constant_schedule(rounds, rate=rate)
    return PROTOCOLS[name](0.25).plan(graph, schedule, np.full(graph.agents, deviation), seed)


class Run(NamedTuple):
    plan: Plan
    shards: Shards
    seed: int

    @classmethod
    def of(cls, plan, seed, records):
        return cls(plan, blobs(plan.agents, records, seed=seed), seed)

    def start(self):
        return gradients().flat.flatten() * (1 + self.seed % 7)


@cache
def gradients():
    return ClippedGradients(linear_model(), 1.0)


def finish(plan, shards, batches, start, device, seed=0, noise=None, select=None):
    engine = Engine(
        plan,
        gradients(),
        shards,
        batches,
        seed=seed,
        key=NoiseKey.of_seed(seed),
        device=device,
        draws=noise,
        select=select,
    )
    state = engine.start(start)
    while state.releases < plan.releases:
        state = engine.advance(state)
    return engine.estimates(state).clone()


def alone(runs, kind, size, device="cpu"):
    return torch.cat(
        [
            finish(plan, shards, batches_of(shards, kind, size), run.start(), device, seed)
            for run in runs
            for plan, shards, seed in [run]
        ]
    )


def together(runs, kind, size, device="cpu"):
    plans, shards, seeds = zip(*runs, strict=True)
    stack = StackedBatches(
        tuple(
            (tuple(batches_of(run.shards, kind, size)), run.seed, NoiseKey.of_seed(run.seed)) for run in runs
        )
    )
    start = torch.cat([run.start().expand(run.plan.agents, -1) for run in runs])
    noise, held = StackedNoise(plans, list(map(NoiseKey.of_seed, seeds))), stack_shards(shards)
    return finish(stack_plans(plans), held, stack.batches, start, device, 0, noise, stack.select)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize(("kind", "size"), [("full", 0), ("cycle", 12), ("poisson", 5)])
def test_every_run_of_a_stack_equals_the_run_alone(kind, size, device):
    """Every protocol, with different graphs, rates, noise and seeds; some runs without noise."""
    graphs = [topology.ring(5), topology.random(7, 0.5, 0), topology.star(6), topology.ring(4)]
    runs = [
        Run.of(
            single(name, graphs[seed % 4], seed, deviation=0.2 * (seed % 3), rate=0.1 * (seed + 1)),
            seed,
            20 + 10 * seed,
        )
        for seed, name in enumerate(PROTOCOLS)
        if name not in LONGER
    ]
    torch.testing.assert_close(
        together(runs, kind, size, device), alone(runs, kind, size, device), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("longer", [False, True])
@pytest.mark.parametrize("records", [40, [40, 7, 33, 12, 40]])
def test_stacked_runs_that_share_records_equal_the_runs_alone(records, longer, device):
    """Every protocol, with different rates, noise and noise seeds, on one graph and its shards."""
    graph, shards = topology.ring(5), blobs(5, 40, seed=1)
    if not isinstance(records, int):
        shards = Shards.from_arrays(
            [
                (x[:count], y[:count])
                for x, y, count in zip(shards.inputs, shards.targets, records, strict=True)
            ]
        )
    runs = [
        Run(single(name, graph, seed, deviation=0.2 * (seed % 3), rate=0.1 * (seed + 1)), shards, seed)
        for seed, name in enumerate(PROTOCOLS)
        if (name in LONGER) == longer
    ]
    plans, seeds = [run.plan for run in runs], [run.seed for run in runs]
    stack = StackedBatches(
        tuple((tuple(batches_of(shards, "full", 0)), seed, NoiseKey.of_seed(seed)) for seed in seeds)
    )
    start = torch.cat([run.start().expand(run.plan.agents, -1) for run in runs])
    engine = Engine(
        stack_plans(plans), gradients(), shards, stack.batches, seed=0, device=device,
        draws=StackedNoise(plans, list(map(NoiseKey.of_seed, seeds))), select=stack.select, copies=len(runs),
    )  # fmt: skip
    state = engine.start(start)
    while state.releases < engine.plan.releases:
        state = engine.advance(state)
    torch.testing.assert_close(engine.estimates(state), alone(runs, "full", 0, device), rtol=1e-4, atol=1e-6)


def test_runs_can_share_only_full_batches():
    shards, plan = blobs(5, 40, seed=1), single("plain-sync", topology.ring(5), 0)
    two = stack_plans([plan, plan])
    with pytest.raises(InputError, match="full batches if several runs share"):
        Engine(
            two,
            gradients(),
            shards,
            batches_of(shards, "cycle", 4) * 2,
            seed=0,
            key=NoiseKey.of_seed(0),
            copies=2,
        )
    with pytest.raises(InputError, match="shards for 10 agents, got 15"):
        Engine(
            two,
            gradients(),
            shards,
            batches_of(shards, "full", 0) * 3,
            seed=0,
            key=NoiseKey.of_seed(0),
            copies=3,
        )


@st.composite
def stacks(draw):
    """One to four runs of equal length, each on its own graph, under its own protocol, schedule and seed."""
    rounds = draw(st.integers(1, 8))
    plans = strategies.written_plans(st.just(rounds)).filter(lambda plan: plan.releases == rounds + 1)
    return [
        Run.of(draw(plans), draw(strategies.seeds), draw(st.integers(3, 9)))
        for _ in range(draw(st.integers(1, 4)))
    ]


@pytest.mark.slow
@settings(max_examples=60)
@given(stacks(), st.sampled_from(["full", "cycle", "poisson"]), st.integers(2, 3))
def test_arbitrary_stacked_runs_equal_the_runs_alone(runs, kind, size):
    torch.testing.assert_close(together(runs, kind, size), alone(runs, kind, size), rtol=1e-4, atol=1e-5)


@settings(max_examples=30)
@given(stacks())
def test_any_run_in_a_stack_has_the_draws_of_the_run_alone(runs):
    plans, seeds = [run.plan for run in runs], [run.seed for run in runs]
    noise, first = StackedNoise(plans, list(map(NoiseKey.of_seed, seeds))), 0
    for plan, seed in zip(plans, seeds, strict=True):
        own = SimulatedDraws(NoiseKey.of_seed(seed), plan.draws, plan.releases)
        numbers = np.arange(plan.draws)
        names = noise.names(1, first + numbers)
        np.testing.assert_array_equal(names[:, 1:], own.names(1, numbers)[:, 1:])
        np.testing.assert_array_equal(noise.keys[names[:, 0]], np.repeat(own.keys, plan.draws, axis=0))
        for r in range(plan.releases):
            for draw in numbers:
                z = [torch.empty(3), torch.empty(3)]
                noise.fill(z[0], r, int(first + draw))
                own.fill(z[1], r, int(draw))
                assert torch.equal(*z)
        first += plan.draws


def test_a_stack_keeps_each_runs_noise_and_has_no_account():
    plans = [single("top-sync", topology.ring(5), 0, deviation=d, rate=0.5) for d in (0.1, 0.7)]
    stack = stack_plans(plans)
    assert stack.agents == 10 and stack.pruned
    for r in range(stack.releases):
        expected = [plan[r].std[: plan.agents, 0] for plan in plans]
        np.testing.assert_allclose(stack[r].std[:10, 0], np.concatenate(expected), rtol=1e-6)
    with pytest.raises(NotCovered, match="pruned"):
        worst_case(stack, exposure(10, 1.0))


def test_plans_of_unequal_length_cannot_be_stacked():
    with pytest.raises(ValueError, match=r"one number of releases, got \[4, 5\]"):
        stack_plans([single("plain-sync", topology.ring(4), 0, rounds=k) for k in (3, 4)])
