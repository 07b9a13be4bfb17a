"""Summaries of sweeps: the privacy cost of all runs together, against a closed form, and the pictures."""

import math

import pytest

from topdp.base.number_text import rounded_up
from topdp.privacy.basics.gaussian import epsilon_of, mu_of
from topdp.runs import config, sweep_summary
from topdp.runs.pictures import learning_curves
from topdp.runs.pictures.chart_style import look
from topdp.runs.sweep_summary import Spread
from topdp.views.pictures import sweep_pictures
from topdp.views.terminal import tables


def run(seed, accuracy=0.9, epsilon=1.0, guarantee="adaptive", state="done", **privacy):
    mu = None if epsilon is None else float(mu_of(epsilon, 1e-5))
    told = {
        "guarantee": guarantee, "delta": 1e-5, "adjacency": "add-remove",
        "epsilon": {"claimed": epsilon, "adaptive": epsilon, "worst_case": epsilon},
        "mu": {"claimed": mu, "adaptive": mu, "worst_case": mu},
        "status": dict.fromkeys(("claimed", "adaptive", "worst_case"), "finite" if epsilon else "infinite"),
    }  # fmt: skip
    line = {"round": 4, "accuracy": {"mean": accuracy, "min": 0.1, "max": 1.0}}
    done = state == "done"
    return {
        "seed": seed, "noise_seed": None, "run": f"s/{seed}", "state": state,
        "metrics": line if done else None,
        "history": [{**line, "round": 0}, line] if done else [], "privacy": {**told, **privacy},
        "seconds": 1.0 if done else None,
    }  # fmt: skip


def test_the_cost_of_all_runs_composes_gaussian_mechanisms():
    several = [Spread({"a": "1"}, [run(0, epsilon=1.0), run(1, epsilon=2.0)])]
    total = math.hypot(float(mu_of(1.0, 1e-5)), float(mu_of(2.0, 1e-5)))
    assert f"together ε = {rounded_up(float(epsilon_of(total, 1e-5)))} (adaptive, δ = 1e-05)" in (
        sweep_summary.cost_together(several)
    )
    nine = [Spread({}, [run(seed) for seed in range(9)])]
    tripled = float(epsilon_of(3 * float(mu_of(1.0, 1e-5)), 1e-5))
    assert f"ε = {rounded_up(tripled)}" in sweep_summary.cost_together(nine)


def test_answers_that_do_not_compose_are_replaced_by_the_worst_case():
    for guarantee in ("view", "claimed", None):
        several = [Spread({}, [run(0, guarantee=guarantee), run(1, guarantee=guarantee)])]
        assert "(worst case, " in sweep_summary.cost_together(several)
    differ = [Spread({}, [run(0), run(1, guarantee="worst-case")])]
    assert "(worst case, " in sweep_summary.cost_together(differ)
    other = [Spread({}, [run(0), run(1, adjacency="replace-one")])]
    assert "adjacency differs" in sweep_summary.cost_together(other)
    units = [Spread({}, [run(0), run(1, unit="person")])]
    assert "some protect records and others persons" in sweep_summary.cost_together(units)
    assert "without bound" in sweep_summary.cost_together([Spread({}, [run(0), run(1, epsilon=None)])])
    unknown = {"mu": dict.fromkeys(("claimed", "adaptive", "worst_case"))}  # as for Poisson samples
    sampled = [Spread({}, [run(0, **unknown), run(1, epsilon=2.0, **unknown)])]
    assert "ε = 3 (adaptive, δ = 2e-05)" in sweep_summary.cost_together(sampled)
    assert "this run alone" in sweep_summary.cost_together([Spread({}, [run(0)])])


def test_a_title_states_what_all_runs_have_in_common():
    def titled(*changes):
        configs = [config.read(changes=change) for change in changes]
        return learning_curves.heading(configs, [one.topology.agents for one in configs])

    budgets = titled(["privacy.epsilon=1.0"], ["privacy.epsilon=2.0"])
    assert budgets == "MNIST, 30 agents, sync, ε = 1 to 2 (adaptive, δ = 1e-5)"
    assert titled(["privacy.guarantee=worst-case"], ["privacy.epsilon=2.0"]) == "MNIST, 30 agents, sync"
    same = titled(["method.name=no-noise"], ["method.name=top"])
    assert same == "MNIST, 30 agents, sync, ε = 1 (adaptive, δ = 1e-5)"
    others = titled(["data.name=cifar10", "topology.agents=6"], ["method.mode=async", "privacy.sigma=1.0"])
    assert others == "sweep"


def test_a_method_has_the_same_colour_in_every_picture(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(sweep_pictures.chart_style, "save", lambda figure, path: seen.append(figure))
    chosen = [{"privacy.epsilon": value, "method.name": name} for value in "12" for name in ("plain", "top")]
    sweep_pictures.picture(
        [Spread(one, [run(0, 0.1 * len(one["method.name"]))]) for one in chosen], tmp_path / "s.png", "title"
    )
    colours = [bars.lines[0].get_color() for bars in seen[0].axes[0].containers]
    assert colours == [look("plain")["color"], look("top")["color"]]


def test_diverged_runs_are_left_out_of_means():
    one = Spread({"a": "1"}, [run(0, 0.8), run(1, state="diverged"), run(2, 0.6)])
    assert one.of("accuracy") == {
        "mean": pytest.approx(0.7),
        "deviation": pytest.approx(0.1414, abs=1e-4),
        "n": 2,
    }
    assert Spread({}, [run(0, state="diverged")]).of("accuracy") == {"mean": None, "deviation": None, "n": 0}


@pytest.mark.parametrize(
    "chosen",
    [
        [{"privacy.epsilon": value, "method.name": name} for value in "128" for name in ("plain", "top")],
        [{"method.name": name} for name in ("plain", "top")],
        [{"a": str(a), "b": str(b)} for a in range(2) for b in range(12)],
        [{}],
    ],
)
def test_every_sweep_has_a_picture(tmp_path, chosen):
    found = [Spread(one, [run(0, 0.8), run(1, 0.6)]) for one in chosen]
    assert sweep_pictures.picture(found, tmp_path / "s.png", "title").stat().st_size > 5_000
    assert (
        sweep_pictures.curves({one.label: one for one in found[:2]}, tmp_path / "c.png", "title") is not None
    )
    sweep_summary.write_csv(found, tmp_path)
    tables.sweep(found)


def test_without_a_metric_there_is_no_picture(tmp_path):
    broken = [Spread({"a": "1"}, [run(0, state="diverged")])]
    assert sweep_pictures.picture(broken, tmp_path / "s.png", "title") is None
    assert sweep_pictures.curves({"a": broken[0]}, tmp_path / "s.png", "title") is None
    sweep_summary.write_csv(broken, tmp_path)
    tables.sweep(broken)
