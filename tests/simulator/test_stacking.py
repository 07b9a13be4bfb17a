import numpy as np
import pytest
import torch

from builders import PROTOCOLS, batches_of, blobs, constant_schedule, linear_model
from topdp import topology
from topdp.learning.gradients import ClippedGradients
from topdp.privacy.basics.checks import NotCovered
from topdp.privacy.basics.exposure import exposure
from topdp.privacy.observers.worst_case import worst_case
from topdp.simulator.engine import Engine
from topdp.simulator.stacking import StackedBatches, StackedNoise, stack_plans, stack_shards


def single(name, graph, seed, deviation=0.0, rate=0.5, iterations=6):
    schedule = constant_schedule(iterations, rate=rate)
    return PROTOCOLS[name](0.25).plan(graph, schedule, np.full(graph.agents, deviation), seed)


GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("batches", ["full", "cycle", "poisson"])
def test_every_run_of_a_stack_is_the_run_alone(batches, device):
    """Four protocols, other graphs, rates, noise and seeds; two runs without noise."""
    runs = [
        (
            single(name, graph, seed, deviation=0.2 * (seed % 3), rate=0.1 * (seed + 1)),
            blobs(graph.agents, 20 + 10 * seed, seed=seed),
            seed,
        )
        for seed, (name, graph) in enumerate(
            zip(
                PROTOCOLS,
                [topology.ring(5), topology.random(7, 0.5, 0), topology.star(6), topology.ring(4)],
                strict=True,
            )
        )
    ]
    gradients = ClippedGradients(linear_model(), 1.0)

    def finish(plan, shards, batches, start, seed=0, noise=None, select=None):
        engine = Engine(plan, gradients, shards, batches, seed, device, noise, select)
        state = engine.start(start)
        while state.releases < plan.releases:
            state = engine.advance(state)
        return engine.estimates(state).clone()

    starts = [gradients.flat.flatten() * (1 + seed) for *_, seed in runs]
    alone = []
    for (plan, shards, seed), start in zip(runs, starts, strict=True):
        alone.append(finish(plan, shards, batches_of(shards, batches), start, seed))
    stacked = StackedBatches(tuple((tuple(batches_of(held, batches)), seed) for _, held, seed in runs))
    start = torch.cat([s.expand(shards.agents, -1) for s, (_, shards, _) in zip(starts, runs, strict=True)])
    plans = [plan for plan, *_ in runs]
    noise = StackedNoise(plans, [seed for *_, seed in runs])
    held = stack_shards([s for _, s, _ in runs])
    together = finish(stack_plans(plans), held, stacked.batches, start, noise=noise, select=stacked.select)
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-6)


def test_a_stack_keeps_each_runs_noise_and_is_not_accounted():
    plans = [single("top-sync", topology.ring(5), 0, deviation=d, rate=0.5) for d in (0.1, 0.7)]
    stack = stack_plans(plans)
    assert stack.agents == 10 and stack.pruned
    for r in range(stack.releases):
        expected = [plan[r].std[: plan.agents, 0] for plan in plans]
        np.testing.assert_allclose(stack[r].std[:10, 0], np.concatenate(expected), rtol=1e-6)
    with pytest.raises(NotCovered, match="pruned"):
        worst_case(stack, exposure(10, 1.0))


def test_plans_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="rounds"):
        stack_plans([single("plain-sync", topology.ring(4), 0, iterations=k) for k in (3, 4)])
