"""`topdp recommend`: its statements follow from accounts and plans, and its settings can be run."""

import json
import math
import shlex

import pytest
from typer.testing import CliRunner

from topdp.cli.app import app
from topdp.errors import InputError
from topdp.learning import models
from topdp.privacy.residual_noise import residual_noise
from topdp.runs import config
from topdp.runs.named_records import record_counts
from topdp.runs.planning import plan_and_account
from topdp.runs.recommend import recommend
from topdp.runs.resolve import resolve
from topdp.runs.run_outline import RunOutline


def ask(*changes):
    wanted = config.read(changes=["data.records=100", *changes])
    outline = RunOutline.of(wanted)
    return recommend(wanted, outline.graph, record_counts(outline)), wanted


def test_shared_noise_is_recommended_if_it_saves_noise():
    found, _ = ask("topology.agents=12", "topology.connection=0.4", "privacy.colluders=2")
    noise = {option.method: option.noise for option in found.options}
    assert found.options[0].method == "correlated" and found.changes["method.name"] == "correlated"
    assert 1.0 < noise["correlated"] < 2.0
    assert noise["dsgd"] == pytest.approx(12, rel=1e-4) and noise["muffliato"] == pytest.approx(12, rel=1e-4)


def test_the_stated_noise_is_that_of_the_plans():
    """The ratio of residual noise to that for pooled records, both calibrated to the same budget."""
    found, _ = ask("topology.agents=8", "topology.kind=ring")
    left = {}
    for name in ("correlated", "central"):
        run = config.read(
            changes=[
                "data.records=100", "topology.agents=8", "topology.kind=ring", f"method.name={name}",
                "train.fading=none", "rounds=20",
            ]
        )  # fmt: skip
        plan, _ = plan_and_account(resolve(run))
        left[name] = residual_noise(plan).average[-1]
    assert found.options[0].noise == pytest.approx(left["correlated"] / left["central"], rel=1e-6)


def test_a_given_sigma_does_not_change_the_stated_noise():
    sizes = ("topology.agents=4", "topology.kind=ring")
    found, _ = ask(*sizes, "privacy.sigma=[0.5, 1.0, 2.0, 0.5]")
    assert [option.noise for option in found.options] == [option.noise for option in ask(*sizes)[0].options]


def test_shared_noise_is_not_recommended_for_two_agents():
    """The other agent knows all secrets, so that the method with the fewest messages is as good."""
    found, _ = ask("topology.agents=2", "topology.kind=complete")
    assert {round(option.noise, 4) for option in found.options} == {2.0}
    assert found.changes["method.name"] != "correlated"


def test_unsuitable_methods_have_a_reason():
    found, _ = ask("topology.agents=6", "topology.kind=star", "method.secrets=links")
    last = found.options[-1]
    assert last.method == "correlated" and last.noise is None and "only its own noise" in last.reason
    with pytest.raises(InputError, match="central"):
        ask("method.name=central")


def test_the_recommended_settings_form_a_valid_configuration(tmp_path):
    arguments = ["--set", "topology.agents=6", "--set", "topology.kind=ring", "--set", "privacy.epsilon=2.0"]
    answer = CliRunner().invoke(app, ["recommend", *arguments, "--json"])
    assert answer.exit_code == 0
    found = json.loads(answer.stdout)
    assert found["command"].startswith("topdp run --set topology.agents=6 ")
    changes = [f"{key}={value}" for key, value in found["changes"].items()]
    wanted = config.read(changes=["topology.agents=6", "topology.kind=ring", *changes])
    assert wanted.data.features == "scattering" and math.isfinite(wanted.train.learning_rate)


ROWS = {
    "classes": ("age,ill\n", ["20,no\n", "80,yes\n"]),
    "numbers": ("age,cost\n", ["20,1.0\n", "80,3.5\n"]),
    "text": ("note,spam\n", ["call me back,no\n", "win money now,yes\n"]),
}
SCHEMAS = {
    "classes": 'target = "ill"\nclasses = ["no", "yes"]\n[ranges]\nage = [0, 100]\n',
    "numbers": 'target = "cost"\n[ranges]\nage = [0, 100]\ncost = [0, 4]\n',
    "text": 'target = "spam"\nclasses = ["no", "yes"]\n[text]\ncolumn = "note"\nlength = 4\n',
}


@pytest.mark.parametrize(
    ("kind", "metric", "least"),
    [("classes", "accuracy", 0.9), ("numbers", "r2", 0.5), ("text", "accuracy", 0.9)],
)
def test_the_command_runs_on_own_files(kind, metric, least, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    heading, rows = ROWS[kind]
    for site, count in (("north", 90), ("south", 60), ("east", 40), ("test", 20)):
        (tmp_path / f"{site}.csv").write_text(heading + "".join(rows) * count)
    (tmp_path / "schema.toml").write_text(SCHEMAS[kind])
    changes = [
        'data.sites=["north.csv", "south.csv", "east.csv"]',
        "data.test=test.csv",
        "data.schema=schema.toml",
    ]
    given = [part for change in changes for part in ("--set", change)]
    answer = CliRunner().invoke(app, ["recommend", *given, "--set", "privacy.epsilon=4.0", "--json"])
    assert answer.exit_code == 0, answer.output
    _, *arguments = shlex.split(json.loads(answer.stdout)["command"])
    ran = CliRunner().invoke(app, [*arguments, "--json"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["metrics"][metric]["mean"] > least


def own_model(shape, outputs):
    return models.mlp(math.prod(shape), hidden=5, classes=outputs)


def test_an_own_model_is_kept():
    found, _ = ask("topology.agents=5", "topology.kind=ring", f"model.name={__name__}:own_model")
    assert "model.name" not in found.changes and found.changes["privacy.clip"] > 1


def test_a_mode_that_no_recommended_method_has_is_left_out():
    found, _ = ask("topology.agents=5", "topology.kind=ring", "method.mode=async")
    assert "async" not in found.command(["--set", "method.mode=async"])
