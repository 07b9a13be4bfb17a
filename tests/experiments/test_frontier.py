"""Tests of the frontier: its noise, its stacked runs, and its time limit. test_figures tests its files."""

import math
import time
from dataclasses import replace

import pytest

from topdp.errors import InputError
from topdp.experiments import frontier, reproduce
from topdp.experiments.figure_runner import FigureRuns, OutOfTime, estimated_bytes
from topdp.experiments.frontier import contenders
from topdp.experiments.frontier_report import read_rows
from topdp.experiments.noise_store import NoiseStore
from topdp.experiments.parallel_plans import shared_plans
from topdp.experiments.tuning import Candidate, Case
from topdp.privacy.basics.refusals import NotCovered
from topdp.runs.config import parse, read
from topdp.runs.planning import plan_and_account
from topdp.runs.resolve import resolve
from topdp.runs.run import run
from topdp.runs.run_outline import RunOutline, method_of
from topdp.runs.run_stacks import stackable

CONTENDERS = contenders(6)
SETTING = Candidate(rounds=3, rate=2.0, clip=0.5, exponent=0.5, gossip=2)


def quiet(text):
    pass


def final(scale, name, epsilon=2.0, seed=0, model="mlp", **changes):
    return model_frontier(scale, "mnist", model).config(
        Case(name, epsilon), replace(SETTING, **changes), seed
    )


def model_frontier(scale, data, model):
    space = frontier.QUICK_SPACE
    return frontier.ModelFrontier(data=data, model=model, space=space, scale=scale, runs=None, used=[])


def test_the_contenders_have_valid_configurations():
    names = list(contenders(30))
    assert names == [
        "no-noise", "plain", "top", "dsgd", "muffliato", "correlated", "correlated, 3 collude",
        "correlated, 15 collude", "central",
    ]  # fmt: skip
    for name, one in contenders(30).items():
        tiny = model_frontier(frontier_scale(), "cifar10", "scattering + linear")
        method_of(tiny.config(Case(name, 1.0), SETTING, 0))
        assert name == one.name


def frontier_scale():
    return frontier.Scale(
        name="tiny", agents=30, epochs=1, rounds_per_epoch=1, honest_rounds=1, seeds=(0,), batch=1
    )


@pytest.mark.parametrize("changes", [{}, {"exponent": 0.0}, {"exponent": 0.25, "rounds": 9, "gossip": 0}])
@pytest.mark.parametrize("name", [name for name in CONTENDERS if name != "no-noise"])
def test_the_noise_of_every_contender_meets_its_budget(name, changes, scale, tmp_path):
    """Compares the σ that is scaled from one short plan with the account of the plan that is executed."""
    config = final(scale, name, **changes)
    noise = NoiseStore(tmp_path / "sigma.json", quiet)
    noise.calibrate([config])
    tree = config.model_dump(exclude_none=True)
    tree["privacy"]["sigma"] = noise.sigma(config)
    given = parse(tree, "calibrated")
    _, account = plan_and_account(resolve(given))
    if name == "central":  # no other agent takes part: the released rows are all that can be learned from
        assert 1.999 < account.worst_case.largest <= 2.0
    else:
        assert 1.999 < account.adaptive.largest <= 2.0
    assert list(noise.epsilon_of_all_others([config])) == [
        pytest.approx(account.worst_case.largest, rel=1e-5)
    ]


@pytest.mark.parametrize("change", [{"pair_noise": "auto"}, {"noise_schedule": {"kind": "steps"}}])
def test_settings_whose_noise_does_not_scale_are_refused(scale, tmp_path, change):
    tree = final(scale, "correlated").model_dump(exclude_none=True)
    config = parse(tree | {"method": tree["method"] | change}, "open")
    with pytest.raises(InputError, match="secrets_degree, pair_noise and no step decay"):
        NoiseStore(tmp_path / "sigma.json", quiet).calibrate([config])


def test_hidden_rows_that_are_rounded_are_refused(tmp_path):
    """The noise of exact rows must not be used for rounded rows."""
    tree = {"method": {"name": "top"}, "rounds": 2, "topology": {"agents": 6, "kind": "ring"}}
    sums, rounded = (parse(tree | {"train": {"rows": rows}}, rows) for rows in ("model", "bfloat16"))
    noise = NoiseStore(tmp_path / "sigma.json", quiet)
    noise.calibrate([sums])
    with pytest.raises(NotCovered, match="rounded to bfloat16"):
        noise.calibrate([rounded])
    with pytest.raises(KeyError):
        noise.sigma(rounded)


def test_runs_with_other_row_formats_share_no_plan():
    tree = {"method": {"name": "dsgd"}, "rounds": 2, "topology": {"agents": 6, "kind": "ring"}}
    both = [parse(tree | {"train": {"rows": rows}}, rows) for rows in ("bfloat16", "model")]
    plans = shared_plans([resolve(config, counts=(10,) * 6) for config in both], [1.0, 1.0])
    assert [plan.rounded for plan in plans] == ["bfloat16", None]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "scattering + linear"])
def test_every_stacked_run_of_the_frontier_agrees_with_the_run_alone(model, scale, tmp_path, monkeypatch):
    """This holds for any stack, on records that are read once for all runs."""
    monkeypatch.setattr("topdp.runs.run.curves", lambda *arguments, **named: None)
    configs = [
        final(scale, name, epsilon, seed, model)
        for name in CONTENDERS
        for epsilon in (1.0, 50.0)
        for seed in (0, 1)
    ]
    runs = FigureRuns(tmp_path / "runs", "cpu", test_records=lambda config: 100, progress=quiet)
    runs.execute(configs)
    assert (
        len(stackable([*map(RunOutline.of, configs)], 1e12, estimated_bytes)) == 3
    )  # without averaging steps, with them, and pooled
    for number, config in enumerate(configs[::3]):  # includes every contender, both budgets and both seeds
        metrics = run(config, tmp_path / str(number), "cpu").metrics
        assert metrics[-1]["accuracy"]["mean"] == pytest.approx(runs[config][-1]["mean"], abs=0.015)


def test_runs_with_the_same_records_are_stacked_in_turn():
    def seeds(*given, changes=()):
        outlines = [
            RunOutline.of(
                read(changes=[f"seed={seed}", f"train.learning_rate={rate}", "privacy.sigma=1", *changes])
            )
            for rate, seed in given
        ]
        return [[run.config.seed for run in stack] for stack in stackable(outlines, 1e12, estimated_bytes)]

    assert seeds((1, 0), (2, 0), (1, 1), (2, 1)) == [[0, 1, 0, 1]]
    assert seeds((1, 0), (2, 0), (1, 1)) == [[0, 0], [1]]
    cycle = ["data.batch={cycle=5}"]
    assert seeds((1, 0), (2, 0), (1, 1), changes=cycle) == [[0, 0, 1]]


def test_stacks_stay_within_their_memory_limit_and_count_shared_records_once():
    rates = [[f"train.learning_rate={rate}", "privacy.sigma=1"] for rate in range(1, 9)]
    full = [RunOutline.of(read(changes=changes)) for changes in rates]
    records, rows = estimated_bytes(full[0])
    assert [len(stack) for stack in stackable(full, records + 4.5 * rows, estimated_bytes)] == [4, 4]
    seeds = [[f"seed={seed}", "privacy.sigma=1", "data.batch={cycle=5}"] for seed in range(8)]
    cyclic = [RunOutline.of(read(changes=changes)) for changes in seeds]
    assert [len(stack) for stack in stackable(cyclic, 4.5 * (records + rows), estimated_bytes)] == [4, 4]


@pytest.mark.slow
def test_results_are_written_at_the_time_limit_and_completed_later(scale, tmp_path, monkeypatch):
    """The time limit stops the second model during its search."""
    real, begun = FigureRuns._run, []

    def counted(self, runs, sigmas):
        begun.append(runs[0].config.model.name)
        if begun[-1] == "mlp" and begun.count("mlp") == 2:
            self.until = time.monotonic() - 1.0
        return real(self, runs, sigmas)

    monkeypatch.setattr(FigureRuns, "_run", counted)
    messages = []
    made = reproduce.reproduce(["frontier-mnist"], ["honest"], scale, "cpu", tmp_path, messages.append)
    assert any("time limit" in line and "the same command continues" in line for line in messages)
    assert {row.model for row in read_rows(tmp_path / "frontier-mnist.csv")} == {"scattering + linear"}
    assert made.seconds["frontier-mnist"] > 0
    monkeypatch.setattr(FigureRuns, "_run", real)
    reproduce.reproduce(["frontier-mnist"], ["honest"], scale, "cpu", tmp_path, quiet)
    rows = read_rows(tmp_path / "frontier-mnist.csv")
    assert {row.model for row in rows} == {"scattering + linear", "mlp"}
    assert sum(math.isinf(row.epsilon) for row in rows) == 2


def test_no_stack_starts_after_the_time_limit(scale, tmp_path):
    runs = FigureRuns(
        tmp_path, "cpu", test_records=lambda config: 100, progress=quiet, until=time.monotonic() - 1.0
    )
    with pytest.raises(OutOfTime, match="1 stacks of runs left"):
        runs.execute([final(scale, "plain")])
