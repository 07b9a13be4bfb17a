"""Tests of wrong input by new users: one line states what was expected, what was received and what to do."""

import os
from datetime import datetime

import numpy as np
import pytest
import torch

import topdp as package
from builders import blobs, blobs_file, linear_model
from topdp import topology
from topdp.runs import planning, run
from topdp.runs.config import ConfigError, read
from topdp.runs.run_outline import RunOutline, why_plans_are_equal

FEW = ["topology.agents=4", "topology.kind=ring", "rounds=2", "privacy.clip=1"]

FACTORIES = """
import torch

def fails(shape, classes):
    return torch.nn.Linear(shape, classes)

def takes_one(shape):
    return torch.nn.Linear(16, 3)

def makes_none(shape, classes):
    return None
"""


def sets(*changes):
    return [word for change in changes for word in ("--set", change)]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with data and conflicting files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    blobs_file(tmp_path / "blobs.npz", 160)
    (tmp_path / "a file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "factories.py").write_text(FACTORIES)
    (tmp_path / "syntax.py").write_text("def f(:")
    (tmp_path / "marked.toml").write_bytes(b"\xef\xbb\xbfrounds = 2\n[topology]\nagents = 4\nkind = 'ring'\n")
    (tmp_path / "latin.toml").write_bytes("# é".encode("latin-1"))
    (tmp_path / "deep.toml").write_text("rounds = " + "[" * 5000)
    return tmp_path


RUN = ["run", *sets("data.name=blobs.npz", *FEW)]
AUDIT = ["audit", *sets("data.name=blobs.npz", *FEW)]
ACCOUNT = ["account", *sets(*FEW)]
WRONG = {
    "out is a file": (
        [*RUN, "--out", "a file"],
        "--out: expected a new or empty folder, got the file a file. Name another folder",
    ),
    "out is full": ([*RUN, "--out", "full"], "got full, which contains other files. Name another folder."),
    "no cards": (
        ["federation", "create", "one.toml", "--records", "9"],
        "Expected a file one.toml, but found none",
    ),
    "no card": (["federation", "create", "a file", "--records", "9"], "Expected a card (TOML) in a file"),
    "a card is a folder": (["federation", "create", "full", "full", "--records", "9"], "Could not read full"),
    "latin": (["account", "latin.toml"], "Expected TOML in UTF-8 in latin.toml"),
    "deep": (["account", "deep.toml"], "brackets are nested too deep"),
    "a folder": (["recommend", "full"], "could not read full: Is a directory"),
    "built-in": ([*RUN, *sets("model.name=os:getcwd")], "that makes a torch module, got <built-in function"),
    "other class": (
        [*RUN, *sets("model.name=builtins:dict")],
        "that makes a torch module, got <class 'dict'>",
    ),
    "factory": ([*RUN, *sets("model.name=factories:fails")], "factories.py, line 5: TypeError: empty()"),
    "one argument": (
        [*RUN, *sets("model.name=factories:takes_one")],
        "(input shape, outputs) = ((1, 4, 4), 3)",
    ),
    "none": ([*RUN, *sets("model.name=factories:makes_none")], "to make a torch module, got None"),
    "syntax": ([*RUN, *sets("model.name=syntax:f")], "could not import 'syntax:f': SyntaxError"),
    "coalition": ([*ACCOUNT, "--coalition", "99"], "Expected coalitions of 1 to 3 of the 4 agents, got 99"),
    "section": (
        [*ACCOUNT, *sets("method.noise_schedule=0.9")],
        "method.noise_schedule: expected its keys (kind, exponent, curvature, factor, period), as",
    ),
    "key": (
        [*ACCOUNT, *sets("noise_schedule.factor=0.9")],
        "noise_schedule.factor: no such key. Did you mean 'method.noise_schedule.factor'",
    ),
    "plain key": ([*ACCOUNT, *sets("epsilon=2")], "epsilon: no such key. Did you mean 'privacy.epsilon'?"),
    "forms": ([*ACCOUNT, *sets("data.batch.cycle=0")], "{ poisson = 20 }, got {'cycle': 0}."),
    "long": ([*ACCOUNT, *sets("rounds=" + "9" * 5000)], "(5002 characters)"),
    "brackets": (
        [*ACCOUNT, *sets("rounds=" + "[" * 5000)],
        "rounds: expected a whole number from 0 to 1000000",
    ),
    "observer": ([*AUDIT, "--observer", "99"], "--observer: expected an agent between 0 and 3, got 99"),
    "owner": ([*AUDIT, "--owner", "-1"], "--owner: expected an agent between 0 and 3, got -1"),
    "audit to a file": ([*AUDIT, "--out", "a file"], "expected a new or empty folder, got the file a file"),
    "recorded": ([*AUDIT, "--recorded"], "got none, which has no canaries.npz"),
    "preset": (["account", "--preset", ""], "Expected a preset, got ''"),
    "no run": (["run", "--resume", "full"], "could not read run.json: No such file or directory."),
    "minutes": (["reproduce", "fig3", "--minutes", "nan"], "--minutes: expected a number >= 0, got nan"),
    "identity": (["agent", "init", "--name", "a", "--identity", "a file"], "a file is a file."),
    "demo to a file": (
        ["federation", "demo", *sets("data.name=blobs.npz"), "--agents", "3", "--out", "a file"],
        "Expected a new or empty folder, a file exists",
    ),
    "demo's budget": (
        ["federation", "demo", "--agents", "3", "--budget", "0=-1"],
        "and EPSILON > 0, got '0=-1'",
    ),
    "sees": ([*AUDIT, "--sees", "me"], "--sees: expected a known value, got 'me'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_message_and_code_2(topdp, here, monkeypatch, case):
    monkeypatch.setattr(planning, "account", lambda *a, **b: pytest.fail("the account was computed first"))
    before = sorted(os.listdir(here))
    arguments, expected_words = WRONG[case]
    done = topdp(*arguments)
    assert done.code == 2 and expected_words in " ".join(done.err.split()), done.err
    assert "Traceback" not in done.err and done.out == ""
    assert [name for name in sorted(os.listdir(here)) if name != "__pycache__"] == before


def test_only_an_unfinished_run_in_the_folder_can_be_continued(topdp, here):
    def stop(stage, done=0, total=None, /, **details):
        if stage == "training" and done == 1:
            raise KeyboardInterrupt

    wanted = read(changes=["data.name=blobs.npz", *FEW])
    with pytest.raises(package.TopdpError, match="Interrupted"):
        run.run(wanted, here / "broken", progress=stop)
    said = " ".join(topdp(*RUN, "--out", "broken").err.split())
    assert (
        "got broken, which has an unfinished run. Name another folder, or continue with --resume broken."
        in said
    )
    assert topdp("run", "--resume", "broken").code == 0
    said = " ".join(topdp(*RUN, "--out", "broken").err.split())
    assert "got broken, which contains a run in state 'done'. Name another folder." in said


def test_a_default_folder_is_new(topdp, here, monkeypatch):
    """This holds even if two runs begin in the same second."""
    from topdp.cli import shared_options

    class FixedClock:
        @staticmethod
        def now():
            return datetime(2026, 1, 1, 12)

    monkeypatch.setattr(shared_options, "datetime", FixedClock)
    assert topdp(*RUN).code == topdp(*RUN).code == 0
    name = "blobs.npz-top-dp-sync-20260101-120000"
    assert sorted(os.listdir(here / "runs")) == [name, f"{name}-2"]


def test_a_federation_needs_two_cards(topdp, here):
    assert topdp("agent", "init", "--name", "ada", "--identity", "ada").code == 0
    done = topdp("federation", "create", "ada/card.toml", "--records", "9")
    assert done.code == 2 and "Expected the cards of at least two agents, got 1." in " ".join(
        done.err.split()
    )


def test_a_byte_order_mark_is_ignored(topdp, here):
    assert topdp("account", "marked.toml", "--json").code == 0


@pytest.mark.parametrize(
    ("changes", "expected_words"),
    [
        (["top", "top-dp"], "The noise of top-dp decreases every 1000 rounds, and the run has 150"),
        (["plain", "li18"], "--set privacy.guarantee=claimed"),
        (["plain", "plain"], "they do not differ"),
    ],
)
def test_methods_with_equal_plans_are_explained_by_what_they_share(changes, expected_words):
    outlines = [RunOutline.of(read(changes=[f"method.name={name}"])) for name in changes]
    assert expected_words in why_plans_are_equal(outlines)


def test_methods_that_differ_only_later_are_reported(topdp, here):
    done = topdp("compare", *RUN[1:], "--methods", "top,top-dp", "--out", "both")
    assert done.code == 0 and "decreases every 1000 rounds, and the run has 2" in " ".join(done.out.split())


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.zeros(16), 0


WRONG_SHARDS = {
    "loader": (lambda: torch.utils.data.DataLoader(Pairs()), "DataLoader", "from_torch"),
    "dataset": (Pairs, "Pairs", "from_torch"),
    "loaders": (lambda: [torch.utils.data.DataLoader(Pairs())], "list of DataLoader", "from_torch"),
    "pairs": (lambda: [(np.zeros((2, 16)), np.zeros(2))], "list of tuple", "from_arrays"),
    "array": (lambda: np.zeros((2, 16)), "ndarray", "from_arrays"),
    "tensor": (lambda: torch.zeros(2, 16), "Tensor", "from_arrays"),
    "none": (lambda: None, "NoneType", "from_arrays"),
    "dictionary": (lambda: {"x": 1}, "dict", "from_frame"),
    "empty": (list, "list", "from_arrays"),
}


@pytest.mark.parametrize("case", WRONG_SHARDS)
def test_wrong_shards_are_refused_with_the_constructor_to_use(case):
    make, came, way = WRONG_SHARDS[case]
    with pytest.raises(
        ConfigError, match=rf"Expected shards to be a Shards, got {came}[.:].*Shards\.{way}\("
    ):
        package.train(linear_model(), make(), topology.ring(4))


def test_shards_are_accepted():
    assert package.train(linear_model(), blobs(4), topology.ring(4), rounds=1, sigma=1.0).config.rounds == 1


@pytest.mark.parametrize(
    ("settings", "expected_words"),
    [
        ({"device": None}, "--device: expected auto, cpu, cuda or cuda:N, got None"),
        ({"out": 3}, "Expected out to be the path of a folder, got int"),
        ({"progress": 3}, 'Expected progress to be "auto" or a function of'),
    ],
)
def test_arguments_of_a_wrong_type_are_named(settings, expected_words):
    with pytest.raises(ConfigError, match=expected_words):
        package.train(linear_model(), blobs(4), topology.ring(4), sigma=1.0, **settings)


def test_numbers_of_numpy_and_torch_are_accepted():
    given = {"rounds": np.int64(1), "epsilon": np.ones(4), "clip": torch.tensor(1.0), "seed": np.int32(3)}
    found = package.train(linear_model(), blobs(4), topology.ring(4), **given).config
    assert (found.rounds, found.privacy.epsilon, found.privacy.clip, found.seed) == (1, [1.0] * 4, 1.0, 3)


@pytest.mark.parametrize(
    "words, said",
    [
        (["run"], "Expected --out with torchrun"),
        (["sweep", "--seeds", "2"], "topdp sweep runs in one process, got 2 ranks"),
        (["compare"], "topdp compare runs in one process, got 2 ranks"),
        (["run", "--out", "new", "--device", "cuda:7"], "expected a CUDA device of this machine, got cuda:7"),
        (
            ["run", "--out", "new", "--set", "attack.name=drift"],
            "attack.name: expected none with several ranks, got 'drift'",
        ),
    ],
)
def test_work_that_several_ranks_do_not_support_is_refused_early(topdp, here, monkeypatch, words, said):
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = topdp(*words, "--set", "data.name=blobs.npz")
    assert done.code == 2 and said in done.err, done
    assert not (here / "new").exists()


@pytest.mark.parametrize(
    "command", ["agent init --name a", "relay --listen 127.0.0.1:1 --manifest m.toml", "agent stop --state a"]
)
def test_agents_name_the_system_that_they_cannot_run_on(topdp, monkeypatch, command):
    monkeypatch.delattr(os, "geteuid")
    done = topdp(*command.split())
    assert done.code == 2 and "Expected Linux or macOS, got " in done.err
