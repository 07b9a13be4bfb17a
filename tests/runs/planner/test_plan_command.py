"""The command `topdp plan`: columns, JSON, and one line for an error."""

import json

import pytest

from topdp.runs.config import read

FEW = ["--set", "topology.agents=5", "--set", "topology.kind=ring", "--set", "rounds=3"]


def test_each_setting_has_a_column(topdp):
    done = topdp("plan", *FEW, "--beside", "method.name=top,correlated", "--beside", "privacy.epsilon=1,2")
    assert done.code == 0
    assert done.out.splitlines()[1].count("┃") == 6  # a column of labels, and four settings
    for words in ("ε worst case", "chosen: secrets_degree", "topdp run --set topology.agents=5"):
        assert words in done.out


def test_the_json_agrees_with_account_and_recommend(topdp):
    planned = json.loads(topdp("plan", *FEW, "--set", "method.name=top", "--json").out)
    (one,) = planned["settings"]
    account = topdp("account", *FEW, "--set", "method.name=top", "--answers", "view,outsider", "--json")
    account = json.loads(account.out)
    for key in ("epsilon", "mu", "status", "epsilon_per_agent", "power", "pairs"):
        assert one["privacy"][key] == account[key], key
    assert one["sigma"] == account["sigma"]
    advice = json.loads(topdp("recommend", *FEW, "--set", "method.name=top", "--json").out)
    assert planned["recommended"] == advice


def test_the_command_of_a_column_runs_its_setting(topdp):
    done = topdp("plan", *FEW, "--quick", "--beside", "privacy.epsilon=2,3", "--json")
    second = json.loads(done.out)["settings"][1]
    words = second["command"].split()
    assert words[:2] == ["topdp", "run"]
    changes = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    assert read(changes=changes).privacy.epsilon == 3.0 and read(changes=changes).topology.agents == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "privacy.epsilom=1"], "privacy.epsilom: no such key. Did you mean 'epsilon'?"),
        (["--set", "privacy.epsilon=0"], "privacy.epsilon: expected a number > 0"),
        (["--set", "method.name=top", "--set", "method.alpha=0"], "No amount of noise gives a finite"),
        (["--set", "topology.kind=regular", "--set", "topology.degree=9"], "9"),
        (["--set", "privacy.colluders=5"], "Expected privacy.colluders from 0 to 4"),
        (["--set", "topology.agents=1000000"], "topology.agents: expected at most 5000 to plan here"),
        (["--beside", "privacy.epsilon"], "Expected --beside key=value,value,..., for example"),
        (["--beside", "privacy.epsilon=1,1"], "--beside privacy.epsilon: expected different values"),
        (["--beside", "seed=1,2,3,4,5,6,7,8,9"], "expected at most 8 settings side by side, got 9"),
        (["--beside", "rounds=1,2", "--beside", "rounds=3,4"], "expected each key once"),
        (["--beside", "privacy.epsilon=1,-1"], "privacy.epsilon: expected a number > 0"),
        (["--set", "model.name=mpl"], "model.name: got 'mpl'. Did you mean 'mlp'?"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else None,
)
def test_invalid_input_gives_one_line(topdp, arguments, said):
    done = topdp("plan", *FEW, *arguments)
    assert done.code == 2 and said in done.err and "Traceback" not in done.err and done.out == ""
