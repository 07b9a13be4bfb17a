"""Tests of a federation whose members change, from its first manifest to the last round.

Cleo is killed for good in the middle of a run, and dora takes her place. The test runs real commands, with
processes and mutual TLS.
"""

import json

import pytest

from builders import blobs_file
from topdp.agents.development import child_processes, federation_demo

FIRST, LAST = ("ada", "bob", "cleo"), ("ada", "bob", "dora")
RECORDS, ROUNDS, EPSILON = 60, 8, 8.0


@pytest.fixture
def sites(tmp_path, topdp, monkeypatch):
    monkeypatch.chdir(tmp_path)
    child_processes.warm_up()
    names = dict.fromkeys([*FIRST, *LAST])
    for name, address in zip(names, federation_demo._free_addresses(len(names)), strict=True):
        init = ("--name", name, "--identity", f"{name}/identity", "--address", address)
        assert topdp("agent", "init", *init).code == 0
        blobs_file(tmp_path / name / "records.npz", RECORDS)
    return tmp_path


def start(folder, name, manifest, state, *more, failpoint=None):
    """An agent in its own process, at a site whose budget adds up all its runs."""
    words = [
        "agent",
        "rehearse" if failpoint else "start",
        "--manifest",
        manifest,
        "--identity",
        f"{name}/identity",
        "--site",
    ]
    words += [f"{name}/book", "--data", f"{name}/records.npz", "--state", f"{name}/{state}", *more]
    return child_processes.start(words, folder / name / "log.txt", TOPDP_FAILPOINT=failpoint or "")


def codes(processes):
    for process in processes.values():
        process.join(60)
    return {name: process.exitcode for name, process in processes.items()}


def status(topdp, name):
    return json.loads(topdp("agent", "status", "--state", f"{name}/state", "--json").out)


@pytest.mark.slow
def test_a_departed_member_is_replaced_and_the_costs_of_both_runs_add_up(sites, topdp):
    cards = [f"{name}/identity/card.toml" for name in (*FIRST, "dora")]
    settings = [f"rounds={ROUNDS}", f"privacy.epsilon={EPSILON}", "model.name=linear"]
    settings = [word for setting in settings for word in ("--set", setting)]
    created = topdp(
        "federation", "create", *cards[:3], "--links", "ada-bob,bob-cleo,ada-cleo", "--records", RECORDS,
        *settings, "--idle-timeout", "3", "--robust", "none", "--out", "manifest.toml",
    )  # fmt: skip
    assert created.code == 0, created.err

    running = {
        name: start(sites, name, "manifest.toml", "state", failpoint="after_send:6" * (name == "cleo"))
        for name in FIRST
    }
    running["cleo"].join(60)
    assert running.pop("cleo").exitcode == -9
    for name in running:
        assert topdp("agent", "stop", "--state", f"{name}/state").code == 0
    assert codes(running) == {"ada": 0, "bob": 0}
    made = {name: status(topdp, name)["round"] for name in running}  # one may have had cleo's last row
    last = min(made.values())
    assert 1 <= last < ROUNDS

    change = ["--remove", "cleo", "--add", cards[3], "--links", "ada-dora,bob-dora", "--records", RECORDS]
    amended = topdp(
        "federation", "amend", "manifest.toml", *change, "--from-round", last + 1,
        "--out", "manifest-2.toml", "--json",
    )  # fmt: skip
    told = json.loads(amended.out)
    assert amended.code == 0 and told["amends"]["round"] == last
    for name in LAST:
        assert topdp("agent", "sign", "manifest-2.toml", "--identity", f"{name}/identity").code == 0

    ending = {
        name: start(sites, name, "manifest.toml", "state", "--amended-by", "manifest-2.toml")
        for name in running
    }
    assert codes(ending) == {"ada": 0, "bob": 0}  # without cleo, who never learns of it
    watched = topdp("agent", "status", "--state", "ada/state", "--watch")
    assert watched.code == 0 and f"round {made['ada']} of {made['ada']}" in watched.out
    after = {name: ["--after", f"{name}/state"] if name in made else [] for name in LAST}
    new = {name: start(sites, name, "manifest-2.toml", "state-2", *after[name]) for name in LAST}
    # An agent that made a round more than the named one has less left than the new run costs.
    assert codes(new) == {name: 3 if made.get(name, last) > last else 0 for name in LAST}

    for name in LAST:
        parts = {}
        for state in ("state", "state-2") if name != "dora" else ("state-2",):
            ledger = topdp("agent", "ledger", "verify", "--state", f"{name}/{state}", "--json")
            assert ledger.code == 0 and json.loads(ledger.out)["whole"]
            parts[state] = json.loads(ledger.out)["epsilon"]
        site = json.loads(topdp("agent", "budget", "show", "--site", f"{name}/book", "--json").out)
        assert [run["final"] for run in site["runs"]] == [True] * len(parts)
        assert site["epsilon"]["add-remove"] == pytest.approx(sum(parts.values()))
        assert sum(parts.values()) <= EPSILON * (1 + 1e-9)
        assert site["delta"]["add-remove"] == pytest.approx(1e-5 * len(parts))
        result = json.loads((sites / name / "state-2" / "result.json").read_text())
        assert result["finished"] and result["releases"] == ROUNDS - last + 1
        if name != "dora":
            assert parts["state"] >= told["amends"]["spent"][name] and parts["state-2"] > 0
