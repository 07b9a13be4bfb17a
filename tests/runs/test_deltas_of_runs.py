"""Runs with one δ for each agent: configuration, folder, resumption, pages, sweeps, and what refuses them."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import yaml

import topdp
from builders import blobs, blobs_file, linear_model
from topdp import topology
from topdp.base.number_text import rounded_up
from topdp.errors import InputError
from topdp.experiments import noise_store
from topdp.privacy.accounting import account
from topdp.privacy.basics.gaussian import epsilon_of, mu_of
from topdp.privacy.basics.privacy_loss import power_of_point
from topdp.runs import auto_values, config, planning, recommend, run, run_outline, sweep_summary
from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.pictures import learning_curves
from topdp.runs.planner import setting_answers
from topdp.runs.resolve import resolve
from topdp.runs.run_folder import RunFolder
from topdp.runs.run_outline import RunOutline
from topdp.runs.sweep_summary import Spread
from topdp.runs.training_loop import InterruptedRun
from topdp.views.pages.run_facts import run_facts
from topdp.views.statement import run_statement
from topdp.views.terminal import tables

DELTAS = [1e-5, 1e-6, 1e-3, 1e-5]
EPSILON = [1.0, 2.0, 1.0, 1.0]
OWN = (f"privacy.delta={DELTAS}", f"privacy.epsilon={EPSILON}")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return blobs_file(tmp_path_factory.mktemp("data") / "blobs.npz", 200)


@pytest.fixture(scope="module")
def small(data):
    def make(*changes: str) -> RunConfig:
        basis = [
            f'data.name="{data}"', "topology.kind=ring", "topology.agents=4", "rounds=6", "model.name=linear",
            "train.evaluate_every=2", "train.checkpoint_every=2",
        ]  # fmt: skip
        return config.read(changes=[*basis, *changes])

    return make


@pytest.fixture(scope="module")
def ran(small, tmp_path_factory):
    place = tmp_path_factory.mktemp("run") / "run"
    run.run(
        small(OWN[0], "data.batch={ poisson = 9 }", "method.name=plain"), place.with_name("sampled"), "cpu"
    )
    return run.run(small(*OWN), place, "cpu")


def interrupted(wanted, place):
    def stop(stage, done=0, total=None, /, **details):
        if stage == "training" and done == 3:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRun):
        run.run(wanted, place, progress=stop)
    return place


def test_the_account_of_a_run_is_at_the_delta_of_each_agent(ran):
    folder = RunFolder.open(ran.folder)
    resolved, plan, again = planning.account_of_run(ran.folder)
    stored = folder.read_json("privacy.json")
    assert stored["delta"] == ran.summary()["privacy"]["delta"] == again.delta == DELTAS
    for i, delta in enumerate(DELTAS):
        alone = account(plan, resolved.analysis, delta, ["adaptive"])
        for key in ("claimed", "adaptive", "worst_case"):
            expected = alone.answers[key].epsilon[i]
            assert stored["epsilon_per_agent"][key][i] == pytest.approx(expected, rel=1e-9)
        assert alone.adaptive.epsilon[i] <= EPSILON[i]
    assert max(again.adaptive.epsilon / EPSILON) > 1 - 1e-6


def test_train_takes_a_delta_for_each_agent():
    def train(**options):
        budgets = {"epsilon": [1.0, 2.0, 1.0], **options}
        return topdp.train(linear_model(), blobs(3), topology.ring(3), rounds=2, **budgets)

    found = train(delta=[1e-5, 1e-6, 1e-4])
    assert found.privacy.delta == [1e-5, 1e-6, 1e-4]
    assert (found.privacy.adaptive.epsilon <= [1.0, 2.0, 1.0]).all()
    with pytest.raises(InputError, match=r"privacy\.delta: expected one number, or a list of 3"):
        train(delta=[1e-5, 1e-6])


@pytest.mark.parametrize("wrong", [[], [1e-5] * 3, [1e-5] * 5])
def test_a_list_of_another_length_is_refused(small, wrong):
    with pytest.raises(ConfigError, match=rf"privacy\.delta: .* list of 4 numbers.* list of {len(wrong)}\."):
        RunOutline.of(small(f"privacy.delta={wrong}"))


@pytest.mark.parametrize(
    "wrong", ["0", "1", "-1", "nan", "[1e-5, 1e-5, 1e-5, 0]", "[1, 0.1, 0.1, 0.1]", "['x']", "[[0.1]]"]
)
def test_values_outside_the_open_interval_are_refused(small, wrong):
    with pytest.raises(ConfigError, match=r"privacy\.delta: expected a number > 0 and < 1, or a list"):
        small(f"privacy.delta={wrong}")


def test_one_party_that_pools_all_records_has_one_delta(small):
    with pytest.raises(ConfigError, match=r"privacy\.delta: .* list of 1 numbers.* list of 4\."):
        resolve(small("method.name=central", f"privacy.delta={DELTAS}"))
    assert RunOutline.of(small("method.name=central", "privacy.delta=[1e-6]")).delta.tolist() == [1e-6]


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (DELTAS, None),
        ([1e-5, 1e-6, 1e-3, 1e-4], "delta"),
        (1e-3, "delta"),
        ([1e-3], "delta"),
        ([1e-5] * 3, "delta"),
    ],
)
def test_a_run_is_not_resumed_with_other_deltas(small, tmp_path, after, says):
    place = interrupted(small(*OWN), tmp_path / "run")
    file = place / "config.toml"
    text, count = re.subn(r"delta = \[[^]]*\]", f"delta = {after}", file.read_text())
    assert count == 1
    file.write_text(text)
    if says is None:
        run.resume(place)
        return
    with pytest.raises(InputError, match=says):
        run.resume(place)


def test_a_list_with_one_number_is_the_delta_of_all_agents(small, tmp_path):
    place = interrupted(small("privacy.delta=[1e-6]"), tmp_path / "run")
    assert RunFolder.open(place).config.privacy.delta == [1e-6]
    assert run.resume(place).privacy.deltas.tolist() == [1e-6] * 4


def test_pages_and_tables_show_no_single_delta(ran):
    facts = run_facts(RunFolder(ran.folder))
    assert facts["guarantee"]["delta"] == facts["privacy"]["delta"] == DELTAS
    links, privacy = facts["graph"]["links"], facts["privacy"]
    for owner, _, mu, epsilon in zip(*links.values(), strict=True):
        own = privacy["epsilon_per_agent"]["adaptive"][owner]
        assert epsilon == pytest.approx(min(epsilon_of(mu, DELTAS[owner]), own), rel=1e-9)
    agent = facts["spending"]["agent"]
    assert facts["spending"]["epsilon"]["adaptive"][-1] == pytest.approx(
        privacy["epsilon_per_agent"]["adaptive"][agent]
    )
    resolved, plan, found = planning.account_of_run(ran.folder)
    shown = [part for part in tables.account(resolved.config, plan, found, None) if hasattr(part, "columns")]
    assert "1e-06 to 0.001, add-remove" in shown[0].columns[1]._cells
    assert shown[2].columns[1]._cells == ["1e-05", "1e-06", "0.001", "1e-05"]
    assert "δ = 1e-06 to 0.001," in tables.runs({"top": ran.summary()})[0].caption
    assert learning_curves.noise_words(resolved.config) == "ε = 1 to 2 (adaptive, δ = 1e-6 to 0.001)"


def test_the_statement_of_a_run_names_the_deltas_of_all_agents(ran):
    said = yaml.safe_load(
        run_statement.statement_yaml(run_statement.statement(run_facts(RunFolder(ran.folder))))
    )
    assert said["guarantee"]["delta"] == DELTAS
    assert "ε = 2 at δ = 1e-6 to 0.001, by agent." in said["summary"][0]


def test_the_power_of_attacks_holds_for_every_agent_at_its_delta(ran):
    folder = RunFolder(ran.folder.with_name("sampled"))
    found = run_facts(folder)
    epsilon = found["privacy"]["epsilon_per_agent"]["worst_case"]
    points = [power_of_point(e, delta, 0.01) for e, delta in zip(epsilon, DELTAS, strict=True)]
    assert found["power"]["worst_case"]["0.01"] == pytest.approx(max(points))
    assert max(points) == points[2] > 1.02 * points[0]


def test_runs_at_several_deltas_compose_at_the_smallest_or_add_the_largest():
    def told(mu, **privacy):
        return {
            "state": "done", "noise_seed": None,
            "privacy": {"guarantee": "adaptive", "adjacency": "add-remove",
            "mu": {"adaptive": mu}, "epsilon": {"adaptive": 1.5}, **privacy},
        }  # fmt: skip

    runs = [told(0.3, delta=[1e-5, 1e-3]), told(0.4, delta=1e-4)]
    said = sweep_summary.cost_together([Spread({}, runs)])
    assert f"ε = {rounded_up(float(epsilon_of(0.5, 1e-5)))} (adaptive, δ = 1e-05)" in said
    runs = [told(None, delta=[1e-5, 1e-3]), told(0.4, delta=1e-4)]
    assert "ε = 3 (adaptive, δ = 0.0011)" in sweep_summary.cost_together([Spread({}, runs)])


def test_noise_alone_and_pooled_noise_follow_the_budgets_of_all_agents(small):
    wanted = small(
        "privacy.delta=[1e-5, 1e-6, 1e-3, 1e-5]",
        "privacy.weights=equal",
        "method.name=correlated",
        "method.secrets_degree=2",
    )
    outline, resolved = RunOutline.of(wanted), resolve(wanted)
    alone = auto_values.noise_alone(outline, resolved.analysis, resolved.schedule)
    np.testing.assert_allclose(
        alone * mu_of(np.ones(4), np.array(DELTAS)), alone[0] * mu_of(1.0, 1e-5), rtol=1e-3
    )
    assert run_outline.strictest_budget(wanted) == (1.0, 1e-6)
    assert run_outline.strictest_budget(small(*OWN)) == (1.0, 1e-5)  # not ε of one agent with δ of another
    assert run_outline.strictest_budget(small()) == (1.0, 1e-5)
    strict = small("privacy.delta=1e-6", "method.name=correlated", "method.secrets_degree=2")
    counts = resolved.counts
    assert recommend.pooled_noise(resolved.config, counts) == pytest.approx(
        recommend.pooled_noise(strict, counts)
    )


def test_the_quick_bound_of_the_planner_needs_one_budget(small):
    question = setting_answers.PlannerQuestion.__new__(setting_answers.PlannerQuestion)
    wanted = small(f"privacy.delta={DELTAS}", "privacy.weights=equal")
    object.__setattr__(question, "run", resolve(wanted))
    assert setting_answers._sufficient_sigma(question, planning.observe) is None
    sigma = setting_answers._sufficient_sigma(question)
    assert sigma[2] < 0.8 * min(sigma[0], sigma[3]) and max(sigma) == sigma[1]


def test_figures_refuse_budgets_that_differ(small):
    for own in (f"privacy.delta={DELTAS}", f"privacy.epsilon={EPSILON}"):
        with pytest.raises(InputError, match=r"Expected one privacy\.epsilon and one privacy\.delta"):
            noise_store._at_unit_budget(config.read(changes=["topology.agents=4", own]))


def test_older_accounts_with_one_delta_are_read(small, tmp_path):
    place = interrupted(small("privacy.delta=1e-6"), tmp_path / "run")
    assert json.loads((place / "privacy.json").read_text())["delta"] == 1e-6
    found = run.resume(place).privacy
    assert found.delta == 1e-6 and found.deltas.tolist() == [1e-6] * 4
    assert math.isclose(found.adaptive.largest, 1.0, rel_tol=1e-6)
