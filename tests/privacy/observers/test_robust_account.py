"""Accounts of robust mixing, as if every row is seen: attacks reach this number; other answers refuse.

One run of the real engine serves as many attacks, as in test_attack_secrets.py: the record pulls every
parameter equally, and noise is independent in each. The observer sees all rows of all agents, sent or not.
It computes what the rule made of the rows of the previous round with an independent implementation (numpy,
in this file), subtracts it, and weights the rest by the noise that it does not know. `topdp.privacy`
provides only the predictions.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn

from builders import PROTOCOLS, constant_schedule
from topdp import topology
from topdp.data import Shards
from topdp.learning.gradients import ClippedGradients
from topdp.plan import Cycle, Full, Optimiser, Poisson, Robust, optimised, prune
from topdp.plan.noise_key import NoiseKey
from topdp.privacy import Analysis, account, adaptive, calibrate, exposure, outsider, spending, worst_case
from topdp.privacy.answers import VIEW
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.query import Query
from topdp.protocols import Correlated, Dsgd, Muffliato, TopSynchronous
from topdp.simulator.engine import Engine, Intervention

GRAPH = topology.random(8, 0.4, seed=2)
ATTACKS, RECORDS, CLIP, ROUNDS = 20_000, 4, 2.0, 3
CHANGE = CLIP / np.sqrt(ATTACKS) / RECORDS  # of one parameter of a mean gradient, caused by one record
RATES = np.array([0.01, 0.05, 0.2])  # false-positive rates
ERRORS = 4.5  # the allowed sampling error in standard errors; seeds are fixed


class Pulled(nn.Module):
    """(records [b, 1]) -> losses [b]: a record pulls every parameter by its value."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(ATTACKS, dtype=torch.float64))

    def forward(self, records: Tensor) -> Tensor:
        return records[:, 0] * self.x.sum()


def given(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs


def by_the_engine(plan, owner, with_record, seed):
    """Rows of all releases [rows, attacks], in order."""
    held = np.random.default_rng(0).choice([-1e6, 1e6], (GRAPH.agents, RECORDS, 1))
    held[owner, 0] = 1e6 if with_record else 0.0
    labels = np.zeros(RECORDS, np.int64)
    shards = Shards.from_arrays([(one, labels) for one in held], classes=1, dtype=torch.float64)
    gradients = ClippedGradients(Pulled(), CLIP, given)
    engine = Engine(
        plan,
        gradients,
        shards,
        [Full(RECORDS)] * GRAPH.agents,
        seed=seed,
        key=NoiseKey.of_seed(seed),
        intervention=Intervention(every_row=True),
    )
    state, found = engine.start(gradients.flat.flatten()), []
    for _ in range(plan.releases):
        state = engine.advance(state)
        found.append(state.rows.numpy().copy())
    return found, held


def ruled(robust, own, received, weight):
    distance = np.linalg.norm(received - own, axis=1)
    if robust.rule == "clipped":
        reach = robust.radius or np.sort(distance)[len(received) - 1 - robust.spared(len(received))]
        return weight @ (
            own + np.minimum(1, reach / np.maximum(distance, 1e-300))[:, None] * (received - own)
        )
    if robust.rule == "trimmed":
        b = robust.spared(len(received))
        kept = np.sort(np.vstack([own[None], received]), axis=0)[b : len(received) + 1 - b]
        return weight.sum() * kept.mean(axis=0)
    kept = np.argsort(distance)[: len(received) - robust.spared(len(received))]
    return weight.sum() * np.vstack([own[None], received[kept]]).mean(axis=0)


def statistic(plan, owner, rows, held, covariance):
    """The new part of the owner's rows, weighted: under noise alone N(0, 1) in every attack."""
    total, size = 0.0, 0.0
    before = np.zeros((plan.rows, ATTACKS))
    gradients = np.sign(held[:, :, 0]).sum(axis=1) * CLIP / np.sqrt(ATTACKS) / RECORDS
    gradients[owner] -= np.sign(held[owner, 0, 0]) * CHANGE  # known except for the record
    for r, this in enumerate(plan):
        now = np.zeros_like(before)
        now[this.exists] = rows[r]
        if not this.step.any():
            before = now
            continue
        new = []
        for m in np.flatnonzero(this.exists):
            used = [(s, w) for s, w in zip(this.source[m], this.weight[m], strict=True) if s >= 0 and w]
            others = [(s, w) for s, w in used if plan.owner[s] != plan.owner[m]] if r else []
            mix = sum((w * before[s] for s, w in used if (s, w) not in others), np.zeros(ATTACKS))
            if others:
                received, weights = np.array([before[s] for s, _ in others]), np.array([w for _, w in others])
                mix = mix + ruled(plan.robust, before[plan.owner[m]], received, weights)
            new.append(now[m] - mix - this.step[m] * gradients[plan.owner[m]])
        C, mine = covariance(r), (plan.owner == owner)[this.exists]
        weights = np.linalg.solve(C, np.where(mine, this.step[this.exists], 0.0))
        total = total + weights @ np.array(new)
        size += weights @ np.where(mine, this.step[this.exists], 0.0)
        before = now
    return total / np.sqrt(size), CHANGE * np.sqrt(size)


def noise_of(plan, known=()):
    """The covariance of a round's rows from draws that no agent in `known` knows."""

    def covariance(r):
        this = plan[r]
        B = np.zeros((plan.rows, plan.draws))
        for m, k in zip(*np.nonzero(this.draw >= 0), strict=True):
            if not set(plan.known_by[this.draw[m, k]].tolist()) & set(known):
                B[m, this.draw[m, k]] += this.std[m, k]
        C = (B @ B.T)[np.ix_(this.exists, this.exists)]
        return C + np.diag((np.diag(C) == 0).astype(float))

    return covariance


PLANS = {
    "dsgd trimmed": (Dsgd(), Robust("trimmed")),
    "dsgd nearest": (Dsgd(), Robust("nearest")),
    "muffliato clipped": (Muffliato(1, chebyshev=False), Robust("clipped")),
    "top clipped": (TopSynchronous(0.4), Robust("clipped", radius=1.0)),
}


def write(protocol, robust, deviation=1.0, optimiser=None, graph=GRAPH):
    schedule = constant_schedule(ROUNDS, rate=0.5)
    plan = protocol.plan(graph, schedule, deviation * np.linspace(0.8, 1.2, graph.agents), seed=5)
    plan = optimised(plan, optimiser, schedule.rate) if optimiser else plan
    return replace(plan, robust=robust)


@pytest.mark.filterwarnings("ignore:Per-example gradients of this model take the slow path")
@pytest.mark.parametrize("name", PLANS)
def test_an_observer_of_every_row_is_exactly_as_successful_as_predicted(name):
    exposed = exposure(GRAPH.agents, CHANGE)
    plan = write(*PLANS[name])
    plan = write(*PLANS[name], float(adaptive(plan, exposed).worst().max()))
    seen = adaptive(plan, exposed).worst()
    owner, found = int(seen.argmax()), []
    for world in (False, True):
        rows, held = by_the_engine(plan, owner, world, seed=3 + world)
        value, mu = statistic(plan, owner, rows, held, noise_of(plan))
        found.append(value)
    assert mu == pytest.approx(seen[owner], rel=1e-8)
    distance = abs(found[1].mean() - found[0].mean()) / np.sqrt((found[0].var() + found[1].var()) / 2)
    assert abs(distance - mu) < ERRORS * np.sqrt((2 + mu**2 / 4) / ATTACKS)
    above = np.sign(found[1].mean() - found[0].mean()) * found[1] > norm.isf(RATES)[:, None]
    power = norm.sf(norm.isf(RATES) - mu)
    assert (np.abs(above.mean(axis=1) - power) < ERRORS * np.sqrt(power * (1 - power) / ATTACKS)).all()


def test_rows_that_only_linear_mixing_hides_count_as_seen():
    """Under Top-DP others' noise hides messages in a linear mix; what a rule leaves of it is unknown."""
    robust, exposed = write(*PLANS["top clipped"]), exposure(GRAPH.agents, CHANGE)
    linear, seen = (adaptive(plan, exposed).worst() for plan in (replace(robust, robust=None), robust))
    assert (linear <= seen * (1 + 1e-9)).all() and linear.max() < 0.6 * seen.max()


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if name != "alone"])  # which mixes no rows
@pytest.mark.parametrize("optimiser", [None, Optimiser("momentum", average=0.5)], ids=["sgd", "momentum"])
def test_the_answers_are_those_for_rows_that_are_all_seen(name, optimiser):
    """For own noise this is the worst case; for shared noise what coalitions learn from visible rows."""
    make = PROTOCOLS[name]
    protocol = make(0.5, chebyshev=False) if hasattr(make(0.5), "gossip") else make(0.5)
    plan = write(protocol, Robust("clipped", radius=1.0), optimiser=optimiser)
    exposed = exposure(GRAPH.agents, 0.1)
    found = adaptive(plan, exposed).worst()
    if isinstance(protocol, Correlated):
        np.testing.assert_allclose(found, adaptive(replace(plan, robust=None), exposed).worst(), rtol=1e-12)
        assert (outsider(plan, exposed).worst() < found).all()
    else:
        np.testing.assert_allclose(found, worst_case(plan, exposed).mu, rtol=1e-12)
        np.testing.assert_allclose(outsider(plan, exposed).worst(), found, rtol=1e-12)


def test_answers_that_need_linear_mixing_are_refused_with_the_reason():
    plan = write(Dsgd(), Robust("trimmed"))
    analysis = Analysis("tight", (Full(50),) * GRAPH.agents, clip=1.0)
    found = account(plan, analysis, 1e-5, answers=["view", "adaptive", "outsider"], guarantee="adaptive")
    assert found.adaptive.largest == pytest.approx(found.worst_case.largest)
    assert "Not covered: robust mixing" in found.view.reason and "robust mixing" in found.claimed.reason
    with pytest.raises(NotCovered, match="Not covered: robust mixing"):
        VIEW.observe(plan, analysis.exposure(), Query())
    spent = spending(plan, analysis, 0, 1e-5)
    assert spent.curve("adaptive")[-1] == pytest.approx(found.adaptive.epsilon[0])
    for guarantee in ("view", "claimed"):
        with pytest.raises(NotCovered):
            spent.curve(guarantee)
        with pytest.raises(NotCovered):
            calibrate(
                lambda deviation: write(Dsgd(), Robust("trimmed")), analysis, guarantee, np.ones(8), 1e-5
            )
    with pytest.raises(ValueError, match="pruned"):
        adaptive(prune(plan), analysis.exposure())


@pytest.mark.parametrize("batches", [Cycle(50, 10), Poisson(50, 10)], ids=str)
def test_other_batches_are_accounted_under_a_robust_rule(batches):
    plan = write(Dsgd(), Robust("nearest"))
    analysis = Analysis("tight", (batches,) * GRAPH.agents, clip=1.0)
    found = account(plan, analysis, 1e-5, answers=["adaptive"])
    assert found.adaptive.largest == pytest.approx(found.worst_case.largest)
