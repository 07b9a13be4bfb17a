"""Hostile agents in runs: who they are, what they send, and what is reported of the honest agents."""

import numpy as np
import pytest
import torch

import topdp
from topdp.data import Shards
from topdp.runs.config import AttackConfig, parse
from topdp.simulator.hostile import ATTACKERS, Attack, choose_attack

HONEST = torch.from_numpy(np.random.default_rng(0).normal(1.0, 0.1, (6, 50)))


def sent(name, strength=None, rows=None, owner=None, round=3):
    rows = torch.cat([HONEST, torch.zeros(2, 50)]) if rows is None else rows
    Attack(name, hostile=(6, 7), agents=8, seed=1, strength=strength)(
        round, rows, np.arange(8) if owner is None else owner
    )
    assert torch.equal(rows[:6], HONEST)  # rows of honest agents are unchanged
    return rows[6:]


def test_the_seed_chooses_hostile_agents_and_larger_shares_add_to_them():
    few, more = (choose_attack(AttackConfig(name="drift", share=share), 30, seed=4) for share in (0.1, 0.4))
    assert len(few.hostile) == 3 and len(more.hostile) == 12 and set(few.hostile) < set(more.hostile)
    assert choose_attack(AttackConfig(name="drift", share=0.1), 30, seed=5).hostile != few.hostile
    assert choose_attack(AttackConfig(), 30, 4) is None
    assert choose_attack(AttackConfig(name="drift", agents=[3]), 6, 0).hostile == (3,)
    with pytest.raises(ValueError, match="from 0 to 5"):
        choose_attack(AttackConfig(name="drift", agents=[6]), 6, 0)
    with pytest.raises(ValueError, match="at least one honest agent"):
        choose_attack(AttackConfig(name="drift", agents=[0, 1]), 2, 0)


def test_the_rows_of_each_attack_follow_its_definition():
    mean, spread = HONEST.mean(dim=0), torch.linalg.vector_norm(HONEST - HONEST.mean(dim=0), dim=1).mean()
    assert torch.allclose(sent("sign-flip", 2.0), -2 * mean.expand(2, -1))
    assert torch.allclose(sent("large-norm").norm(dim=1), 100 * HONEST.norm(dim=1).max())
    moved = [sent("drift", round=r) - mean for r in (0, 9)]
    assert torch.equal(*moved) and torch.allclose(moved[0].norm(dim=1), spread)
    # n = 8, m = 2: s = 3, z = Φ⁻¹(3/6) = 0; the test below has more agents
    assert torch.allclose(sent("a-little", 1.5), mean.expand(2, -1))
    assert not torch.equal(sent("random", round=0), sent("random", round=1))
    assert set(ATTACKERS) | {"label-flip", "none"} == set(
        AttackConfig.model_fields["name"].annotation.__args__
    )


def test_the_attack_a_little_equals_its_papers_formula():
    rows = torch.cat(
        [torch.from_numpy(np.random.default_rng(0).normal(1.0, 0.1, (38, 9))), torch.zeros(12, 9)]
    )
    honest = rows[:38].clone()
    Attack("a-little", hostile=tuple(range(38, 50)), agents=50, seed=0)(0, rows, np.arange(50))
    # n = 50, m = 12: s = 14, z = Φ⁻¹(24/38) = 0.336
    expected = honest.mean(dim=0) - 0.33604 * honest.std(dim=0, correction=0)
    torch.testing.assert_close(rows[38:], expected.expand(12, -1), atol=1e-5, rtol=0)


def test_an_attack_forges_all_rows_of_a_hostile_agent():
    """Its messages, too, which follow the estimates."""
    rows = torch.cat([HONEST, torch.zeros(4, 50)])
    found = sent("sign-flip", rows=rows, owner=np.array([0, 1, 2, 3, 4, 5, 6, 7, 6, 2]))
    assert torch.equal(found[0], found[2]) and not found[3].any()


def test_only_labels_of_hostile_agents_are_flipped():
    shards = Shards.from_arrays([(np.zeros((3, 2)), np.array([0, 1, 4]))] * 3, classes=5)
    flipped = Attack("label-flip", hostile=(1,), agents=3, seed=0).records(shards)
    assert flipped.targets.tolist() == [[0, 1, 4], [4, 3, 0], [0, 1, 4]]
    assert Attack("drift", hostile=(1,), agents=3, seed=0).records(shards) is shards


def separable(agents, records=60):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(agents + 1, records, 4)).astype(np.float32)
    parts = [(x, (x[:, 0] > 0).astype(np.int64)) for x in inputs]
    return Shards.from_arrays(parts[:-1], test=parts[-1], classes=2)


@pytest.mark.parametrize("attack", ["none", *ATTACKERS, "label-flip"])
def test_attacked_runs_report_only_honest_agents(attack):
    settings = {"sigma": 0.01, "clip": 1.0, "rounds": 8, "method": "dsgd", "learning_rate": 1.0, "seed": 2}
    settings["noise_seed"] = 2
    named = {"attack": attack, "attack_share": 0.25}
    torch.manual_seed(0)
    model, graph = torch.nn.Linear(4, 2), topdp.topology.complete(8)
    result = topdp.train(model, separable(8), graph, robust="trimmed", hostile=2, **settings, **named)
    accuracies = result.metrics[-1]["accuracy_per_agent"]
    assert accuracies.count(None) == (0 if attack == "none" else 2)
    assert result.accuracy["min"] > 0.8
    if attack == "large-norm":
        mean = topdp.train(model, separable(8), graph, **settings, **named)
        honest = [agent for agent, value in enumerate(accuracies) if value is not None]
        lengths = (run.estimates[honest].norm(dim=1) for run in (mean, result))
        assert next(lengths).min() > 1000 > 10 > next(lengths).max()


def test_an_attacked_run_resumes_bit_for_bit(tmp_path):
    def stop(run):
        if run.round == 3:
            raise KeyboardInterrupt

    def trained(out, callbacks=(), resume=False):
        torch.manual_seed(0)
        return topdp.train(
            torch.nn.Linear(4, 2), separable(6), topdp.topology.ring(6), out=out, resume=resume, rounds=6,
            sigma=0.1, noise_seed=0, method="muffliato", gossip=2, robust="clipped", attack="a-little",
            callbacks=callbacks,
        )  # fmt: skip

    whole = trained(tmp_path / "whole")
    with pytest.raises(topdp.errors.Interrupted):
        trained(tmp_path / "broken", [stop])
    assert torch.equal(trained(tmp_path / "broken", resume=True).estimates, whole.estimates)
    assert not whole.config.method.chebyshev


def test_invalid_attacks_and_robust_rules_are_rejected():
    with pytest.raises(ValueError, match="sign-flip"):
        parse({"attack": {"name": "signflip"}})
    with pytest.raises(ValueError, match="clipped"):
        parse({"robust": {"rule": "trimmed", "radius": 1.0}})
    with pytest.raises(ValueError, match="mixes no rows"):
        topdp.train(
            torch.nn.Linear(4, 2), separable(4), topdp.topology.ring(4), method="central", robust="trimmed"
        )
