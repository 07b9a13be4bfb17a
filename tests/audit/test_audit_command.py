"""Tests of `topdp audit` on a configuration and on a run folder: output, files and errors."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from builders import blobs_file


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit")
    data = blobs_file(folder / "blobs.npz", records=480)
    file = folder / "small.toml"
    file.write_text(
        f'noise_seed = 0\nrounds = 4\n[topology]\nkind = "ring"\nagents = 4\n[method]\nname = "top"\n'
        f'[privacy]\nepsilon = 4.0\nclip = 1.0\n[data]\nname = "{data}"\n',
        encoding="utf-8",
    )
    return file


def parse_json(done):
    assert done.code == 0, done.err
    (line,) = done.out.splitlines()
    return json.loads(line)


def test_an_audit_of_a_configuration_reports_the_proved_and_the_audited_epsilon(topdp, config, tmp_path):
    done = topdp("audit", config, "--out", tmp_path / "found")
    assert done.code == 0, done.err
    for words in (
        "54 aimed",
        "54 turning",
        "proved for this observer",
        ": adaptive",
        "0.95 confidence",
        "audited",
        "independence",
        "at most 0.1%",
    ):
        assert words in done.out
    details = json.loads((tmp_path / "found" / "audit.json").read_text(encoding="utf-8"))
    assert details["epsilon_proved"] == pytest.approx(4.0, abs=1e-3)
    assert details["sees"] == "estimates" and details["exceeds"] in ([], ["claimed"])
    assert details["status"]["view"] == "not asked" and details["status"]["adaptive"] == "finite"
    with (tmp_path / "found" / "scores.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 108 and {row["kind"] for row in rows} == {"aimed", "turning"}
    aimed = [row for row in rows if row["kind"] == "aimed"]
    assert sum(row["there"] == "1" for row in aimed) == details["kinds"]["aimed"]["there"]
    checks = details["checks"]
    assert set(checks) == {"spread", "mean", "independence", "canaries", "records"}
    assert all(check["p"] > 1e-9 for check in checks.values())
    assert checks["spread"]["tests"] > 5 * 4 + 4 + 1  # rows, agents, and all
    with Image.open(tmp_path / "found" / "roc.png") as picture:
        assert min(picture.size) > 500


def test_an_audit_of_a_run_executes_the_plan_of_the_run(topdp, config, tmp_path):
    assert topdp("run", config, "--out", tmp_path / "run").code == 0
    found = parse_json(topdp("audit", tmp_path / "run", "--out", tmp_path / "a", "--json", "--seed", 3))
    again = parse_json(topdp("audit", config, "--out", tmp_path / "b", "--json", "--seed", 3))
    assert {**found, "out": ""} == {**again, "out": ""}
    assert np.isclose(found["epsilon_proved"], 4.0, atol=1e-3)


def test_a_run_whose_configuration_was_changed_is_not_audited(topdp, config, tmp_path):
    assert topdp("run", config, "--out", tmp_path / "run").code == 0
    file = tmp_path / "run" / "config.toml"
    file.write_text(file.read_text(encoding="utf-8").replace("alpha = 0.25", "alpha = 0.5"), encoding="utf-8")
    done = topdp("audit", tmp_path / "run", "--out", tmp_path / "found")
    assert done.code == 2 and "Expected the plan of config.toml" in done.err
    assert not (tmp_path / "found").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--observer", "0", "--owner", "0"], "other than the audited agent, got 0"),
        (["--observer", "9"], "expected an agent between 0 and 3, got 9"),
        (["--owner", "4"], "expected an agent between 0 and 3, got 4"),
        (["--sees", "everything"], "--sees: expected a known value, got 'everything'"),
        (["--canaries", "121"], "--canaries: expected at most 120, got 121"),
        (["--set", "data.records=30"], "--canaries: expected at least 40, got 30"),
        (["--confidence", "0.2"], "--confidence: expected at least 0.5"),
        (["--delta", "0"], "Expected 0 < delta < 1, got 0.0"),
        (["--set", "method.name=topp"], "Did you mean 'top'?"),
        (["--set", "privacy.colluders=4"], "Expected privacy.colluders from 0 to 3"),
    ],
)
def test_wrong_arguments_give_one_line_of_error_and_write_nothing(topdp, config, tmp_path, arguments, said):
    done = topdp("audit", config, "--out", tmp_path / "deep" / "found", *arguments)
    assert done.code == 2 and said in " ".join(done.err.split()), done.err
    assert list(tmp_path.iterdir()) == []


def test_folders_without_a_run_and_non_empty_output_folders_are_refused(topdp, config, tmp_path):
    done = topdp("audit", tmp_path, "--out", tmp_path / "found")
    assert done.code == 2 and "could not read run.json" in " ".join(done.err.split())
    done = topdp("audit", config, "--out", config.parent)
    assert done.code == 2 and "expected a new or empty folder" in " ".join(done.err.split())
    done = topdp("audit", config.parent, "--set", "rounds=3")
    assert done.code == 2 and "Expected no settings with the folder of a run" in " ".join(done.err.split())


def test_a_run_that_was_made_in_python_is_refused_with_a_hint(topdp, tmp_path):
    from builders import blobs, linear_model
    from topdp import topology, train

    train(linear_model(), blobs(3), topology.ring(3), rounds=2, out=tmp_path / "run")
    done = topdp("audit", tmp_path / "run", "--out", tmp_path / "found")
    assert done.code == 2 and "Audit it from Python" in " ".join(done.err.split())


def test_audits_of_recordings_refuse_a_run_without_them(topdp, config, tmp_path):
    assert topdp("run", config, "--out", tmp_path / "run").code == 0
    for target in (tmp_path / "run", config):
        done = topdp("audit", target, "--recorded", "--out", tmp_path / "found")
        assert done.code == 2 and "no canaries.npz" in " ".join(done.err.split())
    assert not (tmp_path / "found").exists()


def test_a_rehearsal_of_a_federation_can_be_audited(topdp, config, tmp_path):
    """Uses processes, TLS and the operating system's noise. It is slow, so there is only one such test."""
    demo = topdp(
        "federation", "demo", config, "--agents", "3", "--rehearse", "--out", tmp_path / "fed", "--json"
    )
    assert demo.code == 0, demo.err
    assert "canaries in the records of agent" in demo.err
    log = (tmp_path / "fed" / "agents" / "agent0" / "log.jsonl").read_text(encoding="utf-8")
    assert "REHEARSAL" in log
    out = tmp_path / "found"
    found = parse_json(topdp("audit", tmp_path / "fed", "--recorded", "--out", out, "--json"))
    assert found["epsilon_proved"] == pytest.approx(4.0, abs=1e-3)
    assert found["kinds"]["aimed"]["canaries"] == 72
    assert set(found["checks"]) == {"spread", "mean", "independence", "canaries"}
    assert all(check["p"] > 1e-9 for check in found["checks"].values())  # this noise has no seed
    assert found["checks"]["spread"]["found"] == pytest.approx(1.0, abs=0.5)
    assert 0.4 < found["kinds"]["aimed"]["spread"][0] < 1.8  # 1 up to chance: this noise has no seed
    notes = tmp_path / "fed" / "agents" / "agent1" / "state" / "recording" / "round-000001.npz"
    assert notes.stat().st_mode & 0o077 == 0
