"""Tests that the band in an audit's picture contains the true curve, excludes others, and is drawn."""

import numpy as np
from matplotlib.figure import Figure
from scipy.special import ndtr, ndtri
from subjects import Audited

from topdp.audit import AuditRequest, audit_folder
from topdp.audit.audit_folder import draw_roc, roc_band, roc_curve

RATES = np.linspace(0, 1, 501)


def share_outside(mu, drawn_mu, error, runs=200, count=400):
    """The share of bands that the curve of scores N(0, 1) and N(mu, 1) leaves somewhere."""
    random, truth, left = np.random.default_rng(0), ndtr(ndtri(RATES) + mu), 0
    for _ in range(runs):
        present = random.integers(0, 2, count) == 1
        low, high = roc_band(random.normal(size=count) + drawn_mu * present, present, error)
        left += bool(((truth < low(RATES) - 1e-9) | (truth > high(RATES) + 1e-9)).any())
    return left / runs


def test_the_whole_true_curve_is_in_the_band_and_the_curve_of_a_smaller_epsilon_is_not():
    assert share_outside(1.0, 1.0, 0.2) < 0.2
    assert share_outside(1.0, 1.0, 1.99) > 0.05  # a band that allows almost every error is left
    assert share_outside(1.0, 2.0, 0.05) > 0.95  # noise of half the strength
    assert share_outside(2.0, 1.0, 0.05) > 0.95


def test_the_band_surrounds_the_curve_and_narrows_with_more_canaries():
    random, widths = np.random.default_rng(1), []
    for count in (100, 1000, 10_000):
        present = np.arange(count) % 2 == 0
        scores = random.normal(size=count) + present
        low, high = roc_band(scores, present, 0.05)
        false, true = roc_curve(scores, present)
        assert (low(false) <= true).all() and (true <= high(false)).all()
        assert (np.diff(low(RATES)) >= 0).all() and (np.diff(high(RATES)) >= 0).all()
        widths.append(float((high(RATES) - low(RATES)).mean()))
    assert widths == sorted(widths, reverse=True) and widths[-1] < 0.1


def test_the_band_is_narrow_along_the_axis_with_many_canaries():
    present = np.arange(10_000) % 200 == 0
    low, high = roc_band(present * 1.0, present, 0.05)
    assert low(np.array([0.05]))[0] > 0.7 and high(np.array([0.0]))[0] == 1.0
    low, high = roc_band(~present * 1.0, ~present, 0.05)
    assert low(np.array([0.1]))[0] == 0.0 and low(np.array([0.5]))[0] > 0.95


def test_the_picture_shows_a_band_for_each_kind_and_says_which_band_it_is(monkeypatch, tmp_path):
    drawn: list[Figure] = []
    monkeypatch.setattr(audit_folder, "save", lambda figure, path: drawn.append(figure))
    draw_roc(Audited.of(AuditRequest(confidence=0.9)).run(0), tmp_path / "roc.png", "title")
    (axes,) = drawn[0].axes
    assert len(axes.collections) == 2
    assert "90% confidence band, simultaneous for both whole curves" in axes.get_xlabel()
