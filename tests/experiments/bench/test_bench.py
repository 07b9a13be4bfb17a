"""Tests of `topdp bench`: contestants do equal work, and missing ones are reported. No test measures time."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from topdp.errors import InputError
from topdp.experiments.bench import bench_job, contestants, floors, growth
from topdp.experiments.bench.bench_job import Turns, take_turns

TINY = bench_job.BenchJob(agents=4, batch=3, inputs=7, hidden=5, classes=3, degree=2, clip=0.5, rounds=4)


@pytest.fixture
def small(monkeypatch):
    """Makes copies, products, draws and the jobs of all commands tiny."""
    monkeypatch.setattr(floors, "COPY_NUMBERS", 100)
    monkeypatch.setattr(floors, "MATRIX_SIDES", (4,))
    monkeypatch.setattr(floors, "CACHED_DRAW_NUMBERS", 100)
    monkeypatch.setattr(bench_job, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(bench_job.BenchJob, "inputs", 7)
    monkeypatch.setattr(growth, "MIN_TIMED_SECONDS", 0.0)


def test_all_contestants_compute_the_same_round():
    data = bench_job.BenchData.of(TINY)
    made = contestants.available(["vmap", "loop"])
    assert contestants.largest_difference(TINY, data, made) < 1e-4
    with pytest.raises(InputError, match="the same rows"):
        contestants.largest_difference(TINY, data, made | {"loop": lambda *_: lambda: data.rows})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", contestants.OPACUS_CONTESTANTS)
def test_opacus_computes_the_same_round(name):
    pytest.importorskip("opacus")
    assert (
        contestants.largest_difference(TINY, bench_job.BenchData.of(TINY), contestants.available([name]))
        < 1e-4
    )


def test_the_round_of_topdp_draws_its_noise_and_continues_after_the_plan():
    data = bench_job.BenchData.of(TINY)
    quiet, noisy = (bench_job.topdp_round(TINY, data, noise)() for noise in (0.0, 1.0))
    spread = (noisy - quiet).std()
    expected = TINY.learning_rate * TINY.clip / TINY.batch
    assert abs(spread / expected - 1) < 0.2
    run = bench_job.topdp_round(TINY, data, 1.0)
    assert all(run().isfinite().all() for _ in range(2 * TINY.rounds + 3))


def test_an_unknown_contestant_is_refused():
    with pytest.raises(InputError, match=r"names of contestants, got .gost'.*ghost"):
        contestants.available(["gost"])


def test_ratios_compare_times_of_the_same_turn(monkeypatch):
    turns = Turns({"topdp": np.array([1.0, 2.0, 4.0]), "loop": np.array([3.0, 6.0, 20.0])})
    assert turns.ratio("loop", "topdp") == {"best": 3.0, "median": 3.0, "low": 3.0, "high": 4.0}
    calls = []
    monkeypatch.setattr(bench_job, "TURN_SECONDS", 0.0)
    take_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    assert calls == ["a", "b"] * 3  # one extra turn, to warm up
    clock = iter(range(100))
    monkeypatch.setattr(bench_job, "clock", lambda: (lambda: float(next(clock)), "ticks"))
    monkeypatch.setattr(bench_job, "TURN_SECONDS", 3.0)
    found = take_turns({"a": lambda: None}, 1)
    assert found.seconds["a"].tolist() == [4 / 3]  # three runs in three ticks, then one to read the clock


def test_floors_count_the_multiplications_of_a_round():
    """Oracle: the multiplications of the network's layers as torch counts them, for one example."""
    from torch.utils.flop_counter import FlopCounterMode

    flat = TINY.network()
    x = torch.rand(1, TINY.inputs)
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(flat(x).sum(), list(flat.parameters()))
    assert floors.multiplications(TINY) == TINY.agents * TINY.batch * counter.get_total_flops() // 2


def test_the_parts_of_a_round_have_times_and_floors(small):
    parts, rates, whole = floors.measure_parts(TINY, bench_job.BenchData.of(TINY), 2)
    assert [part.part for part in parts] == ["gradients", "noise", "mixing"]
    assert whole > 0 and all(part.seconds > 0 and part.floor > 0 for part in parts)
    assert min(rates.multiplications, rates.bytes, rates.draws) > 0


def test_growth_measures_the_smallest_sizes_first_and_stops_in_time(small, monkeypatch, tmp_path):
    sizes = {"agents": [(4, TINY), (8, replace(TINY, agents=8))], "degree": [(1, replace(TINY, degree=1))]}
    monkeypatch.setattr(growth, "series", lambda: sizes)
    messages = []
    points, left_out = growth.measure_growth(1.0, messages.append)
    assert messages == ["4 agents", "1 degree", "8 agents"] and not left_out
    assert set(growth.exponents(points)) == {"agents"}
    assert growth.draw(points, tmp_path / "growth.png", "growth").stat().st_size > 1000
    clock = iter([0.0, 1.0, 61.0, 61.0])
    monkeypatch.setattr(growth, "perf_counter", lambda: next(clock))
    points, left_out = growth.measure_growth(1.0)
    assert [point.value for point in points] == [4] and left_out == ["1 degree", "8 agents"]


def test_the_series_of_growth_cover_the_documented_sizes():
    made = growth.series()
    ends = {name: (series[0][0], series[-1][0]) for name, series in made.items()}
    assert ends["agents"] == (10, 10_000) and ends["degree"] == (1, 64) and ends["rounds"] == (10, 100_000)
    assert ends["parameters"][0] < 1e4 and ends["parameters"][1] == pytest.approx(1e7, rel=0.01)


def test_the_command_reports_results_and_missing_contestants(topdp, small, monkeypatch):
    monkeypatch.setattr(contestants, "has_opacus", lambda: False)
    words = ["bench", "--agents", "3", "--batch", "2", "--hidden", "4", "--turns", "2"]
    done = topdp(*words, "--against", "ghost,vmap", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert set(found["seconds"]) == {"topdp", "vmap"} and found["ratio"]["vmap"]["best"] > 0
    assert found["round"]["times_floor"] == found["round"]["seconds"] / found["round"]["floor"]
    assert contestants.NO_OPACUS_REMARK in done.err
    done = topdp(*words, "--against", "none")
    assert "the round" in done.out and contestants.NO_OPACUS_REMARK not in done.err
    assert topdp("bench", "--against", "gost").code == 2


def test_the_command_draws_growth(topdp, small, monkeypatch, tmp_path):
    monkeypatch.setattr(growth, "series", lambda: {"agents": [(4, TINY)], "rounds": [(4, TINY)]})
    done = topdp("bench", "--growth", "--out", tmp_path / "g.svg")
    assert done.code == 0 and "too few points" in done.out and (tmp_path / "g.svg").exists()
    found = json.loads(
        topdp("bench", "--growth", "--minutes", "0", "--out", tmp_path / "g.svg", "--json").out
    )
    assert found["points"] == [] and len(found["left_out"]) == 2
    assert topdp("bench", "--minutes", "-1").code == 2
