"""The published calibrations: the figures they must meet, their inverses, and where they are not private."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from topdp.errors import InputError
from topdp.plan import Cycle, Full, Poisson
from topdp.privacy.basics import gaussian, poisson
from topdp.privacy.basics.poisson import grouped, loss_distribution_epsilon, renyi_curve
from topdp.privacy.basics.refusals import NotCovered, PrivacyError, PrivacyWarning
from topdp.privacy.published._printed import Udp
from topdp.privacy.published.calibration import Calibration
from topdp.privacy.published.calibrations import CALIBRATIONS

SOUND = ["tight", "optimal", "moments"]
PRINTED = ["udp", "advanced", "theorem1"]
FULL = Full(2000)

names = st.sampled_from(sorted(CALIBRATIONS))
budgets = st.floats(-3, 3).map(lambda power: 10.0**power)
deltas = st.floats(-12, math.log10(0.5)).map(lambda power: 10.0**power)
noises = st.lists(st.floats(0.05, 500), min_size=1, max_size=20)


@pytest.fixture(params=sorted(CALIBRATIONS))
def calibration(request: pytest.FixtureRequest) -> Iterator[Calibration]:
    yield CALIBRATIONS[request.param]


# Figures: ε = 1, δ = 1e-5, 2000 records, unit clip, add-remove; computed twice, independently (project
# notes on the paper, section 2).
@pytest.mark.parametrize(
    ("name", "releases", "sigma"),
    [
        ("tight", 1000, 0.05899),
        ("theorem1", 1000, 1.4703),
        ("tight", 100, 0.01865),
        ("theorem1", 100, 0.46496),
    ],
)
def test_sigma_of_the_notes(name: str, releases: int, sigma: float) -> None:
    found = CALIBRATIONS[name].calibrate(1.0, 1e-5, releases, FULL)
    assert found.sigma == pytest.approx(sigma, rel=3e-4)
    assert found.sigma == pytest.approx(found.noise_multiplier / 2000, rel=1e-15)


@pytest.mark.parametrize(
    ("name", "ratio", "digits"),
    [("optimal", 1.084, 5e-4), ("moments", 1.314, 5e-4), ("udp", 1.286, 5e-4), ("advanced", 8.56, 5e-3)],
)
def test_noise_relative_to_tight(name: str, ratio: float, digits: float) -> None:
    tight, other = (CALIBRATIONS[n].calibrate(1.0, 1e-5, 1000, FULL) for n in ("tight", name))
    assert other.sigma / tight.sigma == pytest.approx(ratio, abs=digits)
    assert other.exact_epsilon is not None
    assert other.exact_epsilon < 1


def test_replace_one_doubles_the_noise(calibration: Calibration) -> None:
    one, two = (calibration.calibrate(1.0, 1e-5, 50, FULL, a) for a in ("add-remove", "replace-one"))  # type: ignore[arg-type]
    assert two.noise_multiplier == one.noise_multiplier
    assert two.sigma == 2 * one.sigma
    assert (one.sensitivity, two.sensitivity) == (1 / 2000, 2 / 2000)


@given(names, budgets, deltas, st.integers(1, 3000))
@settings(deadline=None, max_examples=50)
def test_claim_after_calibrate_is_the_budget(name: str, epsilon: float, delta: float, releases: int) -> None:
    calibration = CALIBRATIONS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        found = calibration.calibrate(epsilon, delta, releases, FULL)
        claimed = calibration.claim(np.full(releases, found.noise_multiplier), delta)
    assert claimed <= epsilon
    assert epsilon - claimed <= 1e-6 * epsilon + 1e-11 * delta


@given(names, budgets, deltas, st.integers(1, 3000), st.integers(2, 400))
@settings(deadline=None, max_examples=50)
def test_cyclic_batches_divide_the_releases(
    name: str, epsilon: float, delta: float, releases: int, size: int
) -> None:
    calibration, batches = CALIBRATIONS[name], Cycle(2000, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        found = calibration.calibrate(epsilon, delta, releases, batches)
        claimed = calibration.claim(np.full(releases, found.noise_multiplier), delta, batches)
        whole = calibration.calibrate(epsilon, delta, releases, FULL)
        few = calibration.calibrate(epsilon, delta, math.ceil(releases / math.ceil(2000 / size)), Full(size))
    assert claimed <= epsilon
    assert epsilon - claimed <= 1e-6 * epsilon + 1e-11 * delta
    if name == "theorem1":
        assert found.sigma == pytest.approx(whole.sigma)
    else:
        assert found.sigma == few.sigma


@given(st.sampled_from(SOUND), budgets, deltas, st.integers(1, 3000))
@settings(deadline=None, max_examples=50)
def test_sound_calibrations_are_private(name: str, epsilon: float, delta: float, releases: int) -> None:
    found = CALIBRATIONS[name].calibrate(epsilon, delta, releases, FULL)  # a warning would be an error
    assert found.exact_epsilon is not None
    assert found.exact_epsilon <= epsilon


@given(names, budgets, deltas, st.integers(1, 3000))
@settings(deadline=None, max_examples=50)
def test_a_false_claim_always_warns(name: str, epsilon: float, delta: float, releases: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = CALIBRATIONS[name].calibrate(epsilon, delta, releases, FULL)
        CALIBRATIONS[name].claim(np.full(releases, found.noise_multiplier), delta)
    spent = gaussian.epsilon_of(math.sqrt(releases) / found.noise_multiplier, delta)
    assert [w.category for w in caught] == ([PrivacyWarning] * 2 if spent > epsilon * (1 + 1e-9) else [])


@given(names, noises, st.floats(1.01, 10), st.sampled_from([1e-9, 1e-5, 1e-2]))
@settings(deadline=None, max_examples=50)
def test_more_noise_or_fewer_releases_never_claim_more(
    name: str, z: list[float], more: float, delta: float
) -> None:
    claim, z = CALIBRATIONS[name].claim, sorted(z, reverse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        base = claim(z, delta)
        assert claim(more * np.array(z), delta) <= base
        assert claim([*z, z[-1]], delta) >= base * (1 - 1e-9)


@given(noises, st.sampled_from([1e-9, 1e-5, 1e-2]))
@settings(deadline=None, max_examples=50)
def test_claims_of_unequal_noise_are_ordered(z: list[float], delta: float) -> None:
    exact = gaussian.epsilon_of(gaussian.compose(z), delta)
    tight, optimal, moments = (CALIBRATIONS[n].claim(z, delta) for n in SOUND)
    assert tight == exact
    assert exact <= optimal * (1 + 1e-12) + 1e-12
    assert optimal <= moments
    # z in any order, and equal z as one number many times
    assert CALIBRATIONS["moments"].claim(z[::-1], delta) == pytest.approx(moments)


@given(noises, st.integers(1, 9))
@settings(deadline=None, max_examples=50)
def test_a_cycle_is_as_private_as_its_worst_record(z: list[float], period: int) -> None:
    batches = Cycle(period, 1)
    worst = max(gaussian.epsilon_of(gaussian.compose(z[s::period]), 1e-5) for s in range(min(period, len(z))))
    assert CALIBRATIONS["tight"].claim(z, 1e-5, batches) == pytest.approx(worst, rel=1e-12)


@given(noises)
@settings(deadline=None, max_examples=50)
def test_renyi_calibrations_against_dp_accounting(z: list[float]) -> None:
    accountant = RdpAccountant()
    for one in z:
        accountant.compose(dp_event.GaussianDpEvent(one))
    orders, curve = accountant.orders, accountant.rdp
    ours = CALIBRATIONS["optimal"].claim(z, 1e-5)
    theirs = accountant.get_epsilon(1e-5)
    classic = float(np.min(curve + math.log(1e5) / (orders - 1)))
    # Theirs is the best of finitely many orders, ours of all: never more, and near inside their range.
    assert ours <= theirs * (1 + 1e-9)
    assert CALIBRATIONS["moments"].claim(z, 1e-5) <= classic * (1 + 1e-9)
    if 1.5 < 1 + math.sqrt(2 * math.log(1e5)) / gaussian.compose(z) < 60:
        assert ours == pytest.approx(theirs, rel=2e-3)
        assert CALIBRATIONS["moments"].claim(z, 1e-5) == pytest.approx(classic, rel=2e-3)


def test_optimal_conversion_against_every_order() -> None:
    mu, delta = 0.3, 1e-6
    a = 1 + np.logspace(-3, 5, 200_001)
    best = np.min(a * mu**2 / 2 + np.log1p(-1 / a) - np.log(a * delta) / (a - 1))
    assert CALIBRATIONS["optimal"].claim([1 / mu], delta) == pytest.approx(best, rel=1e-8)


def test_advanced_composition_by_hand() -> None:
    # T = 2 releases at z = 20, δ = 1e-5: δ0 = 2.5e-6, ε0 = √(2 ln(1.25/2.5e-6))/20
    each = math.sqrt(2 * math.log(5e5)) / 20
    by_hand = each * math.sqrt(4 * math.log(2e5)) + 2 * each * (math.exp(each) - 1)
    assert CALIBRATIONS["advanced"].claim([20.0, 20.0], 1e-5) == pytest.approx(by_hand, rel=1e-12)
    other = math.sqrt(2 * math.log(5e5)) / 40
    mixed = (
        math.sqrt(2 * math.log(2e5) * (each**2 + other**2))
        + each * math.expm1(each)
        + other * math.expm1(other)
    )
    assert CALIBRATIONS["advanced"].claim([20.0, 40.0], 1e-5) == pytest.approx(mixed, rel=1e-12)


# Where the printed formulas are not private.


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_udp_is_private_up_to_its_limit_only(delta: float) -> None:
    udp = CALIBRATIONS["udp"]
    assert isinstance(udp, Udp)
    limit = udp.limit(delta)
    for share in (1e-3, 0.1, 0.5, 0.9, 0.999, 1.0):
        udp.calibrate(share * limit, delta, 7, FULL)  # a warning would be an error
    for share in (1.001, 1.5, 5, 100):
        with pytest.warns(PrivacyWarning, match=r"'udp' claims .* exactly"):
            found = udp.calibrate(share * limit, delta, 7, FULL)
        assert found.exact_epsilon is not None
        assert found.exact_epsilon > share * limit
    with pytest.warns(PrivacyWarning, match="udp"):
        udp.claim([0.1], delta)


def test_udp_limit_at_the_usual_delta() -> None:
    # "above ε ≈ 8 (δ = 1e-5) the formula is not private" (project notes on the paper, section 2)
    udp = CALIBRATIONS["udp"]
    assert isinstance(udp, Udp)
    assert udp.limit(1e-5) == pytest.approx(8, abs=0.05)


def test_theorem1_with_single_samples_warns_or_refuses_with_the_numbers() -> None:
    theorem1 = CALIBRATIONS["theorem1"]
    with pytest.warns(
        PrivacyWarning, match=r"claims epsilon=1 .* 1 of 2000 records; .* exactly epsilon=10\.9"
    ):
        found = theorem1.calibrate(1.0, 1e-5, 100, Cycle(2000, 1))
    # One release holds the record, at z = σ·1 = 0.46496.
    assert found.exact_epsilon == pytest.approx(gaussian.epsilon_of(1 / 0.46496, 1e-5), rel=1e-4)
    # Claimed 1 is really 1.9, claimed 2 is 17.8, claimed 5 is 150 (project notes on the paper, section 3).
    for epsilon, really in [(1.0, r"1\.90"), (2.0, r"17\.[78]"), (5.0, "150")]:
        with pytest.raises(NotCovered, match=rf"Its epsilon={epsilon:g} is exactly epsilon={really}"):
            theorem1.calibrate(epsilon, 1e-5, 100, Poisson(2000, 1))


def test_theorem1_counts_decay_as_free_and_is_told_so() -> None:
    theorem1, start = CALIBRATIONS["theorem1"], 8 * math.sqrt(1000 * math.log(1e5) * math.log(1.25e5))
    slow, fast = (start * 0.9 ** (np.arange(1000) // period) for period in (1000, 10))
    assert theorem1.claim(slow, 1e-5) == pytest.approx(1)
    with pytest.warns(PrivacyWarning, match="theorem1"):
        assert theorem1.claim(fast, 1e-5) == pytest.approx(1)
    with pytest.raises(NotCovered, match="grows"):
        theorem1.claim(slow[::-1] + np.arange(1000), 1e-5)


# Poisson batches.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "epsilon", "releases", "size"),
    [("tight", 1.0, 200, 20), ("tight", 4.0, 30, 400), ("optimal", 4.0, 30, 400), ("moments", 1.0, 200, 20)],
)
def test_sampled_claim_after_calibrate_is_the_budget(
    name: str, epsilon: float, releases: int, size: int
) -> None:
    calibration, batches = CALIBRATIONS[name], Poisson(2000, size)
    found = calibration.calibrate(epsilon, 1e-5, releases, batches)
    claimed = calibration.claim(np.full(releases, found.noise_multiplier), 1e-5, batches)
    assert epsilon * (1 - 1e-6) <= claimed <= epsilon
    assert found.sigma == pytest.approx(found.noise_multiplier / size)
    assert found.exact_epsilon is None


def test_sampled_claims_against_dp_accounting() -> None:
    z, batches, rate = np.array([1.0] * 60 + [0.8] * 40), Poisson(2000, 20), 0.01
    pld, rdp = PLDAccountant(), RdpAccountant()
    for one, count in ((1.0, 60), (0.8, 40)):
        event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(one))
        pld.compose(event, count)
        rdp.compose(event, count)
    tight, optimal, moments = (CALIBRATIONS[n].claim(z, 1e-5, batches) for n in SOUND)
    assert tight == pytest.approx(pld.get_epsilon(1e-5), rel=1e-3)
    assert optimal == pytest.approx(rdp.get_epsilon(1e-5), rel=1e-3)
    assert moments == pytest.approx(float(np.min(rdp.rdp + math.log(1e5) / (rdp.orders - 1))), rel=1e-3)
    assert tight < optimal < moments


@pytest.mark.parametrize(
    ("mu", "releases"), [(0.1, 1), (1.0, 10), (1.0, 1000), (3.0, 10_000), (0.5, 100_000)]
)
def test_loss_distributions_are_never_below_the_exact_curve(mu: float, releases: int) -> None:
    # Rate 1 is the one place where the truth is known in closed form.
    z = np.full(releases, math.sqrt(releases) / mu)
    for delta in (1e-3, 1e-5, 1e-8) if releases < 100_000 else (1e-5,):
        exact = gaussian.epsilon_of(mu, delta)
        assert exact <= loss_distribution_epsilon(z, delta, 1.0) <= exact * 1.02


@pytest.mark.parametrize("falling", [lambda t: 1 - t, lambda t: (1 - t) ** 4, lambda t: np.exp(-20 * t)])
def test_many_noise_multipliers_are_grouped_on_the_private_side(
    falling: Callable[[np.ndarray], np.ndarray],
) -> None:
    information = np.maximum(falling(np.arange(300) / 300), 1e-4)
    z = 3.0 * information**-0.5
    groups = grouped(z)
    assert len(groups) < 150 and sum(count for _, count in groups) == len(z)
    counted = np.repeat([one for one, _ in groups], [count for _, count in groups])
    assert (counted <= np.sort(z)).all()
    assert np.sum(counted**-2.0) <= 1.04 * np.sum(z**-2.0)
    few = z[:64]
    assert grouped(few) == [(one, 1) for one in sorted(few)]


def test_grouped_noise_costs_little_more_than_each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    z = 4.0 * (1 - np.arange(80) / 80) ** -0.5
    together = loss_distribution_epsilon(z, 1e-5, 0.1)
    monkeypatch.setattr(poisson, "MAX_UNGROUPED", 80)
    each = loss_distribution_epsilon(z, 1e-5, 0.1)
    assert each < together <= 1.02 * each


def test_renyi_curve_against_integration() -> None:
    z, rate, a = 1.3, 0.1, 8.0
    orders, curve = renyi_curve(np.full(5, z), rate)

    def integrand(x: float) -> float:
        ratio = 1 - rate + rate * math.exp((2 * x - 1) / (2 * z * z))
        return math.exp(-x * x / (2 * z * z)) / (z * math.sqrt(2 * math.pi)) * ratio**a

    moment, _ = quad(integrand, -20, 40, epsabs=0, epsrel=1e-10, limit=500)
    assert curve[orders == a][0] == pytest.approx(5 * math.log(moment) / (a - 1), rel=1e-6)


@pytest.mark.parametrize("name", PRINTED)
def test_printed_formulas_refuse_poisson_by_name(name: str) -> None:
    with pytest.raises(NotCovered, match=f"'{name}' with Poisson batches"):
        CALIBRATIONS[name].calibrate(1.0, 1e-5, 10, Poisson(100, 50))
    with pytest.raises(NotCovered, match=f"'{name}' with Poisson batches"):
        CALIBRATIONS[name].claim([1.0], 1e-5, Poisson(100, 50))
    # With every record in every release nothing is sampled.
    assert CALIBRATIONS[name].calibrate(1.0, 1e-5, 10, Poisson(100, 100)).noise_multiplier > 0


@pytest.mark.parametrize("name", SOUND)
def test_poisson_under_replace_one_is_refused(name: str) -> None:
    with pytest.raises(NotCovered, match="add-remove only"):
        CALIBRATIONS[name].calibrate(1.0, 1e-5, 10, Poisson(100, 50), "replace-one")


def test_a_delta_below_the_grid_of_loss_distributions_is_refused() -> None:
    with pytest.raises(NotCovered, match="too coarse for delta=1e-13"):
        CALIBRATIONS["tight"].claim(np.ones(100), 1e-13, Poisson(100, 50))
    assert CALIBRATIONS["optimal"].claim(np.ones(100), 1e-13, Poisson(100, 50)) > 0
    with pytest.raises(NotCovered, match=r"cannot hold noise multiplier 0\.0001"):
        CALIBRATIONS["tight"].claim(np.full(50, 1e-4), 1e-5, Poisson(100, 30))


# Bad input.


def test_no_noise_is_said_as_such(calibration: Calibration) -> None:
    assert calibration.claim([1.0, 0.0], 1e-5) == math.inf
    if calibration.name in SOUND:
        assert calibration.claim([1.0, 0.0], 1e-5, Poisson(100, 50)) == math.inf


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_epsilon_is_refused_by_name(calibration: Calibration, bad: float) -> None:
    with pytest.raises(PrivacyError, match="epsilon"):
        calibration.calibrate(bad, 1e-5, 10, FULL)


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, math.nan, math.inf])
def test_bad_delta_is_refused_by_name(calibration: Calibration, bad: float) -> None:
    with pytest.raises(PrivacyError, match="delta"):
        calibration.calibrate(1.0, bad, 10, FULL)
    with pytest.raises(PrivacyError, match="delta"):
        calibration.claim([1.0], bad)


@pytest.mark.parametrize("bad", [0, -3, 2.5])
def test_bad_counts_are_refused_by_name(calibration: Calibration, bad: int) -> None:
    with pytest.raises(InputError, match="releases"):
        calibration.calibrate(1.0, 1e-5, bad, FULL)


@pytest.mark.parametrize("bad", [[], [[1.0]], [1.0, -1.0], [math.nan], [math.inf], 1.0])
def test_bad_noise_is_refused_by_name(calibration: Calibration, bad: list[float]) -> None:
    with pytest.raises(PrivacyError, match="noise multiplier"):
        calibration.claim(bad, 1e-5)


def test_bad_words_are_refused_by_name(calibration: Calibration) -> None:
    with pytest.raises(InputError, match="got 'swap'"):
        calibration.calibrate(1.0, 1e-5, 10, FULL, "swap")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="got 'swap'"):
        calibration.claim([1.0], 1e-5, FULL, "swap")  # type: ignore[arg-type]
