"""The frontier: its noise, its stacks, and what is left when time is up. Its files are in test_figures."""

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


def test_who_takes_part():
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
    """The σ that follows from one short plan by scaling, in the account of the plan that is run."""
    config = final(scale, name, **changes)
    noise = NoiseStore(tmp_path / "sigma.json", quiet)
    noise.calibrate([config])
    tree = config.model_dump(exclude_none=True)
    tree["privacy"]["sigma"] = noise.sigma(config)
    given = parse(tree, "calibrated")
    _, account = plan_and_account(resolve(given))
    if name == "central":  # nobody else takes part: what is shown is all there is to learn
        assert 1.999 < account.worst_case.largest <= 2.0
    else:
        assert 1.999 < account.adaptive.largest <= 2.0
    assert noise.epsilon_of_all_others([config]) == [pytest.approx(account.worst_case.largest, rel=1e-5)]


@pytest.mark.parametrize("change", [{"pair_noise": "auto"}, {"noise_schedule": {"kind": "steps"}}])
def test_noise_that_does_not_follow_by_scaling_is_refused(scale, tmp_path, change):
    tree = final(scale, "correlated").model_dump(exclude_none=True)
    config = parse(tree | {"method": tree["method"] | change}, "open")
    with pytest.raises(InputError, match="secrets_degree, pair_noise and no step decay"):
        NoiseStore(tmp_path / "sigma.json", quiet).calibrate([config])


def test_rounded_rows_that_are_hidden_get_no_noise(tmp_path):
    """The noise of rows that are sums must not be taken for that of rows that are not."""
    tree = {"method": {"name": "top"}, "rounds": 2, "topology": {"agents": 6, "kind": "ring"}}
    sums, rounded = (parse(tree | {"train": {"rows": rows}}, rows) for rows in ("model", "bfloat16"))
    noise = NoiseStore(tmp_path / "sigma.json", quiet)
    noise.calibrate([sums])
    with pytest.raises(NotCovered, match="rounded to bfloat16"):
        noise.calibrate([rounded])
    with pytest.raises(KeyError):
        noise.sigma(rounded)


def test_runs_that_keep_rows_otherwise_share_no_plan():
    tree = {"method": {"name": "dsgd"}, "rounds": 2, "topology": {"agents": 6, "kind": "ring"}}
    both = [parse(tree | {"train": {"rows": rows}}, rows) for rows in ("bfloat16", "model")]
    plans = shared_plans([resolve(config, counts=(10,) * 6) for config in both], [1.0, 1.0])
    assert [plan.rounded for plan in plans] == ["bfloat16", None]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "scattering + linear"])
def test_every_run_of_the_frontier_is_that_run_alone(model, scale, tmp_path, monkeypatch):
    """Whatever it was stacked with, on records that are read once for all."""
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
    for number, config in enumerate(configs[::3]):  # every contender, both budgets and both seeds among them
        metrics = run(config, tmp_path / str(number), "cpu").metrics
        assert metrics[-1]["accuracy"]["mean"] == pytest.approx(runs[config][-1]["mean"], abs=0.015)


def test_runs_with_the_same_records_come_in_turn():
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


def test_stacks_stay_within_their_limit_and_count_common_records_once():
    rates = [[f"train.learning_rate={rate}", "privacy.sigma=1"] for rate in range(1, 9)]
    full = [RunOutline.of(read(changes=changes)) for changes in rates]
    records, rows = estimated_bytes(full[0])
    assert [len(stack) for stack in stackable(full, records + 4.5 * rows, estimated_bytes)] == [4, 4]
    seeds = [[f"seed={seed}", "privacy.sigma=1", "data.batch={cycle=5}"] for seed in range(8)]
    cyclic = [RunOutline.of(read(changes=changes)) for changes in seeds]
    assert [len(stack) for stack in stackable(cyclic, 4.5 * (records + rows), estimated_bytes)] == [4, 4]


@pytest.mark.slow
def test_when_time_is_up_what_there_is_is_written_and_the_rest_is_made_later(scale, tmp_path, monkeypatch):
    """The clock stops the second model in the middle of its search."""
    real, begun = FigureRuns._run, []

    def counted(self, runs, sigmas):
        begun.append(runs[0].config.model.name)
        if begun[-1] == "mlp" and begun.count("mlp") == 2:
            self.until = time.monotonic() - 1.0
        return real(self, runs, sigmas)

    monkeypatch.setattr(FigureRuns, "_run", counted)
    said = []
    made = reproduce.reproduce(["frontier-mnist"], ["honest"], scale, "cpu", tmp_path, said.append)
    assert any("time limit" in line and "the same command continues" in line for line in said)
    assert {row.model for row in read_rows(tmp_path / "frontier-mnist.csv")} == {"scattering + linear"}
    assert made.seconds["frontier-mnist"] > 0
    monkeypatch.setattr(FigureRuns, "_run", real)
    reproduce.reproduce(["frontier-mnist"], ["honest"], scale, "cpu", tmp_path, quiet)
    rows = read_rows(tmp_path / "frontier-mnist.csv")
    assert {row.model for row in rows} == {"scattering + linear", "mlp"}
    assert sum(math.isinf(row.epsilon) for row in rows) == 2


def test_no_stack_is_begun_after_the_time_that_was_given(scale, tmp_path):
    runs = FigureRuns(
        tmp_path, "cpu", test_records=lambda config: 100, progress=quiet, until=time.monotonic() - 1.0
    )
    with pytest.raises(OutOfTime, match="1 stacks of runs left"):
        runs.execute([final(scale, "plain")])
