"""The folder that an audit writes: its numbers, its scores and its picture.

audit.json   lower bounds beside the proved ε
scores.csv   one line per canary: its kind, whether it was present, its score
roc.png      true positive rate over false positive rate, with confidence bands
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.special import ndtr, ndtri
from scipy.stats import kstwo

from topdp.audit.findings import Findings
from topdp.base.array_types import Bools, Floats
from topdp.base.files import write_atomically
from topdp.base.number_text import rounded_down, rounded_up
from topdp.runs.pictures.chart_style import BLUE, GREY, INK, RED, house_style, percent_axis, save

RateCurve = Callable[[Floats], Floats]

KIND_COLOURS = {"aimed": BLUE, "turning": RED}


def write_audit(findings: Findings, out: Path, title: str) -> dict[str, Any]:
    """Write the three files of an audit to `out`, and return the content of audit.json."""
    draw_roc(findings, out / "roc.png", title)
    write_atomically(out / "scores.csv", "\n".join(findings.csv_lines()) + "\n")
    details = {**findings.to_json(), "out": str(out)}
    write_atomically(out / "audit.json", json.dumps(details, indent=2) + "\n")
    return details


def draw_roc(findings: Findings, path: Path, title: str) -> Path:
    """Draw the curve of each kind of canary with its band, and the highest curve that the bound allows."""
    with house_style():
        figure = Figure(figsize=(5.6, 4.6))
        axes = figure.subplots()
        for name, kind in findings.kinds.items():
            false, true = roc_curve(kind.scores, kind.present)
            low, high = roc_band(kind.scores, kind.present, (1 - findings.confidence) / len(findings.kinds))
            rates = np.linspace(0, 1, 1001)
            axes.fill_between(rates, low(rates), high(rates), color=KIND_COLOURS[name], alpha=0.15, lw=0)
            label = f"{len(kind.scores)} {name} canaries: ε ≥ {rounded_down(kind.epsilon, 3)}"
            axes.step(false, true, where="post", color=KIND_COLOURS[name], lw=1.4, label=label, clip_on=False)
        rates = np.linspace(0, 1, 501)
        label = f"proved: ε ≤ {rounded_up(findings.proved, 3)}"
        axes.plot(rates, proved_curve(rates, findings), color=INK, ls="--", label=label, clip_on=False)
        axes.plot([0, 1], [0, 1], color=GREY, lw=0.8, ls=":", label="guessing")
        axes.set(
            xlabel="false alarms: absent canaries called present\n"
            f"shaded: {100 * findings.confidence:.4g}% confidence band, simultaneous for both whole curves",
            ylabel="present canaries found",
            title=title,
        )
        percent_axis(axes)
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axes.legend(loc="lower right")
        return save(figure, path)


def roc_curve(scores: Floats, present: Bools) -> tuple[Floats, Floats]:
    """Return (false positive rates, true positive rates), from the highest to the lowest threshold."""
    order = np.argsort(-scores, kind="stable")
    hit, miss = np.cumsum(present[order]), np.cumsum(~present[order])
    return np.append(0.0, miss / max(1, miss[-1])), np.append(0.0, hit / max(1, hit[-1]))


def roc_band(scores: Floats, present: Bools, error: float) -> tuple[RateCurve, RateCurve]:
    """Return the lower and the upper edge of a simultaneous confidence band of the curve.

    Each edge is a function of false positive rates. The whole curve of the distributions from which scores
    are drawn leaves the band with probability at most `error`. No assumption is made about them: each
    empirical distribution function is within a distance of the true one that follows from the exact
    distribution of the Kolmogorov-Smirnov statistic, and `error` is divided evenly between the two.

    >>> low, high = roc_band(np.array([0.0, 1.0]), np.array([False, True]), 0.5)
    >>> low(np.array([0.1, 1.0])).round(3), high(np.array([0.1])).round(3)
    (array([0.   , 0.125]), array([1.]))
    """
    false, true = roc_curve(scores, present)
    wide, tall = (float(kstwo.ppf(1 - error / 2, max(1, int(part.sum())))) for part in (~present, present))

    def low(rates: Floats) -> Floats:
        level = true[np.searchsorted(false, rates - wide) - 1] - tall
        return np.clip(np.where(rates <= wide, 0.0, level), 0.0, 1.0)

    def high(rates: Floats) -> Floats:
        return np.clip(
            true[np.searchsorted(false, np.minimum(rates + wide, 1.0), side="right") - 1] + tall, 0.0, 1.0
        )

    return low, high


def proved_curve(rates: Floats, findings: Findings) -> Floats:
    """Return the largest true positive rate that the proved bound allows at each false positive rate.

    The proved bound is μ, or (ε, δ) if μ is not known.
    """
    mu, delta = findings.mu, findings.delta
    if mu is not None:
        return np.asarray(ndtr(ndtri(rates) + mu)) if math.isfinite(mu) else np.ones_like(rates)
    up = np.exp(min(findings.proved, 700.0))
    bound = np.minimum(up * rates + delta, 1 - (1 - delta - rates) / up)
    return np.asarray(np.clip(bound, 0.0, 1.0))
