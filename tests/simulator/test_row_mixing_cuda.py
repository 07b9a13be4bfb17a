"""The GPU's rows equal the CPU's rows; without a GPU, Triton's interpreter executes the kernels."""

import os
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from builders import PROTOCOLS, batches_of, blobs, constant_schedule, linear_model
from topdp import topology
from topdp.learning.gradients import ClippedGradients
from topdp.plan import prune
from topdp.plan.noise_key import NoiseKey
from topdp.simulator.engine import Engine
from topdp.simulator.row_mixing import CpuMixer, RowWork
from topdp.simulator.run_stacking import StackedNoise, stack_plans
from topdp.simulator.simulated_noise import SimulatedDraws

pytest.importorskip("triton")
from topdp.simulator.row_layout import RowLayout
from topdp.simulator.row_mixing_cuda import CudaMixer, PackedRows

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="a GPU runs the kernel itself"
)


def estimates(name, device, deviation, unpruned=False, stop=None, monkeypatch=None):
    graph = topology.random(8, 0.4, 0)
    plan = PROTOCOLS[name](0.25).plan(graph, constant_schedule(8, rate=0.5), np.full(8, deviation), 0)
    if unpruned:
        monkeypatch.setattr("topdp.simulator.engine.prune", lambda plan: plan)
    gradients = ClippedGradients(linear_model(), 1.0)
    engine = Engine(
        plan,
        gradients,
        blobs(8),
        batches_of(blobs(8), "cycle"),
        seed=0,
        key=NoiseKey.of_seed(0),
        device=device,
    )
    state = engine.start(gradients.flat.flatten())
    while state.releases < plan.releases:
        if state.releases == stop:
            kept = state.rows.cpu().clone()
            engine = Engine(
                plan,
                gradients,
                blobs(8),
                batches_of(blobs(8), "cycle"),
                seed=0,
                key=NoiseKey.of_seed(0),
                device=device,
            )
            state = engine.resume(stop, kept)
            stop = None
        state = engine.advance(state)
    return engine.estimates(state).clone()


@on_a_gpu
@pytest.mark.parametrize("name", PROTOCOLS)
def test_without_noise_gpu_and_cpu_give_the_same_estimates(name):
    torch.testing.assert_close(
        estimates(name, "cuda", 0.0).cpu(), estimates(name, "cpu", 0.0), rtol=1e-3, atol=1e-4
    )


@on_a_gpu
@pytest.mark.parametrize("name", PROTOCOLS)
def test_pruned_resumed_and_whole_runs_are_bit_for_bit_equal(name, monkeypatch):
    whole = estimates(name, "cuda", 0.3)
    assert torch.equal(whole, estimates(name, "cuda", 0.3))
    assert torch.equal(whole, estimates(name, "cuda", 0.3, stop=4))
    assert torch.equal(whole, estimates(name, "cuda", 0.3, unpruned=True, monkeypatch=monkeypatch))


@on_a_gpu
def test_the_noise_is_standard_normal_and_independent_between_draws_and_rounds():
    n, d = 24, 100_003
    graph = topology.ring(n)
    schedule = constant_schedule(3, rate=0.0, noise_on="estimate")
    plan = PROTOCOLS["plain-sync"](1.0).plan(graph, schedule, np.ones(n), 0)
    zeros = torch.zeros(n, d, device="cuda")
    draws = []
    for r in range(plan.releases):
        out = torch.empty(n, d, device="cuda")
        CudaMixer(plan, SimulatedDraws(NoiseKey.of_seed(0), n, plan.releases), torch.device("cuda"))(
            RowWork(round=r, before=zeros, gradient=zeros, out=out)
        )
        draws.append(out.double())
    z = torch.cat(draws)
    assert z.mean().abs() < 5 / z.numel() ** 0.5
    assert (z.var() - 1).abs() < 5 * (2 / z.numel()) ** 0.5
    assert ((z**4).mean() - 3).abs() < 5 * (96 / z.numel()) ** 0.5
    correlation = torch.corrcoef(z) - torch.eye(len(z), device="cuda")
    assert correlation.abs().max() < 6 / d**0.5
    shifted = (z[:, 1:] * z[:, :-1]).mean(dim=1)
    assert shifted.abs().max() < 5 / d**0.5


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize("name", PROTOCOLS)
def test_rows_without_noise_equal_those_of_the_cpu(name):
    graph = topology.random(8, 0.4, 0)
    plan = prune(PROTOCOLS[name](0.25).plan(graph, constant_schedule(4, rate=0.5), np.zeros(8), 0))
    generator = torch.Generator().manual_seed(0)
    wide = torch.zeros(2, 200, 64)  # rows that are not contiguous
    before = torch.randn(8, 50, generator=generator)
    noise = SimulatedDraws(NoiseKey.of_seed(0), plan.draws, plan.releases)
    mixers = CpuMixer(plan, noise), CudaMixer(plan, noise, torch.device("cpu"))
    for r in range(plan.releases):
        gradient = torch.randn(8, 50, generator=generator)
        made = int(plan.exists[r].sum())
        outs = [wide[k, :made, :50] for k in range(2)]
        for mixer, out in zip(mixers, outs, strict=True):
            mixer(RowWork(round=r, before=before, gradient=gradient, out=out))
        torch.testing.assert_close(*outs)
        before = outs[0].clone()


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize("name", ["top-sync", "plain-async", "correlated"])
def test_rounded_rows_are_float32_sums_rounded_once(name):
    """From the same previous rows: bit for bit the float32 sums as torch rounds them."""
    graph = topology.random(8, 0.4, 0)
    plan = prune(PROTOCOLS[name](0.25).plan(graph, constant_schedule(3, rate=0.5), np.full(8, 0.3), 0))
    generator, device = torch.Generator().manual_seed(0), torch.device("cpu")
    noise = SimulatedDraws(NoiseKey.of_seed(0), plan.draws, plan.releases)
    wide, narrow = CudaMixer(plan, noise, device), CudaMixer(replace(plan, rounded="bfloat16"), noise, device)
    before = torch.randn(8, 50, generator=generator).bfloat16()
    for r in range(3):
        gradient = torch.randn(8, 50, generator=generator)
        expected = torch.empty(int(plan.exists[r].sum()), 50)
        out = torch.empty(expected.shape, dtype=torch.bfloat16)
        wide(RowWork(round=r, before=before.float(), gradient=gradient, out=expected))
        narrow(RowWork(round=r, before=before, gradient=gradient, out=out))
        assert torch.equal(out, expected.bfloat16())
        before = out


@interpreted
def test_rounding_keeps_nan_and_infinities():
    plan = PROTOCOLS["dsgd"](0.5).plan(topology.ring(3), constant_schedule(1, rate=0.0), np.zeros(3), 0)
    odd = torch.tensor([torch.nan, -torch.nan, torch.inf, -torch.inf, 3.4e38, 1 + 2**-8, 1 + 3 * 2**-8])
    odd = odd.view(torch.int32).clone()
    odd[0] = 0x7FFFFFFF  # the NaN that a GPU makes
    before, out = odd.view(torch.float32).repeat(3, 1), torch.empty(3, 7, dtype=torch.bfloat16)
    mixer = CudaMixer(
        replace(plan, rounded="bfloat16"), SimulatedDraws(NoiseKey.of_seed(0), 3, 2), torch.device("cpu")
    )
    mixer(RowWork(round=0, before=before, gradient=before, out=out))
    torch.testing.assert_close(out, before.bfloat16(), rtol=0, atol=0, equal_nan=True)


@interpreted
def test_only_the_requested_rows_are_computed():
    plan = prune(
        PROTOCOLS["top-sync"](0.25).plan(
            topology.random(8, 0.4, 0), constant_schedule(3, rate=0.5), np.full(8, 0.3), 0
        )
    )
    mixer = CudaMixer(
        plan, SimulatedDraws(NoiseKey.of_seed(0), plan.draws, plan.releases), torch.device("cpu")
    )
    before, gradient = (torch.randn(count, 50) for count in (int(plan.exists[0].sum()), 8))
    owner = plan.owner[plan.exists[1]]
    whole, parts = (torch.full((len(owner), 50), torch.nan) for _ in range(2))
    mixer(RowWork(round=1, before=before, gradient=gradient, out=whole))
    for first in (0, 3, 6):
        only = np.flatnonzero((owner >= first) & (owner < first + 3))
        mixer(
            RowWork(
                round=1,
                before=before,
                gradient=gradient[first : first + 3],
                out=parts,
                only=only,
                first=first,
            )
        )
        assert torch.isnan(parts[np.flatnonzero(owner >= first + 3)]).all()
    mixer(RowWork(round=1, before=before, gradient=gradient, out=parts, only=np.empty(0, np.int64)))
    assert torch.equal(parts, whole)


@pytest.mark.slow
@interpreted
def test_noise_is_standard_normal_and_determined_by_round_and_draw():
    plan = PROTOCOLS["plain-sync"](1.0).plan(
        topology.ring(3), constant_schedule(2, rate=0.0, noise_on="estimate"), np.ones(3), 0
    )
    mixer = CudaMixer(
        plan, SimulatedDraws(NoiseKey.of_seed(0), plan.draws, plan.releases), torch.device("cpu")
    )
    zeros = torch.zeros(3, 20_000)
    draws = []
    for r in (0, 1, 1):
        out = torch.empty_like(zeros)
        mixer(RowWork(round=r, before=zeros, gradient=zeros, out=out))
        draws.append(out)
    assert torch.equal(draws[1], draws[2])
    noise = torch.cat(draws[:2]).double()
    assert noise.mean(1).abs().max() < 5 / 20_000**0.5
    assert (noise.var(1) - 1).abs().max() < 5 * (2 / 20_000) ** 0.5
    others = torch.corrcoef(noise) - torch.eye(6)
    assert others.abs().max() < 5 / 20_000**0.5


@interpreted
def test_a_run_in_a_stack_has_the_draws_of_the_run_alone():
    """The second run has no noise."""
    deviations, seeds, ring = (1.0, 0.0, 2.0), (3, 4, 5), topology.ring(3)
    schedule = constant_schedule(2, rate=0.0, noise_on="estimate")
    plans = [
        prune(PROTOCOLS[name](0.5).plan(ring, schedule, np.full(3, deviation), 0))
        for name, deviation in zip(("top-sync", "plain-sync", "plain-sync"), deviations, strict=True)
    ]

    def first_round(plan, noise):
        out = torch.empty(int(plan.exists[0].sum()), 40)
        start = torch.zeros(plan.agents, 40)
        CudaMixer(plan, noise, torch.device("cpu"))(RowWork(round=0, before=start, gradient=start, out=out))
        return out[: plan.agents]

    alone = [
        first_round(plan, SimulatedDraws(NoiseKey.of_seed(seed), plan.draws, plan.releases))
        for plan, seed in zip(plans, seeds, strict=True)
    ]
    together = first_round(stack_plans(plans), StackedNoise(plans, list(map(NoiseKey.of_seed, seeds))))
    assert torch.equal(together, torch.cat(alone))
    assert not together[3:6].any() and together[:3].all() and together[6:].all()


@interpreted
def test_draws_are_normal_numbers_of_the_keystream():
    """The oracle is the cipher of another library, and Box and Muller in float64."""
    plan = PROTOCOLS["plain-sync"](1.0).plan(
        topology.ring(3), constant_schedule(2, rate=0.0, noise_on="estimate"), np.ones(3), 0
    )
    noise = SimulatedDraws(NoiseKey(bytes(range(100, 132))), plan.draws, plan.releases)
    zeros, out = torch.zeros(3, 4096 + 70), torch.empty(3, 4096 + 70)
    CudaMixer(plan, noise, torch.device("cpu"))(RowWork(round=1, before=zeros, gradient=zeros, out=out))
    for draw in range(3):
        nonce = np.array([0, 1, draw, 0], "<u4").tobytes()  # the first counter, the round, the draw
        cipher = Cipher(algorithms.ChaCha20(noise.keys[0].tobytes(), nonce), mode=None).encryptor()
        words = np.frombuffer(cipher.update(bytes(4 * 64 * 66)), "<u4").reshape(-1, 2)
        radius = np.sqrt(-2 * np.log(((words[:, 0] & 0x7FFFFFFF) + 0.5) * 2.0**-31))
        angle = words[:, 1] * (2 * np.pi * 2.0**-32)
        # The order within a cipher block is that of the kernel; blocks stand one after the other.
        expected = np.sort(np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1, 16))
        found = np.sort(out[draw, :4160].double().numpy().reshape(-1, 16))
        np.testing.assert_allclose(found, expected[: len(found)], atol=2e-5)


def packed_one_by_one(plan, noise, layout, rounds):
    parts, starts = [[] for _ in range(7)], [0]
    for r in rounds:
        this, rows = plan[r], layout.made(r)
        source, draw = this.source[rows], this.draw[rows]
        absent, silent = source < 0, draw < 0
        run, _, number = np.moveaxis(noise.names(r, np.where(silent, 0, draw)), -1, 0)
        columns = (
            np.where(absent, 0, layout.place(r)[source]),
            np.where(absent, 0.0, this.weight[rows]),
            layout.place_of[plan.owner[rows]],
            this.step[rows],
            run,
            number,
            np.where(silent, 0.0, this.std[rows]),
        )
        for part, column in zip(parts, columns, strict=True):
            part.append(column)
        starts.append(starts[-1] + len(rows))
    whole, real = np.int32, np.float32
    types = (whole, real, whole, real, whole, whole, real)
    joined = [np.concatenate(part).astype(kind) for part, kind in zip(parts, types, strict=True)]
    return PackedRows.of(map(torch.from_numpy, (np.array(starts, whole), *joined)))


@interpreted
@pytest.mark.parametrize("name", PROTOCOLS)
def test_packing_rounds_at_once_equals_packing_them_one_by_one(name):
    graph = topology.random(8, 0.4, 0)
    plan = prune(PROTOCOLS[name](0.25).plan(graph, constant_schedule(6, rate=0.5), np.full(8, 0.3), 0))
    noise = SimulatedDraws(NoiseKey.of_seed(0), plan.draws, plan.releases)
    half = RowLayout(plan, home=np.arange(8) % 2, here=1)  # with rows from another part
    for layout in (RowLayout(plan), half):
        mixer = CudaMixer(plan, noise, torch.device("cpu"), layout)
        for rounds in (range(plan.releases), range(1), range(2, 5)):
            at_once, one_by_one = mixer.packed(rounds), packed_one_by_one(plan, noise, layout, rounds)
            for field in fields(at_once):
                one, other = getattr(at_once, field.name), getattr(one_by_one, field.name)
                assert one.dtype == other.dtype and torch.equal(one, other), field.name


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize("d", [50, 1100])  # less than one block, and more than one block
def test_a_clock_in_device_memory_selects_the_round(d):
    graph = topology.random(6, 0.5, 0)
    plan = prune(PROTOCOLS["top-sync"](0.25).plan(graph, constant_schedule(5, rate=0.5), np.ones(6), 0))
    mixer = CudaMixer(
        plan, SimulatedDraws(NoiseKey.of_seed(0), plan.draws, plan.releases), torch.device("cpu")
    )
    packed, room = mixer.packed(range(2, 5)), int(plan.exists.sum(axis=1).max()) + 2
    before, gradient = torch.randn(room, d), torch.randn(6, d)
    clock = torch.tensor([0, 2], dtype=torch.int32)
    for r in range(2, 5):
        made = int(plan.exists[r].sum())
        expected, out = torch.empty(made, d), torch.full((room, d), 7.0)
        mixer(RowWork(round=r, before=before, gradient=gradient, out=expected))
        mixer.by_clock(before, gradient, out, packed, clock)
        assert torch.equal(out[:made], expected)
        assert (out[made:] == 7).all()  # nothing is written beyond the rows of the round
        clock += 1
