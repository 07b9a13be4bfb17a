"""Rounds by a clock and tables, replayed without a GPU, against the engine's own: bit by bit."""

import os
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from builders import PROTOCOLS, batches_of, blobs, constant_schedule, linear_model
from topdp import topology
from topdp.data import selection
from topdp.learning.gradients import ClippedGradients, DivergedError
from topdp.plan import Cycle, Full, Poisson
from topdp.simulator import engine as engine_file
from topdp.simulator.engine import Engine

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("benchmarks/gpu.py compares on a GPU", allow_module_level=True)

from topdp.simulator import stretches, tables
from topdp.simulator.captured import Program
from topdp.simulator.mixing_cuda import Fused
from topdp.simulator.stretches import Stretches, WrongReplayError


def by_calling(warm_up, function):
    """In the place of a recording: the same operations, one call for a replay."""
    warm_up()
    return function


class Quick(Fused):
    """In the place of the kernel, which takes long where it is interpreted: the same, from the same tables."""

    def _launch(self, before, gradient, out, packed, clock, first, round):
        made = len(out)
        if clock is not None:
            position, round = clock.tolist()
            first, stop = packed.starts[position : position + 2].tolist()
            made = stop - first
        _, slot, weight, owner, step, key, draw, std = (part[first : first + made] for part in packed)
        total = torch.zeros(made, out.shape[1])
        for row in range(made):
            for source, share in zip(slot[row].tolist(), weight[row].tolist(), strict=True):
                if share:
                    total[row] += share * before[source]
            if step[row]:
                total[row] += step[row] * gradient[owner[row]]
            for *name, deviation in zip(key[row].tolist(), draw[row].tolist(), std[row].tolist(), strict=True):
                if deviation:
                    drawn = np.random.default_rng([*name, round]).standard_normal(out.shape[1])
                    total[row] += deviation * torch.from_numpy(drawn).float()
        out[:made] = total


@pytest.fixture(autouse=True)
def mixed_as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(engine_file, "_mixer", lambda *arguments: Quick(*arguments))


def shards_of(kind, agents=8):
    shards = blobs(agents)
    if kind != "unequal":
        return shards
    counts = [25 + agent for agent in range(agents)]
    each = [(shards.inputs[i, :k], shards.targets[i, :k]) for i, k in enumerate(counts)]
    return type(shards).from_arrays(each, test=(shards.test_inputs, shards.test_targets), classes=3)


def padded(batches, seed):
    """As `select`, with as much room as tables have: zeros that are added may change how sums are rounded."""
    width = selection.usual_width(batches)

    def select(round, device):
        chosen = selection.select(batches, seed, round, device)
        if chosen.indices is None:
            return chosen
        more = (0, width - chosen.indices.shape[1])
        pad = torch.nn.functional.pad
        return replace(chosen, indices=pad(chosen.indices, more), weights=pad(chosen.weights, more))

    return select


def make(name="top-sync", batches="cycle", kind="equal", rounds=6, deviation=0.3, padding=False, **options):
    graph = topology.random(8, 0.4, 0)
    plan = PROTOCOLS[name](0.25).plan(graph, constant_schedule(rounds, rate=0.5), np.full(8, deviation), 0)
    shards = shards_of(kind)
    gradients = ClippedGradients(linear_model(), 1.0)
    each = tuple(batches_of(shards, batches))
    if padding:
        options["select"] = padded(each, 0)
    return Engine(plan, gradients, shards, each, 0, **options)


def begin(engine):
    return engine.start(engine.gradients.flat.flatten())


def every_state(engine, advance=None, state=None):
    """Rows after each release that is seen, by their number."""
    advance, state = advance or engine.advance, state or begin(engine)
    found = {}
    while state.releases < engine.plan.releases:
        state = advance(state)
        found[state.releases] = state.rows.clone()
    return found


def in_stretches(engine, at_most, **options):
    several = Stretches(engine, by_calling, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = every_state(engine, lambda state: several.advance(state, at_most))
    assert several.reason is None
    return found


def assert_same(found, expected):
    assert found and set(found) <= set(expected)
    for releases, rows in found.items():
        assert torch.equal(rows, expected[releases]), releases


@pytest.mark.parametrize("name", PROTOCOLS)
def test_rounds_of_every_protocol_are_the_engines(name):
    """Among them those that mix alone, and those in which other agents take part each time."""
    expected = every_state(make(name))
    found = in_stretches(make(name), 4)
    assert_same(found, expected)
    assert len(found) == -(-len(expected) // 4)


@pytest.mark.parametrize("kind", ["equal", "unequal"])
@pytest.mark.parametrize("batches", ["full", "cycle", "poisson"])
@pytest.mark.parametrize("at_most", [1, 3, 100])
def test_batches_of_every_kind_are_the_engines(batches, kind, at_most):
    expected = every_state(make(batches=batches, kind=kind, padding=True))
    assert_same(in_stretches(make(batches=batches, kind=kind), at_most), expected)
    without = every_state(make(batches=batches, kind=kind))
    last = max(expected)
    torch.testing.assert_close(expected[last], without[last], rtol=1e-5, atol=1e-6)
