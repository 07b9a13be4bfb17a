"""The baseline `alone`, whose noise and account are those of `central` on each shard; `compare --alone`."""

import csv
import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import topdp
from builders import blobs, blobs_file, linear_model
from topdp.cli.app import app
from topdp.data import Shards
from topdp.plan import Cycle, Full, Poisson
from topdp.runs.alone_gains import ONE_SEED, gain_sentences, gains_over_alone
from topdp.runs.config import ConfigError, read
from topdp.runs.run_outline import RunOutline, batches_of

SIZES = (40, 25, 9)
EPSILON = [1.0, 2.0, 4.0]


def shard(agent: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = blobs(3)
    return made.inputs[agent, : SIZES[agent]], made.targets[agent, : SIZES[agent]]


def trained(agents: list[int], **changes):
    made, parts = blobs(3), [shard(agent) for agent in agents]
    if changes["method"] == "central":  # which pools two halves of one shard
        parts = [
            (inputs[half], targets[half]) for inputs, targets in parts for half in (slice(5), slice(5, None))
        ]
    shards = Shards.from_arrays(parts, test=(made.test_inputs, made.test_targets), classes=3)
    settings = {
        "rounds": 12,
        "clip": 1.0,
        "learning_rate": 0.5,
        "noise_seed": 5,
        "answers": ["outsider"],
        "device": "cpu",
    }
    return topdp.train(
        linear_model(), shards, topdp.topology.complete(len(shards.counts)), **(settings | changes)
    )


@pytest.mark.parametrize("batch", ["full", {"cycle": 8}, {"poisson": 8}], ids=str)
def test_noise_and_account_are_those_of_central_on_each_shard(batch):
    asked = {"answers": ["outsider", "view"], "batch": batch}
    together = trained([0, 1, 2], method="alone", epsilon=EPSILON, **asked)
    for agent, epsilon in enumerate(EPSILON):
        own = trained([agent], method="central", epsilon=epsilon, batch=batch)
        assert together.plan.full_scale[agent] == pytest.approx(own.plan.full_scale[0], rel=2e-3)
        for answer in ("claimed", "adaptive", "outsider", "worst_case"):
            found = together.privacy.answers[answer].epsilon[agent]
            assert found == pytest.approx(own.privacy.answers[answer].epsilon[0], rel=2e-3), answer
        assert together.privacy.adaptive.epsilon[agent] <= epsilon * (1 + 1e-9)
        # Whoever reads the models that an agent publishes learns as much as all others together.
        assert together.privacy.view.epsilon[agent] == pytest.approx(epsilon, rel=2e-2)


def test_the_first_agent_alone_has_the_model_of_central_on_its_records():
    """Draw 0 is that of the only agent of `central`, so both have the same noise."""
    together = trained([0, 1, 2], method="alone", sigma=[0.1, 0.2, 0.3])
    own = trained([0], method="central", sigma=0.1)
    torch.testing.assert_close(together.estimates[0], own.estimates[0], rtol=1e-5, atol=1e-6)
    other = trained([0, 2, 1], method="alone", sigma=[0.1, 0.2, 0.3])
    torch.testing.assert_close(together.estimates[0], other.estimates[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ("full", tuple(map(Full, SIZES))),
        ("{cycle=20}", (Cycle(40, 20), Cycle(25, 20), Cycle(9, 9))),
        ("{poisson=20}", (Poisson(40, 20), Poisson(25, 20), Poisson(9, 9))),
    ],
)
def test_an_agent_alone_averages_its_own_records_whatever_the_weights(batch, expected):
    weights = ["privacy.weights=[1,0.5,0.25]", "train.weighting=records", "topology.agents=3"]
    config = read(changes=["method.name=alone", f"data.batch={batch}", *weights])
    assert batches_of(config, SIZES) == expected


def test_robust_rules_and_pairs_are_refused_because_nothing_is_mixed():
    with pytest.raises(ConfigError, match="method alone, which mixes no rows"):
        RunOutline.of(read(changes=["method.name=alone", "robust.rule=trimmed"]))
    with pytest.raises(topdp.errors.InputError, match="expected sync for alone, got 'async'"):
        trained([0, 1, 2], method="alone", mode="async")


@pytest.fixture
def compare(tmp_path):
    blobs_file(tmp_path / "blobs.npz", 90)
    changes = [
        f"data.name={tmp_path / 'blobs.npz'}", "data.partition=sizes", "data.sizes=[60,20,10]",
        "topology.agents=3", "topology.kind=complete", "rounds=6", "privacy.clip=1", "noise_seed=3",
        "model.name=linear",
    ]  # fmt: skip

    def call(*arguments: str):
        sets = [part for change in changes for part in ("--set", change)]
        command = ["compare", *sets, "--methods", "dsgd,central", "--device", "cpu", *arguments]
        ended = CliRunner().invoke(app, command, catch_exceptions=False)
        assert ended.exit_code == 0, ended.output
        return ended.stdout

    return call


def test_compare_shows_what_each_agent_gains(compare, tmp_path):
    found = json.loads(compare("--alone", "--out", str(tmp_path / "out"), "--json"))
    assert list(found["methods"]) == ["dsgd", "central", "alone"]
    lines = {
        name: json.loads((tmp_path / "out" / name / "metrics.jsonl").read_text().splitlines()[-1])
        for name in found["methods"]
    }
    alone = np.array(lines["alone"]["accuracy_per_agent"])
    assert len(alone) == 3 and len(set(alone)) > 1
    for name in ("dsgd", "central"):
        gained = np.array(lines[name]["accuracy_per_agent"]) - alone
        means = [gain["mean"] for gain in found["gains"]["methods"][name]["gain"]]
        np.testing.assert_allclose(means, gained, atol=1e-12)
    rows = list(csv.DictReader((tmp_path / "out" / "gains.csv").read_text().splitlines()))
    assert [(row["method"], row["agent"]) for row in rows] == [
        (name, str(agent)) for name in ("dsgd", "central") for agent in range(3)
    ]
    assert float(rows[0]["gain"]) == pytest.approx(lines["dsgd"]["accuracy_per_agent"][0] - alone[0])
    assert (tmp_path / "out" / "compare.png").exists()


@pytest.mark.slow
def test_with_seeds_gains_are_means_of_paired_differences(compare, tmp_path):
    place = tmp_path / "out"
    found = json.loads(
        compare("--alone", "--seeds", "2", "--out", str(place), "--json", "--set", "method.mode=sync")
    )
    values = {
        name: [
            json.loads((place / name / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()[-1])[
                "accuracy_per_agent"
            ]
            for seed in (0, 1)
        ]
        for name in ("dsgd", "alone")
    }
    gained = np.array(values["dsgd"]) - np.array(values["alone"])
    gains = found["gains"]["methods"]["dsgd"]["gain"]
    assert [gain["mean"] for gain in gains] == pytest.approx(gained.mean(axis=0).tolist())
    assert [gain["deviation"] for gain in gains] == pytest.approx(gained.std(axis=0, ddof=1).tolist())
    assert [gain["n"] for gain in gains] == [2, 2, 2]
    assert "alone" in (place / "sweep.csv").read_text()


def test_alone_has_a_mode_and_a_rule_of_its_own(compare, tmp_path):
    ended = compare(
        "--alone", "--methods", "plain", "--set", "method.mode=async", "--out", str(tmp_path / "out")
    )
    assert "plain: better than training alone for" in ended.replace("\n", " ") and ONE_SEED in ended


def test_without_alone_there_are_no_gains(compare, tmp_path):
    found = json.loads(compare("--methods", "dsgd", "--out", str(tmp_path / "out"), "--json"))
    assert "gains" not in found and not (tmp_path / "out" / "gains.csv").exists()


def line(*values: float | None) -> dict:
    return {"mae": {"mean": 0.0}, "mae_per_agent": list(values), "loss": {"mean": 0.0}}


def test_gains_are_paired_by_seed_and_leave_out_undefined_values():
    found = gains_over_alone({
        "alone": {0: line(3.0, None), 1: line(5.0, 2.0), 2: line(9.0, 9.0)},
        "dsgd": {0: line(2.0, 1.0), 1: line(3.0, 4.0)},
    })  # fmt: skip
    assert found["metric"] == "mae"
    assert found["methods"]["dsgd"]["gain"] == [
        {"mean": -1.5, "deviation": pytest.approx(0.7071067811865476), "n": 2},
        {"mean": 2.0, "deviation": None, "n": 1},
    ]
    (sentence,) = gain_sentences(found, larger_is_better=False)
    assert (
        sentence == "dsgd: better than training alone for 1 of 2 agents; mae +2 (agent 1) to -1.5 (agent 0)."
    )
    assert gains_over_alone({"dsgd": {0: line(2.0)}}) is None
