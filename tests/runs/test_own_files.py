"""Runs on a user's own files, one per agent or one that is partitioned; the schema is stored with the run."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import topdp
from topdp.agents.agreement import federation_manifest
from topdp.agents.agreement.manifest import Rules
from topdp.agents.node import agent_process
from topdp.cli.app import app
from topdp.data.readers.table_schema import Schema
from topdp.errors import DataError, InputError
from topdp.runs import config, run
from topdp.runs.named_records import load_shards, record_counts
from topdp.runs.run_outline import RunOutline
from topdp.topology import ring

SCHEMA = 'target = "ill"\nclasses = ["no", "yes"]\nignore = ["id"]\n[ranges]\nage = [0, 100]\n'


def table(records: int, seed: int) -> str:
    ages = np.random.default_rng(seed).integers(0, 101, records)
    lines = [f"{number},{age},{'yes' if age > 50 else 'no'}" for number, age in enumerate(ages)]
    return "\n".join(["id,age,ill", *lines, ""])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites").mkdir()
    for seed, (name, records) in enumerate({"b": 30, "a": 20, "c": 40}.items()):
        (tmp_path / "sites" / f"{name}.csv").write_text(table(records, seed))
    (tmp_path / "test.csv").write_text(table(50, 9))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path


def settings(*changes: str, name: str = "sites/*.csv") -> config.RunConfig:
    basis = [
        "rounds=3", "topology.kind=ring", "topology.agents=3", "model.name=linear", "privacy.sigma=0",
        "data.schema=schema.toml", "data.test=test.csv", f"data.name={name}",
    ]  # fmt: skip
    return config.read(changes=[*basis, *changes])


def test_each_file_is_an_agent_and_the_run_stores_the_schema(place: Path) -> None:
    found = run.run(settings("train.learning_rate=20.0", "rounds=30"), place / "out")
    assert found.plan.agents == 3 and found.accuracy["mean"] > 0.9
    facts = json.loads((place / "out" / "run.json").read_text())
    assert facts["records"] == [20, 30, 40]  # sorted by name
    kept = tomllib.loads((place / "out" / "config.toml").read_text())["data"]["schema"]
    assert Schema.of(kept) == Schema.of(place / "schema.toml")


def test_sites_can_be_listed_and_pooled(place: Path) -> None:
    (place / "list.toml").write_text('[data]\nsites = ["sites/c.csv", "sites/a.csv", "sites/b.csv"]\n')
    basis = ["topology.kind=ring", "topology.agents=3", "data.schema=schema.toml"]
    listed = config.read(place / "list.toml", changes=basis)
    assert listed.data.name == "sites" and record_counts(RunOutline.of(listed)) == (40, 20, 30)
    direct = topdp.Shards.from_files(listed.data.sites or [], schema="schema.toml")
    assert load_shards(RunOutline.of(listed)).digest() == direct.digest() and direct.test_inputs is None
    pooled = config.read(place / "list.toml", changes=[*basis, "method.name=central"])
    assert load_shards(RunOutline.of(pooled)).counts == (90,)


def test_one_file_is_partitioned_like_other_data_sets(place: Path) -> None:
    shards = load_shards(RunOutline.of(settings("data.partition=dirichlet", name="sites/c.csv")))
    assert shards.agents == 3 and sum(shards.counts) == 40 and shards.classes == 2
    assert shards.test_inputs is not None and len(shards.test_inputs) == 50


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["topology.agents=4"],
            "a file for each of the 4 agents of the graph, got 3 files. Set topology.agents to 3",
        ),
        (["data.partition=label"], "expected no partition, validation or records"),
        (["data.validation=0.1"], "expected no partition, validation or records"),
        (["data.name=sites/*.parquet"], "Expected files that match sites/.* found none"),
        (["data.name=sites/absent.csv"], "which does not exist"),
        (["data.name=mnist"], "mnist: expected no schema"),
        (["data.schema=absent.toml"], "Expected a readable schema"),
        (["data.schema.target=age"], "expected the target 'age' in classes only"),
        (['data.sites=["sites/a.csv"]'], "data: expected either data.name or data.sites, got both"),
    ],
)
def test_unsuitable_settings_are_rejected_at_once(place: Path, changes: list[str], message: str) -> None:
    if changes[0].startswith("data.schema."):
        (place / "schema.toml").write_text(SCHEMA.replace('target = "ill"', 'target = "age"'))
        changes = []
    with pytest.raises((DataError, InputError), match=message):
        run.run(settings(*changes), place / "out")
    assert not (place / "out").exists()


def test_the_error_for_a_missing_schema_shows_a_template(place: Path) -> None:
    (place / "run.toml").write_text('[data]\nname = "sites/*.csv"\n[topology]\nagents = 3\n')
    done = CliRunner().invoke(app, ["run", "run.toml", "--out", "out"])
    assert isinstance(done.exception, InputError) and done.exception.code == 2
    assert "[ranges]" in str(done.exception) and "age = []" in str(done.exception)


def test_a_manifest_states_the_schema_but_no_paths_of_records(place: Path) -> None:
    made = settings("privacy.sigma=0.5", "privacy.guarantee=worst-case")
    complete, _ = federation_manifest.complete_config(made, ring(3), (20, 30, 40), Rules())
    assert complete.data.schema == made.data.schema and complete.data.test is None
    assert complete.data.sites is None


def test_an_agent_reads_its_own_file_by_the_schema_of_the_manifest(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    class StopError(Exception):
        pass

    def load(path: str, **given: Any) -> None:
        asked.update(given, path=path)
        raise StopError

    monkeypatch.setattr(agent_process.data, "load", load)
    with pytest.raises(StopError):
        agent_process._load_records("a.csv", type("Terms", (), {"config": settings()})())
    assert asked == {"path": "a.csv", "schema": Schema.of(place / "schema.toml"), "person": None}


def test_train_accepts_frames_and_a_networkx_graph(place: Path) -> None:
    frames = [pandas.read_csv(path) for path in sorted(place.glob("sites/*.csv"))]
    shards = topdp.Shards.from_frames(frames, test=frames[0], schema="schema.toml")
    shutil.copy("sites/a.csv", "again.csv")
    files = topdp.Shards.from_files(["sites/*.csv"], "again.csv", "schema.toml")
    assert shards.digest() == files.digest() and shards.test_targets is not None
    found = topdp.train(torch.nn.Linear(1, 2), shards, nx.cycle_graph(3), sigma=0.0, rounds=2)
    assert found.plan.agents == 3
    notes = [{"note": ["spam here", "all well"] * 4, "spam": ["y", "n"] * 4} for _ in range(2)]
    schema = {"target": "spam", "classes": ["n", "y"], "text": {"column": "note", "length": 4}}
    text = topdp.Shards.from_frames(notes, schema=schema)
    assert text.inputs.dtype == torch.int64 and text.inputs.shape == (2, 8, 4)
    with pytest.raises(DataError, match="Expected a list with the records of each agent, got DataFrame"):
        topdp.Shards.from_frames(frames[0], schema="schema.toml")  # type: ignore[arg-type]


def test_image_folders_can_be_data_sets_or_sites(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name, value in (("cat", 0), ("dog", 255)):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(4):
                image = Image.fromarray(np.full((8, 8), value, np.uint8))
                image.save(tmp_path / part / name / f"{number}.png")
    dataset = topdp.data.load(tmp_path)
    assert dataset.classes == 2 and dataset.train()[0].max() == 1.0 and dataset.test() is not None
    sites = topdp.Shards.from_files([tmp_path / "train", tmp_path / "test"])
    assert (
        sites.counts == (8, 8) and sites.inputs.shape == (2, 8, 1, 8, 8) and float(sites.inputs.max()) == 1.0
    )
    (tmp_path / "test" / "eel").mkdir()
    with pytest.raises(DataError, match=r"expected the classes of .*cat, dog; got cat, dog, eel"):
        topdp.Shards.from_files([tmp_path / "train", tmp_path / "test"])
    with pytest.raises(DataError, match="State all classes in a schema"):
        topdp.data.load(tmp_path)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 10**9], "expected labels that number the classes 0, 1, 2, ..., got 1000000000 among"),
        ([0, 0], "expected labels of at least two classes, got only the label 0"),
        ([0, -1], r"expected labels .*of at least 0.*, got -1"),
        ([0.0, 0.5], r"expected (integer )?labels.*, got 0.5"),
    ],
)
def test_invalid_labels_are_rejected_by_name(labels: list[Any], message: str, tmp_path: Path) -> None:
    pair = (np.zeros((2, 3)), np.array(labels))
    with pytest.raises((DataError, InputError), match=message):
        shards = topdp.Shards.from_arrays([pair, pair, pair])
        topdp.train(torch.nn.Linear(3, 2), shards, ring(3), sigma=0.0, rounds=1)
    np.savez(tmp_path / "a.npz", train_inputs=pair[0], train_labels=pair[1])
    with pytest.raises(DataError, match=message):
        topdp.data.load(tmp_path / "a.npz")


def test_a_user_looks_at_a_file_of_its_own(place: Path) -> None:
    done = CliRunner().invoke(app, ["data", "look", "sites/a.csv"])
    assert done.exit_code == 0 and "age = []" in done.output and "no, yes" in done.output
    seen = json.loads(CliRunner().invoke(app, ["data", "look", "sites/a.csv", "--json"]).stdout)
    assert seen["ill"]["values"] == ["no", "yes"] and seen["age"]["kind"] == "number"


def test_whole_numbers_can_be_regression_targets(tmp_path: Path) -> None:
    """Costs, or counts that are all 0, with a loss that is not for classes."""
    for targets in ([12_000, 3], [0, 0]):
        pair = (np.ones((2, 3)), np.array(targets))
        shards = topdp.Shards.from_arrays([pair, pair, pair])
        settings = {"loss": "mse", "sigma": 0.0, "rounds": 1, "learning_rate": 1e-9}
        assert topdp.train(torch.nn.Linear(3, 1), shards, ring(3), **settings).plan.agents == 3
