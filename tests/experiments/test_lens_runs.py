"""Tests of single runs by preset and lens: each is the run of a figure, bit for bit."""

import csv
import json
from pathlib import Path

import pytest

from topdp.experiments.figure_runner import FigureRuns
from topdp.experiments.lenses import (
    BASELINES,
    FULL_SCALE,
    LENSES,
    MODES,
    figure_run,
    lens_run,
    methods_by_label,
)
from topdp.experiments.noise_store import NoiseStore
from topdp.runs.config import ConfigError, dotted
from topdp.runs.run_folder import RunFolder

RESULTS = Path(__file__).parents[2] / "results"
METHODS = ("no-noise", *BASELINES, "plain", "top", "top-dp")


def values(config):
    """The settings of a run, without those that only choose which answers are computed."""
    known = dotted(config.model_dump(exclude_none=True))
    return {
        key: value for key, value in known.items() if key not in ("privacy.guarantee", "privacy.allow_slow")
    }


@pytest.mark.parametrize("lens", LENSES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("data", ["mnist", "cifar10"])
def test_every_run_of_the_full_figures_has_a_preset_and_a_lens(data, mode, lens):
    """The noise follows changes of method, budget and agents, as in the figures."""
    for method in METHODS:
        for alpha, epsilon, agents in ((0.25, 1.0, 30), (0.125, 4.0 if method != "no-noise" else 1.0, 40)):
            changes = [f"method.alpha={alpha}", f"privacy.epsilon={epsilon}", f"topology.agents={agents}"]
            single = lens_run(f"paper-{data}-{mode}", lens, [f"method.name={method}", "seed=2", *changes])
            drawn = figure_run(
                FULL_SCALE, lens, method, 2, mode=mode, alpha=alpha, epsilon=epsilon, data=data, agents=agents
            )
            assert values(single) == values(drawn)


@pytest.mark.parametrize("lens", LENSES)
@pytest.mark.parametrize(("figure", "data"), [("fig3", "mnist"), ("fig12", "cifar10")])
def test_a_single_run_has_the_noise_and_the_evaluations_of_the_stored_results(figure, data, lens):
    noise = NoiseStore(RESULTS / "runs" / "sigma.json", print)
    with (RESULTS / f"{figure}-{lens}.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["over_agents"] == "mean"]
    assert rows
    for row in rows:
        mode, _, alpha = row["panel"].partition(", α = ")
        changes = [f"method.name={methods_by_label(lens)[row['line']]}", f"seed={row['seed']}"]
        single = lens_run(f"paper-{data}-{mode}", lens, [*changes, f"method.alpha={alpha or 0.25}"])
        assert f"{noise.sigma(single):.6g}" == row["sigma"]
        rounds = [int(column) for column in row if column.isdigit()]
        assert rounds[1] == single.train.evaluate_every and rounds[-1] == single.rounds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lens", "method", "mode"),
    [
        ("printed", "top-dp", "sync"),
        ("printed", "udp", "async"),
        ("same", "top-dp", "async"),
        ("honest", "top-dp", "sync"),
        ("honest", "plain", "async"),
    ],
)
def test_a_single_run_is_the_point_of_the_figure(topdp, scale, tmp_path, monkeypatch, lens, method, mode):
    """Of a figure of small runs; only the size of the runs is stated, and the lens chooses the rest."""
    drawn = figure_run(scale, lens, method, 1, mode=mode, alpha=0.5)
    size = ("rounds", "topology.agents", "topology.connection", "data.name", "data.records")
    size += ("train.rounds_per_epoch", "train.evaluate_every", "method.noise_schedule.period")
    size += ("data.batch.cycle",) if lens != "honest" else ()
    settings = values(drawn)
    changes = [f"{key}={json.dumps(settings[key])}" for key in size]
    changes += [f"method.name={method}", "method.alpha=0.5", "seed=1"]
    monkeypatch.setattr("topdp.runs.run.curves", lambda *arguments, **named: None)
    options = [word for change in changes for word in ("--set", change)]
    preset = f"paper-mnist-{mode}"
    folder = tmp_path / "single"
    assert (
        topdp("run", "--preset", preset, "--lens", lens, *options, "--device", "cpu", "--out", folder).code
        == 0
    )
    runs = FigureRuns(tmp_path / "runs", "cpu", test_records=lambda config: 100, progress=print)
    runs.execute([drawn])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    alone = {line["round"]: round(line["accuracy"]["mean"], 5) for line in lines}
    assert alone == {point["round"]: point["mean"] for point in runs[drawn]}
    account = json.loads((folder / "privacy.json").read_text())
    assert account["guarantee"] == ("adaptive" if lens == "honest" else None)
    sigma = RunFolder.open(folder).plan.full_scale / drawn.privacy.clip
    assert sigma == pytest.approx(runs.noise.sigma(drawn), rel=1e-6)


WRONG = {
    "no preset": (["--lens", "same"], "Use for example --preset paper-mnist-sync --lens same"),
    "another preset": (
        ["--preset", "default", "--lens", "same"],
        "preset of the paper's setting, got 'default'",
    ),
    "unknown": (["--preset", "paper-mnist-sync", "--lens", "sme"], "Did you mean 'same'?"),
    "not the paper's": (
        ["--preset", "paper-mnist-sync", "--lens", "same", "--set", "method.name=dsgd"],
        "expected a method of the paper",
    ),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("command", ["run", "account", "compare"])
def test_a_lens_without_the_setting_of_the_paper_is_refused(topdp, command, case):
    arguments, says = WRONG[case]
    if command == "compare" and case == "not the paper's":
        arguments = [*arguments[:-2], "--methods", "plain,dsgd"]
    done = topdp(command, *arguments)
    assert done.code == 2 and says in done.err and "Traceback" not in done.err, done.err


def test_a_run_that_exists_takes_no_lens(topdp, tmp_path):
    done = topdp("run", "--resume", tmp_path, "--lens", "same")
    assert done.code == 2 and "takes all settings from the run folder" in done.err
    done = topdp("account", tmp_path, "--lens", "same")
    assert done.code == 2 and "Remove --preset, --lens and --set" in done.err


def test_a_stated_sigma_wins_and_budgets_may_differ():
    stated = lens_run("paper-mnist-sync", "same", ["privacy.sigma=0.5"])
    assert stated.privacy.sigma == 0.5
    several = lens_run("paper-mnist-sync", "same", [f"privacy.epsilon={[1.0] * 29 + [2.0]}"]).privacy.sigma
    one, two = (
        lens_run("paper-mnist-sync", "same", [f"privacy.epsilon={epsilon}"]).privacy.sigma
        for epsilon in (1.0, 2.0)
    )
    assert several == [one] * 29 + [two] and two < one
    with pytest.raises(ConfigError, match=r"data\.partition = iid"):
        lens_run("paper-mnist-sync", "same", ["data.partition=label"])


def test_the_share_of_a_graph_in_a_file_and_of_a_validation_split_gives_the_noise(tmp_path):
    """σ is that of the records that each agent has."""
    (tmp_path / "edges.txt").write_text("".join(f"{i} {i + 1}\n" for i in range(59)))
    known = {
        agents: lens_run("paper-mnist-sync", "same", [f"topology.agents={agents}"]).privacy.sigma
        for agents in (30, 60)
    }
    of_file = lens_run(
        "paper-mnist-sync", "same", ["topology.kind=file", f"topology.path={tmp_path}/edges.txt"]
    )
    assert of_file.privacy.sigma == known[60]
    held_out = lens_run("paper-mnist-sync", "same", ["data.validation=0.5"])
    assert held_out.privacy.sigma == pytest.approx(2 * known[30])
    replaced = lens_run("paper-mnist-sync", "same", ["privacy.adjacency=replace-one"])
    assert replaced.privacy.sigma == pytest.approx(2 * known[30])
