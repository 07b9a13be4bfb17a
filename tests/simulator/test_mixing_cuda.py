"""The GPU's rows against the processor's. Runs where a GPU is."""

import numpy as np
import pytest
import torch

from builders import PROTOCOLS, batches_of, blobs, constant_schedule, linear_model
from topdp import topology
from topdp.learning.gradients import ClippedGradients
from topdp.simulator.engine import Engine

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def estimates(name, device, deviation, unpruned=False, stop=None, monkeypatch=None):
    graph = topology.random(8, 0.4, 0)
    plan = PROTOCOLS[name](0.25).plan(graph, constant_schedule(8, rate=0.5), np.full(8, deviation), 0)
    if unpruned:
        monkeypatch.setattr("topdp.simulator.engine.prune", lambda plan: plan)
    gradients = ClippedGradients(linear_model(), 1.0)
    engine = Engine(plan, gradients, blobs(8), batches_of(blobs(8), "cycle"), 0, device)
    state = engine.start(gradients.flat.flatten())
    while state.releases < plan.releases:
        if state.releases == stop:
            kept = state.rows.cpu().clone()
            engine = Engine(plan, gradients, blobs(8), batches_of(blobs(8), "cycle"), 0, device)
            state = engine.resume(stop, kept)
            stop = None
        state = engine.advance(state)
    return engine.estimates(state).clone()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_without_noise_both_devices_make_the_same_rows(name):
    torch.testing.assert_close(
        estimates(name, "cuda", 0.0).cpu(), estimates(name, "cpu", 0.0), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("name", PROTOCOLS)
def test_pruned_resumed_and_whole_runs_are_bit_equal(name, monkeypatch):
    whole = estimates(name, "cuda", 0.3)
    assert torch.equal(whole, estimates(name, "cuda", 0.3))
    assert torch.equal(whole, estimates(name, "cuda", 0.3, stop=4))
    assert torch.equal(whole, estimates(name, "cuda", 0.3, unpruned=True, monkeypatch=monkeypatch))


def test_the_noise_is_standard_normal_and_independent_between_draws_and_rounds():
    from topdp.simulator.draws import Noise
    from topdp.simulator.mixing import Work
    from topdp.simulator.mixing_cuda import Fused

    n, d = 24, 100_003
    graph = topology.ring(n)
    schedule = constant_schedule(3, rate=0.0, noise_on="estimate")
    plan = PROTOCOLS["plain-sync"](1.0).plan(graph, schedule, np.ones(n), 0)
    zeros = torch.zeros(n, d, device="cuda")
    draws = []
    for r in range(plan.releases):
        out = torch.empty(n, d, device="cuda")
        Fused(plan, Noise(0, n, plan.releases), torch.device("cuda"))(Work(r, zeros, zeros, out))
        draws.append(out.double())
    z = torch.cat(draws)
    assert z.mean().abs() < 5 / z.numel() ** 0.5
    assert (z.var() - 1).abs() < 5 * (2 / z.numel()) ** 0.5
    assert ((z**4).mean() - 3).abs() < 5 * (96 / z.numel()) ** 0.5
    correlation = torch.corrcoef(z) - torch.eye(len(z), device="cuda")
    assert correlation.abs().max() < 6 / d**0.5
    shifted = (z[:, 1:] * z[:, :-1]).mean(dim=1)
    assert shifted.abs().max() < 5 / d**0.5
