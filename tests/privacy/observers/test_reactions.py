"""Gradients that react to estimates: which answers they violate, which hold, and under which conditions.

First, an attack that violates a printed `view` but not `adaptive`, with a model that is clipped like any
other (carrier.py), in one run of the real engine and in many simulated runs. Then linear reactions of all
kinds, computed exactly. Last, the violations that occur if gradients read more than they may.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import dense_adaptive as dense
import numpy as np
import pytest
from carrier import Carrier
from linear_reactions import FAMILIES, KINDS, judge, random_case, small_plan
from scipy.stats import beta, norm

from builders import PROTOCOLS, RULES, constant_schedule
from topdp import topology
from topdp.plan import Full, PerRound, Plan
from topdp.privacy import Analysis, account, delta_of, epsilon_of, exposure, mu_of, view

AGENTS, ROUNDS, RATE, DELTA = 6, 12, 0.5, 1e-5
EPSILON = 1.0  # printed by the account
MODELS = {
    "top-async": Carrier(AGENTS, writers=(0, 1), records=4000, clip=1.0, gain=20.0),
    "top-sync": Carrier(AGENTS, writers=(4, 3, 2), records=4000, clip=1.0, gain=40.0),
}
PAIRS = {"top-async": (0, 5), "top-sync": (4, 5)}
"""The owner, and the neighbour that watches."""
RUNS = 100_000
ERRORS = 4.5  # the allowed sampling error in standard errors; seeds are fixed


@dataclass(frozen=True)
class Ring:
    """A ring of six whose noise is calibrated so that the largest ε of `view` is 1."""

    model: Carrier
    plan: Plan
    owner: int
    observer: int
    printed: float
    adaptive: float  # the owner's ε

    @property
    def J(self) -> list[int]:
        return [self.observer]


@cache
def ring(name: str) -> Ring:
    alpha, more = (0.03, {"offline": 0.0}) if name == "top-async" else (0.125, {})
    protocol, model, (owner, observer) = PROTOCOLS[name](alpha, **more), MODELS[name], PAIRS[name]

    def write(deviation: float) -> Plan:
        schedule = constant_schedule(ROUNDS, RATE)
        return protocol.plan(topology.ring(AGENTS), schedule, np.full(AGENTS, deviation), seed=1)

    exposed = exposure(AGENTS, model.sensitivity)
    plan = write(float(view(write(1.0), exposed, owners="all").worst().max()) / mu_of(EPSILON, DELTA))
    analysis = Analysis("tight", (Full(model.records),) * AGENTS, model.clip)
    found = account(plan, analysis, DELTA, answers=["view", "adaptive"])
    printed, bound = found.answer("view").largest, found.answer("adaptive").epsilon
    assert printed is not None and bound is not None
    return Ring(model, plan, owner, observer, printed, float(bound[owner]))


@dataclass(frozen=True)
class Best:
    """The best linear statistic of what the observer has: N(0, 1) without the record, N(μ, 1) with it."""

    weights: list[np.ndarray]  # per round [rows seen, width]
    known: np.ndarray  # [R, draws, width]: the contribution of the observer's own draws
    mu: float


@cache
def best(name: str) -> Best:
    at = ring(name)
    plan, W = at.plan, at.model.width

    def react(round: int, rows: list[np.ndarray]) -> np.ndarray:
        return at.model.linear(rows, at.owner)

    everything = dense.every_row(plan, at.owner, (), react=react, width=W)  # all draws, also of the observer
    A, all_draws = dense.of_rows(plan, everything, at.J, "nothing")
    hidden = np.repeat(np.isin(np.arange(plan.draws), dense.hidden_draws(plan, at.J)), W)
    hidden = np.tile(hidden, plan.releases)
    found = dense.whitened(A, all_draws[:, hidden])
    assert found is not None
    change = at.model.sensitivity * found.shift.sum(axis=1)
    mu = float(np.linalg.norm(change))
    flat = np.linalg.lstsq(all_draws[:, hidden].T, found.noise.T @ change / mu, rcond=1e-12)[0]
    known = np.where(hidden, 0.0, flat @ all_draws).reshape(plan.releases, plan.draws, W)
    counts = np.cumsum([W * int(dense.seen(plan, r, at.J, "nothing").sum()) for r in range(plan.releases)])
    return Best([part.reshape(-1, W) for part in np.split(flat, counts[:-1])], known, mu)


def statistic(name: str, rows: list[np.ndarray], draws: list[np.ndarray]) -> np.ndarray:
    """[runs]: computed from the rows that the observer sees, and from its own draws."""
    at, how = ring(name), best(name)
    total = 0.0
    for r, (made, drawn) in enumerate(zip(rows, draws, strict=True)):
        total = total + np.einsum("mw,mwr->r", how.weights[r], made[dense.seen(at.plan, r, at.J, "nothing")])
        total = total - np.einsum("dw,dwr->r", how.known[r], drawn)
    return np.asarray(total)


@cache
def measured(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The statistic without and with the record, in separate runs, clipped as the engine clips."""
    at = ring(name)
    found = []
    for world in (False, True):
        numbers = np.random.default_rng([17, world])
        parts = []
        for _ in range(RUNS // 10_000):
            shape = (at.plan.draws, at.model.width, 10_000)
            draws = [numbers.standard_normal(shape) for _ in range(at.plan.releases)]
            parts.append(statistic(name, at.model.execute(at.plan, at.owner, world, draws), draws))
        found.append(np.concatenate(parts))
    return found[0], found[1]


@pytest.mark.filterwarnings("ignore:Per-example gradients of this model take the slow path")
@pytest.mark.parametrize("name", PAIRS)
def test_the_simulated_attack_equals_the_engines_rows(name):
    """Row by row, with the engine's noise: a real torch model, its losses, per-example clipping."""
    at = ring(name)
    for with_record in (False, True):
        rows = at.model.by_the_engine(at.plan, at.owner, with_record, seed=3)
        draws = list(at.model.draws_of_the_engine(at.plan, seed=3))
        expected = at.model.execute(at.plan, at.owner, with_record, draws)
        for r, (made, twin) in enumerate(zip(rows, expected, strict=True)):
            np.testing.assert_allclose(made, twin[at.plan.exists[r], :, 0], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "exactly", "surely"), [("top-async", 2.5, 2.3), ("top-sync", 1.25, 1.15)])
def test_a_legal_model_violates_the_view_but_not_the_adaptive_answer(name, exactly, surely):
    """Printed: ε = 1. The distance of two Gaussians, computed, and measured with its errors."""
    at, (without, with_record) = ring(name), measured(name)
    assert abs(at.printed - EPSILON) < 1e-6
    assert exactly * at.printed < epsilon_of(best(name).mu, DELTA) < at.adaptive
    spread = np.sqrt((without.var() + with_record.var()) / 2)
    mu = (with_record.mean() - without.mean()) / spread
    error = np.sqrt((2 + mu**2 / 4) / RUNS)
    assert epsilon_of(mu - ERRORS * error, DELTA) > surely * at.printed
    assert abs(mu - best(name).mu) < ERRORS * error  # clipping has no effect
    for rate in (0.05, 0.2):
        line = norm.isf(rate)
        printed, bound = (norm.sf(line - mu_of(one, DELTA)) for one in (at.printed, at.adaptive))
        power = (with_record > line).mean()
        assert printed + 5 * np.sqrt(printed / RUNS) < power < bound + ERRORS * np.sqrt(bound / RUNS)
        assert abs((without > line).mean() - rate) < ERRORS * np.sqrt(rate / RUNS)


def test_alarm_rates_alone_violate_the_view_under_any_distribution():
    """Clopper and Pearson, 99.9% each: P(alarm | record) <= e^ε P(alarm | none) + δ fails for ε = 1.5."""
    without, with_record = measured("top-async")
    line = norm.isf(5e-4)
    false, right = int((without > line).sum()), int((with_record > line).sum())
    most, least = beta.isf(1e-3, false + 1, RUNS - false), beta.ppf(1e-3, right, RUNS - right + 1)
    assert np.log((least - DELTA) / most) > 1.5 * ring("top-async").printed


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_linear_reactions_never_reveal_more_than_the_bound(protocol, kind):
    """In no direction of u; and an observer of all estimates learns the same with and without them."""
    # All agents see broadcasts, whatever the graph is.
    for family in FAMILIES if protocol in RULES else ("random", "star", "small-world"):
        verdict = judge(random_case(family, protocol, kind, seed=KINDS.index(kind) % 2))
        assert verdict.ratio < 1 + 1e-9, family
        assert verdict.excess < 1e-9 and verdict.moved < 1e-9, family


def test_a_change_that_adapts_to_seen_rows_reveals_no_more_than_the_bound():
    """Every agent has steep gradients, and each round chooses the sign of u_t from what J has seen.

    Given the past all is Gaussian, so each path has its exact likelihood ratio: shift·noise ± |shift|²/2.
    """
    plan, owner, J, runs = small_plan("grid", "top-sync", seed=3), 1, [2], 50_000
    A, B = dense.coefficients(plan, owner, J, "estimates")
    found = dense.whitened(A, B)
    assert found is not None
    mu = 1.0
    change = mu / dense.bracket(found.shift.T @ found.shift)[1] ** 0.5
    hidden, numbers = dense.hidden_draws(plan, J), np.random.default_rng(5)
    ratios = []
    for record in (-1, 1):  # without, with
        rows, noise, u, score = np.zeros((plan.rows, runs)), [], [], np.zeros(runs)
        for this in plan:
            estimates = rows[: plan.agents]
            gradient = np.clip(300 * np.sin(7 * estimates), -50, 50)
            u.append(change * np.where(score + estimates.sum(axis=0) > 0, 1.0, -1.0))
            gradient[owner] += u[-1] * (record > 0)
            draws = numbers.standard_normal((plan.draws, runs))
            made = np.zeros_like(rows)
            for m in np.flatnonzero(this.exists):
                for source, weight in zip(this.source[m], this.weight[m], strict=True):
                    made[m] += weight * rows[source] * (source >= 0)
                made[m] += this.step[m] * gradient[plan.owner[m]] + this.std[m, 0] * draws[this.draw[m, 0]]
            rows, noise, score = made, [*noise, draws[hidden]], made[J[0]] - made[owner]
        shift = found.shift @ np.array(u)
        squares = (shift**2).sum(axis=0)
        assert squares.max() < mu**2 * (1 + 1e-9) and squares.std() > 0.01
        ratios.append(record * squares / 2 + (shift * (found.noise @ np.concatenate(noise))).sum(axis=0))
    without, with_record = ratios
    assert abs(np.exp(without).mean() - 1) < ERRORS * np.exp(without).std() / np.sqrt(runs)
    for epsilon in (0.25, 0.5, 1.0, 2.0):
        for loss in (with_record, -without):
            lost = np.maximum(0.0, 1 - np.exp(epsilon - loss))
            assert lost.mean() < delta_of(mu, epsilon) + ERRORS * lost.std() / np.sqrt(runs)


def carried(plan: Plan, owner: int, J: list[int], reads: list[np.ndarray]) -> float:
    """μ² that J learns if each agent k steeply carries the rows `reads`[k], each in a separate place."""
    places = {(k, int(m)): 1 + p for p, (k, m) in enumerate((k, m) for k, of in enumerate(reads) for m in of)}

    def react(round: int, rows: list[np.ndarray]) -> np.ndarray:
        gradient = np.zeros((plan.agents, *rows[-1].shape[1:]))
        for (k, m), place in places.items():
            gradient[k, place] = 300 * rows[-1][m, 0]
        return gradient

    M = dense.gram(*dense.coefficients(plan, owner, J, react=react, width=1 + len(places)))
    assert M is not None
    return dense.bracket(M)[0]


def test_gradients_that_read_other_rows_than_estimates_violate_the_bound():
    """Received messages, or an agent's own messages to others: such rows would have to be public, too."""
    n = 6
    plan = PROTOCOLS["top-sync"](0.03).plan(topology.ring(n), constant_schedule(6), np.ones(n), 1)
    readers = plan[1].readers
    estimates = [np.array([k]) for k in range(n)]
    received = [np.flatnonzero((readers == k).any(axis=1)) for k in range(n)]
    sent = [np.flatnonzero((plan.owner == k) & (np.arange(plan.rows) >= n)) for k in range(n)]
    bound = dense.mu(plan, 0, [1], "estimates")[1]
    found = {
        name: carried(plan, 0, [1], reads) ** 0.5 / bound
        for name, reads in (("estimates", estimates), ("received", received), ("sent", sent))
    }
    assert 0.9 < found["estimates"] <= 1
    assert found["received"] > 1.5
    assert found["sent"] > 1.5


def test_momentum_of_raw_sums_in_the_owner_violates_the_bound():
    """An average of clipped gradients keeps the change; momentum of raw sums enlarges it to Δ/(1 - β)."""
    plan = small_plan("ring", "top-sync", seed=0)
    M = dense.gram(*dense.coefficients(plan, 0, [1], "estimates"))
    assert M is not None
    R, β = plan.releases, 0.9
    memory = np.tril(β ** (np.arange(R)[:, None] - np.arange(R)))
    bound = dense.bracket(M)[1]
    assert dense.bracket((1 - β) ** 2 * memory.T @ M @ memory)[1] < bound
    assert dense.bracket(memory.T @ M @ memory)[0] > 4 * bound


def test_an_unsent_estimate_without_noise_has_a_finite_view_only():
    """Messages have own noise, so that the view is finite; gradients at the estimate can reveal it."""
    plan = PROTOCOLS["top-sync"](0.25).plan(topology.ring(5), constant_schedule(4), np.ones(5), 1)
    std = np.array([plan.std[r] for r in range(plan.releases)])
    std[1:, 0] = 0.0
    bare = replace(plan, std=PerRound.each(std))
    assert (bare[1].readers[0] < 0).all() and np.isfinite(dense.mu(bare, 0, [1])[1])
    assert dense.mu(bare, 0, [1], "estimates")[0] == np.inf
