"""Pictures of learning curves: each states its data set and how private its runs are."""

import pytest

from builders import blobs_file
from topdp.runs import config, run
from topdp.runs.pictures import learning_curves
from topdp.runs.pictures.chart_style import data_title

TITLES = {
    "the default job": ([], "MNIST, 30 agents, sync, ε = 1 (adaptive, δ = 1e-5)"),
    "another guarantee": (
        ["data.name=cifar10", "method.mode=async", "privacy.epsilon=0.5", "privacy.guarantee=worst-case"],
        "CIFAR-10, 30 agents, async, ε = 0.5 (worst-case, δ = 1e-5)",
    ),
    "one budget each": (
        ["privacy.epsilon=[2.0, 0.5, 1.0]"],
        "MNIST, 30 agents, sync, ε = 0.5 to 2 (adaptive, δ = 1e-5)",
    ),
    "noise as given": (["privacy.sigma=0.1"], "MNIST, 30 agents, sync, σ = 0.1"),
    "no noise": (["method.name=no-noise"], "MNIST, 30 agents, sync, no noise"),
}


@pytest.mark.parametrize("case", TITLES)
def test_a_title_states_data_budget_and_guarantee(case):
    changes, title = TITLES[case]
    assert learning_curves.heading([config.read(changes=changes)], agents=[30]) == title


def test_the_title_states_the_budget_of_the_methods_with_noise():
    both = [config.read(changes=[f"method.name={name}"]) for name in ("no-noise", "plain")]
    assert "ε = 1 (adaptive" in learning_curves.heading(both, agents=[30])


def test_data_sets_have_their_usual_names():
    assert [data_title(name) for name in ("fashion-mnist", "/data/mine.npz")] == ["Fashion-MNIST", "mine"]


def test_runs_and_comparisons_use_this_title(topdp, tmp_path, monkeypatch):
    """The number of agents is that of the graph, which may come from a file."""
    titles = {}

    def drawn(runs, path, title, metric=None):
        titles[path.name] = title
        return path

    monkeypatch.setattr(run, "curves", drawn)
    monkeypatch.setattr(learning_curves, "curves", drawn)
    links = tmp_path / "links.txt"
    links.write_text("0 1\n1 2\n2 0\n")
    own = blobs_file(tmp_path / "blobs.npz", 60)
    settings = [
        f'data.name="{own}"',
        "topology.kind=file",
        f'topology.path="{links}"',
        "rounds=2",
        "method.name=top",
    ]
    changes = [word for setting in settings for word in ("--set", setting)]
    done = topdp("compare", *changes, "--methods", "plain", "--out", tmp_path / "all")
    assert done.code == 0, done.err
    assert titles == dict.fromkeys(
        ("accuracy.png", "compare.png"), "blobs, 3 agents, sync, ε = 1 (adaptive, δ = 1e-5)"
    )


@pytest.mark.parametrize(
    ("metric", "percent"), [("accuracy", True), ("r2", False), ("per-class-accuracy", True)]
)
def test_an_axis_has_a_label_and_percentages_for_shares(tmp_path, monkeypatch, metric, percent):
    seen = []
    monkeypatch.setattr(learning_curves, "save", lambda figure, path: seen.append(figure.axes[0]) or path)
    value = [0.25, None, 0.75] if metric == "per-class-accuracy" else 0.5
    lines = [
        {"round": 0, metric: {"mean": value, "min": value, "max": value}, "loss": {"mean": 9.0}},
        {"round": 5, metric: {"mean": None, "min": None, "max": None}, "loss": {"mean": 9.0}},
    ]
    learning_curves.curves({"top": lines}, tmp_path / "one.png", "a title")
    axes = seen[0]
    assert f"test {metric} (mean" in axes.get_ylabel()
    assert (axes.yaxis.get_major_formatter()(0.5, 0) == "50%") == percent
    first, second = axes.lines[0].get_ydata()
    assert first == 0.5 and second != second  # a gap where the metric is undefined
