"""Unequal partners: every record counts the same, and an agent with a smaller budget counts less."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import topdp
from topdp.plan.noise_key import NoiseKey
from topdp.privacy.residual_noise import residual_noise
from topdp.runs.assembly import Assembly
from topdp.runs.config import ConfigError, parse
from topdp.runs.named_model import named_task
from topdp.runs.planning import plan_and_account
from topdp.runs.recommend import pooled_noise
from topdp.runs.resolve import resolve
from topdp.runs.run_outline import RunOutline

HOSPITALS = (200, 120, 70, 40, 26)


def configured(agents, kind="complete", method="correlated", rounds=20, **sections):
    tree = {
        "rounds": rounds,
        "noise_seed": 0,
        "topology": {"kind": kind, "agents": agents},
        "method": {"name": method},
        "privacy": {"clip": 1.0, **sections.pop("privacy", {})},
        **sections,
    }
    return parse(tree)


def relative_noise(counts, **settings):
    """The noise in the average after all rounds, over that of pooled records at steps of the same length."""
    run = resolve(configured(len(counts), **settings), counts=tuple(counts))
    plan, account = plan_and_account(run)
    average = float(residual_noise(plan).average[-1]) / run.total_weight**2
    return average / pooled_noise(run.config, run.counts), run, account


def shards_of(counts, dimension=5, seed=0, dtype=torch.float32):
    numbers = np.random.default_rng(seed)
    pairs = [(numbers.normal(size=(n, dimension)), numbers.integers(0, 2, n)) for n in counts]
    return topdp.Shards.from_arrays(pairs, test=pairs[0], classes=2, dtype=dtype)


def test_unequal_shards_need_as_little_noise_as_equal_shards():
    unequal, _, account = relative_noise(HOSPITALS)
    equal, *_ = relative_noise((91, 91, 91, 91, 92))
    former, *_ = relative_noise(HOSPITALS, train={"weighting": "agents"})
    assert unequal == pytest.approx(equal, rel=1e-6) and unequal < 1.35 and former > 13
    assert account.adaptive.largest <= 1.0


@pytest.mark.parametrize("concentration", [0.3, 3.0])
def test_thirty_agents_with_dirichlet_sizes_need_as_little_noise_as_equal_shards(concentration):
    shares = np.random.default_rng(1).dirichlet(np.full(30, concentration))
    counts = [max(1, int(share * 30_000)) for share in shares]
    unequal, *_ = relative_noise(counts, kind="random", rounds=10)
    equal, *_ = relative_noise([sum(counts) // 30] * 30, kind="random", rounds=10)
    assert abs(unequal / equal - 1) < 0.1


def assembled(config, model, shards):
    return Assembly.given(RunOutline.of(config), model, shards, torch.device("cpu"), named_task(config))


def zero_model(inputs=5):
    model = torch.nn.Linear(inputs, 2, bias=False)
    torch.nn.init.zeros_(model.weight)
    return model


def released_gradients(config, shards, releases):
    """The mean gradients [releases, agents, d] at the start, and the resolved run."""
    model = zero_model(shards.inputs.shape[-1]).to(shards.inputs.dtype)
    parts = assembled(config, model, shards)
    engine = parts.engine(parts.run.write_plan(np.ones(len(shards.counts))), NoiseKey.of_seed(5))
    state = engine.start(parts.flat.flatten())
    each = [engine.mean_gradients(state, engine.select(r, engine.device)).clone() for r in range(releases)]
    return torch.stack(each).double(), parts.run


def test_the_engine_adds_the_noise_that_the_plan_states():
    config = configured(5, rounds=6)
    parts = assembled(config, zero_model(4000), shards_of(HOSPITALS, 4000))
    plan, _ = plan_and_account(parts.run)
    ends = []
    for each in (plan, plan.noise_scaled(1e-30)):
        engine = parts.engine(each, NoiseKey.of_seed(5))
        state = engine.start(parts.flat.flatten())
        while state.releases < plan.releases:
            state = engine.advance(state, plan.releases)
        ends.append(engine.estimates(state).double().mean(0))
    measured = float((ends[0] - ends[1]).square().mean())
    pooled = pooled_noise(parts.run.config, parts.run.counts)
    assert measured == pytest.approx(float(residual_noise(plan).average[-1]), rel=0.1)
    assert measured / pooled < 1.35 * 1.1


@pytest.mark.parametrize("batch", ["full", {"cycle": 7}, {"poisson": 7}])
def test_the_average_of_agents_is_the_gradient_of_the_pooled_records(batch):
    """Agents with 1 to 40 records, and one agent with all 60; in a cycle, over all its rounds."""
    counts = (40, 1, 12, 7)
    shards = shards_of(counts)
    releases = {"full": 1, "{'cycle': 7}": 3}.get(str(batch), 4000)
    data = {"data": {"batch": batch}}
    agents, run = released_gradients(configured(4, **data), shards, releases)
    pooled, _ = released_gradients(configured(4, method="central"), shards.pooled(), 1)
    share = {"full": 1.0, "{'cycle': 7}": 15 / 7}.get(str(batch), releases)
    average = agents.mean(1).sum(0) / share
    tolerance = 0.0 if batch != {"poisson": 7} else 6 / np.sqrt(7 * releases)
    torch.testing.assert_close(average, pooled[0, 0], rtol=1e-4, atol=1e-6 + tolerance)
    assert len(set(run.analysis.exposure().sensitivity.tolist())) == 1


@pytest.mark.parametrize("batch", ["full", {"cycle": 3}])
@pytest.mark.parametrize("weights", ["equal", [1.0, 0.25]])
@pytest.mark.parametrize("weighting", ["records", "agents"])
def test_one_record_moves_a_release_by_at_most_its_sensitivity(batch, weights, weighting):
    """An agent with few records beside one with 10,000; the record has the largest gradient there is."""
    many = 10_000
    if weighting == "agents" and batch != "full":  # as many releases as the agent has records
        batch, many = {"cycle": 1}, 400
    config = configured(
        2, method="plain", privacy={"clip": 1.0, "weights": weights}, data={"batch": batch},
        train={"weighting": weighting},
    )  # fmt: skip
    shards = shards_of((1, many), dtype=torch.float64)  # float32 rounds sums of 10,000 gradients
    shards.inputs[:, 0] = 1e3
    without = replace(shards, inputs=shards.inputs.clone())
    without.inputs[:, 0] = 0.0
    releases = many if batch == {"cycle": 1} else 1 if batch == "full" else 1667
    (first, run), (second, _) = (released_gradients(config, one, releases) for one in (shards, without))
    sensitivity = run.analysis.exposure().sensitivity
    change = (first - second).norm(dim=2).numpy()
    assert (change <= sensitivity * (1 + 1e-6)).all()
    assert change.max(0) == pytest.approx(sensitivity, rel=1e-3)  # the bound is reached,
    uses = (change > 0).sum(0)
    assert (uses <= [batches.participations(releases) for batches in run.batches]).all()


@pytest.mark.parametrize(("method", "power"), [("correlated", 1), ("dsgd", 2)])
def test_an_agent_with_a_smaller_budget_weighs_less(method, power):
    counts, epsilon = (50,) * 5, [2.0, 2.0, 2.0, 2.0, 0.5]
    chosen, run, account = relative_noise(counts, method=method, privacy={"epsilon": epsilon})
    equal, *_ = relative_noise(counts, method=method, privacy={"epsilon": epsilon, "weights": "equal"})
    mu = topdp.privacy.mu_of(np.array(epsilon), 1e-5)
    assert run.config.privacy.weights == pytest.approx((mu / mu.max()) ** power, rel=1e-4)
    assert chosen < equal / 2
    assert (account.adaptive.epsilon <= np.array(epsilon)).all()
    # No other weight of this agent gives less noise relative to the total weight.
    for factor in (0.7, 1.4):
        weights = [1.0] * 4 + [run.config.privacy.weights[-1] * factor]
        other, *_ = relative_noise(counts, method=method, privacy={"epsilon": epsilon, "weights": weights})
        assert other > chosen * 0.99


def test_equal_budgets_give_equal_weights_whatever_the_shards():
    for weighting in ("records", "agents"):
        _, run, _ = relative_noise(HOSPITALS, train={"weighting": weighting}, rounds=2)
        assert run.config.privacy.weights == "equal"
    assert resolve(run.config, run.graph, run.counts).config == run.config


def test_weights_of_the_user_are_kept_and_reduce_the_sensitivity():
    run = resolve(configured(4, privacy={"weights": [1.0, 0.5, 0.25, 1.0]}), counts=(10, 20, 30, 40))
    assert run.analysis.exposure().sensitivity.tolist() == [1 / 25, 0.5 / 25, 0.25 / 25, 1 / 25]
    assert run.total_weight == pytest.approx((10 + 0.5 * 20 + 0.25 * 30 + 40) / 100)


@pytest.mark.parametrize("weights", [[1.0, 0.0], [1.0, 1.5], [-1.0, 1.0], "most", [1.0, "x"]])
def test_weights_outside_their_range_are_refused_by_name(weights):
    with pytest.raises(ConfigError, match=r"privacy\.weights: expected .*> 0 and <= 1 per agent"):
        configured(2, privacy={"weights": weights})


def test_a_list_of_weights_has_one_per_agent():
    with pytest.raises(ConfigError, match=r"privacy\.weights: expected one number, or a list of 3 numbers"):
        resolve(configured(3, privacy={"weights": [1.0, 1.0]}), counts=(5, 5, 5))


def test_batches_refer_to_the_mean_shard():
    run = resolve(configured(3, data={"batch": {"cycle": 10}}), counts=(4, 20, 36))
    assert [batches.period for batches in run.batches] == [2, 2, 2]
    with pytest.raises(
        topdp.errors.InputError, match="at most 20 records, because agents have 20 on average"
    ):
        resolve(configured(3, data={"batch": {"cycle": 21}}), counts=(4, 20, 36))
    with pytest.raises(topdp.errors.InputError, match="because agent 0 has no more, got 10"):
        resolve(
            configured(3, data={"batch": {"poisson": 10}}, train={"weighting": "agents"}), counts=(4, 20, 36)
        )
