"""Tests of the bounds on rounding: no μ is too small, however many decades the noise of a plan spans."""

import importlib.util
from collections import Counter
from fractions import Fraction
from pathlib import Path

import flint
import numpy as np
import pytest

from topdp import topology
from topdp.base.rounding import binary_root, gamma
from topdp.plan import Optimiser, Schedule, optimised, schedules
from topdp.privacy import adaptive, exposure, view, worst_case
from topdp.privacy.observers import _exact_gram
from topdp.privacy.observers._exact_gram import exact_bands
from topdp.privacy.observers._exact_squares import MAX_FRACTION_ROWS, exact_squares
from topdp.privacy.observers._mu_bounds import bracket_band
from topdp.privacy.observers._reader_layout import ReaderQuestion, RowFlow, lay_out
from topdp.privacy.observers._reader_tracking import ChangeTracker
from topdp.privacy.observers.gram_matrix import Band, bands
from topdp.privacy.observers.observer_filter import Public, UncertifiedError
from topdp.privacy.observers.shared_noise import by_connectivity
from topdp.privacy.observers.view import null_rows_are_exact
from topdp.privacy.query import Query
from topdp.protocols import Muffliato, TopSynchronous

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "certificates.py"

# At 80, 150 and 200 digits; a filter in float64 without bounds on rounding gives 792.32.
TRUE_MU = 878.2962793685502


def wide_plan(deviations=(7379.011, 0.0022517, 5.2542e-10, 0.0026515)):
    rates = schedules.learning_rates(0.1, 10, "cosine")
    protocol = TopSynchronous(0.00275523709831908, 0.1)
    return protocol.plan(topology.ring(4), Schedule(rate=rates, noise=rates), np.array(deviations), 629852)


def ordinary_plan(agents=6, rounds=8, seed=0):
    rates = np.full(rounds + 1, 0.1)
    return TopSynchronous(0.3).plan(
        topology.random(agents, 0.4, seed), Schedule(rate=rates, noise=rates), np.linspace(1, 3, agents), seed
    )


def members(plan, *agents):
    return np.isin(np.arange(plan.agents), agents)


def test_noise_over_many_decades_is_resolved():
    plan = wide_plan()
    found = adaptive(plan, exposure(4, 1.0), Query(colluders=0))
    assert TRUE_MU * (1 - 1e-14) <= found.upper[3, 0] <= TRUE_MU * (1 + 1e-9)


def test_what_no_arithmetic_resolves_is_bounded_by_the_worst_case(monkeypatch):
    monkeypatch.setattr(_exact_gram, "MAX_EXACT_ROWS", 0)
    plan = wide_plan()
    found = adaptive(plan, exposure(4, 1.0), Query(colluders=0))
    np.testing.assert_array_equal(found.upper[:, 0], worst_case(plan, exposure(4, 1.0)).mu)


def test_a_filter_in_float64_says_that_it_cannot_resolve_the_noise():
    plan = wide_plan()
    with pytest.raises(UncertifiedError):
        list(bands(plan, members(plan), np.arange(4), Public.ESTIMATES, whole=True))


@pytest.mark.parametrize("seed", range(3))
def test_every_path_encloses_the_exact_matrix_at_a_small_price(seed):
    plan = ordinary_plan(seed=seed)
    J, owners = members(plan, 0), np.arange(1, plan.agents)
    exact = exact_bands(plan, J, owners, Public.ESTIMATES)
    layout = lay_out(RowFlow(plan), [ReaderQuestion((0,), owners, np.arange(plan.agents, plan.rows))])
    (tracked,) = ChangeTracker(layout, None, owners=len(owners)).all()
    filtered = list(bands(plan, J, owners, Public.ESTIMATES, whole=True))
    for found in (tracked.bands, filtered):
        for one, true in zip(found, exact, strict=True):
            low, high = bracket_band(one)[1], bracket_band(true)[1]
            assert high <= low * (1 + 1e-9) <= high * (1 + 1e-6)
            R = len(one.values)
            dense, near = np.zeros((2, R, R))
            for r in range(R):
                for k in range(R - r):
                    dense[r, r + k] = dense[r + k, r] = true.values[r, k]
                    near[r, r + k] = near[r + k, r] = one.values[r, k] if k < one.values.shape[1] else 0.0
            for u in np.random.default_rng(seed).normal(size=(20, R)):
                rounding = 2 * np.abs(u) @ np.sqrt(near.diagonal()) * (np.abs(u) @ one.rounding)
                most = (np.sqrt(u @ near @ u + rounding) + np.abs(u) @ one.rest) ** 2
                assert u @ dense @ u <= most * (1 + 1e-14)
            assert one.rounding.max() < 1e-9 * np.sqrt(near.diagonal().max())


def test_rounding_enlarges_the_upper_bound():
    values, rest = np.array([[1.0, 0.5], [1.0, 0.0]]), np.zeros(2)
    without = Band(values, rest, rest > 0)
    charged = Band(values, rest, rest > 0, np.full(2, 0.01))
    # (|u_0| + |u_1|)² terms: Σ |u_r| |u_s| (√M_rr·0.01 + 0.01·√M_ss) = 0.08
    assert bracket_band(charged)[1] >= bracket_band(without)[1] + 0.08


def test_exact_bands_are_none_if_rows_repeat_or_are_too_many():
    rates = np.full(5, 0.1)
    schedule = Schedule(rate=rates, noise=rates)
    repeated = Muffliato(4, chebyshev=False).plan(topology.ring(4), schedule, np.ones(4), 0)
    assert exact_bands(repeated, members(repeated, 0), np.array([1]), Public.NOTHING) is None
    large = ordinary_plan(12, 40)
    assert exact_bands(large, members(large, 0), np.array([1]), Public.ESTIMATES) is None


def test_exact_bands_leave_the_precision_of_others_alone():
    before = flint.ctx.prec
    plan = ordinary_plan()
    exact_bands(plan, members(plan, 0), np.array([1]), Public.NOTHING)
    assert flint.ctx.prec == before


def test_exact_squares_are_infinite_only_without_noise():
    B = np.array([[1e8, 0.0], [1e8, 1e-12]])
    first, second, both = np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([1.0, 1.0])
    found = exact_squares(B, np.stack([first, second, both], axis=1))
    np.testing.assert_allclose(found, [1e24, 1e24, 1e-16], rtol=1e-15)
    hidden = exact_squares(np.ones((2, 1)), np.stack([first, both], axis=1))
    assert hidden[0] == np.inf and 1 <= hidden[1] < 1 + 1e-15
    many = np.eye(MAX_FRACTION_ROWS + 1)
    assert exact_squares(many, many[:, :1]).tolist() == [np.inf]


def test_the_bound_by_connectivity_holds_for_own_noise_over_many_decades():
    own = np.array([1e12, 3e-9, 2e-9, 1e12])
    found = by_connectivity(own, connected=1e-3, colluders=2)
    for agent, bound in enumerate(found.tolist()):
        left = [agent, *[j for j in (1, 2, 0, 3) if j != agent][:1]]
        v, d = Fraction(1e-3), [Fraction(own[j]) for j in left]
        share = sum(x / (x + v) for x in d)
        exact = (1 + v / (d[0] + v) / share) / (d[0] + v)
        assert bound >= exact * (1 - Fraction(1, 10**14))


def test_view_trusts_rows_without_noise_only_where_deviations_are_alike(monkeypatch):
    monkeypatch.setattr(_exact_gram, "MAX_EXACT_ROWS", 0)
    rates = np.full(4, 0.1)
    schedule = Schedule(rate=rates, noise=rates)
    protocol, ring = Muffliato(2, chebyshev=False), topology.ring(8)
    alike = protocol.plan(ring, schedule, np.linspace(1, 3, 8), 0)
    spread = protocol.plan(ring, schedule, np.array([1.0, 1e7, 1.0, 1e-3, 1.0, 1.0, 1.0, 1.0]), 0)
    assert null_rows_are_exact(alike) and not null_rows_are_exact(spread)
    exposed, found = exposure(8, 1.0), []
    for plan in (alike, spread):
        with pytest.raises(UncertifiedError):
            list(bands(plan, members(plan, 0), np.array([4]), whole=True))
        found.append(view(plan, exposed, [0], [4]).upper[4, 0] / worst_case(plan, exposed).mu[4])
    assert found[0] < 0.5 and found[1] == 1


def test_bounds_on_sums_hold():
    generator = np.random.default_rng(0)
    for n in (3, 50, 400):
        x, y = generator.normal(size=(2, n)) * 10 ** generator.uniform(-8, 8, n)
        exact = sum(Fraction(a) * Fraction(b) for a, b in zip(x.tolist(), y.tolist(), strict=True))
        assert abs(Fraction(float(x @ y)) - exact) <= Fraction(gamma(n) * float(np.abs(x) @ np.abs(y)) * 1.01)
    values = 10 ** generator.uniform(-200, 200, 100)
    root = binary_root(values)
    assert (np.frexp(root)[0] == 0.5).all() and (values / root / root >= 0.4999).all()
    assert (values / root / root <= 2.0001).all()


@pytest.mark.slow
def test_the_search_finds_no_plan_whose_epsilon_is_too_small():
    specification = importlib.util.spec_from_file_location("certificates", BENCHMARK)
    search = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(search)
    before, flint.ctx.dps = flint.ctx.dps, search.DIGITS
    try:
        assert search.compared(search.Case("top", wide_plan(), 0, 1, False), Counter(), 1) == []
        true = search.reached(search.sight(wide_plan(), (), "estimates")[3], 1)
        assert true == pytest.approx(TRUE_MU, rel=1e-12)
        for number in range(12):
            case = search.random_case(np.random.default_rng([7, number]))
            assert search.compared(case, Counter(), 1) == []
    finally:
        flint.ctx.dps = before


def test_a_band_without_a_bound_on_its_rounding_bounds_nothing():
    """Balls wider than their middle gave nan, which no comparison noticed: then mu was 0."""
    for rounding in ([0.0, np.nan], [0.0, np.inf]):
        band = Band(np.eye(2), np.zeros(2), np.zeros(2, bool), np.array(rounding))
        assert bracket_band(band)[1] == np.inf


def test_noise_that_one_agent_drowns_by_ten_decades_is_not_counted_as_perfect():
    """The truth is at least 1e16 for agent 3 and observer 0; 0 was returned."""
    rate = schedules.learning_rates(0.1, 9, "none")
    schedule = schedules.schedule(rate, schedules.step_decay(0.01, 1, 9), "gradient")
    plan = TopSynchronous(0.5, 1e-4).plan(topology.ring(4), schedule, np.array([1.0, 1.0, 1e10, 1.0]), 0)
    plan = optimised(plan, Optimiser("momentum", momentum=0.9), rate)
    found = adaptive(plan, exposure(4, 1.0))
    assert found.upper[3, found.observers.index((0,))] >= 1e16
