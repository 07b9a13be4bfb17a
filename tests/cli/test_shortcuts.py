"""Tests of the options of `topdp run` for common keys, and of answers to the words of other libraries."""

import json

import pytest
import torch
from torch import nn

import topdp as package
from builders import blobs_file
from topdp import topology
from topdp.data.record_checks import check_labels
from topdp.errors import DataError, TopdpError
from topdp.runs import config
from topdp.runs.other_words import OPTION_KEYS, OTHER_WORDS, UnknownArgumentError, key_of_option
from topdp.runs.user_training import train


def test_options_set_their_keys(topdp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blobs_file(tmp_path / "blöbs.npz", 160)
    options = ["--epsilon", 2, "--method", "plain", "--data", "blöbs.npz", "--model", "linear"]
    options += ["--agents", 4, "--topology", "ring", "--rounds", 2, "--seed", 7]
    done = topdp("run", *options, "--set", "privacy.clip=1", "--out", "run", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["privacy"]["epsilon"]["adaptive"] == pytest.approx(2.0)
    stored = config.read(tmp_path / "run" / "config.toml")
    assert (stored.privacy.epsilon, stored.method.name, stored.data.name) == (2.0, "plain", "blöbs.npz")
    assert (stored.model.name, stored.topology.agents, stored.topology.kind) == ("linear", 4, "ring")
    assert (stored.rounds, stored.seed, stored.privacy.clip) == (2, 7, 1.0)


def test_a_table_and_its_schema_are_options(topdp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{age},{'yes' if age > 50 else 'no'}\n" for age in range(100))
    (tmp_path / "mine.csv").write_text(f"age,ill\n{rows}")
    (tmp_path / "mine.toml").write_text('target = "ill"\nclasses = ["no", "yes"]\n[ranges]\nage = [0, 100]\n')
    options = ["--data", "mine.csv", "--schema", "mine.toml", "--agents", 4, "--topology", "ring"]
    done = topdp("run", *options, "--rounds", 2, "--out", "run")
    assert done.code == 0 and "Next: topdp report run" in done.out
    assert package.load("run").predict({"age": [3, 90]}).shape == (2,)


WRONG = {
    "a key twice": (["--epsilon", 2, "--set", "privacy.epsilon=3"], "one from --epsilon and one from --set"),
    "budget and noise": (["--epsilon", 2, "--set", "privacy.sigma=1"], "expected either privacy.epsilon"),
    "with a stored run": (["--resume", "runs/old", "--epsilon", 2], "--resume takes all settings"),
    "an unknown method": (["--method", "corelated"], "Did you mean 'correlated'?"),
    "no number": (["--epsilon", "low"], "Invalid value for '--epsilon'"),
    "not positive": (["--epsilon", -1], "privacy.epsilon: expected"),
    "lr": (["--set", "train.lr=0.1"], "train.lr: no such key. Use 'train.learning_rate'."),
    "epochs": (["--set", "epochs=3"], "epochs: no such key. Use 'rounds'."),
    "noise_multiplier": (["--set", "privacy.noise_multiplier=1"], "Use 'privacy.epsilon'. The noise follows"),
    "max_grad_norm": (["--set", "privacy.max_grad_norm=1"], "Use 'privacy.clip'."),
    "batch_size": (["--set", "train.batch_size=64"], "Use 'data.batch'. For example"),
    "an option": (["--lr", 0.1], "No such option: --lr. Use --set train.learning_rate=..."),
}


@pytest.mark.parametrize("use", WRONG)
def test_wrong_options_are_explained(topdp, use):
    options, message = WRONG[use]
    done = topdp("run", *options)
    assert done.code == 2 and message in done.err, done.err


def test_options_of_run_are_named_by_other_commands(topdp):
    done = topdp("account", "--epsilon", 2)
    assert done.code == 2 and "No such option: --epsilon. Use --set privacy.epsilon=..." in done.err


ARGUMENTS = ["lr", "epochs", "noise_multiplier", "max_grad_norm", "batch_size", "optimizer", "random_state"]


@pytest.mark.parametrize("word", ARGUMENTS)
def test_words_of_other_libraries_are_answered_in_python(word):
    own = OTHER_WORDS[word].argument
    with pytest.raises(UnknownArgumentError, match=rf"has no argument '{word}'. Use '{own}'") as raised:
        train(nn.Linear(1, 1), None, topology.ring(3), **{word: 1})
    assert isinstance(raised.value, TypeError) and raised.value.code == 2


def test_a_misspelt_argument_is_answered_and_others_are_listed():
    with pytest.raises(UnknownArgumentError, match="Did you mean 'learning_rate'"):
        train(nn.Linear(1, 1), None, topology.ring(3), learnin_rate=1)
    with pytest.raises(UnknownArgumentError, match="Known: model, shards, topology"):
        train(nn.Linear(1, 1), None, topology.ring(3), qqq=1)


def test_every_own_word_exists():
    defaults = config.dotted(config.RunConfig().model_dump())
    keys = {*defaults, *{key.rpartition(".")[0] for key in defaults}}
    for own in OTHER_WORDS.values():
        assert not own.key or own.key in keys, own
    assert set(OPTION_KEYS.values()) <= keys
    arguments = train.__wrapped__.__annotations__
    assert {own.argument for own in OTHER_WORDS.values()} <= set(arguments)
    assert not {word for word in OTHER_WORDS if word in arguments}
    assert key_of_option("--batch-size") == " Use --set data.batch=..."


def test_labels_that_begin_at_one_are_explained():
    x = torch.rand(3, 30, 4)
    y = torch.arange(30) % 2 + 1
    shards = package.Shards.from_arrays([(part, y) for part in x])
    with pytest.raises(TopdpError, match=r"The smallest label is 1.*subtract 1 from all labels"):
        package.train(nn.Linear(4, 2), shards, topology.ring(3), rounds=2)
    with pytest.raises(DataError, match="number the 2 classes from 1, and topdp numbers them from 0"):
        package.Shards.from_arrays([(part, y) for part in x], classes=2)
    with pytest.raises(DataError) as raised:
        check_labels(y.numpy() + 1, "x", 2)  # other labels: no such advice
    assert "from 1" not in str(raised.value)
