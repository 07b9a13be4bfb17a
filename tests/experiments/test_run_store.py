"""Tests of the names of stored runs: what they depend on, and that stored runs and noise are found."""

import csv
import json
import math
from pathlib import Path

import pytest
from pydantic import create_model

from topdp.errors import InputError
from topdp.experiments import lenses, noise_store
from topdp.experiments.figure_runner import FigureRuns
from topdp.experiments.figures.figures_three_to_twelve import FIGURES
from topdp.experiments.frontier_report import read_rows
from topdp.experiments.lenses import figure_run
from topdp.experiments.noise_store import NoiseStore
from topdp.experiments.run_store import NAMING_VERSION, read_json, run_name
from topdp.runs.config import MethodConfig, RunConfig, Section, read

RESULTS = Path(__file__).parents[2] / "results"


class Weather(Section):
    wind: float = 0.0


def later_version() -> type[RunConfig]:
    """Configurations with a new section, and with a new key in an existing section."""
    method = create_model("LaterMethod", __base__=MethodConfig, patience=(int, 3))
    return create_model(
        "LaterConfig", __base__=RunConfig, weather=(Weather, Weather()), method=(method, method())
    )


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["seed=7", "method.alpha=0.5", "method.noise_schedule.period=33"],
        ["data.batch={cycle=20}", "rounds=6000"],
    ],
)
def test_a_new_section_or_key_at_its_default_changes_no_name(changes):
    config = read(changes=changes)
    later = later_version()
    same = later.model_validate(config.model_dump(exclude_none=True))
    assert run_name(same) == run_name(config)
    assert run_name(same.model_copy(update={"weather": Weather(wind=1.0)})) != run_name(config)
    windy = same.method.model_copy(update={"patience": 4})
    assert run_name(same.model_copy(update={"method": windy})) != run_name(config)


def test_every_setting_that_differs_from_its_default_changes_the_name():
    changes = [
        "seed=1",
        "rounds=151",
        "topology.connection=0.3",
        "method.mode=async",
        "method.noise_schedule.factor=0.8",
        "method.noise_schedule.kind=constant",
        "privacy.sigma=0.0",
        "data.batch={cycle=20}",
        "data.batch={poisson=20}",
        "data.batch={cycle=21}",
        "train.learning_rate=0.25",
    ]
    names = {run_name(read(changes=[change])) for change in changes}
    assert len(names) == len(changes) and run_name(read()) not in names


def test_equal_values_in_other_notation_have_the_same_name():
    assert run_name(read(changes=["privacy.clip=8"])) == run_name(read(changes=["privacy.clip=8.0"]))


DEFAULTS = {
    "seed": 0, "rounds": 150,
    "topology": {
        "kind": "random", "agents": 30, "connection": 0.2, "hubs": 2, "degree": 4, "rewire": 0.1,
        "path": None,
    },
    "method": {
        "name": "top-dp", "mode": "sync", "alpha": 0.25, "calibration": None, "noise_on": "gradient",
        "offline": 0.1, "noise_schedule": {"factor": 0.9, "period": 1000, "kind": None},
    },
    "privacy": {
        "epsilon": 1.0, "delta": 1e-5, "clip": 4.0, "guarantee": "adaptive", "adjacency": "add-remove",
        "sigma": None, "allow_slow": False,
    },
    "data": {
        "name": "mnist", "partition": "iid", "concentration": 0.5, "labels_per_agent": 2, "sizes": None,
        "batch": "full", "records": None, "validation": None,
    },
    "model": {"name": "mlp"},
    "train": {
        "learning_rate": 0.5, "fading": "linear", "rounds_per_epoch": None, "evaluate_every": 10,
        "checkpoint_every": 100,
    },
}  # fmt: skip


def test_defaults_stay_unchanged_while_stored_names_rely_on_them():
    """A name omits defaults: with other defaults it would mean other runs."""

    def values(tree, path=""):
        return {
            key: value
            for name, part in tree.items()
            for key, value in (
                values(part, f"{path}{name}.") if isinstance(part, dict) else {path + name: part}
            ).items()
        }

    now = values(RunConfig().model_dump())
    known = {key: now.get(key) for key in values(DEFAULTS)}  # keys that were added later may have any default
    assert (NAMING_VERSION, known) == ("2", values(DEFAULTS)), "change NAMING_VERSION and the stored noise"


def test_the_stored_noise_of_the_honest_figures_is_found_and_not_recomputed(monkeypatch):
    """results/runs/sigma.json holds the σ of every plan; computing them again would take hours."""
    monkeypatch.setattr(noise_store, "_sigma_of", lambda config: pytest.fail(f"computed again: {config}"))
    noise = NoiseStore(RESULTS / "runs" / "sigma.json", print)
    for figure in FIGURES.values():
        noise.calibrate(figure.configs(lenses.FULL_SCALE, "honest"))
    for file in RESULTS.glob("frontier-*.csv"):
        rows = read_rows(file)
        if rows[0].guarantee != lenses.LENS_GUARANTEES["honest"]:
            continue  # made earlier, for another guarantee and so with other noise
        noise.calibrate(as_run(row.command, seed) for row in rows for seed in lenses.FULL_SCALE.seeds)
    # the σ in results/fig3-honest.csv and fig12-honest.csv
    found = noise.sigma(figure_run(lenses.FULL_SCALE, "honest", "top-dp", 0, mode="async", alpha=0.125))
    assert f"{found:.6g}" == sigma_in("fig3-honest.csv", "async, α = 0.125", "top-dp")
    found = noise.sigma(figure_run(lenses.FULL_SCALE, "honest", "plain", 0, data="cifar10"))
    assert f"{found:.6g}" == sigma_in("fig12-honest.csv", "sync", "every baseline")


def as_run(command, seed):
    """The configuration of a command in a frontier's file."""
    start, *changes = command.split(" --set ")
    assert start == "topdp run"
    return read(changes=[*changes, f"seed={seed}"])


def test_a_frontier_states_the_command_of_each_run(out, scale):
    for row in read_rows(out / "frontier-mnist.csv"):
        made = as_run(row.command, 0)
        assert made.method.name == row.method and made.privacy.clip == row.clip
        assert math.isinf(row.epsilon) or made.privacy.epsilon == row.epsilon
        assert made in FigureRuns(out / "runs", "cpu", test_records=lambda config: 50, progress=print)


def sigma_in(file, panel, line):
    with (RESULTS / file).open(encoding="utf-8") as table:
        return next(
            row["sigma"] for row in csv.DictReader(table) if (row["panel"], row["line"]) == (panel, line)
        )


def test_a_damaged_noise_file_is_reported(tmp_path):
    file = tmp_path / "sigma.json"
    assert read_json(file) == {}
    for text in ("{", json.dumps([1])):
        file.write_text(text)
        with pytest.raises(InputError, match=r"sigma\.json"):
            NoiseStore(file, print)
