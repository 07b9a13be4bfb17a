"""Facts of a run: what privacy.json says, unchanged; what it lacks, from the accountants; honest gaps."""

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


def test_privacy_is_what_the_file_says(made):
    said = json.loads((made / "top" / "privacy.json").read_text())
    assert facts(made / "top")["privacy"] == said


def test_power_is_that_of_the_account(made):
    found = facts(made / "top")["power"]
    account = planning.account_of_run(made / "top")[2]
    for name, values in planning.powers(account).items():
        assert {share: found[name][share] for share in values} == pytest.approx(values)
        assert found[name]["exact"]


def test_power_of_samples_is_a_bound(made):
    found = facts(made / "sampled")["power"]["worst_case"]
    account = planning.account_of_run(made / "sampled")[2]
    assert not found["exact"]
    for share in (0.01, 0.05):
        assert account.worst_case.power(share).max() <= found[f"{share:g}"] < 1


def test_links_have_what_their_end_learns(made):
    found = facts(made / "top")
    links, pairs = found["graph"]["links"], found["privacy"]["pairs"]["adaptive"]
    assert len(links["from"]) == 12
    for owner, observer, mu, epsilon in zip(*links.values(), strict=True):
        assert mu == pairs["mu"][owner][pairs["observers"].index([observer])]
        own = found["privacy"]["epsilon_per_agent"]["adaptive"][owner]
        assert epsilon == min(epsilon_of(mu, 1e-5), own)
    assert found["graph"]["names"] == NAMES


def test_a_link_counts_every_coalition_with_its_observer():
    groups = [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    mu = [
        [None if owner in group else 1.0 + owner + column for column, group in enumerate(groups)]
        for owner in range(4)
    ]
    found = privacy_costs.link_losses({"pairs": {"adaptive": {"observers": groups, "mu": mu}}}, "adaptive", 4)
    # Of agent 0 the groups 3, 4 and 5 learn 4, 5 and 6: agent 1 is in the first two, 2 and 3 are in the last.
    assert np.array_equal(found[0], [np.nan, 5, 6, 6], equal_nan=True)
    assert np.array_equal(found[3], [5, 7, 7, np.nan], equal_nan=True)


def test_spending_ends_with_the_account(made):
    found = facts(made / "top")
    spent, privacy = found["spending"], found["privacy"]
    assert (spent["rounds"][0], spent["rounds"][-1], spent["unit"]) == (0, 12, "round")
    for name in ("adaptive", "worst_case"):
        assert spent["epsilon"][name][-1] == pytest.approx(privacy["epsilon_per_agent"][name][spent["agent"]])
        assert np.all(np.diff(spent["epsilon"][name]) >= 0)


def test_steps_of_averaging_are_parts_of_a_round(made):
    found = facts(made / "correlated")
    assert found["releases"] > 13
    assert found["spending"]["rounds"] == list(range(13))
    own = found["privacy"]["epsilon_per_agent"]["adaptive"][found["spending"]["agent"]]
    assert found["spending"]["epsilon"]["adaptive"][-1] == pytest.approx(own)


def test_what_would_take_long_is_left_out_and_said(made):
    found = facts(made / "top", max_seconds=1e-9)
    assert found["spending"] is None
    assert any("too long" in note for note in found["notes"])


def test_no_finite_epsilon(made):
    found = facts(made / "no-noise")
    assert found["guarantee"]["name"] is None
    assert found["privacy"]["status"][found["guarantee"]["answer"]] == "infinite"
    assert found["power"]["worst_case"]["0.01"] == 1
    assert found["spending"] is None
    assert any("not finite" in note for note in found["notes"])


def test_one_agent(made):
    found = facts(made / "central")
    assert found["graph"]["agents"] == 1
    assert found["graph"]["links"]["from"] == []
    assert found["graph"]["positions"] == [[0, 0]]


def test_worst_case_has_no_links_of_its_own(made):
    found = facts(made / "plain")
    assert found["graph"]["links"]["epsilon"] is None
    assert len(found["graph"]["links"]["from"]) == 6
    assert any("no ε for single edges" in note for note in found["notes"])


@pytest.mark.parametrize("state", ["running", "interrupted", "diverged"])
def test_unfinished_runs_are_shown_as_such(copied, state):
    folder = copied("top", state=state, seconds=..., stopped=...)
    (folder / "metrics.jsonl").unlink()
    found = facts(folder)
    assert found["state"] == state
    assert (found["metrics"], found["seconds"], found["round"]) == (None, None, 0)
    assert found["privacy"]["epsilon"]["adaptive"] <= 2
    assert len(found["notes"]) >= 2


def test_a_run_that_only_began(copied):
    folder = copied("top", state="starting", records=...)
    for name in ("config.toml", "plan.npz", "privacy.json"):
        (folder / name).unlink()
    found = facts(folder)
    assert found["privacy"] is None
    assert found["notes"]


def test_a_run_grows_under_ones_eyes(copied):
    folder = copied("top", state="running")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text(lines[0] + "\n")
    assert facts(folder)["metrics"]["rounds"] == [0]
    (folder / "metrics.jsonl").write_text("\n".join(lines[:3]) + "\n")
    assert facts(folder)["metrics"]["rounds"] == [0, 3, 6]


def test_many_evaluations_are_thinned_with_both_ends(copied):
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
def test_damage_is_one_error(copied, name, damage):
    folder = copied("top")
    whole = (folder / name).read_bytes()
    if damage is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(damage(whole))
    with pytest.raises(RunFolderError):
        facts(folder)


def test_a_changed_number_is_not_shown(copied):
    folder = copied("top")
    said = json.loads((folder / "privacy.json").read_text())
    said["epsilon"]["adaptive"] = 0.1
    (folder / "privacy.json").write_text(json.dumps(said))
    with pytest.raises(RunFolderError, match="was changed"):
        facts(folder)


def test_a_graph_that_is_gone_leaves_its_links(copied):
    folder = copied("top")
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace("links.txt", "gone.txt"))
    found = facts(folder)
    assert len(found["graph"]["links"]["from"]) == 12
    assert found["graph"]["names"] == ["0", "1", "2", "3", "4", "5"]
    assert any("the graph's file is missing" in note for note in found["notes"])


def test_no_parameters_records_or_digests_of_them(made):
    text = json.dumps(facts(made / "top"))
    digest = json.loads((made / "top" / "run.json").read_text())["data"]
    assert digest not in text
    assert "estimates" not in json.loads(text)


def test_the_same_data_have_one_key(made):
    keys = {facts(made / name)["data"]["key"] for name in ("top", "plain", "central")}
    assert len(keys) == 1
