"""The line after a run: said where it is true of runs like this one, and nowhere else."""

import importlib.util
from pathlib import Path

import pytest

from builders import blobs_file
from topdp.report import reached
from topdp.report.reached import Reached, hint
from topdp.reproduce.frontier import FULL
from topdp.reproduce.frontier_report import read_rows
from topdp.settings.config import read

ROOT = Path(__file__).parents[2]
KNOWN = [Reached("mnist", 0.25, 0.95), Reached("mnist", 1.0, 0.976), Reached("cifar10", 1.0, 0.56)]


def said(*changes, accuracy=0.889, known=KNOWN):
    return hint(read(changes=list(changes)), {"accuracy": accuracy and {"mean": accuracy}}, known)


def test_the_default_job_is_told_what_it_could_have():
    line = said()
    assert "30 agents on MNIST" in line and "97.6% at the same ε = 1" in line and "docs/methods.md" in line
    assert "56.0%" in said("data.name=cifar10", "model.name=cnn", accuracy=0.3)
    assert "97.6% at the smaller ε = 1" in said("privacy.epsilon=3")
    assert "95.0% at the smaller ε = 0.25" in said("privacy.epsilon=0.5")


@pytest.mark.parametrize(
    "change",
    [
        "privacy.epsilon=0.1", "data.name=fashion-mnist", "method.name=correlated", "method.name=no-noise",
        "method.name=central", "topology.agents=10", "topology.kind=ring", "privacy.guarantee=view",
        "privacy.sigma=0.1", "privacy.delta=1e-6", "privacy.colluders=2", "data.records=50",
        "privacy.adjacency=replace-one", "data.partition=dirichlet", "data.validation=0.1",
        "privacy.epsilon=" + str([1.0] * 30),
    ],
)  # fmt: skip
def test_other_runs_hear_nothing(change):
    assert said(change) is None


def test_nothing_is_said_without_a_test_set_or_where_nothing_is_gained():
    assert said(accuracy=None) is None
    assert said(accuracy=0.98) is None
    assert said(known=[]) is None


def test_the_preset_is_named_where_there_is_one(monkeypatch):
    monkeypatch.setattr(reached, "presets", lambda: ["best-mnist"])
    assert "topdp run --preset best-mnist" in said()
    monkeypatch.setattr(reached, "presets", list)
    assert "--preset" not in said()


def test_pages_and_kept_numbers_are_those_of_the_results():
    """docs/pictures/frontier.py makes them; whoever changes results/ has to run it."""
    place = ROOT / "docs" / "pictures" / "frontier.py"
    spec = importlib.util.spec_from_file_location("frontier_pages", place)
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    frontiers = {data: read_rows(ROOT / "results" / f"frontier-{data}.csv") for data in FULL}
    text = pages.PAGE.read_text(encoding="utf-8")
    assert pages.page(text, frontiers) == text
    assert pages.reached(frontiers) == pages.REACHED.read_text(encoding="utf-8")
    assert [(one.data, one.epsilon) for one in reached.kept()] == [
        (row.data, row.epsilon)
        for rows in frontiers.values()
        for row in rows
        if (row.method, row.colluders, row.model) == ("correlated", 1, "scattering + linear")
    ]


def test_it_is_the_last_line_of_a_run_for_people_and_not_in_json(topdp, tmp_path, monkeypatch):
    monkeypatch.setattr(reached, "hint", lambda config, summary: f"Better than {summary['accuracy']['mean']}")
    few = [f'data.name="{blobs_file(tmp_path / "blobs.npz", 60)}"', "topology.agents=3", "rounds=2"]
    settings = [word for change in [*few, "topology.kind=ring"] for word in ("--set", change)]
    done = topdp("run", *settings, "--out", tmp_path / "one")
    assert done.code == 0 and done.out.splitlines()[-1].startswith("Better than 0.")
    assert "Better" not in topdp("run", *settings, "--out", tmp_path / "two", "--json").out
