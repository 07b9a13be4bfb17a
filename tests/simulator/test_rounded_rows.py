"""Rows stored in bfloat16: each is a float32 sum, rounded once, and rows need half the memory."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from builders import PROTOCOLS, batches_of, blobs, constant_schedule, linear_model
from topdp import topology
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients
from topdp.plan import Optimiser, optimised, prune
from topdp.plan.noise_key import NoiseKey
from topdp.protocols import Dsgd, PlainSynchronous
from topdp.runs.memory_check import need_of
from topdp.simulator import engine as engines
from topdp.simulator.engine import Engine, Intervention
from topdp.simulator.row_mixing import CpuMixer, RowWork
from topdp.simulator.run_stacking import stack_plans
from topdp.simulator.simulated_noise import SimulatedDraws

AGENTS = 8
OPTIMISERS = {"sgd": Optimiser(), "momentum": Optimiser("momentum"), "nesterov": Optimiser("nesterov")}


def plan_of(name, optimiser=OPTIMISERS["sgd"], rounds=5):
    graph, schedule = topology.random(AGENTS, 0.4, 0), constant_schedule(rounds, rate=0.5)
    plan = PROTOCOLS[name](0.25).plan(graph, schedule, np.full(AGENTS, 0.3), 3)
    return replace(optimised(plan, optimiser, schedule.rate), rounded="bfloat16")


def engine_of(plan, batches="full"):
    shards = blobs(AGENTS)
    return Engine(
        plan,
        ClippedGradients(linear_model(), 1.0),
        shards,
        batches_of(shards, batches),
        seed=5,
        key=NoiseKey.of_seed(5),
    )


def run(engine, state=None, stop=None):
    state = state or engine.start(engine.gradients.flat.flatten())
    while state.releases < (stop or engine.plan.releases):
        state = engine.advance(state)
    return state


def numbers(rows):
    """The values of bfloat16 rows as float32: bfloat16 is the first half of a float32."""
    return (rows.contiguous().view(torch.uint16).numpy().astype(np.uint32) << 16).view(np.float32)


def spacing(values):
    """The distance between adjacent bfloat16 numbers (8 significant bits) at `values`."""
    return 2.0 ** (np.floor(np.log2(np.maximum(np.abs(values), 1e-30))) - 7)


@pytest.mark.parametrize(
    "name, optimiser",
    [*((name, "sgd") for name in PROTOCOLS), ("top-sync", "momentum"), ("dsgd", "nesterov")],
)
def test_a_row_is_the_sum_of_its_definition_rounded_once(name, optimiser):
    """The oracle sums in float64 from the stored rows, and allows for the rounding of float32."""
    plan = prune(plan_of(name, OPTIMISERS[optimiser]))
    engine = engine_of(plan)
    noise, shards = SimulatedDraws(NoiseKey.of_seed(5), plan.draws, plan.releases), engine.shards
    state = engine.start(engine.gradients.flat.flatten())
    d, compared, exact = engine.gradients.flat.dimension, 0, 0
    for r in range(plan.releases):
        before = np.full((plan.rows, d), np.nan)
        made = np.flatnonzero(plan.exists[r - 1]) if r else plan.owner
        before[made if r else slice(None)] = numbers(state.rows)[slice(None) if r else plan.owner]
        here = torch.from_numpy(numbers(state.rows)[:AGENTS])
        sums = engine.gradients.clipped_sum(here, shards.inputs, shards.targets)
        gradient = sums.numpy() / 40
        state = engine.advance(state)
        assert state.rows.dtype == torch.bfloat16
        this, z = plan[r], torch.empty(d)
        for row, kept in zip(np.flatnonzero(this.exists), numbers(state.rows), strict=True):
            parts = [
                w * before[s] for s, w in zip(this.source[row], this.weight[row], strict=True) if s >= 0 and w
            ]
            parts.append(this.step[row] * gradient[plan.owner[row]])
            parts += [
                std * noise.fill(z, r, draw).double().numpy()
                for draw, std in zip(this.draw[row], this.std[row], strict=True)
                if draw >= 0
            ]
            total = np.sum(parts, axis=0)
            size = np.sum(np.abs(parts), axis=0)
            assert (np.abs(kept - total) <= spacing(total) / 2 + 1e-6 * size).all()
            compared, exact = (
                compared + d,
                exact + int((kept == numbers(torch.from_numpy(total).bfloat16())).sum()),
            )
    assert exact > 0.99 * compared


def test_ties_are_rounded_to_even():
    plan = PlainSynchronous(0.5).plan(topology.complete(2), constant_schedule(1, rate=0.0), np.zeros(2), 0)
    mix = CpuMixer(replace(plan, rounded="bfloat16"), SimulatedDraws(NoiseKey.of_seed(0), plan.draws, 2))
    step = 2.0**-7
    before = torch.tensor([[1, 1 + step, -1], [1 + step, 1 + 2 * step, -1 - step]], dtype=torch.bfloat16)
    out = torch.empty_like(before)
    mix(RowWork(round=1, before=before, gradient=before, out=out))
    assert out.tolist() == [[1, 1 + 2 * step, -1]] * 2


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_resumed_run_ends_bit_for_bit_equal(name):
    plan = plan_of(name)
    whole = run(engine_of(plan, "cycle"))
    some = run(engine_of(plan, "cycle"), stop=3)
    engine = engine_of(plan, "cycle")
    again = run(engine, engine.resume(3, some.rows.clone()))
    assert torch.equal(again.rows, whole.rows) and whole.rows.dtype == torch.bfloat16


@pytest.mark.parametrize("rounded", [None, "bfloat16"])
def test_a_run_does_not_resume_from_rows_of_another_type(rounded):
    """Otherwise rounded hidden rows could enter a run whose account assumes exact sums."""
    begun = run(engine_of(replace(plan_of("top-sync"), rounded=rounded)), stop=3)
    other = engine_of(replace(plan_of("top-sync"), rounded=None if rounded else "bfloat16"))
    with pytest.raises(InputError, match="Resume from a checkpoint of this plan"):
        other.resume(3, begun.rows)


@pytest.mark.parametrize("name", ["top-sync", "correlated", "muffliato"])
def test_computing_gradients_in_several_passes_changes_nothing(monkeypatch, name):
    engine = engine_of(plan_of(name))
    whole = run(engine)
    monkeypatch.setattr(engines, "MAX_GRADIENT_NUMBERS", 2 * 3 * engine.gradients.flat.dimension)
    some = engine_of(plan_of(name))
    state = run(some)
    assert len(some._passes()) == 3
    assert torch.equal(state.rows, whole.rows)
    for found, expected in ((some.evaluate(state).loss, engine.evaluate(whole).loss),):
        np.testing.assert_array_equal(found, expected)


class Largest(TorchDispatchMode):
    """Record the largest number of elements of a tensor that is not bfloat16."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else (found,):
            if isinstance(one, torch.Tensor) and one.is_floating_point() and one.dtype != torch.bfloat16:
                self.numbers = max(self.numbers, one.untyped_storage().nbytes() // one.element_size())
        return found


def test_no_float32_tensor_is_as_large_as_all_rows(monkeypatch):
    """The model is large compared with its records; a pass has as many numbers as the rows of two agents."""
    plan = Dsgd().plan(topology.ring(AGENTS), constant_schedule(2), np.ones(AGENTS), 0)
    flat = ClippedGradients(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 400)), 1.0)
    shards, d = blobs(AGENTS, records=2), flat.flat.dimension
    shards = replace(shards, test_inputs=shards.test_inputs[:3], test_targets=shards.test_targets[:3])
    monkeypatch.setattr(engines, "MAX_GRADIENT_NUMBERS", 4 * d)
    found = {}
    for rounded in (None, "bfloat16"):
        engine = Engine(
            replace(plan, rounded=rounded),
            flat,
            shards,
            batches_of(shards, "full"),
            seed=5,
            key=NoiseKey.of_seed(5),
        )
        engine.mixer.workers = 1  # the mode does not see other threads
        with Largest() as found[rounded]:
            state = run(engine)
            engine.evaluate(state)
        kinds = {buffer.dtype for buffer in engine.buffers._buffers}
        assert kinds == {torch.float32 if rounded is None else torch.bfloat16}
    assert found[None].numbers >= AGENTS * d
    assert found["bfloat16"].numbers < 3 * d


def test_the_memory_check_counts_two_bytes_per_number():
    plan = plan_of("dsgd")
    wide, narrow = need_of(engine_of(replace(plan, rounded=None))), need_of(engine_of(plan))
    assert narrow.rows == wide.rows / 2
    assert narrow.gradients == 2 * wide.gradients  # few agents: one pass, with a float32 copy of their rows


def test_stacks_and_hostile_agents_with_rounded_rows_are_rejected():
    plan = plan_of("dsgd")
    with pytest.raises(InputError, match="rounded to bfloat16 in a stack of runs"):
        stack_plans([plan])
    shards = blobs(AGENTS)
    with pytest.raises(InputError, match="rounded if agents are hostile"):
        Engine(
            plan,
            ClippedGradients(linear_model(), 1.0),
            shards,
            batches_of(shards),
            seed=0,
            key=NoiseKey.of_seed(0),
            intervention=Intervention(tamper=lambda *_: None),
        )
