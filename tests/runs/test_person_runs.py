"""Runs whose unit of protection is the person: settings, partitions, wrong input, what is reported."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import topdp as package
from builders import blobs, linear_model
from topdp import topology
from topdp.errors import DataError
from topdp.runs import config, run
from topdp.runs.config import ConfigError
from topdp.runs.named_records import load_shards, record_counts
from topdp.runs.run_outline import RunOutline

BASIS = [
    "topology.kind=complete",
    "topology.agents=3",
    "rounds=3",
    "privacy.clip=1",
    "privacy.unit=person",
    "data.person=patient",
    "data.schema={target='ill', classes=['no','yes'], ranges={age=[0,100]}}",
    "model.name=linear",
    "data.name=all.csv",
]
PERSONS = 60


def table(persons) -> str:
    ages = np.random.default_rng(0).integers(0, 101, len(persons))
    rows = [f"{who},{age},{'yes' if age > 50 else 'no'}" for who, age in zip(persons, ages, strict=True)]
    return "\n".join(["patient,age,ill", *rows, ""])


def several_records(letter="p", persons=PERSONS, seed=0):
    random = np.random.default_rng(seed)
    numbers = np.repeat(np.arange(persons), random.integers(1, 7, persons))
    return [f"{letter}{number}" for number in random.permutation(numbers)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all.csv").write_text(table(several_records()))
    for k, letter in enumerate("abc"):
        (tmp_path / f"site-{letter}.csv").write_text(table(several_records(f"patient-{letter}", 5 + 10 * k)))
    (tmp_path / "shared-1.csv").write_text(table(["p", "q", "p"]))
    (tmp_path / "shared-2.csv").write_text(table(["r", "p"]))
    (tmp_path / "shared-3.csv").write_text(table(["s", "t"]))
    (tmp_path / "gaps.csv").write_text(table(["a", "", "b", "c"]))
    np.savez(tmp_path / "plain.npz", train_inputs=np.zeros((30, 2)), train_labels=np.arange(30) % 2)
    return tmp_path


def settings(*changes):
    return config.read(changes=[*BASIS, *changes])


PARTITIONS = {
    "iid": [],
    "dirichlet": ["data.partition=dirichlet"],
    "label": ["data.partition=label", "data.labels_per_agent=1"],
    "sizes": ["data.partition=sizes", "data.sizes=[30,10,4]"],
    "few": ["data.records=7"],
    "validation": ["data.validation=0.3"],
}


@pytest.mark.parametrize("case", PARTITIONS)
def test_partitions_and_validation_deal_whole_persons(here, case):
    outline = RunOutline.of(settings(*PARTITIONS[case]))
    shards = load_shards(outline)
    persons = several_records()
    sizes = {who: persons.count(who) for who in persons}
    assert shards.sites_per_person == 1 and record_counts(outline) == shards.unit_counts
    for agent, count in enumerate(shards.counts):
        own, found = np.unique(shards.persons[agent, :count].numpy(), return_counts=True)
        numbers = list(dict.fromkeys(persons))
        assert [sizes[numbers[one]] for one in own] == found.tolist()
    expected = {"iid": (20,) * 3, "sizes": (30, 10, 4), "few": (7,) * 3, "validation": (14,) * 3}
    assert shards.unit_counts == expected.get(case, shards.unit_counts)
    if case == "validation":
        held = len(shards.test_targets)
        assert held == len(persons) - sum(
            sizes[who] for who in sizes if list(sizes).index(who) not in _held_out(outline)
        )


def _held_out(outline):
    from topdp.runs.named_records import _split

    return set(_split(PERSONS, 0.3, outline.config.seed)[1].tolist())


def test_the_pooled_run_counts_a_person_of_several_sites_once(here):
    sites = "data.sites=['shared-1.csv','shared-2.csv','shared-3.csv']"
    changes = [*BASIS[:-1], sites, "method.name=central"]
    shards = load_shards(RunOutline.of(config.read(changes=changes)))
    assert shards.unit_counts == (5,) and shards.counts == (7,)


def test_run_folder_states_persons_and_contains_no_identifier(here):
    made = run.run(settings("data.name=site-*.csv"), here / "out")
    facts = json.loads((here / "out" / "run.json").read_text())
    assert facts["persons"] == [5, 15, 25] and "records" not in facts
    privacy = json.loads((here / "out" / "privacy.json").read_text())
    assert privacy["unit"] == "person" and privacy["sites_per_person"] == 1
    # Sensitivity follows from persons: 15 on average.
    assert privacy["sensitivity"] == pytest.approx([1 / 15] * 3)
    assert made.privacy.summary()["unit"] == "person"
    for file in (here / "out").iterdir():
        assert b"patient-a" not in file.read_bytes()


def test_a_run_continues_only_with_the_same_persons(here):
    def stop(stage, done=0, total=None, /, **details):
        if stage == "training" and done == 2:
            raise KeyboardInterrupt

    wanted = settings("train.checkpoint_every=1", "rounds=6", "noise_seed=1")
    with pytest.raises(package.TopdpError, match="Interrupted"):
        run.run(wanted, here / "broken", progress=stop)
    text = (here / "all.csv").read_text()
    (here / "all.csv").write_text(text.replace("p7,", "p8,"))
    with pytest.raises(package.TopdpError, match=r"persons|records"):
        run.resume(here / "broken")
    (here / "all.csv").write_text(text)
    whole = run.run(wanted, here / "whole")
    assert torch.equal(run.resume(here / "broken").estimates, whole.estimates)


def test_single_record_persons_give_the_bits_of_the_unit_record(here):
    plain = blobs(3, 20)
    records = [plain.records(agent) for agent in range(3)]
    cut = [(x[:size], y[:size]) for (x, y), size in zip(records, (20, 6, 11), strict=True)]
    names = [[f"{agent} {k}" for k in range(len(y))] for agent, (_, y) in enumerate(cut)]
    for batch in ("full", {"cycle": 4}, {"poisson": 4}):
        found = [
            package.train(
                linear_model(),
                package.Shards.from_arrays(cut, classes=3, persons=persons),
                topology.ring(3),
                unit=unit,
                batch=batch,
                noise_seed=2,
                rounds=5,
                clip=1.0,
                epsilon=3.0,
            )
            for unit, persons in (("record", None), ("person", names))
        ]
        assert torch.equal(found[0].estimates, found[1].estimates)
        epsilons = [one.privacy.adaptive.epsilon for one in found]
        np.testing.assert_array_equal(*epsilons)


# Wrong input

WRONG = {
    "gaps": (["data.name=gaps.csv"], 5, "gaps.csv, line 3: expected a person identifier in 'patient'"),
    "at two sites": (
        ["data.name=shared-*.csv"],
        5,
        "Expected every person at no more than 1 agents, got one at 2",
    ),
    "no such column": (["data.person=who"], 5, "expected a column 'who' with the identifier"),
    "an input": (["data.person=age"], 2, "a model must not see who a record is about"),
    "no array": (
        ["data.name=plain.npz", "data.schema={}"],
        5,
        "expected an array 'train_patient' with the identifier",
    ),
    "catalogue": (["data.name=mnist"], 2, 'privacy.unit: expected "record" for mnist'),
    "unit record": (["privacy.unit=record"], 2, 'data.person: expected privacy.unit = "person"'),
    "unknown unit": (["privacy.unit=household"], 2, "privacy.unit: got 'household'. Known: record, person."),
    "sites without persons": (
        ["privacy.unit=record", "privacy.sites_per_person=2"],
        2,
        'sites_per_person > 1 needs unit = "person"',
    ),
    "no sites": (["privacy.sites_per_person=0"], 2, "privacy.sites_per_person"),
    "poisson": (
        ["privacy.sites_per_person=2", "data.batch={poisson=3}"],
        2,
        "no account of several agents covers Poisson samples",
    ),
}


@pytest.mark.parametrize("command", ["run", "account"])
@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_message_and_its_code(topdp, here, case, command):
    changes, code, words = WRONG[case]
    before = sorted(os.listdir(here))
    given = [word for change in [*BASIS, *changes] for word in ("--set", change)]
    done = topdp(command, *given, *(["--out", "out"] if command == "run" else []))
    said = " ".join(done.err.split())
    assert (done.code, words in said) == (code, True), said
    assert "Traceback" not in said and done.out == ""
    assert sorted(os.listdir(here)) == before


def test_a_person_at_two_sites_needs_twice_the_noise(here):
    sites = ["data.name=shared-*.csv", "privacy.sites_per_person=2", "method.name=dsgd"]
    found = run.run(settings(*sites), here / "out")
    alone = run.run(settings("data.name=site-*.csv", "method.name=dsgd"), here / "alone")
    sensitivity = [one.privacy.analysis.exposure().sensitivity[0] for one in (found, alone)]
    noise = [one.plan.full_scale.max() / each for one, each in zip((found, alone), sensitivity, strict=True)]
    assert noise[0] / noise[1] == pytest.approx(2, rel=1e-5)
    assert found.privacy.adaptive.largest <= 1.0
    assert json.loads((here / "out" / "privacy.json").read_text())["sites_per_person"] == 2


def test_shards_and_unit_must_agree():
    x, y = np.random.default_rng(0).normal(size=(20, 16)), np.arange(20) % 3
    plain = package.Shards.from_arrays([(x, y)] * 3)
    persons = package.Shards.from_arrays([(x, y)] * 3, persons=[np.arange(20) + 20 * k for k in range(3)])
    shared = package.Shards.from_arrays([(x, y)] * 3, persons=[np.arange(20)] * 3)
    for shards, unit, error, words in (
        (plain, "person", ConfigError, "shards without persons"),
        (persons, "record", ConfigError, "shards that state persons"),
        (shared, "person", DataError, "no more than 1 agents, got one at 3"),
    ):
        with pytest.raises(error, match=words):
            package.train(linear_model(), shards, topology.ring(3), unit=unit, rounds=2, clip=1.0)


def test_a_sweep_over_both_units_counts_each_its_own_way(topdp, here):
    """The array of persons has the default name, so that both units can read the file."""
    with np.load(here / "plain.npz") as arrays:
        np.savez(here / "both.npz", **arrays, person=np.arange(30) // 3)
    arguments = [
        "data.name=both.npz",
        "topology.agents=3",
        "topology.kind=ring",
        "rounds=2",
        "model.name=linear",
    ]
    given = [word for change in arguments for word in ("--set", change)]
    done = topdp(
        "sweep", *given, "--over", "privacy.unit=record,person", "--seeds", "2", "--out", "s", "--json"
    )
    assert done.code == 0, done.err
    facts = [json.loads(file.read_text()) for file in sorted((here / "s").rglob("run.json"))]
    assert sorted(str(one.get("records") or one.get("persons")) for one in facts) == sorted(
        [*["[10, 10, 10]"] * 2, *["[3, 3, 3]"] * 2]
    )
    assert "some protect records and others persons" in " ".join(done.out.split() + done.err.split())
