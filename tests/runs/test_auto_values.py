"""Runs with `auto` for shared noise, averaging steps and pooled records: choices, resuming, rejections."""

import json
import math
import os
import tomllib

import numpy as np
import pytest
import torch

import topdp
from builders import blobs, blobs_file, linear_model
from topdp import topology
from topdp.errors import InputError
from topdp.plan import Schedule
from topdp.privacy import account as account_of
from topdp.privacy import adaptive
from topdp.privacy.query import Query
from topdp.privacy.residual_noise import residual_noise
from topdp.protocols import Correlated, Muffliato
from topdp.protocols.pair_secrets import secret_pairs
from topdp.runs import auto_values, config, planning, run
from topdp.runs.resolve import resolve
from topdp.runs.run_folder import RunFolder
from topdp.runs.run_outline import RunOutline, analysis_of
from topdp.runs.training_loop import InterruptedRun
from topdp.simulator.engine import Engine

AUTO = ("secrets_degree", "pair_noise", "gossip")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return blobs_file(tmp_path_factory.mktemp("data") / "blobs.npz", 240)


@pytest.fixture
def job(data):
    """Eight agents on a ring, with pairs that share noise."""

    def changes(*more):
        basis = [
            f'data.name="{data}"',
            "topology.kind=ring",
            "topology.agents=8",
            "rounds=6",
            "train.evaluate_every=3",
            "train.checkpoint_every=4",
            "privacy.epsilon=4.0",
            "privacy.clip=1.0",
            "method.name=correlated",
            "noise_seed=0",
        ]
        if any(change.startswith("privacy.sigma=") for change in more):
            basis.remove("privacy.epsilon=4.0")
        return [*basis, *more]

    return changes


def resolved(changes):
    return resolve(config.read(changes=changes))


def test_the_runs_configuration_contains_the_chosen_values(job, tmp_path):
    result = run.run(config.read(changes=job()), tmp_path / "run")
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["method"]
    assert all(type(written[key]) in (int, float) for key in AUTO)
    assert all(getattr(result.config.method, key) == written[key] for key in AUTO)
    assert result.plan.releases == 7 * (1 + written["gossip"])
    # The same values are chosen again, and chosen values are not changed.
    again = resolved(job())
    assert again.config.method == result.config.method
    assert resolve(result.config, again.graph, again.counts).config == result.config
    privacy = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert privacy["epsilon"]["adaptive"] == pytest.approx(4.0, rel=1e-5)
    assert result.accuracy["mean"] > 0.5


def test_the_account_of_a_run_folder_is_that_of_its_plan(topdp, job, tmp_path):
    run.run(config.read(changes=job("privacy.colluders=2")), tmp_path / "run")
    done = topdp("account", tmp_path / "run", "--json", "--answers", "outsider")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert 4.0 * (1 - 1e-6) <= found["epsilon"]["adaptive"] <= 4.0
    assert found["epsilon"]["outsider"] < found["epsilon"]["adaptive"] < found["epsilon"]["worst_case"]
    assert found["status"]["claimed"] == "refused" and found["colluders"] == 2
    folder = RunFolder.open(tmp_path / "run")
    batches = analysis_of(folder.config, tuple(folder.fact("records")))
    exact = adaptive(folder.plan, batches.exposure(), Query(colluders=2)).worst_epsilon(1e-5)
    np.testing.assert_allclose(found["epsilon_per_agent"]["adaptive"], exact, rtol=1e-9)


BATCHES = {
    "full": (),
    "poisson": ("data.batch={poisson=10}", "rounds=4"),
    "shards": ("data.sizes=[20,20,20,30,30,30,40,50]", 'data.partition="sizes"'),
}


@pytest.mark.slow
@pytest.mark.parametrize("more", BATCHES.values(), ids=BATCHES)
def test_an_interrupted_run_ends_like_an_uninterrupted_one(job, tmp_path, more):
    wanted = config.read(changes=job(*more))
    whole = run.run(wanted, tmp_path / "whole")

    def interrupt(stage, done=0, total=None, /, **details):
        if stage == "training" and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRun):
        run.run(wanted, tmp_path / "broken", progress=interrupt)
    resumed = run.resume(tmp_path / "broken")
    assert torch.equal(resumed.estimates, whole.estimates) and resumed.metrics == whole.metrics
    assert resumed.config == whole.config
    # The same settings, with `auto`, read the finished run.
    assert torch.equal(
        run.run_or_continue(RunOutline.of(wanted), tmp_path / "broken").estimates, whole.estimates
    )


@pytest.mark.slow
@pytest.mark.parametrize("released", [10, 11, 14])
def test_a_run_interrupted_between_averaging_steps_resumes_from_the_same_step(
    job, tmp_path, monkeypatch, released
):
    """A second Ctrl-C interrupts within a round, when the rows of its beginning no longer exist."""
    wanted = config.read(changes=job("method.gossip=4", "method.pair_noise=5.0", "method.secrets_degree=4"))
    whole = run.run(wanted, tmp_path / "whole")
    advance = Engine.advance

    def impatient(engine, state, at_most=1):
        if state.releases == released:
            raise KeyboardInterrupt
        return advance(engine, state)

    monkeypatch.setattr(Engine, "advance", impatient)
    with pytest.raises(InterruptedRun):
        run.run(wanted, tmp_path / "broken")
    monkeypatch.undo()
    assert RunFolder.open(tmp_path / "broken").checkpoint_size()[0] == released
    resumed = run.resume(tmp_path / "broken")
    assert torch.equal(resumed.estimates, whole.estimates) and resumed.metrics == whole.metrics


@pytest.mark.parametrize("method", ["correlated", "central", "dsgd", "muffliato"])
def test_train_accepts_methods_with_shared_noise_averaging_or_pooled_records(method, tmp_path):
    shards = blobs(6, records=60)
    options = {"method": method, "epsilon": 8.0, "clip": 1.0, "rounds": 20, "learning_rate": 1.0}
    options["noise_seed"] = 0
    result = topdp.train(linear_model(), shards, topology.ring(6), out=tmp_path / "run", **options)
    assert result.accuracy["mean"] > 0.8
    agents = 1 if method == "central" else 6
    assert result.estimates.shape[0] == agents == result.plan.agents
    assert result.privacy.epsilon["adaptive"] == pytest.approx(8.0, rel=1e-5)
    assert RunFolder.open(tmp_path / "run").config.method == result.config.method
    if method == "central":
        assert result.config.privacy.colluders == 0
        assert result.plan.full_scale[0] < 0.2  # noise for 360 records


def test_train_resumes_a_run_with_auto_values(tmp_path):
    shards, graph = blobs(6, records=60), topology.ring(6)
    options = {"method": "correlated", "epsilon": 8.0, "clip": 1.0, "rounds": 8, "noise_seed": 0}

    def interrupt(stage, done=0, total=None, /, **details):
        if stage == "training" and done == 3:
            raise KeyboardInterrupt

    whole = topdp.train(linear_model(), shards, graph, **options)
    with pytest.raises(InterruptedRun):
        topdp.train(linear_model(), shards, graph, out=tmp_path / "run", progress=interrupt, **options)
    resumed = topdp.train(linear_model(), shards, graph, out=tmp_path / "run", resume=True, **options)
    assert torch.equal(resumed.estimates, whole.estimates)


BAD = {
    "more colluders than agents": (["privacy.colluders=8"], "privacy.colluders from 0 to 7"),
    "secrets that are cut": (["method.secrets=links", "privacy.colluders=2"], "secrets_degree = 3, or fewer"),
    "too few partners": (["method.secrets_degree=2", "privacy.colluders=3"], "secrets_degree = 4, or fewer"),
    "only all would do": (["method.secrets=links", "privacy.colluders=6"], 'Use secrets = "all"'),
    "a leaf": (
        ["topology.kind=tree", "method.secrets=links"],
        "only its own noise hides agent 4 if all agents that share a secret with it (1) collude",
    ),
    "odd partners": (
        ["topology.agents=7", "method.secrets_degree=3"],
        "an even secrets_degree * agents, got 3 * 7. Use 4",
    ),
    "partners in pairs": (["method.secrets_degree=1", "privacy.colluders=0"], "secrets_degree >= 2"),
    "no partners": (["method.secrets_degree=0"], "method.secrets_degree: expected a whole number >= 1"),
    "steps below none": (["method.gossip=-1"], 'method.gossip: expected a whole number >= 0, or "auto"'),
    "too many steps": (["method.gossip=33"], "at most 32 steps between two gradients, got 33"),
    "steps in words": (["method.gossip=many"], "method.gossip: expected"),
    "pair noise below 0": (["method.pair_noise=-0.1"], "method.pair_noise: expected a number from 0 to"),
    "secrets of another kind": (["method.secrets=some"], "method.secrets: got 'some'"),
    "no async mode": (["method.mode=async"], "method.mode: expected sync for correlated, got 'async'"),
    "central in pairs": (
        ["method.name=central", "method.mode=async"],
        "method.mode: expected sync for central, got 'async'",
    ),
    "a batch that is never used": (["method.gossip=4", "data.batch={cycle=6}"], "only 1 of 5 batches"),
    "no claim": (["privacy.guarantee=claimed"], "No published analysis covers plans of protocol"),
    "no view": (["privacy.guarantee=view", "method.gossip=3"], "or method.chebyshev=false"),
    "one sigma too many": (
        ["privacy.sigma=[0.1,0.1]"],
        "privacy.sigma: expected one number, or a list of 8 numbers, one per agent, got a list of 2",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_settings_give_one_line_and_no_files(topdp, job, tmp_path, case):
    changes, said = BAD[case]
    arguments = [word for change in job(*changes) for word in ("--set", change)]
    for command in (("run", "--out", tmp_path / "run"), ("account",)):
        done = topdp(*command, *arguments)
        assert done.code == 2 and done.out == "", case
        line = " ".join(done.err.split())
        assert said in line.rpartition("topdp: ")[2] and "Traceback" not in line, line
    assert os.listdir(tmp_path) == []


def test_central_on_a_graph_is_rejected_with_advice():
    schedule = Schedule(rate=np.ones(1), noise=np.ones(1))
    with pytest.raises(InputError, match=r"got a graph of 4 agents. Use topdp\.topology\.single\(\)"):
        topdp.protocols.Central().plan(topology.ring(4), schedule, np.ones(4), 0)


def test_coalitions_are_refused_for_accelerated_runs(topdp, job):
    arguments = [word for change in job() for word in ("--set", change)]
    done = topdp("account", *arguments, "--coalition", "2")
    assert done.code == 2 and "accelerated averaging" in done.err and "adaptive" in done.err
    unaccelerated = topdp("account", *arguments, "--set", "method.gossip=1", "--coalition", "2", "--json")
    found = json.loads(unaccelerated.out)
    assert all(math.isfinite(one) for one in found["coalition"]["epsilon"])


@pytest.mark.parametrize("batch", ['"full"', "{cycle=6}", "{cycle=15}", "{cycle=5}"])
@pytest.mark.parametrize("method", ["correlated", "muffliato"])
def test_the_chosen_number_of_averaging_steps_uses_all_batches(job, batch, method):
    """Of 30 records: 5 batches exclude 4 steps, 2 batches odd numbers, and 6 batches odd numbers and 2."""
    found = resolved(job(f"method.name={method}", f"data.batch={batch}"))
    period = found.batches[0].period
    used = {t * (1 + found.config.method.gossip) % period for t in range(100)}
    assert used == set(range(period))


@pytest.mark.parametrize("gossip", [0, 1, 4])
@pytest.mark.parametrize("chebyshev", [True, False])
def test_prices_agree_with_the_residual_noise_of_plans(gossip, chebyshev):
    """Prices follow from eigenvalues; the test writes the plans."""
    graph = topology.random(9, 0.4, 2)
    numbers = np.random.default_rng(3)
    own, alone = numbers.uniform(0.2, 0.5, 9), numbers.uniform(0.8, 1.2, 9)
    averaging, pairs = auto_values._Averaging(graph), secret_pairs("regular", graph, 4, 0)
    steps = Schedule(rate=np.ones(auto_values.TRIAL_ROUNDS), noise=np.ones(auto_values.TRIAL_ROUNDS))
    for protocol, shared in (
        (Correlated(secrets="regular", degree=4, pair_noise=3.0, gossip=gossip, chebyshev=chebyshev),
         averaging.shared(pairs, 3.0 * math.sqrt(np.mean(own**2)))),
        (Muffliato(gossip, chebyshev), 0.0),
    ):  # fmt: skip
        left = residual_noise(protocol.plan(graph, steps, own, 0))
        pooled = auto_values.TRIAL_ROUNDS * np.mean(alone**2) / 81
        noise = left.average[-1] + auto_values.DISAGREEMENT_PRICE * left.between[-1]
        expected = noise / pooled + auto_values.MESSAGE_PRICE * max(1, gossip)
        assert averaging.price(own, alone, shared, gossip, chebyshev) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("guarantee", ["adaptive", "worst-case"])
def test_with_different_shards_and_budgets_no_agent_exceeds_its_budget(job, guarantee):
    """The noise is the allocation for the chosen pair noise."""
    epsilon = [4.0, 2.0, 4.0, 3.0, 4.0, 4.0, 1.0, 4.0]
    sizes = ('data.partition="sizes"', "data.sizes=[20,20,20,30,30,30,40,50]", f"privacy.epsilon={epsilon}")
    sizes += ("train.weighting=agents", "privacy.weights=equal")
    found = resolved(job(*sizes, f"privacy.guarantee={guarantee}"))
    plan, account = planning.plan_and_account(found)
    spent = account.answer(guarantee).epsilon
    assert (spent <= np.array(epsilon)).all() and (spent / epsilon).max() > 1 - 1e-6
    own = plan.full_scale
    if guarantee == "worst-case":
        np.testing.assert_allclose(spent, epsilon, rtol=1e-3)  # each agent is calibrated separately
    else:
        assert np.ptp(own) > 0.1 * own.mean()
        # Noise in proportion to what each agent needs alone would have a larger sum.
        privacy = found.config.privacy.model_copy(update={"guarantee": "worst-case"})
        worst, _ = planning.plan_and_account(
            resolve(found.config.model_copy(update={"privacy": privacy}), found.graph, found.counts)
        )
        alone = worst.full_scale
        other = found.protocol.plan(found.graph, found.schedule, alone, found.config.seed)
        exposure = found.analysis.exposure()
        target = topdp.privacy.mu_of(np.array(epsilon), privacy.delta)
        excess = float((adaptive(other, exposure, Query(colluders=1)).worst() / target).max())
        assert np.square(own).sum() < np.square(alone * excess).sum()
    again = account_of(plan, found.analysis, 1e-5, ["adaptive"]).adaptive.epsilon
    assert (again <= np.array(epsilon) * (1 + 1e-9)).all()


@pytest.mark.parametrize("ratio", [0.0, 0.2, 3.0, 40.0, 1e3, 1e9])
def test_own_noise_for_a_given_pair_noise_equals_the_allocation(ratio):
    graph, alone = topology.ring(8), np.exp(np.random.default_rng(0).normal(0, 0.3, 8))
    pairs = secret_pairs("regular", graph, 4, 0)
    own = auto_values._at_ratio(pairs, alone, 1, ratio)
    if ratio == 0:
        np.testing.assert_array_equal(own, alone)
        return
    if ratio > 1e4:
        np.testing.assert_allclose(own, auto_values.allocated(pairs, alone, 1, 1e6).own, rtol=1e-6)
        return
    strength = ratio**2 * np.mean(own**2) * 4 / np.mean(alone**2)
    np.testing.assert_allclose(own, auto_values.allocated(pairs, alone, 1, strength).own, rtol=5e-3)
