"""Commands announce every stage in order; Ctrl-C prints the command that continues. No test measures time.

benchmarks/manners.py measures for how long commands print nothing.
"""

import subprocess
import sys

import pytest

from builders import blobs_file

FEW = ["topology.agents=4", "topology.kind=ring", "rounds=2", "privacy.clip=1"]


@pytest.fixture
def few(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blobs_file(tmp_path / "blobs.npz", 320)
    return [word for change in ["data.name=blobs.npz", *FEW] for word in ("--set", change)]


def stages(done):
    """The announced stages, each once, without the repetitions on slow machines."""
    lines = [line.partition(" (")[0].partition(",")[0] for line in done.err.splitlines()]
    return [line for line in dict.fromkeys(lines) if not line.endswith(": starting")]


RUN = ["planning", "accounting", "preparing", "training"]


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_run_announces_its_stages(topdp, few, as_json):
    done = topdp("run", *few, *as_json)
    assert done.code == 0
    assert stages(done) == [f"top-dp: {stage}" for stage in ("loading torch", *RUN)]


@pytest.mark.slow
def test_a_comparison_announces_the_stages_of_each_method(topdp, few):
    done = topdp("compare", *few, "--methods", "top,plain")
    assert stages(done) == [
        "compare: loading torch",
        *(f"compare: top: {stage}" for stage in RUN),
        *(f"compare: plain: {stage}" for stage in RUN),
        "compare: drawing",
    ]


@pytest.mark.slow
def test_an_audit_announces_its_stages(topdp, few):
    found = stages(topdp("audit", *few))
    assert found == ["audit: loading torch", "audit: accounting", "audit: training"]


def test_counted_steps_are_announced_one_by_one(topdp, few):
    done = topdp("calibrate", "--epsilon", 1, "--releases", 10, "--records", 20)
    assert [line for line in done.err.splitlines() if "(" not in line] == [
        f"calibrate: {name}, calibration {k} of 6"
        for k, name in enumerate(("tight", "optimal", "udp", "moments", "advanced", "theorem1"), 1)
    ]
    done = topdp("recommend", *few)
    methods = [line for line in done.err.splitlines() if "method" in line and "(" not in line]
    assert methods[0] == "recommend: calibrating plain, method 1 of 4" and len(methods) == 4
    assert stages(topdp("account", *few, "--coalition", 2)) == [
        "account: planning",
        "account: accounting",
        "account: accounting coalitions of 2",
    ]


INTERRUPTED = {
    "reproduce": (
        ["reproduce", "fig3", "--quick", "--out", "figures"],
        "topdp.experiments.reproduce.reproduce",
        "Interrupted. Continue with: the same command; finished runs are in figures.",
    ),
    "compare": (
        ["compare", "--out", "both"],
        "topdp.runs.run.run_or_continue",
        "Interrupted. Continue with: the same command and --out both",
    ),
    "audit": (
        ["audit"],
        "topdp.audit.of_config",
        "Continue with: the same command, which starts from the beginning",
    ),
    "recommend": (
        ["recommend"],
        "topdp.runs.recommend.recommend",
        "Continue with: the same command, which starts from the beginning",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", INTERRUPTED)
def test_ctrl_c_names_the_command_that_continues(topdp, tmp_path, monkeypatch, command):
    def interrupted(*arguments, **named):
        raise KeyboardInterrupt

    arguments, where, says = INTERRUPTED[command]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(where, interrupted)
    done = topdp(*arguments)
    assert done.code == 130 and says in done.err, done.err


def test_a_time_limit_names_the_command_that_continues(topdp, tmp_path, monkeypatch):
    from topdp.experiments.figure_runner import OutOfTime

    def up(*arguments, **named):
        raise OutOfTime("Time is up with 3 stacks of runs to go.")

    monkeypatch.setattr("topdp.experiments.reproduce.reproduce", up)
    done = topdp("reproduce", "fig3", "--out", tmp_path / "figures")
    assert done.code == 130 and "Time is up with 3 stacks of runs to go. Continue with: the same" in done.err


def test_the_command_line_imports_nothing_slow():
    """Help and wrong options respond at once; slow modules are imported after the first progress line."""
    slow = ("torch", "numpy", "scipy", "networkx", "matplotlib", "requests", "grpc", "cryptography", "pandas")
    code = f"import sys, topdp.cli.app; sys.exit(', '.join(m for m in {slow} if m in sys.modules) or None)"
    done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
