"""The engine on plans that no protocol of topdp writes: rows share gradients and draws, with either sign.

The oracle computes each round by the definition, one row at a time in float64, from the engine's rows of
the round before.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from builders import batches_of, blobs, constant_schedule
from strategies import custom_plans
from topdp import topology
from topdp.data.batch_selection import select
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients
from topdp.learning.models import FlatModel
from topdp.plan import NOBODY, PerRound
from topdp.plan.noise_key import NoiseKey
from topdp.protocols import PlainSynchronous
from topdp.simulator import engine as engine_file
from topdp.simulator import fused_rows
from topdp.simulator.engine import Engine, Intervention
from topdp.simulator.row_mixing import CpuMixer, RowWork
from topdp.simulator.simulated_noise import SimulatedDraws

pytestmark = pytest.mark.exhaustive

TWO_AT_A_TIME = 1
TOGETHER = engine_file.MAX_GRADIENT_NUMBERS


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    """Restore the number of agents per pass and the number of threads, which tests change."""
    monkeypatch.setattr(engine_file, "MAX_GRADIENT_NUMBERS", TOGETHER)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def engine_of(plan, batches="full", dtype=torch.float32, every_row=True, at_once=TOGETHER, threads=1):
    engine_file.MAX_GRADIENT_NUMBERS = at_once
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    flat = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(16, 70), nn.ReLU(), nn.Linear(70, 3)).to(dtype))
    shards = blobs(plan.agents, records=9)
    each = batches_of(shards, batches, size=4)
    engine = Engine(
        plan,
        ClippedGradients(flat, 0.8),
        shards,
        each,
        seed=0,
        key=NoiseKey.of_seed(0),
        intervention=Intervention(every_row=every_row),
    )
    starts = flat.flatten() + 0.1 * torch.randn(plan.agents, flat.dimension, dtype=dtype)
    return engine, engine.start(starts)


def gradients_of(engine, estimates, chosen):
    """The gradients, example by example, by autograd."""
    flat, shards, found = engine.gradients.flat, engine.shards, np.zeros(estimates.shape)
    for agent, row in enumerate(estimates):
        module = flat.load(torch.from_numpy(row))
        records = range(shards.counts[agent]) if chosen.indices is None else chosen.indices[agent].tolist()
        weights = [1.0] * len(records) if chosen.weights is None else chosen.weights[agent].tolist()
        for record, weight in zip(records, weights, strict=True):
            scores = module(shards.inputs[agent, record].double()[None])
            loss = nn.functional.cross_entropy(scores, shards.targets[agent, record][None])
            parts = torch.autograd.grad(loss, list(module.parameters()))
            gradient = torch.cat([part.reshape(-1) for part in parts]).numpy()
            found[agent] += weight * gradient / max(1, np.linalg.norm(gradient) / engine.gradients.clip)
        found[agent] /= float(chosen.divisor[agent])
    return found


def defined(plan, round, before, gradients, noise):
    """The rows of `round`, from the previous rows `before` by their numbers."""
    this, width = plan[round], gradients.shape[1]
    for row in np.flatnonzero(this.exists):
        total = np.zeros(width)
        for source, weight in zip(this.source[row], this.weight[row], strict=True):
            if source >= 0 and weight:
                total += weight * before[source]
        total += this.step[row] * gradients[plan.owner[row]]
        for draw, std in zip(this.draw[row], this.std[row], strict=True):
            if draw >= 0:
                total += std * noise.fill(torch.empty(width), round, int(draw)).double().numpy()
        yield total


@settings(max_examples=15)
@given(
    custom_plans(),
    st.sampled_from(["full", "cycle", "poisson"]),
    st.sampled_from(["float32", "float64", "bfloat16"]),
    st.booleans(),
    st.sampled_from([TOGETHER, TWO_AT_A_TIME]),
    st.sampled_from([1, 2, 3]),
)
def test_every_row_equals_the_plans_definition(plan, batches, kind, every_row, at_once, threads):
    if kind == "bfloat16":
        plan = replace(plan, rounded=kind)
    dtype = torch.float64 if kind == "float64" else torch.float32
    engine, state = engine_of(plan, batches, dtype, every_row, at_once, threads)
    plan, noise = engine.plan, SimulatedDraws(NoiseKey.of_seed(0), plan.draws, plan.releases)
    rows = state.rows.double().numpy()
    before = dict(enumerate(rows[plan.owner]))
    for r in range(plan.releases):
        chosen = select(engine.batches, 0, r, key=NoiseKey.of_seed(0))
        gradients = gradients_of(engine, rows[: plan.agents], chosen)
        expected = list(defined(plan, r, before, gradients, noise))
        state = engine.advance(state)
        rows = state.rows.double().numpy().copy()
        scale = max(1.0, np.abs(expected).max())
        place = 2.0**-8 if kind == "bfloat16" else 0.0  # half a unit in the last place
        np.testing.assert_allclose(rows, expected, rtol=1.01 * place, atol=2e-5 * scale)
        before = dict(zip(np.flatnonzero(plan.exists[r]), rows, strict=True))


@settings(max_examples=6)
@given(custom_plans(), st.sampled_from([TOGETHER, TWO_AT_A_TIME]), st.integers(1, 6), st.booleans())
def test_an_interrupted_round_is_repeated_bit_for_bit(plan, at_once, when, after):
    """Rows overwrite gradients in one buffer: the second attempt must not read overwritten gradients."""
    engine, state = engine_of(plan)
    expected = []
    while state.releases < plan.releases:
        state = engine.advance(state)
        expected.append(state.rows.clone())
    engine, state = engine_of(plan, at_once=at_once, threads=2)
    real, calls = fused_rows.make, []

    def breaks(*given):
        calls.append(given)
        if len(calls) == when and not after:
            raise KeyboardInterrupt
        real(*given)
        if len(calls) == when:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_rows, "make", breaks)
        while state.releases < plan.releases:
            kept = state.rows.clone()
            try:
                state = engine.advance(state)
            except KeyboardInterrupt:
                assert torch.equal(state.rows, kept) and engine.holds(state)
            else:
                assert torch.equal(state.rows, expected[state.releases - 1])


def test_plans_that_mix_missing_rows_are_rejected():
    plan = PlainSynchronous(0.5).plan(topology.ring(3), constant_schedule(3), np.ones(3), 0)
    source = plan.source.values[plan.source.which]
    source[1, 0] = NOBODY  # agent 0 has no estimate in round 1, which others mix in round 2
    broken = replace(plan, source=PerRound.each(source))
    with pytest.raises(InputError, match="an estimate in some round"):
        engine_of(broken)
    mix = CpuMixer(broken, SimulatedDraws(NoiseKey.of_seed(0), plan.draws, plan.releases))
    rows = torch.zeros(3, 5)
    with pytest.raises(InputError, match="round 2 to mix only rows that exist"):
        mix(RowWork(round=2, before=rows[:2], gradient=rows, out=torch.empty(3, 5)))
