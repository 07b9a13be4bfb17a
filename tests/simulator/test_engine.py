"""The engine: it executes plans as defined, is reproducible, resumes exactly, and rejects foreign input."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from builders import PROTOCOLS, batches_of, blobs, constant_schedule, linear_model
from topdp import topology
from topdp.data.batch_selection import select
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients, DivergedError
from topdp.plan.noise_key import NoiseKey
from topdp.simulator import fused_rows
from topdp.simulator.engine import Engine
from topdp.simulator.simulated_noise import SimulatedDraws


def make(name="top-sync", batches="full", seed=0, rounds=8, deviation=0.3, clip=1.0):
    graph = topology.random(8, 0.4, 0)
    schedule = constant_schedule(rounds, rate=0.5)
    plan = PROTOCOLS[name](0.25).plan(graph, schedule, np.full(8, deviation), seed)
    gradients = ClippedGradients(linear_model(), clip)
    engine = Engine(
        plan, gradients, blobs(8), batches_of(blobs(8), batches), seed=seed, key=NoiseKey.of_seed(seed)
    )
    return plan, engine, engine.start(gradients.flat.flatten())


def finish(engine, state):
    while state.releases < engine.plan.releases:
        state = engine.advance(state)
    return state


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("batches", ["full", "cycle", "poisson"])
def test_estimates_equal_the_plans_recursion(name, batches):
    """The oracle is the plan's recursion in dense NumPy, all rows, one at a time."""
    plan, engine, state = make(name, batches)
    shards, gradients = engine.shards, engine.gradients
    noise = SimulatedDraws(NoiseKey.of_seed(0), plan.draws, plan.releases)
    rows = state.rows.numpy().astype(np.float64)[plan.owner]
    for r, this in enumerate(plan):
        chosen = select(batches_of(shards, batches), 0, r, key=NoiseKey.of_seed(0))
        agents = torch.arange(8)[:, None]
        x, y = shards.inputs, shards.targets
        if chosen.indices is not None:
            x, y = x[agents, chosen.indices], y[agents, chosen.indices]
        estimates = torch.from_numpy(rows[:8]).float()
        total = gradients.clipped_sum(estimates, x, y, chosen.weights)
        mean = (total / chosen.divisor[:, None]).numpy()
        new = np.zeros_like(rows)
        for row in np.flatnonzero(this.exists):
            for source, weight in zip(this.source[row], this.weight[row], strict=True):
                if source >= 0:
                    new[row] += weight * rows[source]
            new[row] += this.step[row] * mean[plan.owner[row]]
            for draw, std in zip(this.draw[row], this.std[row], strict=True):
                if draw >= 0:
                    new[row] += std * noise.fill(torch.empty(rows.shape[1]), r, int(draw)).numpy()
        rows = new
    expected = torch.from_numpy(rows[:8]).float()
    torch.testing.assert_close(engine.estimates(finish(engine, state)), expected, rtol=1e-4, atol=1e-5)


def test_the_seed_determines_the_run():
    runs = [engine.estimates(finish(engine, state)) for _, engine, state in (make(seed=s) for s in (1, 1, 2))]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


class Drops(torch.nn.Module):
    """A model that is random in training mode, without a dropout layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.last = layer, torch.nn.LazyLinear(3)
        self.attends = isinstance(layer, torch.nn.MultiheadAttention)

    def forward(self, x):
        h = x.flatten(1).unsqueeze(1)
        h = self.layer(h, h, h) if self.attends else self.layer(h)
        return self.last(h[0].flatten(1))


@pytest.mark.parametrize("kind", ["lstm", "attention"])
def test_dropout_inside_torchs_layers_ignores_the_global_generator(kind):
    _, engine, _ = make()
    width, shards = engine.shards.inputs[0, 0].numel(), engine.shards
    layer = (
        torch.nn.LSTM(width, 4, 2, dropout=0.5, batch_first=True)
        if kind == "lstm"
        else torch.nn.MultiheadAttention(width, 1, dropout=0.5, batch_first=True)
    )
    model = Drops(layer)
    model(shards.inputs[0, :1])
    gradients = ClippedGradients(model, 1.0)
    ends = []
    for other_draws in (0, 5):
        engine = Engine(
            engine.plan, gradients, shards, batches_of(shards, "full"), seed=0, key=NoiseKey.of_seed(0)
        )
        state = engine.advance(engine.start(gradients.flat.flatten()))
        torch.rand(other_draws)  # as other users of torch's generator may do
        ends.append(engine.estimates(engine.advance(state)).clone())
    assert torch.equal(*ends)


@pytest.fixture
def threads():
    """`threads(n)`: torch uses n threads until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_threads_does_not_change_the_results(monkeypatch, threads, workers):
    ends, by, real = [], set(), fused_rows.make
    monkeypatch.setattr(fused_rows, "make", lambda *given: by.add(threading.get_ident()) or real(*given))
    for number in (1, workers):
        threads(number)
        by.clear()
        _, engine, state = make()
        ends.append(engine.estimates(finish(engine, state)).clone())
        assert (by == {threading.get_ident()}) == (number == 1)
    assert torch.equal(*ends)


@pytest.mark.parametrize("stop", [0, 1, 5])
def test_a_run_resumed_from_any_round_ends_bit_for_bit_equal(stop):
    _, engine, state = make(batches="poisson")
    whole = engine.estimates(finish(engine, state)).clone()
    _, engine, state = make(batches="poisson")
    for _ in range(stop):
        state = engine.advance(state)
    kept = state.rows.clone()
    _, fresh, _ = make(batches="poisson")
    assert torch.equal(fresh.estimates(finish(fresh, fresh.resume(stop, kept))), whole)


@pytest.mark.parametrize("batches", ["full", "cycle", "poisson"])
def test_a_gradient_depends_only_on_its_agents_estimate_and_data(batches):
    """The adaptive guarantee assumes this: no dependence on others' data or on received rows."""
    _, engine, state = make(batches=batches)
    for _ in range(3):
        state = engine.advance(state)
    assert len(state.rows) > 8  # there are messages, too
    chosen = engine.select(state.releases, engine.device)
    before = engine.mean_gradients(state, chosen).clone()
    for agent in range(8):
        others = torch.arange(len(state.rows)) != agent
        for other in (torch.randn_like(state.rows), 1e15 * torch.ones_like(state.rows)):
            rows = torch.where(others[:, None], other, state.rows)
            after = engine.mean_gradients(engine.resume(state.releases, rows), chosen)
            assert torch.equal(after[agent], before[agent])
            assert not torch.equal(after, before)


def with_record(value=None, deviation=0.0):
    """An engine whose agent 2 has one record of `value`; with None, this record is left out."""
    graph, schedule = topology.random(8, 0.4, 0), constant_schedule(8, rate=0.5)
    plan = PROTOCOLS["top-sync"](0.25).plan(graph, schedule, np.full(8, deviation), 0)
    gradients = ClippedGradients(linear_model(), 1.0)
    engine = Engine(plan, gradients, blobs(8), batches_of(blobs(8)), seed=0, key=NoiseKey.of_seed(0))
    if value is None:
        full = engine.select

        def select_others(round, device):
            chosen = full(round, device)
            weights = torch.ones(engine.shards.inputs.shape[:2])
            weights[2, 5] = 0
            return replace(chosen, weights=weights)

        engine.select = select_others
    else:
        engine.shards.inputs[2, 5] = value
    return engine, engine.start(gradients.flat.flatten())


@pytest.mark.parametrize("value", [3e38, -3e38, float("inf"), float("nan")])
@pytest.mark.parametrize("deviation", [0.0, 0.3])
def test_a_record_that_overflows_has_no_effect(value, deviation):
    without = finish(*with_record(deviation=deviation)).rows.clone()
    assert torch.equal(finish(*with_record(value, deviation)).rows, without)


def test_a_run_with_an_infinite_released_row_raises():
    engine, state = with_record(1.0)
    rows = state.rows.clone()
    rows[4, 0] = float("inf")
    with pytest.raises(DivergedError, match=r"agents \[4\]"):
        engine.advance(engine.resume(0, rows))


def test_a_checkpoint_of_another_plan_or_model_is_rejected():
    _, engine, state = make()
    with pytest.raises(ValueError, match=r"Expected rows of shape .* after 3 releases"):
        engine.resume(3, state.rows[:5])  # another plan
    with pytest.raises(ValueError, match=r"Expected rows of shape .* after 0 releases"):
        engine.resume(0, state.rows[:, :-1])  # another model


def test_shards_for_another_number_of_agents_are_rejected():
    plan, engine, _ = make()
    with pytest.raises(ValueError, match="8 agents"):
        Engine(plan, engine.gradients, blobs(7), batches_of(blobs(7)), seed=0, key=NoiseKey.of_seed(0))


def test_batches_for_other_record_counts_are_rejected():
    """Sums would be divided by another number than the one that the noise was calibrated for."""
    plan, engine, _ = make()
    with pytest.raises(
        InputError, match=r"batches of the records that agents hold, \[40, 40.*got batches of"
    ):
        Engine(
            plan,
            engine.gradients,
            blobs(8),
            batches_of(blobs(8, records=39)),
            seed=0,
            key=NoiseKey.of_seed(0),
        )


def test_evaluation_gives_each_agents_accuracy_and_loss():
    _, engine, state = make(deviation=3.0)
    state = finish(engine, state)
    found = engine.evaluate(state)
    x, y = engine.shards.test_inputs, engine.shards.test_targets
    for agent in range(8):
        outputs = engine.gradients.flat.load(engine.estimates(state)[agent])(x)
        assert found.accuracy[agent] == pytest.approx((outputs.argmax(1) == y).double().mean().item())
        assert found.loss[agent] == pytest.approx(
            torch.nn.functional.cross_entropy(outputs, y).item(), rel=1e-4
        )


def test_evaluation_without_a_test_set_is_rejected():
    from topdp.data import Shards

    shards = blobs(8)
    plan, engine, state = make()
    bare = Shards.from_arrays([(shards.inputs[i], shards.targets[i]) for i in range(8)])
    with pytest.raises(ValueError, match="test set"):
        Engine(plan, engine.gradients, bare, batches_of(bare), seed=0, key=NoiseKey.of_seed(0)).evaluate(
            state
        )
