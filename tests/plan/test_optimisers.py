"""Optimisers with memories, applied after the noise: equal to torch's, resumable, with unchanged draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from builders import PROTOCOLS, blobs, constant_schedule, linear_model
from topdp import topology
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients
from topdp.plan import Full, Optimiser, PlanError, optimised, plan_file, prune, schedules
from topdp.plan.noise_key import NoiseKey
from topdp.plan.optimisers import _add_source
from topdp.protocols import Central, Correlated
from topdp.simulator.engine import Engine, Intervention
from topdp.simulator.run_stacking import StackedNoise, stack_plans

RATE = 0.3
LINEAR = {
    "momentum": Optimiser("momentum", momentum=0.8),
    "nesterov": Optimiser("nesterov", momentum=0.8),
    "decay": Optimiser(weight_decay=0.2),
    "average": Optimiser(average=0.7),
    "all": Optimiser("nesterov", momentum=0.6, weight_decay=0.1, average=0.5),
}
ADAM = Optimiser("adam", momentum=0.7, second_moment=0.9, weight_decay=0.05, average=0.5)


def central(optimiser: Optimiser, rounds: int = 12, shards=None, seed: int = 0) -> Engine:
    """An engine for one party: noiseless full-batch descent with a clip that no gradient reaches."""
    rates = np.full(rounds + 1, RATE)
    schedule = schedules.schedule(rates, np.ones(rounds + 1), "gradient")
    plan = Central().plan(topology.single(), optimiser.inner(schedule), np.zeros(1), seed)
    shards = blobs(1) if shards is None else shards
    return Engine(
        optimised(plan, optimiser, rates),
        ClippedGradients(linear_model().double(), 1e6),
        shards,
        [Full(count) for count in shards.counts],
        seed=seed,
        key=NoiseKey.of_seed(seed),
    )


def run_to_the_end(engine: Engine) -> torch.Tensor:
    state = engine.start(engine.gradients.flat.flatten())
    while state.releases < engine.plan.releases:
        state = engine.advance(state)
    return engine.reported(state)


TORCH = {
    "momentum": (Optimiser("momentum", momentum=0.8), lambda p: torch.optim.SGD(p, RATE, momentum=0.8)),
    "nesterov": (
        Optimiser("nesterov", momentum=0.8),
        lambda p: torch.optim.SGD(p, RATE, momentum=0.8, nesterov=True),
    ),
    "decay": (Optimiser(weight_decay=0.2), lambda p: torch.optim.SGD(p, RATE, weight_decay=0.2)),
    "adam": (
        Optimiser("adam", momentum=0.7, second_moment=0.9, weight_decay=0.05),
        lambda p: torch.optim.AdamW(p, RATE, (0.7, 0.9), weight_decay=0.05),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", TORCH)
def test_one_party_without_noise_ends_where_torch_ends(kind):
    optimiser, of_torch = TORCH[kind]
    shards = blobs(1)
    engine = central(optimiser, shards=shards)
    model = linear_model().double()
    steps = of_torch(model.parameters())
    x, y = engine.shards.inputs[0].double(), engine.shards.targets[0]
    for _ in range(13):
        steps.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        steps.step()
    expected = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    torch.testing.assert_close(run_to_the_end(engine)[0], expected, rtol=1e-9, atol=1e-11)


def test_the_average_is_over_the_estimates_before_each_step():
    engine = central(Optimiser(average=0.7))
    state, seen, average = engine.start(engine.gradients.flat.flatten()), [], None
    while state.releases < engine.plan.releases:
        state = engine.advance(state)
        if seen:
            past = min(0.7, 1 - 1 / len(seen))
            average = seen[-1] if average is None else past * average + (1 - past) * seen[-1]
            torch.testing.assert_close(engine.reported(state), average)
        seen.append(engine.estimates(state).clone())
    torch.testing.assert_close(seen[-1], run_to_the_end(central(Optimiser())))


def plan_of(protocol: str, optimiser: Optimiser, rounds: int = 6, seed: int = 0):
    graph = topology.random(8, 0.4, 0)
    rates = schedules.learning_rates(0.5, rounds, "linear")
    schedule = schedules.schedule(rates, schedules.step_decay(0.8, 3, rounds), "gradient")
    plain = PROTOCOLS[protocol](0.25).plan(graph, optimiser.inner(schedule), np.full(8, 0.3), seed)
    return plain, optimised(plain, optimiser, rates)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", LINEAR)
def test_rows_with_gradients_keep_their_draws_readers_and_noise_per_step(protocol, kind):
    plain, plan = plan_of(protocol, LINEAR[kind])
    assert plan.releases == plain.releases
    for before, after in zip(plain, plan, strict=True):
        m = len(before.step)
        np.testing.assert_array_equal(after.draw[:m], before.draw)
        np.testing.assert_array_equal(after.readers[:m], before.readers)
        carries = before.step != 0
        for row in np.flatnonzero(carries):
            np.testing.assert_allclose(after.std[row] / after.step[row], before.std[row] / before.step[row])
        assert not after.step[m:].any() and not after.std[m:].any() and (after.readers[m:] < 0).all()
    assert plan.memories[plain.rows :].all() and not plan.memories[: plain.rows].any()


@pytest.mark.slow
@pytest.mark.parametrize("kind", LINEAR)
@pytest.mark.parametrize("protocol", ["top-sync", "top-async", "correlated"])
def test_pruned_resumed_and_stacked_runs_end_equally(protocol, kind, tmp_path):
    _, plan = plan_of(protocol, LINEAR[kind])
    assert_pruned_and_resumed_runs_end_equally(plan, tmp_path)
    shards = blobs(8)
    gradients = ClippedGradients(linear_model(), 1.0)
    both = [plan, plan_of(protocol, Optimiser(), seed=1)[1]]
    batches = [Full(count) for count in shards.counts] * 2
    noise = StackedNoise(both, [NoiseKey.of_seed(0), NoiseKey.of_seed(1)])
    stacked = Engine(
        stack_plans(both), gradients, shards, batches, seed=0, key=NoiseKey.of_seed(0), draws=noise, copies=2
    )
    alone = Engine(plan, gradients, shards, batches[:8], seed=0, key=NoiseKey.of_seed(0))
    torch.testing.assert_close(run_to_the_end(stacked)[:8], run_to_the_end(alone), rtol=1e-5, atol=1e-6)


def assert_pruned_and_resumed_runs_end_equally(plan, tmp_path):
    plan_file.save(plan, tmp_path / "plan.npz")
    assert plan_file.load(tmp_path / "plan.npz").digest() == plan.digest()
    shards = blobs(8)
    gradients, batches = ClippedGradients(linear_model(), 1.0), [Full(count) for count in shards.counts]
    whole = Engine(
        plan,
        gradients,
        shards,
        batches,
        seed=0,
        key=NoiseKey.of_seed(0),
        intervention=Intervention(every_row=True),
    )
    expected = run_to_the_end(whole).clone()
    pruned = Engine(prune(plan), gradients, shards, batches, seed=0, key=NoiseKey.of_seed(0))
    state = pruned.start(gradients.flat.flatten())
    while state.releases < plan.releases:
        kept = state.rows.clone()
        state = pruned.advance(state)
        # A run that is interrupted within a release resumes from the previous rows, which are unchanged.
        again = pruned.advance(pruned.resume(state.releases - 1, kept))
        torch.testing.assert_close(again.rows, state.rows, rtol=0, atol=0)
        state = pruned.resume(state.releases, state.rows.clone())
    torch.testing.assert_close(pruned.reported(state), expected, rtol=1e-5, atol=1e-6)


def test_adam_adds_one_release_per_round(tmp_path):
    plain, plan = plan_of("correlated", ADAM)
    assert plan.adaptive is not None
    each = plain.releases // 7
    assert plan.releases == 7 * (each + 1)
    np.testing.assert_array_equal(np.flatnonzero(plan.adaptive.rate), np.arange(7) * (each + 1) + each)
    assert plan.memories[plain.rows :].all()
    assert_pruned_and_resumed_runs_end_equally(plan, tmp_path)


@pytest.mark.parametrize("protocol", ["top-sync", "plain-sync", "top-async", "dsgd"])
def test_adam_is_rejected_unless_steps_begin_at_averaged_estimates(protocol):
    with pytest.raises(InputError, match="begin at averaged estimates"):
        plan_of(protocol, ADAM)


def test_plans_with_adam_cannot_be_stacked():
    _, plan = plan_of("correlated", ADAM)
    with pytest.raises(InputError, match="without Adam"):
        stack_plans([plan, plan])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kind": "adagrad"}, "out of sgd"),
        ({"momentum": 1.0}, "momentum < 1"),
        ({"momentum": float("nan")}, "momentum < 1"),
        ({"average": -0.1}, "average < 1"),
        ({"floor": 0.0}, "floor > 0"),
        ({"weight_decay": float("inf")}, "weight_decay >= 0"),
    ],
)
def test_invalid_optimiser_settings_are_rejected(wrong, words):
    with pytest.raises(InputError, match=words):
        Optimiser(**wrong)


def test_weight_decay_that_changes_the_sign_of_parameters_is_rejected():
    plan = Correlated(degree=4).plan(topology.ring(6), constant_schedule(3, rate=2.0), np.ones(6), 0)
    with pytest.raises(InputError, match="change their sign"):
        optimised(plan, Optimiser(weight_decay=0.5), plan.rate)
    with pytest.raises(InputError, match=r"up to 3.8\. .*change their sign"):  # (1 + β) steps
        optimised(plan, Optimiser("nesterov", weight_decay=0.4), plan.rate)


def test_the_digest_covers_the_reported_rows_and_the_adam_steps():
    _, plan = plan_of("correlated", ADAM)
    others = [
        {"reported": None},
        {"adaptive": replace(plan.adaptive, momentum=0.5)},
        {"adaptive": replace(plan.adaptive, rate=plan.adaptive.rate * 0.5)},
        {"adaptive": None},
    ]
    assert len({plan.digest(), *(replace(plan, **other).digest() for other in others)}) == 5


def test_a_plan_with_inconsistent_adam_steps_is_rejected():
    _, plan = plan_of("correlated", ADAM)
    steps = plan.adaptive
    for wrong in (
        {"adaptive": replace(steps, rate=steps.rate[1:])},
        {"adaptive": replace(steps, rate=-steps.rate)},
        {"adaptive": replace(steps, rate=np.roll(steps.rate, 1))},
        {"reported": plan.reported[::-1].copy()},
    ):
        with pytest.raises(PlanError):
            replace(plan, **wrong)


@pytest.mark.parametrize("lacking", ["adam", "adjusts"])
def test_a_file_that_lacks_arrays_of_adam_is_rejected(tmp_path, lacking):
    path = tmp_path / "plan.npz"
    plan_file.save(plan_of("correlated", ADAM)[1], path)
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files if name != lacking}
    np.savez(path, **arrays)
    with pytest.raises(PlanError):
        plan_file.load(path)


def test_a_source_is_never_lost_for_lack_of_an_empty_column():
    rows, weight = np.array([0]), np.array([[0.5, 0.5]])
    with pytest.raises(AssertionError):
        _add_source(np.array([[3, 4]]), weight, rows, np.array([5]), 0.1)
    source = np.array([[3, 4]])
    _add_source(source, weight, rows, np.array([4]), 0.1)
    assert source.tolist() == [[3, 4]] and weight.tolist() == [[0.5, 0.6]]
