"""Tests of the facts of a run: those of privacy.json unchanged, others from the accountants, gaps stated."""

import json
from pathlib import Path

import numpy as np
import pytest

from topdp.privacy.basics.gaussian import epsilon_of
from topdp.runs import planning
from topdp.runs.run_folder import RunFolder, RunFolderError
from topdp.views.pages.run_facts import MAX_DRAWN_EVALUATIONS, run_facts
from topdp.views.statement import privacy_costs
from views.conftest import NAMES


def facts(path: Path, **options):
    found = run_facts(RunFolder(path), **options)
    json.dumps(found, allow_nan=False)
    return found


def test_privacy_facts_are_those_of_the_file(made):
    stored = json.loads((made / "top" / "privacy.json").read_text())
    assert facts(made / "top")["privacy"] == stored


def test_the_power_of_attacks_is_that_of_the_account(made):
    found = facts(made / "top")["power"]
    account = planning.account_of_run(made / "top")[2]
    for name, values in planning.powers(account).items():
        assert {share: found[name][share] for share in values} == pytest.approx(values)
        assert found[name]["exact"]


def test_the_power_of_attacks_on_poisson_samples_is_an_upper_bound(made):
    found = facts(made / "sampled")["power"]["worst_case"]
    account = planning.account_of_run(made / "sampled")[2]
    assert not found["exact"]
    for share in (0.01, 0.05):
        assert account.worst_case.power(share).max() <= found[f"{share:g}"] < 1


def test_each_link_has_the_loss_to_its_receiver(made):
    found = facts(made / "top")
    links, pairs = found["graph"]["links"], found["privacy"]["pairs"]["adaptive"]
    assert len(links["from"]) == 12
    for owner, observer, mu, epsilon in zip(*links.values(), strict=True):
        assert mu == pairs["mu"][owner][pairs["observers"].index([observer])]
        own = found["privacy"]["epsilon_per_agent"]["adaptive"][owner]
        assert epsilon == min(epsilon_of(mu, 1e-5), own)
    assert found["graph"]["names"] == NAMES


def test_the_loss_of_a_link_includes_every_coalition_of_its_observer():
    groups = [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    mu = [
        [None if owner in group else 1.0 + owner + column for column, group in enumerate(groups)]
        for owner in range(4)
    ]
    found = privacy_costs.link_losses({"pairs": {"adaptive": {"observers": groups, "mu": mu}}}, "adaptive", 4)
    # Groups 3, 4 and 5 learn 4, 5 and 6 about agent 0: agent 1 is in 3 and 4, agents 2 and 3 are in 5.
    assert np.array_equal(found[0], [np.nan, 5, 6, 6], equal_nan=True)
    assert np.array_equal(found[3], [5, 7, 7, np.nan], equal_nan=True)


def test_the_spending_curve_ends_with_the_epsilon_of_the_account(made):
    found = facts(made / "top")
    spent, privacy = found["spending"], found["privacy"]
    assert (spent["rounds"][0], spent["rounds"][-1], spent["unit"]) == (0, 12, "round")
    for name in ("adaptive", "worst_case"):
        assert spent["epsilon"][name][-1] == pytest.approx(privacy["epsilon_per_agent"][name][spent["agent"]])
        assert np.all(np.diff(spent["epsilon"][name]) >= 0)


def test_averaging_steps_are_part_of_a_round(made):
    found = facts(made / "correlated")
    assert found["releases"] > 13
    assert found["spending"]["rounds"] == list(range(13))
    own = found["privacy"]["epsilon_per_agent"]["adaptive"][found["spending"]["agent"]]
    assert found["spending"]["epsilon"]["adaptive"][-1] == pytest.approx(own)


def test_facts_that_take_too_long_are_omitted_with_a_note(made):
    found = facts(made / "top", max_seconds=1e-9)
    assert found["spending"] is None
    assert any("too long" in note for note in found["notes"])


def test_a_run_without_a_finite_epsilon_has_no_spending_curve(made):
    found = facts(made / "no-noise")
    assert found["guarantee"]["name"] is None
    assert found["privacy"]["status"][found["guarantee"]["answer"]] == "infinite"
    assert found["power"]["worst_case"]["0.01"] == 1
    assert found["spending"] is None
    assert any("not finite" in note for note in found["notes"])


def test_a_run_of_one_agent_has_a_graph_without_links(made):
    found = facts(made / "central")
    assert found["graph"]["agents"] == 1
    assert found["graph"]["links"]["from"] == []
    assert found["graph"]["positions"] == [[0, 0]]


def test_the_worst_case_answer_gives_no_epsilon_for_links(made):
    found = facts(made / "plain")
    assert found["graph"]["links"]["epsilon"] is None
    assert len(found["graph"]["links"]["from"]) == 6
    assert any("no ε for single edges" in note for note in found["notes"])


@pytest.mark.parametrize("state", ["running", "interrupted", "diverged"])
def test_unfinished_runs_are_shown_with_their_state(copied, state):
    folder = copied("top", state=state, seconds=..., stopped=...)
    (folder / "metrics.jsonl").unlink()
    found = facts(folder)
    assert found["state"] == state
    assert (found["metrics"], found["seconds"], found["round"]) == (None, None, 0)
    assert found["privacy"]["epsilon"]["adaptive"] <= 2
    assert len(found["notes"]) >= 2


def test_a_run_that_has_only_started_has_notes_instead_of_privacy(copied):
    folder = copied("top", state="starting", records=...)
    for name in ("config.toml", "plan.npz", "privacy.json"):
        (folder / name).unlink()
    found = facts(folder)
    assert found["privacy"] is None
    assert found["notes"]


def test_facts_follow_a_running_run(copied):
    folder = copied("top", state="running")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text(lines[0] + "\n")
    assert facts(folder)["metrics"]["rounds"] == [0]
    (folder / "metrics.jsonl").write_text("\n".join(lines[:3]) + "\n")
    assert facts(folder)["metrics"]["rounds"] == [0, 3, 6]


def test_many_evaluations_are_thinned_but_keep_both_ends(copied):
    folder = copied("top")
    line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    lines = [json.dumps({**line, "round": round}) for round in range(1001)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    found = facts(folder)["metrics"]
    assert (found["rounds"][0], found["rounds"][-1]) == (0, 1000)
    assert len(found["rounds"]) == MAX_DRAWN_EVALUATIONS
    assert np.all(np.diff(found["rounds"]) > 0)


@pytest.mark.parametrize("name", ["run.json", "config.toml", "plan.npz", "privacy.json"])
@pytest.mark.parametrize("damage", [lambda whole: whole[: len(whole) // 2], lambda whole: b"{}", None])
def test_damaged_and_missing_files_raise_one_kind_of_error(copied, name, damage):
    folder = copied("top")
    whole = (folder / name).read_bytes()
    if damage is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(damage(whole))
    with pytest.raises(RunFolderError):
        facts(folder)


def test_a_changed_number_is_refused(copied):
    folder = copied("top")
    stored = json.loads((folder / "privacy.json").read_text())
    stored["epsilon"]["adaptive"] = 0.1
    (folder / "privacy.json").write_text(json.dumps(stored))
    with pytest.raises(RunFolderError, match="was changed"):
        facts(folder)


def test_a_missing_graph_file_leaves_the_links_without_names(copied):
    folder = copied("top")
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace("links.txt", "gone.txt"))
    found = facts(folder)
    assert len(found["graph"]["links"]["from"]) == 12
    assert found["graph"]["names"] == ["0", "1", "2", "3", "4", "5"]
    assert any("the graph's file is missing" in note for note in found["notes"])


def test_folders_and_facts_contain_no_digest_of_data_and_no_estimates(made):
    text = json.dumps(facts(made / "top"))
    assert "data" not in json.loads((made / "top" / "run.json").read_text())
    assert "estimates" not in json.loads(text)


def test_runs_on_the_same_data_have_the_same_key(made):
    keys = {facts(made / name)["data"]["key"] for name in ("top", "plain", "central")}
    assert len(keys) == 1
