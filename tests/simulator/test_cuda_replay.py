"""CUDA replay, tested without a GPU: replayed rounds equal the engine's own rounds bit for bit."""

import gc
import os
import sys
import warnings
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from builders import PROTOCOLS, batches_of, blobs, constant_schedule, linear_model
from topdp import topology
from topdp.data import batch_selection
from topdp.learning.gradients import ClippedGradients, DivergedError
from topdp.learning.gradients.gradient_checks import FailureFlags
from topdp.plan import prune
from topdp.plan.noise_key import NoiseKey
from topdp.simulator import engine as engine_file
from topdp.simulator.engine import Engine, Intervention, WrongReplayError
from topdp.simulator.run_stacking import StackedBatches, StackedNoise, stack_plans, stack_shards

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("benchmarks/gpu.py compares on a GPU", allow_module_level=True)

from replays import Quick, Written, by_calling
from topdp.simulator import cuda_replay, round_tables
from topdp.simulator.cuda_program import RoundProgram
from topdp.simulator.cuda_replay import CudaReplay
from topdp.simulator.row_mixing_cuda import CudaMixer


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """Use the mixer that a GPU uses."""
    monkeypatch.setattr(engine_file, "_mixer", lambda *arguments: Quick(*arguments))


def shards_of(kind, agents=8):
    shards = blobs(agents)
    if kind != "unequal":
        return shards
    counts = [25 + agent for agent in range(agents)]
    each = [(shards.inputs[i, :k], shards.targets[i, :k]) for i, k in enumerate(counts)]
    return type(shards).from_arrays(each, test=(shards.test_inputs, shards.test_targets), classes=3)


def padded(batches, seed):
    """Like `select`, padded to the width of the tables: adding zeros may change how sums are rounded."""
    width = batch_selection.typical_batch_width(batches)

    def select(round, device):
        chosen = batch_selection.select(batches, seed, round, device, NoiseKey.of_seed(seed))
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
    return Engine(plan, gradients, shards, each, seed=0, key=NoiseKey.of_seed(0), **options)


def begin(engine):
    return engine.start(engine.gradients.flat.flatten())


def every_state(engine, advance=None, state=None):
    """The rows after each visible release, by the number of releases."""
    advance, state = advance or engine.advance, state or begin(engine)
    found = {}
    while state.releases < engine.plan.releases:
        state = advance(state)
        found[state.releases] = state.rows.clone()
    return found


def replayed(engine, at_most, record=by_calling):
    several = CudaReplay(engine, record)
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
def test_replayed_rounds_of_every_protocol_equal_the_engines(name):
    """They include averaging steps, and rounds in which different agents take part."""
    expected = every_state(make(name))
    found = replayed(make(name), 4)
    assert_same(found, expected)
    assert len(found) == -(-len(expected) // 4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["equal", "unequal"])
@pytest.mark.parametrize("batches", ["full", "cycle", "poisson"])
@pytest.mark.parametrize("at_most", [1, 3, 100])
def test_replayed_rounds_with_all_kinds_of_batches_equal_the_engines(batches, kind, at_most):
    expected = every_state(make(batches=batches, kind=kind, padding=True))
    assert_same(replayed(make(batches=batches, kind=kind), at_most), expected)
    without = every_state(make(batches=batches, kind=kind))
    last = max(expected)
    torch.testing.assert_close(expected[last], without[last], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["top-sync", "muffliato"])
@pytest.mark.parametrize("batches", ["full", "cycle", "poisson"])
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_recorded_tensor_operations_suffice_to_replay_rounds(monkeypatch, name, batches, kind):
    """Replays need no result of Python code, in other rounds and with other tables."""
    monkeypatch.setattr(round_tables, "MAX_CHUNK_ROUNDS", 3)

    def another(**options):
        one = make(name, batches, "unequal", padding=True, **options)
        gradients = ClippedGradients(network(kind), 0.1)
        return Engine(
            one.plan, gradients, one.shards, one.batches, seed=0, key=NoiseKey.of_seed(0), select=one.select
        )

    assert_same(replayed(another(), 4, Written), every_state(another()))


def test_recorded_tensor_operations_leave_out_records_that_are_not_finite():
    expected = every_state(with_record(make(batches="full"), float("nan")))
    engine = with_record(make(batches="full"), float("nan"))
    several = CudaReplay(engine, Written)
    assert_same(every_state(engine, lambda s: several.advance(s, 3)), expected)
    assert several.reason is None and several._blanks and several._replays


def test_replayed_rounds_with_the_real_kernel_equal_the_engines(monkeypatch):
    monkeypatch.setattr(engine_file, "_mixer", lambda *arguments: CudaMixer(*arguments))
    graph = topology.ring(3)
    plan = PROTOCOLS["top-sync"](0.25).plan(graph, constant_schedule(2, rate=0.5), np.full(3, 0.3), 0)
    ends = []
    for several in (False, True):
        engine = Engine(
            plan,
            ClippedGradients(linear_model(), 1.0),
            blobs(3),
            batches_of(blobs(3), "cycle"),
            seed=0,
            key=NoiseKey.of_seed(0),
        )
        ends.append(replayed(engine, 9) if several else every_state(engine))
    assert_same(ends[1], ends[0])


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("ahead", [False, True])
def test_replays_continue_over_several_tables(monkeypatch, length, ahead):
    expected = every_state(make(rounds=9, batches="poisson", padding=True))
    monkeypatch.setattr(round_tables, "MAX_CHUNK_ROUNDS", length)
    if ahead:
        real = round_tables.RoundTables
        monkeypatch.setattr(cuda_replay, "RoundTables", lambda *parts, ahead: real(*parts, ahead=True))
    assert_same(replayed(make(rounds=9, batches="poisson"), 4), expected)


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_a_run_resumed_from_any_round_is_replayed_equally(stop):
    whole = replayed(make(batches="poisson"), 1)
    engine = make(batches="poisson")
    several = CudaReplay(engine, by_calling)
    found = every_state(engine, lambda s: several.advance(s, 3), engine.resume(stop, whole[stop]))
    assert several.reason is None
    assert_same(found, whole)


def test_evaluations_between_replays_agree_and_change_nothing():
    ends = []
    for several in (False, True):
        engine = make()
        advance = CudaReplay(engine, by_calling).advance if several else lambda s, _, e=engine: e.advance(s)
        state, losses = begin(engine), []
        while state.releases < engine.plan.releases:
            state = advance(state, 2)
            if state.releases in (2, 4, 6):
                losses.append(engine.evaluate(state).loss)
        ends.append((np.stack(losses), state.rows.clone()))
    assert np.array_equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])


def with_record(engine, value, agent=2):
    engine.shards.inputs[agent, 5] = value
    return engine


@pytest.mark.parametrize("value", [3e38, float("inf"), float("nan")])
@pytest.mark.parametrize("batches", ["full", "cycle"])
def test_a_record_that_overflows_adds_nothing(batches, value):
    """It is detected after its first round, and from then on left out in every round."""
    expected = every_state(with_record(make(batches=batches), value))
    engine = with_record(make(batches=batches), value)
    several = CudaReplay(engine, by_calling)
    assert_same(every_state(engine, lambda s: several.advance(s, 3)), expected)
    assert several.reason is None and several._blanks
    assert several._program.watch.blanks and several._replays  # and replays continued


def test_an_overflowing_record_that_is_not_left_out_spreads():
    """So the tests above can fail."""
    engine = with_record(make(batches="full"), float("nan"))
    several = CudaReplay(engine, by_calling)
    program, chunks = several._ready()
    program.load(chunks.chunk(0))
    program.begin(begin(engine), chunks.chunk(0))
    program.make_round(0, True)
    assert program.sums[2].isnan().any() and not program.sums[3].isnan().any()
    assert program.watch.read() == (True, False)


@pytest.mark.parametrize("at", [0, 3])
def test_a_run_that_diverges_within_a_replay_names_its_agents(at, monkeypatch):
    """The same agents in the same round as round by round; and the previous state is unchanged."""

    def blown_up():
        engine = make(name="plain-sync", rounds=7)
        real = engine.mixer.packed

        def packed(rounds):
            found = real(rounds)
            if at in rounds:
                position = at - rounds.start
                found.weight[int(found.starts[position]) + 4, 0] = 3e38
            return found

        engine.mixer.packed = packed
        return engine

    def until_it_ends(engine, advance):
        state = begin(engine)
        with pytest.raises(DivergedError) as ended:
            while True:
                before, rows = state, state.rows.clone()
                state = advance(state)
        return before.releases, str(ended.value), torch.equal(before.rows, rows)

    engine = blown_up()
    expected = until_it_ends(engine, engine.advance)
    engine = blown_up()
    several = CudaReplay(engine, by_calling)
    assert until_it_ends(engine, lambda s: several.advance(s, 4)) == expected
    assert expected[0] == at + 1 and "[4]" in expected[1] and expected[2]


class Frozen:
    """Recordings of which one part never changes, from `after` replays on."""

    def __init__(self, monkeypatch, what, after=0):
        self.what, self.after = what, after
        real = RoundProgram.load
        self.loads = 0

        def load(program, chunk):
            self.program = program
            self.loads += 1
            if what != "tables" or self.loads == 1:
                real(program, chunk)

        monkeypatch.setattr(RoundProgram, "load", load)

    def __call__(self, warm_up, function):
        clock = self.program._clock.clone()
        count = 0

        def replay():
            nonlocal count
            count += 1
            if self.what == "clock" and count > self.after:
                self.program._clock.copy_(clock)
            function()

        return replay


@pytest.mark.parametrize("what", ["clock", "tables"])
@pytest.mark.parametrize("name", ["top-sync", "muffliato"])
def test_a_frozen_part_of_a_recording_is_detected_and_results_are_correct(monkeypatch, what, name):
    expected = every_state(make(name))
    monkeypatch.setattr(round_tables, "MAX_CHUNK_ROUNDS", 2)
    engine = make(name)
    several = CudaReplay(engine, Frozen(monkeypatch, what))
    with pytest.warns(UserWarning, match="one by one on this device: the (rows|gradients) of round"):
        assert_same(every_state(engine, lambda s: several.advance(s, 6)), expected)


def test_a_clock_that_stops_after_the_first_check_ends_the_run(monkeypatch):
    engine = make(rounds=20)
    several = CudaReplay(engine, Frozen(monkeypatch, "clock", after=3))
    with pytest.raises(WrongReplayError, match=r"round 14 .* correct before, differs: .*TOPDP_EAGER=1"):
        every_state(engine, lambda s: several.advance(s, 9))


def test_a_replay_with_wrong_noise_is_detected(monkeypatch):
    """However small the noise is: rows are compared bit for bit, given the gradients."""
    engine = make("plain-sync", batches="full", deviation=1e-9)
    real = CudaMixer.by_clock

    def another(self, before, gradient, out, packed, clock):
        real(self, before, gradient, out, packed, clock + torch.tensor([0, 1], dtype=torch.int32))

    monkeypatch.setattr(CudaMixer, "by_clock", another)
    several = CudaReplay(engine, by_calling)
    with pytest.warns(UserWarning, match="the rows of round 0 differ"):
        several.advance(begin(engine), 3)


@pytest.mark.parametrize("error", [RuntimeError("no"), torch.OutOfMemoryError("CUDA out of memory. Tried")])
@pytest.mark.parametrize("nth", [1, 2])
def test_after_a_failed_recording_rounds_are_executed_one_by_one(error, nth):
    expected = every_state(make())
    engine, calls = make(), []

    def record(warm_up, function):
        calls.append(function)
        warm_up()
        if len(calls) == nth:
            try:
                raise error
            finally:
                if nth == 2:
                    raise RuntimeError("capture_end: what was broken off does not end well")
        return function

    several = CudaReplay(engine, record)
    with pytest.warns(UserWarning, match=f"one by one on this device: {type(error).__name__}: ") as said:
        assert_same(every_state(engine, lambda s: several.advance(s, 4)), expected)
    assert len(said) == 1 and several._program is None


def test_an_interrupt_leaves_the_previous_state_unchanged(monkeypatch):
    engine = make()
    several = CudaReplay(engine, by_calling)
    state = several.advance(begin(engine), 2)
    rows, real = state.rows.clone(), RoundProgram.make_round

    def interrupted(program, *kind):
        real(program, *kind)
        if int(program._clock[1]) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(RoundProgram, "make_round", interrupted)
    with pytest.raises(KeyboardInterrupt):
        several.advance(state, 4)
    assert torch.equal(state.rows, rows)
    monkeypatch.undo()


def test_an_engine_knows_which_states_it_has_overwritten():
    engine = make()
    first = begin(engine)
    one = engine.advance(first)
    two = engine.advance(one)
    assert engine.holds(first) and engine.holds(one) and engine.holds(two)
    three = engine.advance(two)
    assert engine.holds(first) and not engine.holds(one) and engine.holds(two) and engine.holds(three)
    several = CudaReplay(engine, by_calling)
    four = several.advance(three, 1)
    assert engine.holds(three) and engine.holds(four)
    six = several.advance(four, 2)
    assert engine.holds(six) and not engine.holds(four)


@pytest.mark.slow
@pytest.mark.parametrize("line", range(0, 240, 2))
def test_after_an_interrupt_on_any_line_the_state_is_unchanged_or_not_held(line):
    engine = make("plain-sync", batches="full", rounds=5)
    several = CudaReplay(engine, by_calling)
    state = several.advance(begin(engine), 2)
    rows, left = state.rows.clone(), line

    def trace(frame, event, argument):
        nonlocal left
        if not frame.f_code.co_filename.endswith(("cuda_replay.py", "cuda_program.py", "row_buffers.py")):
            return None
        left -= event == "line"
        if left < 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        found = several.advance(state, 4)
        sys.settrace(before)
    except KeyboardInterrupt:
        assert not engine.holds(state) or torch.equal(state.rows, rows)
    else:
        assert engine.holds(found) and not engine.holds(state)
    finally:
        sys.settrace(before)


def test_an_unreferenced_engine_is_freed_with_its_tables(monkeypatch):
    """Also in the middle of a run, while tables are being prepared."""
    monkeypatch.setattr(round_tables, "MAX_CHUNK_ROUNDS", 2)
    real = round_tables.RoundTables
    monkeypatch.setattr(cuda_replay, "RoundTables", lambda *parts, ahead: real(*parts, ahead=True))
    engine = make()
    several = CudaReplay(engine, by_calling)
    state = several.advance(begin(engine), 9)
    assert several._tables._next is not None
    several._tables._pool.shutdown()
    gone = weakref.ref(several._tables)
    gc.disable()
    try:
        del engine, several, state
        assert gone() is None
    finally:
        gc.enable()


def test_a_round_with_more_records_than_the_tables_hold_is_executed_separately(monkeypatch):
    whole = every_state(make(batches="poisson"))
    monkeypatch.setattr(batch_selection, "typical_batch_width", lambda batches: 11)
    engine = make(batches="poisson")
    wide = [engine.select(r, engine.device).indices.shape[1] > 11 for r in range(7)]
    assert any(wide) and not all(wide)
    several = CudaReplay(engine, by_calling)
    found = every_state(engine, lambda s: several.advance(s, 9))
    assert several.reason is None and several._replays
    torch.testing.assert_close(found[7], whole[7], rtol=1e-5, atol=1e-6)


def test_rounds_are_checked_with_the_padding_of_the_replay(monkeypatch):
    """With other shapes, products may be rounded differently; the recording is still correct."""
    real = ClippedGradients.clipped_sum

    def by_width(self, rows, inputs, *rest, out, **options):
        return real(self, rows, inputs, *rest, out=out, **options).mul_(1 + 0.01 * inputs.shape[1])

    monkeypatch.setattr(ClippedGradients, "clipped_sum", by_width)
    widths = {make(batches="poisson").select(r, torch.device("cpu")).indices.shape[1] for r in range(13)}
    assert len(widths) > 1
    replayed(make(batches="poisson", rounds=12), 20)


def test_tables_are_sent_again_after_an_interrupt(monkeypatch):
    expected = every_state(make(rounds=9))
    monkeypatch.setattr(round_tables, "MAX_CHUNK_ROUNDS", 4)
    engine, real, loads = make(rounds=9), RoundProgram.load, []
    several = CudaReplay(engine, by_calling)

    def interrupted(program, chunk):
        loads.append(chunk.rounds.start)
        if len(loads) == 2:
            raise KeyboardInterrupt
        real(program, chunk)

    monkeypatch.setattr(RoundProgram, "load", interrupted)
    state = several.advance(begin(engine), 9)
    with pytest.raises(KeyboardInterrupt):
        several.advance(state, 9)
    assert_same(every_state(engine, lambda s: several.advance(s, 9), state), expected)
    assert loads == [0, 4, 4, 8] and several.reason is None


def test_new_recordings_use_a_new_memory_pool(monkeypatch):
    """torch does not record into a memory pool whose last recording was deleted."""
    made = []
    monkeypatch.setattr(cuda_replay, "CudaGraphs", lambda device: made.append(device) or by_calling)
    monkeypatch.setattr(cuda_replay, "supports", lambda *_: None)
    engine = with_record(make(batches="full"), float("nan"))
    several = CudaReplay(engine)
    every_state(engine, lambda s: several.advance(s, 3))
    assert several._blanks and several._replays and len(made) == 2


def test_an_error_while_freeing_memory_does_not_end_the_run(monkeypatch):
    def fails():
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    engine = make()
    several = CudaReplay(engine, by_calling)
    monkeypatch.setattr(torch.cuda, "empty_cache", fails)
    monkeypatch.setattr(engine, "device", torch.device("cuda"))
    with pytest.warns(UserWarning, match="one by one on this device: as asked"):
        several._give_up("as asked")
    assert several.reason == "as asked"


def test_released_buffers_are_not_written():
    engine = make()
    several = CudaReplay(engine, by_calling)
    expected = every_state(make())
    state = several.advance(begin(engine), 3)
    state = engine.resume(state.releases, state.rows.clone())
    engine.release_buffers()
    assert_same(every_state(engine, lambda s: several.advance(s, 3), state), expected)
    assert several._program.buffers[0] is engine.buffers.of(0)


def test_norms_that_overflow_only_together_end_the_replay_not_the_run(monkeypatch):
    """The engine continues if each row has a finite norm; a recording cannot tell these cases apart."""
    expected, engine = every_state(make(rounds=20)), make(rounds=20)
    several = CudaReplay(engine, by_calling)
    monkeypatch.setattr(FailureFlags, "read", lambda self: (False, True))
    assert_same(every_state(engine, lambda s: several.advance(s, 2)), expected)
    assert several.reason == "norms of rows overflow" and several._program is None


def test_unsupported_engines_are_not_recorded_and_have_a_reason(monkeypatch):
    assert CudaReplay(make()).reason == "there is no CUDA device"
    assert (
        "changes rounds"
        in CudaReplay(make(intervention=Intervention(plant=lambda *_: None)), by_calling).reason
    )
    assert (
        "changes rounds"
        in CudaReplay(make(intervention=Intervention(tamper=lambda *_: None)), by_calling).reason
    )
    engine = make()
    double = ClippedGradients(linear_model().double(), 1.0)
    args = (engine.plan, double, engine.shards, engine.batches)
    assert "float32" in CudaReplay(Engine(*args, seed=0, key=NoiseKey.of_seed(0)), by_calling).reason
    rounded = replace(engine.plan, rounded="bfloat16")
    args = (rounded, engine.gradients, engine.shards, engine.batches)
    assert (
        CudaReplay(Engine(*args, seed=0, key=NoiseKey.of_seed(0)), by_calling).reason
        == "the plan needs rows rounded to bfloat16"
    )
    drops = ClippedGradients(torch.nn.Sequential(linear_model(), torch.nn.Dropout(0.5)), 1.0)
    engine = make()
    args = (engine.plan, drops, engine.shards, engine.batches)
    assert "random" in CudaReplay(Engine(*args, seed=0, key=NoiseKey.of_seed(0)), by_calling).reason
    monkeypatch.setenv("TOPDP_EAGER", "1")
    assert CudaReplay(engine, by_calling).reason == "TOPDP_EAGER is set"
    monkeypatch.setenv("TOPDP_EAGER", "0")
    assert CudaReplay(engine, by_calling).reason is None
    monkeypatch.setattr(engine_file, "_mixer", lambda *arguments: print)
    assert "one kernel" in CudaReplay(make(), by_calling).reason


def test_close_accepts_rounding_errors_and_detects_other_means():
    mean = torch.randn(4, 50)
    assert cuda_replay._close(mean * (1 + 1e-4), mean, 1.0)
    assert cuda_replay._close(mean + 1e-8, mean, 1.0) and cuda_replay._close(0 * mean, 0 * mean, 1.0)
    other = mean.clone()
    other[2] += 0.01 * torch.randn(50)
    assert not cuda_replay._close(other, mean, 1.0)
    other[2, 0] = torch.nan
    assert not cuda_replay._close(other, mean, 1e9)


def test_a_model_with_user_code_is_executed_round_by_round():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = linear_model()

        def forward(self, x):
            return self.layer(x).tanh()

    engine = make()
    ends = []
    for several in (False, True):
        one = Engine(
            engine.plan,
            ClippedGradients(Own(), 1.0),
            engine.shards,
            engine.batches,
            seed=0,
            key=NoiseKey.of_seed(0),
        )
        many = CudaReplay(one, by_calling)
        ends.append(every_state(one, (lambda s, m=many: m.advance(s, 4)) if several else None))
        assert not several or "known layers" in many.reason
    assert_same(ends[1], ends[0])


class WaitsError(Exception):
    pass


class NoWaiting(TorchDispatchMode):
    """Reject operations that copy a number from or to the device: they cannot be recorded."""

    WAITING = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "equal.default",
        "unique",
        "_to_copy",
        "lift",
    )

    def __torch_dispatch__(self, function, types, arguments=(), others=None):
        if any(name in str(function) for name in self.WAITING) and "not_equal" not in str(function):
            raise WaitsError(str(function))
        return function(*arguments, **(others or {}))


def network(kind):
    torch.manual_seed(0)
    if kind == "mlp":
        layers = [nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3)]
    elif kind == "cnn":
        layers = [
            nn.Conv2d(1, 2, 2),
            nn.GroupNorm(1, 2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2, 3),
        ]
    else:
        layers = [nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 3)]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("clipping", ["flat", "per-layer", "normalised"])
@pytest.mark.parametrize("kind", ["mlp", "cnn", "norms"])
@pytest.mark.parametrize("blanks", [False, True])
def test_gradients_with_failure_flags_never_wait_for_the_device(kind, clipping, blanks):
    """They equal the gradients that wait, also if a record overflows and is left out."""
    gradients = ClippedGradients(network(kind), 1.0, clipping=clipping)
    rows = gradients.flat.flatten().repeat(4, 1)
    x, y = torch.randn(4, 6, 1, 4, 4), torch.randint(0, 3, (4, 6))
    if blanks:
        x[1, 2] = torch.nan
    expected, watch = gradients.clipped_sum(rows, x, y), FailureFlags(rows.device, blanks)
    out = torch.empty_like(expected)
    with gradients.noting_failures(watch), NoWaiting():
        gradients.clipped_sum(rows, x, y, out=out, fresh=True)
    assert torch.equal(out, expected) and all(watch.read())
    with NoWaiting(), pytest.raises(WaitsError, match="_local_scalar_dense"):  # so the check can fail
        gradients.clipped_sum(rows, x, y, out=out, fresh=True)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, gradients.noting_failures(watch):
        made_up = [fake.from_tensor(part) for part in (rows, x, y)]
        gradients.clipped_sum(*made_up, out=fake.from_tensor(out), fresh=True)


@pytest.mark.parametrize("batches", ["full", "cycle", "poisson"])
def test_a_recorded_round_never_waits_for_the_device(monkeypatch, batches):
    monkeypatch.setattr(CudaMixer, "by_clock", lambda self, before, gradient, out, packed, clock: None)
    engine = make(batches=batches, kind="unequal")
    program, chunks = CudaReplay(engine, by_calling)._ready()
    program.load(chunks.chunk(0))
    program.begin(begin(engine), chunks.chunk(0))
    program.make_round(0, True)
    with NoWaiting():
        program.make_round(1, True)
        program.make_round(0, False)
    assert program._clock.tolist() == [3, 3]
    monkeypatch.setattr(program, "_clock", torch.tensor([0, 0], dtype=torch.int32))
    monkeypatch.setattr(CudaMixer, "by_clock", lambda *_: int(program._clock[0]))
    with NoWaiting(), pytest.raises(WaitsError):  # so the check can fail
        program.make_round(0, True)


def test_failure_flags_note_rows_and_examples_that_are_not_finite():
    watch = FailureFlags(torch.device("cpu"))
    watch.note_rows(torch.ones(2, 3))
    assert watch.read() == (True, True)
    for value in (torch.nan, torch.inf):
        watch.note_rows(torch.tensor([[1.0, value]]))
        watch.note_rows(torch.ones(2, 3))  # a flag remains set
        assert watch.read() == (False, True)
        watch.clear()
    assert not watch.note_examples(torch.tensor([[False, True]]))
    watch.note_examples(torch.tensor([[False, False]]))
    assert watch.read() == (True, False)
    assert FailureFlags(torch.device("cpu"), blanks=True).note_examples(torch.tensor([[False]]))


@pytest.mark.parametrize("batches", ["full", "cycle", "poisson"])
def test_replayed_stacked_runs_equal_the_engines(batches):
    """With full batches of the same records, all runs share one copy."""
    graph, shards, seeds = topology.ring(4), blobs(4), (3, 4)
    each = tuple(batches_of(shards, batches))
    plans = [
        prune(PROTOCOLS[name](0.5).plan(graph, constant_schedule(5, rate=0.5), np.full(4, 0.3), seed))
        for name, seed in zip(("top-sync", "plain-sync"), seeds, strict=True)
    ]
    once = batches == "full"

    def stacked():
        chosen = StackedBatches(tuple((each, seed, NoiseKey.of_seed(seed)) for seed in seeds))
        held = shards if once else stack_shards([shards, shards])
        gradients, noise = (
            ClippedGradients(network("mlp"), 1.0),
            StackedNoise(plans, list(map(NoiseKey.of_seed, seeds))),
        )
        return Engine(
            stack_plans(plans), gradients, held, chosen.batches, seed=3, draws=noise, select=chosen.select,
            copies=2 if once else 1,
        )  # fmt: skip

    expected, found = every_state(stacked()), replayed(stacked(), 3)
    assert set(found) <= set(expected)
    for releases, rows in found.items():
        if batches == "poisson":  # padding beyond the longest batch may change rounding
            torch.testing.assert_close(rows, expected[releases], rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(rows, expected[releases])
