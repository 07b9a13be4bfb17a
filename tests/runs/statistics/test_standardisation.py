"""Private standardisation: its constants, its place in a run, and the account of both against definitions."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import norm as normal

import topdp
from topdp import topology
from topdp.agents.agreement.federation_manifest import complete_config
from topdp.agents.agreement.manifest import Rules
from topdp.errors import InputError
from topdp.learning.standardise import Standardise
from topdp.plan.noise_key import NoiseKey
from topdp.privacy.accounting import account
from topdp.runs import config, planning, run
from topdp.runs.finished_run import run_single
from topdp.runs.resolve import resolve
from topdp.runs.run_folder import RunFolder, RunFolderError
from topdp.runs.run_outline import RunOutline
from topdp.runs.run_stacks import Dealer
from topdp.runs.statistics import standardisation
from topdp.runs.statistics.standardisation import Standardisation, shrunk, standardisation_of
from topdp.runs.statistics.standardisation_cost import release_plan, release_run
from topdp.runs.training_loop import InterruptedRun

RING = topology.ring(5)
MEANS, DEVIATIONS = np.array([0.6, -0.4, 0.0]), np.array([0.05, 0.1, 0.2])


def shards_of(records=2000):
    generator = np.random.default_rng(0)
    parts = []
    for agent in range(6):
        x = generator.normal(MEANS, DEVIATIONS, (records + 100 * agent, 3)).clip(-1, 1).astype(np.float32)
        parts.append((x, (x @ (1 / DEVIATIONS) > MEANS @ (1 / DEVIATIONS)).astype(np.int64)))
    return topdp.Shards.from_arrays(parts[:5], test=parts[5])


def trained(shards=None, **changes):
    settings = {"epsilon": 1.0, "clip": 1.0, "rounds": 8, "method": "correlated", "standardise": "private"}
    settings |= {"standardise_norm": 1.0, "standardise_share": 0.2, **changes}
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    torch.nn.init.zeros_(model[0].weight), torch.nn.init.zeros_(model[0].bias)
    return topdp.train(model, shards or shards_of(), RING, **settings)


def epsilon_by_definition(mu, delta):
    low, high = 0.0, 100.0
    for _ in range(200):
        e = (low + high) / 2
        spent = normal.cdf(mu / 2 - e / mu) - math.exp(e) * normal.cdf(-mu / 2 - e / mu)
        low, high = (e, high) if spent > delta else (low, e)
    return high


def largest_mu(plan, move):
    """By agent, for a plan whose rows all agents read: the largest μ over observers, from single releases."""
    worst = np.zeros(plan.agents)
    for observer in range(plan.agents):
        others = [row for row in range(plan.agents) if row != observer]
        squares = np.zeros(plan.agents)
        for release in range(plan.releases):
            if not plan.carries[release].any():
                continue  # averaging steps are functions of rows that the observer has read
            noise, rate = plan[release], plan.rate[release]
            D = np.zeros((plan.agents, plan.draws))
            for row, draws in enumerate(noise.draw):
                D[row, draws[draws >= 0]] = noise.std[row, draws >= 0]
            D = D[np.ix_(others, ~(plan.known_by == observer).any(1))]
            squares[others] += (rate * move) ** 2 * np.diag(np.linalg.inv(D @ D.T))
        worst = np.maximum(worst, np.sqrt(squares))
    return worst


def test_the_account_of_release_and_training_is_that_of_the_definition():
    shards = shards_of(300)
    result = trained(shards)
    mean_shard = sum(shards.counts) / 5
    whole = resolve(result.config, RING, shards.counts)
    released, _ = release_plan(release_run(whole), planning.query_of(result.config))
    first = largest_mu(released, math.sqrt(2) / mean_shard)
    second = largest_mu(result.plan, 1.0 / mean_shard)
    both = np.hypot(first, second)
    np.testing.assert_allclose(result.privacy.adaptive.mu, both, rtol=1e-6)
    expected = [epsilon_by_definition(mu, 1e-5) for mu in both]
    np.testing.assert_allclose(result.privacy.adaptive.epsilon, expected, rtol=1e-6)
    assert 1 - 1e-5 < max(expected) <= 1 + 1e-9
    assert (first / both).max() ** 2 == pytest.approx(0.2, rel=1e-5)
    training = account(result.plan, whole.analysis, 1e-5, guarantee="adaptive")
    np.testing.assert_allclose(training.adaptive.mu, second, rtol=1e-6)
    assert result.privacy.worst_case.largest > training.worst_case.largest
    assert result.privacy.claimed.status == "refused"


def test_means_and_deviations_are_those_of_the_records_up_to_their_noise():
    result = trained(epsilon=8.0)
    layer = result.model(0)[0]
    assert isinstance(layer, Standardise)
    for found, expected in ((layer.mean, MEANS), (layer.deviation, DEVIATIONS)):
        np.testing.assert_allclose(found.numpy(), expected, atol=0.03)


def test_the_noise_of_means_has_the_predicted_deviation(monkeypatch):
    """All records are 0, so the released numbers are the noise."""
    kept = []
    monkeypatch.setattr(
        standardisation,
        "standardisation_of",
        lambda mean, square, noise: (
            kept.append((mean, square, noise)) or standardisation_of(mean, square, noise)
        ),
    )
    zeros = torch.zeros(40, 1500)
    shards = topdp.Shards.from_arrays([(zeros, torch.arange(40) % 2)] * 5)
    topdp.train(
        torch.nn.Linear(1500, 2), shards, RING, rounds=1, epsilon=1.0, method="correlated",
        standardise="private", standardise_norm=2.0,
    )  # fmt: skip
    ((mean, square, noise),) = kept
    assert mean.std() == pytest.approx(noise[0], rel=0.08) and square.std() == pytest.approx(
        noise[1], rel=0.08
    )


def test_standardisation_helps_where_inputs_have_very_different_scales():
    plain = trained(standardise="none", standardise_norm=None, standardise_share=0.1, learning_rate=2.0)
    found = trained(learning_rate=2.0)
    assert found.accuracy["mean"] > plain.accuracy["mean"] + 0.1


def test_where_noise_dominates_all_inputs_get_one_scale():
    generator = np.random.default_rng(0)
    noisy = standardisation_of(np.zeros(500), 1 + generator.normal(0, 0.3, 500), (1e-6, 0.3))
    assert np.ptp(noisy.deviation) < 0.3 and noisy.deviation.mean() == pytest.approx(1, abs=0.1)
    huge = standardisation_of(generator.normal(0, 9, 5), generator.normal(0, 9, 5), (9.0, 9.0))
    assert np.isfinite(huge.deviation).all() and (huge.deviation > 0).all()
    assert shrunk(np.array([1.0, 2.0]), 0.1).tolist() == pytest.approx([1.02, 1.98])


@pytest.fixture
def small(tmp_path):
    shards = shards_of(60)
    parts = [shards.records(agent) for agent in range(5)]
    arrays = {
        "train_inputs": np.concatenate([x for x, _ in parts]),
        "train_labels": np.concatenate([y for _, y in parts]),
        "test_inputs": shards.test_inputs.numpy(),
        "test_labels": shards.test_targets.numpy(),
    }
    np.savez(tmp_path / "data.npz", **arrays)

    def make(*changes):
        basis = [
            "rounds=9",
            "topology.kind=ring",
            "topology.agents=5",
            "model.name=linear",
            "method.name=correlated",
        ]
        basis += [
            f"data.name={tmp_path / 'data.npz'}",
            "data.standardise=private",
            "data.standardise_norm=1.0",
        ]
        return config.read(changes=[*basis, "noise_seed=3", "train.checkpoint_every=1", *changes])

    return make


def test_a_resumed_run_has_the_same_constants_and_makes_no_second_release(small, tmp_path, monkeypatch):
    def interrupt(stage, done=0, total=None, /, **details):
        if stage == "training" and done == 4:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRun):
        run.run(small(), tmp_path / "run", progress=interrupt)
    facts = RunFolder.open(tmp_path / "run").fact("standardisation")
    monkeypatch.setattr(run, "release_standardisation", None)  # a call would fail
    resumed = run.resume(tmp_path / "run")
    assert resumed.model(0)[0].mean.tolist() == pytest.approx(facts["mean"], rel=1e-6)
    monkeypatch.undo()
    assert torch.equal(resumed.estimates, run.run(small(), tmp_path / "whole").estimates)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("standardise_share = 0.1", "standardise_share = 0.01"),
        ('standardise = "private"', 'standardise = "none"'),
    ],
)
def test_an_account_is_not_computed_for_another_release_than_that_of_the_run(small, tmp_path, before, after):
    """It would state less than was spent, because the plan has the training only."""
    run.run(small(), tmp_path / "run")
    file = tmp_path / "run" / "config.toml"
    assert before in file.read_text()
    planning.account_of_run(tmp_path / "run")
    file.write_text(file.read_text().replace(before, after))
    with pytest.raises(RunFolderError, match=r"data\.standardise"):
        planning.account_of_run(tmp_path / "run")


def test_a_run_that_begins_again_with_its_key_makes_the_same_release(small):
    """Other constants under the same noise would show the difference of gradients without noise."""
    outline = RunOutline.of(config.parse(small().model_dump(exclude={"noise_seed"}, exclude_none=True)))
    dealer = Dealer(torch.device("cpu"))
    first, again, other = (run_single(outline, NoiseKey(bytes([k] * 32)), dealer) for k in (1, 1, 2))
    assert first.begun["standardisation"] == again.begun["standardisation"]
    assert first.begun["standardisation"]["mean"] != other.begun["standardisation"]["mean"]
    np.testing.assert_array_equal(first.estimates, again.estimates)


def test_files_statements_and_json_state_the_release(small, tmp_path, topdp):
    result = run.run(small(), tmp_path / "run")
    assert "released before training with 10% of μ²" in result.summary()["privacy"]["prepared"]
    statement = topdp("statement", tmp_path / "run", "--json")
    accounting = json.loads(statement.out)["statement"]["details"]["accounting"]
    assert "released before training with 10% of μ²" in accounting["before_training"]
    assert topdp("report", tmp_path / "run").code == 0
    assert "released before training" in (tmp_path / "run" / "report.html").read_text()
    again = topdp("account", tmp_path / "run", "--json")
    assert '"prepared"' in again.out
    topdp("export", tmp_path / "run", "--out", tmp_path / "model.safetensors")
    from safetensors.torch import load_file

    tensors = load_file(tmp_path / "model.safetensors")
    np.testing.assert_allclose(tensors["0.mean"], result.model(0)[0].mean)
    facts = Standardisation.of_facts(RunFolder.open(tmp_path / "run").fact("standardisation"))
    assert facts.mean.shape == (3,)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["data.batch={poisson=5}"], "data.batch: expected full or cyclic batches"),
        (["privacy.sigma=1.0"], "privacy.epsilon: expected a budget"),
        (["privacy.guarantee=view"], "privacy.guarantee: expected adaptive or worst-case"),
        (["attack.name=drift"], "attack.name: expected no simulated attack"),
        (["method.name=no-noise"], "privacy.epsilon: expected a budget"),
    ],
)
def test_settings_without_an_account_of_both_are_refused(small, tmp_path, changes, says):
    with pytest.raises(InputError, match=says):
        run.run(small(*changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_norm_is_asked_for_where_no_ranges_are_public():
    with pytest.raises(InputError, match=r"data\.standardise_norm: expected the largest norm"):
        trained(standardise_norm=None)


def test_agents_and_audits_refuse_the_release_by_name(small, tmp_path, topdp):
    with pytest.raises(InputError, match=r'real agents support, got data\.standardise = "private"'):
        complete_config(small(), RING, (60,) * 5, Rules())
    run.run(small(), tmp_path / "run")
    assert "data.standardise" in topdp("audit", tmp_path / "run").err
    refused = topdp("account", tmp_path / "run", "--coalition", 2)
    assert refused.code == 2 and "without private standardisation" in refused.err
