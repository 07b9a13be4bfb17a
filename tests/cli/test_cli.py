"""Tests of `topdp account` and `topdp calibrate`: numbers, JSON and errors."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from builders import blobs
from topdp import topology
from topdp.cli.app import COMMANDS
from topdp.plan import save, schedules
from topdp.privacy.basics.gaussian import epsilon_of, mu_of
from topdp.protocols import PlainSynchronous
from topdp.runs import config, planning, run, run_outline

NAMES = ["claimed", "view", "adaptive", "outsider", "worst_case"]
SMALL = ["--set", "topology.agents=5", "--set", "topology.kind=ring", "--set", "rounds=6"]


def test_a_plan_that_exceeds_memory_is_refused_in_one_line(topdp, monkeypatch):
    def too_large(config):
        raise MemoryError("Unable to allocate 8 TiB")

    monkeypatch.setattr(run_outline, "named_graph", too_large)
    done = topdp("account", *SMALL)
    assert done.code == 2 and "Not enough memory: Unable to allocate 8 TiB." in done.err


def test_the_help_lists_all_presets_and_no_summary_is_cut(topdp, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = topdp("run", "--help").out.replace(",", " ").split()
    assert set(config.presets()) <= set(words)
    for group in ([], ["agent"], ["federation"], ["data"], ["agent", "budget"], ["agent", "quarantine"]):
        listed = topdp(*group, "--help").out.partition("--help")[2]
        assert listed.count("\n  ") > 1 and "..." not in listed


def test_the_help_lists_each_command_under_one_heading(topdp):
    commands = {name for name in COMMANDS if name not in ("help", "sections")}
    listed = [name for names in COMMANDS["sections"].values() for name in names]
    assert sorted(listed) == sorted(commands)
    out = topdp("--help").out
    headings = [line.rstrip(":") for line in out.splitlines() if line.endswith(":") and line[0] != " "]
    assert headings == ["Options", "Start here", "Look", "Several organisations", "Research"]
    assert out.index("  run ") < out.index("Look:") < out.index("  account ") < out.index("Research:")


def test_ctrl_c_while_accounting_is_reported(topdp, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(planning, "plan_and_account", interrupted)
    done = topdp("account", *SMALL)
    assert done.code == 130 and done.err.endswith("topdp: Interrupted.\n")


def parse_json(done):
    """The one object that `--json` prints: strict JSON, without NaN and Infinity."""

    def refuse(word):
        raise ValueError(f"{word} is not JSON")

    assert done.code == 0, done.err
    (line,) = done.out.splitlines()
    return json.loads(line, parse_constant=refuse)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small run of 6 agents, calibrated to view ε = 3."""
    folder = tmp_path_factory.mktemp("runs")
    shards = blobs(1, records=120)
    np.savez(
        folder / "blobs.npz",
        train_inputs=shards.inputs[0].numpy(),
        train_labels=shards.targets[0].numpy(),
        test_inputs=shards.test_inputs.numpy(),
        test_labels=shards.test_targets.numpy(),
    )
    changes = [
        f'data.name="{folder / "blobs.npz"}"',
        "topology.agents=6",
        "topology.connection=0.5",
        "rounds=5",
        "method.name=top",
        "privacy.epsilon=3.0",
    ]
    run.run(config.read(changes=changes), folder / "run")
    return folder / "run"


def test_a_configuration_is_accounted_without_data_and_without_torch(tmp_path):
    program = (
        "import sys\n"
        "from topdp.cli.app import main\n"
        "try:\n    main()\n"
        "finally:\n    print('torch' in sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "account", *SMALL, "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TOPDP_CACHE": str(tmp_path), "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "False"
    assert list(tmp_path.iterdir()) == []
    found = json.loads(done.stdout)
    assert found["epsilon"]["adaptive"] == pytest.approx(1.0)


def test_the_json_of_an_account_contains_answers_pairs_and_assumptions(topdp):
    found = parse_json(
        topdp("account", *SMALL, "--set", "method.name=top", "--answers", "view, outsider", "--json")
    )
    assert found["delta"] == 1e-5 and found["guarantee"] == "adaptive" and found["releases"] == 7
    assert list(found["epsilon"]) == NAMES and found["colluders"] == 1
    assert 1 - 1e-6 <= found["epsilon"]["adaptive"] <= 1
    assert found["epsilon"]["claimed"] <= found["epsilon"]["view"] < 1 < found["epsilon"]["worst_case"]
    assert found["mu"]["adaptive"] == pytest.approx(mu_of(1.0, 1e-5), rel=1e-5)
    assert found["power"]["adaptive"] == pytest.approx({"0.01": 0.01978, "0.05": 0.08429}, abs=1e-4)
    for key in NAMES:
        assert max(found["epsilon_per_agent"][key]) == found["epsilon"][key]
        assert len(found["epsilon_per_agent"][key]) == 5
    mu = np.array(found["pairs"]["view"]["mu"], float)
    assert mu.shape == (5, 5) and np.isnan(np.diag(mu)).all()
    assert epsilon_of(float(np.nanmax(mu)), 1e-5) == pytest.approx(found["epsilon"]["view"])
    # σ is the noise per unit of clip; z = σ·b, and μ of the claim is √7/z.
    assert found["sigma"] == [found["sigma"][0]] * 5
    claimed = epsilon_of(np.sqrt(7) / (found["sigma"][0] * 12_000), 1e-5)
    assert found["epsilon"]["claimed"] == pytest.approx(claimed)
    assert set(found["assumptions"]) == set(NAMES) and "do not react" in found["assumptions"]["view"]
    assert "No assumption on gradients" in found["assumptions"]["adaptive"]


@pytest.mark.slow
def test_a_run_is_accounted_with_its_own_settings(topdp, finished):
    found = parse_json(topdp("account", finished, "--json"))
    written = json.loads((finished / "privacy.json").read_text())
    assert 3 * (1 - 1e-6) <= found["epsilon"]["adaptive"] <= 3
    assert list(written["epsilon_per_agent"]) == ["claimed", "adaptive", "worst_case"]
    for key in written["epsilon_per_agent"]:
        assert found["epsilon_per_agent"][key] == pytest.approx(written["epsilon_per_agent"][key], rel=1e-9)
    assert found["sensitivity"] == [4.0 / 20] * 6
    more = parse_json(topdp("account", finished, "--answers", "view", "--json"))
    assert 0 < more["epsilon"]["view"] < more["epsilon"]["adaptive"] == found["epsilon"]["adaptive"]
    refused = topdp("account", finished, "--set", "privacy.epsilon=2")
    assert refused.code == 2 and "Expected no settings with the folder of a run" in refused.err


def test_coalitions_learn_no_less_than_their_members(topdp):
    found = parse_json(topdp("account", *SMALL, "--coalition", "2", "--answers", "view", "--json"))
    together = found["coalition"]
    assert together["size"] == 2 and together["statement"].startswith("All 10 coalitions of 2 agents")
    assert all(one <= two * (1 + 1e-9) for one, two in zip(
        found["epsilon_per_agent"]["view"], together["epsilon"], strict=True
    ))  # fmt: skip
    assert max(together["epsilon"]) <= found["epsilon"]["worst_case"] * (1 + 1e-9)
    assert all(len(group) == 2 and i not in group for i, group in enumerate(together["members"]))


def test_the_tables_name_the_worst_observer_and_the_assumptions(topdp, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    done = topdp("account", *SMALL, "--coalition", "2", "--answers", "view")
    assert done.code == 0
    for words in (
        "1e-05, add-remove",
        "7 releases",
        "claimed",
        "view",
        "worst case",
        "σ, noise per unit of clip",
        "in every round",
        "adaptive",
        "sees most, adaptive",
        "adaptive (budget)",
        "power at 5%",
        "8.5%",
        "0.2681",
        "share of the budget",
        "100.0%",
        "All 10 coalitions of 2 agents",
        "honest but curious",
        "do not react",
        "No assumption on gradients",
    ):
        assert words in done.out, words


def test_infinite_and_refused_answers_are_explained_in_words(topdp, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    done = topdp("account", *SMALL, "--set", "method.name=no-noise")
    assert (
        done.code == 0 and "infinite: What agents 0, 1, 2, 3, 4 send" in done.out and "inf%" not in done.out
    )
    sampled = ["--set", "data.batch={poisson=500}", "--set", "rounds=1"]
    sampled += ["--set", "privacy.adjacency=replace-one", "--set", "privacy.guarantee=worst-case"]
    found = parse_json(topdp("account", *SMALL, *sampled, "--json"))
    assert found["epsilon"]["claimed"] is None and found["status"]["claimed"] == "refused"
    assert "add-remove" in found["reasons"]["claimed"]
    assert found["epsilon"]["view"] is None and found["status"]["view"] == "not asked"
    assert 1 - 1e-6 <= found["epsilon"]["worst_case"] <= 1


def test_calibrate_prints_the_numbers_of_the_paper_and_their_ratios(topdp):
    """Four digits of docs/privacy.md: unit clip, add-remove, 1000 releases."""
    found = parse_json(
        topdp("calibrate", "--epsilon", 1, "--delta", 1e-5, "--releases", 1000, "--records", 2000, "--json")
    )
    sigma = found["sigma"]
    assert list(sigma) == ["tight", "optimal", "udp", "moments", "advanced", "theorem1"]
    assert round(sigma["tight"], 5) == 0.05899
    assert round(sigma["theorem1"], 4) == 1.4703
    ratios = {name: value / sigma["tight"] for name, value in sigma.items()}
    assert [round(ratios[name], 3) for name in ("optimal", "moments", "udp")] == [1.084, 1.314, 1.286]
    assert round(ratios["advanced"], 2) == 8.56
    assert round(ratios["theorem1"], 1) == 24.9
    assert found["sensitivity"] == 1 / 2000 and found["releases"] == 1000
    assert found["exact_epsilon"]["tight"] == pytest.approx(1.0)


@pytest.mark.slow
def test_calibrate_refuses_single_methods_with_the_reason(topdp, monkeypatch):
    found = parse_json(
        topdp("calibrate", "--epsilon", 2, "--releases", 100, "--records", 2000, "--poisson", 1, "--json")
    )
    assert found["sigma"]["theorem1"] is None and found["sigma"]["tight"] > 0
    assert "Its epsilon=2 is exactly epsilon=17.75 under add-remove" in found["remarks"]["theorem1"]
    monkeypatch.setenv("COLUMNS", "160")
    table = topdp("calibrate", "--epsilon", 10, "--releases", 100, "--records", 2000).out
    assert "the same releases are exactly" in " ".join(table.replace("│", " ").split())


CALIBRATE = ["calibrate", "--epsilon", 1, "--releases", 10, "--records", 20]
WRONG = {
    "epsilon": ([*CALIBRATE, "--epsilon", 0], "Expected a finite epsilon > 0, got 0.0"),
    "nan": ([*CALIBRATE, "--epsilon", "nan"], "Expected a finite epsilon > 0, got nan"),
    "delta": ([*CALIBRATE, "--delta", 1], "Expected 0 < delta < 1, got 1.0"),
    "releases": ([*CALIBRATE, "--releases", 0], "'--releases': Input should be greater than or equal to 1"),
    "rounds": ([*CALIBRATE, "--rounds", 9], "No such option: --rounds"),
    "records": ([*CALIBRATE, "--records", 0], "'--records': Input should be greater than or equal to 1"),
    "clip": ([*CALIBRATE, "--clip", 0], "Expected a finite clip > 0, got 0.0"),
    "adjacency": (
        [*CALIBRATE, "--adjacency", "near"],
        "Expected adjacency out of add-remove, replace-one, got 'near'",
    ),
    "batches": ([*CALIBRATE, "--cycle", 5, "--poisson", 5], "got both"),
    "batch": ([*CALIBRATE, "--cycle", 50], "Expected a batch size <= 20 records, got 50"),
    "missing": (["calibrate", "--epsilon", 1], "--releases"),
    "config delta": (["account", *SMALL, "--set", "privacy.delta=2"], "privacy.delta"),
    "config epsilon": (["account", *SMALL, "--set", "privacy.epsilon=-1"], "privacy.epsilon"),
    "config nan": (["account", *SMALL, "--set", "privacy.epsilon=nan"], "privacy.epsilon"),
    "config sigma": (["account", *SMALL, "--set", "privacy.sigma=inf"], "privacy.sigma"),
    "config clip": (["account", *SMALL, "--set", "privacy.clip=0"], "privacy.clip"),
    "budgets": (
        ["account", *SMALL, "--set", "privacy.epsilon=[1.0, 2.0]"],
        "expected one number, or a list of 5 numbers, one per agent, got a list of 2",
    ),
    "no noise helps": (
        ["account", *SMALL, "--set", "method.alpha=0.0"],
        "No amount of noise gives a finite",
    ),
    "answers": (["account", *SMALL, "--answers", "view,all"], "among view, adaptive, outsider, got 'all'"),
    "config answers": (
        ["account", *SMALL, "--set", 'privacy.answers=["all"]'],
        "privacy.answers.0: got",
    ),
    "colluders": (["account", *SMALL, "--set", "privacy.colluders=5"], "privacy.colluders from 0 to 4"),
    "no colluders": (["account", *SMALL, "--set", "privacy.colluders=-1"], "privacy.colluders"),
    "coalition": (["account", *SMALL, "--coalition", 0], "--coalition"),
    "no file": (["account", "nowhere.toml"], "could not read nowhere.toml"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_ends_with_code_2_and_one_line(topdp, case):
    arguments, message = WRONG[case]
    done = topdp(*arguments)
    assert done.code == 2
    assert message in " ".join(done.err.split())
    assert "Traceback" not in done.err and done.out == ""


def test_folders_and_plans_that_belong_to_no_run_are_refused(topdp, finished, tmp_path):
    done = topdp("account", tmp_path)
    assert done.code == 2 and "Traceback" not in done.err
    other = tmp_path / "run"
    shutil.copytree(finished, other)
    rounds = schedules.Schedule(np.ones(6), np.ones(6))
    ring = topology.ring(7)
    save(PlainSynchronous(0.5).plan(ring, rounds, np.ones(7), 0), other / "plan.npz")
    done = topdp("account", other)
    assert done.code == 2 and "Expected the plan of config.toml in" in " ".join(done.err.split())
    (other / "plan.npz").write_bytes(b"not a plan")
    done = topdp("account", other)
    assert done.code == 2 and "plan" in done.err and "Traceback" not in done.err
