"""A coalition that knows its pair secrets attacks `correlated`: it learns as much as `adaptive` predicts.

One run of the real engine serves as many attacks: the model is linear in as many parameters as there are
attacks, every record pulls all of them equally and is clipped like any other, and noise is independent in
each. So one record moves each parameter by 1/√d of the clip, and the parameter's own noise hides the
change. The coalition has all rows of all agents, its own draws and those of its pairs, and projects them on
the best linear statistic, which this file derives from the dense oracle of the plan (dense_adaptive.py).
`topdp.privacy` provides only the predictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import dense_adaptive as dense
import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn

from topdp import topology
from topdp.data import Shards
from topdp.learning.gradients import ClippedGradients
from topdp.plan import Full, Plan, schedules
from topdp.plan.noise_key import NoiseKey
from topdp.privacy import adaptive, exposure, outsider
from topdp.privacy.query import Query
from topdp.protocols import Correlated
from topdp.simulator.engine import Engine, Intervention
from topdp.simulator.simulated_noise import SimulatedDraws

GRAPH = topology.random(8, 0.4, seed=2)
ATTACKS, RECORDS, CLIP, ROUNDS = 40_000, 4, 2.0, 4
CHANGE = CLIP / np.sqrt(ATTACKS) / RECORDS  # of one parameter of a mean gradient, caused by one record
RATES = np.array([0.01, 0.05, 0.2])  # false-positive rates
ERRORS = 4.5  # the allowed sampling error in standard errors; seeds are fixed
PLANS = {
    "regular, accelerated": Correlated(secrets="regular", degree=4, pair_noise=3.0, gossip=2),
    "all, no steps": Correlated(secrets="all", pair_noise=2.0, gossip=0),
}


class Pulled(nn.Module):
    """(records [b, 1]) -> losses [b]: a record pulls every parameter by its value."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(ATTACKS, dtype=torch.float64))

    def forward(self, records: Tensor) -> Tensor:
        return records[:, 0] * self.x.sum()


def given(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss: the outputs of the model unchanged."""
    return outputs


def shards(owner: int, with_record: bool) -> Shards:
    """Values far beyond the clip, of either sign; the record under attack pulls down, or has no gradient."""
    held = np.random.default_rng(0).choice([-1e6, 1e6], (GRAPH.agents, RECORDS, 1))
    held[owner, 0] = 1e6 if with_record else 0.0
    labels = np.zeros(RECORDS, np.int64)
    return Shards.from_arrays([(one, labels) for one in held], classes=1, dtype=torch.float64)


def by_the_engine(plan: Plan, owner: int, with_record: bool, seed: int) -> np.ndarray:
    """[releases, rows, attacks]"""
    gradients = ClippedGradients(Pulled(), CLIP, given)
    batches = [Full(RECORDS)] * GRAPH.agents
    engine = Engine(
        plan,
        gradients,
        shards(owner, with_record),
        batches,
        seed=seed,
        key=NoiseKey.of_seed(seed),
        intervention=Intervention(every_row=True),
    )
    state, found = engine.start(gradients.flat.flatten()), []
    for _ in range(plan.releases):
        state = engine.advance(state)
        found.append(state.rows.numpy().copy())
    return np.array(found)


def draws_of_the_engine(plan: Plan, known: np.ndarray, seed: int) -> np.ndarray:
    """[releases, those draws, attacks]"""
    noise = SimulatedDraws(NoiseKey.of_seed(seed), plan.draws, plan.releases)
    return np.array(
        [
            [noise.fill(torch.empty(ATTACKS, dtype=torch.float64), r, int(d)).numpy() for d in known]
            for r in range(plan.releases)
        ]
    )


@dataclass(frozen=True)
class Attacked:
    """The agent that coalition J attacks, and the statistic without and with the record, for all attacks."""

    plan: Plan
    owner: int
    J: tuple[int, ...]
    mu: float  # by the oracle
    without: np.ndarray
    with_record: np.ndarray

    @property
    def distance(self) -> float:
        spread = np.sqrt((self.without.var() + self.with_record.var()) / 2)
        return float((self.with_record.mean() - self.without.mean()) / spread)

    def power(self, worlds: np.ndarray) -> np.ndarray:
        return (worlds[:, None] > norm.isf(RATES)).mean(axis=0)


def write(name: str, deviation: float = 1.0) -> Plan:
    rates = schedules.learning_rates(0.5, ROUNDS, "linear")
    along = schedules.schedule(rates, schedules.step_decay(0.9, 2, ROUNDS), "gradient")
    own = deviation * np.linspace(0.8, 1.2, GRAPH.agents)
    return PLANS[name].plan(GRAPH, along, own, seed=5)


@cache
def attacked(name: str, colluders: int, knows: str = "everything") -> Attacked:
    """The pair with the largest loss by the account, at noise for which its μ is about one.

    `knows`: with "nothing", J ignores its draws, though it sees all rows.
    """
    exposed = exposure(GRAPH.agents, CHANGE)
    plan = write(name)
    plan = write(name, float(adaptive(plan, exposed, Query(colluders=colluders)).worst().max()))
    seen = adaptive(plan, exposed, Query(colluders=colluders))
    owner = int(seen.worst().argmax())
    J = seen.observers[seen.sees_most(owner)]
    rows = dense.every_row(plan, owner, ())  # in terms of all draws, including those of J
    A, B = dense.of_rows(plan, rows, J, "estimates")
    mine = np.ones(plan.draws, bool)
    mine[dense.hidden_draws(plan, J)] = False
    hidden = np.tile(~mine if knows == "everything" else np.ones(plan.draws, bool), plan.releases)
    white = dense.whitened(A, B[:, hidden])
    assert white is not None
    change = CHANGE * white.shift.sum(axis=1)
    mu = float(np.linalg.norm(change))
    weights = np.linalg.lstsq(B[:, hidden].T, white.noise.T @ change / mu, rcond=1e-12)[0]
    known = (weights @ B[:, ~hidden]).reshape(plan.releases, -1)
    still = by_the_engine(plan.noise_scaled(0.0), owner, False, seed=0).reshape(-1, ATTACKS)
    found = []
    for world in (False, True):
        statistic = weights @ (by_the_engine(plan, owner, world, seed=world).reshape(-1, ATTACKS) - still)
        if knows == "everything":
            drawn = draws_of_the_engine(plan, np.flatnonzero(mine), seed=world)
            statistic -= np.einsum("rd,rda->a", known, drawn)
        found.append(statistic)
    return Attacked(plan, owner, J, mu, *found)


slow_path = pytest.mark.filterwarnings("ignore:Per-example gradients of this model take the slow path")


def promised(mu: float) -> tuple[np.ndarray, np.ndarray]:
    """The largest power that μ allows, and the standard error of measuring it."""
    power = norm.sf(norm.isf(RATES) - mu)
    return power, np.sqrt(power * (1 - power) / ATTACKS)


@pytest.mark.slow
@slow_path
@pytest.mark.parametrize("colluders", [1, 2])
@pytest.mark.parametrize("name", PLANS)
def test_a_coalition_is_exactly_as_successful_as_predicted(name, colluders):
    at = attacked(name, colluders)
    predicted = float(
        adaptive(at.plan, exposure(GRAPH.agents, CHANGE), Query(colluders=colluders)).worst()[at.owner]
    )
    assert at.mu == pytest.approx(predicted, rel=1e-8)
    assert abs(at.distance - predicted) < ERRORS * np.sqrt((2 + predicted**2 / 4) / ATTACKS)
    power, error = promised(predicted)
    assert (np.abs(at.power(at.with_record) - power) < ERRORS * error).all()
    assert (np.abs(at.power(at.without) - RATES) < ERRORS * np.sqrt(RATES * (1 - RATES) / ATTACKS)).all()


@slow_path
@pytest.mark.parametrize("name", PLANS)
def test_an_attack_exceeds_accounts_for_fewer_colluders_or_an_outsider(name):
    """These accounts assume that noise which the colluders know hides other agents from them."""
    at = attacked(name, 2)
    exposed = exposure(GRAPH.agents, CHANGE)
    for forgets in (
        outsider(at.plan, exposed),
        adaptive(at.plan, exposed, Query(colluders=0)),
        adaptive(at.plan, exposed, Query(colluders=1)),
    ):
        power, error = promised(float(forgets.worst()[at.owner]))
        assert (at.power(at.with_record) > power + 5 * error).all()


@slow_path
def test_a_coalition_that_ignores_its_secrets_learns_as_much_as_an_outsider():
    """So the harness can fail: without its draws the same coalition only has the outsider's power."""
    knowing, forgetful = (attacked("regular, accelerated", 2, knows) for knows in ("everything", "nothing"))
    predicted = float(outsider(forgetful.plan, exposure(GRAPH.agents, CHANGE)).worst()[forgetful.owner])
    assert abs(forgetful.distance - predicted) < ERRORS * np.sqrt((2 + predicted**2 / 4) / ATTACKS)
    assert forgetful.distance < knowing.distance - 0.05


@slow_path
def test_the_engines_rows_agree_with_the_plan():
    """Both data sets give equal rows except for the record; in the sum of all rows only own noise remains."""
    plan, owner = write("regular, accelerated"), 3
    with_record, without = (by_the_engine(plan, owner, world, seed=1) for world in (True, False))
    shift = (with_record - without)[0]
    assert np.abs(shift[owner] + plan.rate[0] * CHANGE).max() < 1e-12
    assert np.abs(np.delete(shift, owner, axis=0)).max() == 0
    own = draws_of_the_engine(plan, np.arange(GRAPH.agents), seed=1)[0]
    still = by_the_engine(plan.noise_scaled(0.0), owner, False, seed=1)
    expected = (plan.full_scale * plan.scale[0]) @ own
    np.testing.assert_allclose((without - still)[0].sum(axis=0), expected, atol=1e-12)
