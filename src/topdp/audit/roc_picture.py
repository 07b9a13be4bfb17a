"""The ROC curve of an audit: how many canaries an observer finds, at how many false alarms."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.special import ndtr, ndtri

from topdp.audit.findings import Findings
from topdp.base.array_types import Bools, Floats
from topdp.runs.pictures.chart_style import BLUE, GREY, INK, RED, house_style, percent_axis, save

COLOURS = {"aimed": BLUE, "turning": RED}


def roc(found: Findings, path: Path, title: str) -> Path:
    """Both kinds of canaries, and the most that what was proved allows."""
    with house_style():
        figure = Figure(figsize=(5.6, 4.6))
        axes = figure.subplots()
        for name, kind in found.kinds.items():
            false, true = curve(kind.scores, kind.there)
            label = f"{len(kind.scores)} {name} canaries: ε ≥ {kind.epsilon:.3g}"
            axes.step(false, true, where="post", color=COLOURS[name], lw=1.4, label=label, clip_on=False)
        rates = np.linspace(0, 1, 501)
        axes.plot(
            rates,
            most(rates, found),
            color=INK,
            ls="--",
            label=f"proved: ε ≤ {found.proved:.3g}",
            clip_on=False,
        )
        axes.plot([0, 1], [0, 1], color=GREY, lw=0.8, ls=":", label="guessing")
        axes.set(
            xlabel="false alarms: canaries that are not there", ylabel="found: canaries that are", title=title
        )
        percent_axis(axes)
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axes.legend(loc="lower right")
        return save(figure, path)


def curve(scores: Floats, there: Bools) -> tuple[Floats, Floats]:
    """(false alarms, found) for every threshold, from the highest to the lowest."""
    order = np.argsort(-scores, kind="stable")
    hit, miss = np.cumsum(there[order]), np.cumsum(~there[order])
    return (
        np.append(0.0, miss / max(1, miss[-1])),
        np.append(0.0, hit / max(1, hit[-1])),
    )


def most(rates: Floats, found: Findings) -> Floats:
    """The most that can be found at each rate of false alarms: by μ where there is one, else by (ε, δ)."""
    if found.mu is not None:
        return np.asarray(ndtr(ndtri(rates) + found.mu)) if math.isfinite(found.mu) else np.ones_like(rates)
    up = np.exp(min(found.proved, 700.0))
    bound = np.minimum(up * rates + found.delta, 1 - (1 - found.delta - rates) / up)
    return np.asarray(np.clip(bound, 0.0, 1.0))
