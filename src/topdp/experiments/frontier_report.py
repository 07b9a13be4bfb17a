"""The numbers of a frontier as a CSV file, and the picture and the table that follow from this file alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import get_type_hints

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from topdp.errors import InputError
from topdp.experiments.figures.figure_picture import PICTURE_SUFFIXES
from topdp.experiments.lenses import HONEST, LENS_GUARANTEES, Scale
from topdp.experiments.run_store import REDRAW_REMEDY, csv_rows
from topdp.experiments.tuning import BestSetting
from topdp.privacy.answers import GUARANTEES, answer_kind
from topdp.runs.config import RunConfig, dotted
from topdp.runs.methods import METHODS
from topdp.runs.pictures.chart_style import data_title, house_style, look, percent_axis, save
from topdp.runs.pictures.learning_curves import coinciding, joined_label
from topdp.runs.run_outline import method_of, noise_kind
from topdp.runs.sweep_summary import write_csv_lines

METHOD_TITLES = {
    "no-noise": "no noise",
    "plain": "plain",
    "top": "Top-DP",
    "dsgd": "D-SGD",
    "muffliato": "Muffliato",
    "correlated": "correlated",
    "central": "central (trusted party)",
}


@dataclass(frozen=True, kw_only=True)
class FrontierRow:
    """The accuracy of one method at one budget, and the setting that reaches it."""

    data: str
    model: str
    method: str
    colluders: int  # the size of the coalitions that ε is against
    epsilon: float
    guarantee: str  # the answer to which ε belongs
    accuracy: float
    spread: float  # largest minus smallest over the seeds
    by_seed: str
    epsilon_all_others: float  # ε of the same runs against all other agents together
    settings_tried: int
    rounds: int
    learning_rate: float
    clip: float
    mode: str
    alpha: float
    exponent: float  # of the noise schedule
    gossip: int
    command: str  # repeats the run of one seed; append --set seed=0, 1, ... to repeat that of another

    @classmethod
    def of(
        cls,
        data: str,
        model: str,
        setting: BestSetting,
        config: RunConfig,
        accuracies: Sequence[float],
        epsilon_all_others: float,
    ) -> FrontierRow:
        """Return a row, given the accuracies of all seeds and the configuration of one of them."""
        method, power = config.method, noise_kind(config) == "power"
        gossips = method_of(config).gossips and method.gossip != "auto"
        rate = config.train.learning_rate
        assert isinstance(rate, float)  # in the frontier all agents share one step size
        return cls(
            data=data,
            model=model,
            method=method.name,
            colluders=config.privacy.colluders,
            epsilon=setting.case.epsilon,
            guarantee=LENS_GUARANTEES[HONEST],
            accuracy=round(sum(accuracies) / len(accuracies), 5),
            spread=round(max(accuracies) - min(accuracies), 5),
            by_seed=" ".join(f"{value:.5f}" for value in accuracies),
            epsilon_all_others=epsilon_all_others,
            settings_tried=setting.tried,
            rounds=config.rounds,
            learning_rate=rate,
            clip=config.privacy.clip,
            mode=method.mode,
            alpha=method.alpha,
            exponent=method.noise_schedule.exponent if power else 0.0,
            gossip=int(method.gossip) if gossips else 0,
            command=command(config),
        )

    @property
    def name(self) -> str:
        """The name of the method, with the coalition size if ε depends on it."""
        title = METHOD_TITLES.get(self.method, self.method)
        if not METHODS[self.method].shares_noise:
            return title
        return f"{title}, {self.colluders} collude{'s' if self.colluders == 1 else ''}"

    def setting(self) -> str:
        """Return the setting as short text."""
        parts = [f"{self.rounds} rounds", f"λ {self.learning_rate:g}", f"clip {self.clip:g}"]
        method = METHODS[self.method]
        parts += [f"α {self.alpha:g}", self.mode] if method.noisy and "async" in method.modes else []
        parts += [f"exponent {self.exponent:g}"] if self.exponent else []
        parts += [f"gossip {self.gossip}"] if self.gossip else []
        return ", ".join(parts)


def command(config: RunConfig) -> str:
    """Return the command that repeats the run with the default seed and new, secret noise."""
    different = config.model_dump(mode="json", exclude_defaults=True, exclude={"seed", "noise_seed"})
    changes = (f"--set {key}={value}" for key, value in dotted(different).items())
    return " ".join(["topdp run", *changes])


def write_rows(rows: list[FrontierRow], path: Path) -> None:
    write_csv_lines(path, [[field.name for field in fields(FrontierRow)], *map(astuple, rows)])


def read_rows(path: Path) -> list[FrontierRow]:
    types = get_type_hints(FrontierRow)
    with csv_rows(path, "a frontier") as table:
        rows = [FrontierRow(**{key: types[key](row[key]) for key in types}) for row in table]
    keys = [(row.model, row.method, row.colluders, row.epsilon) for row in rows]
    if len(set(keys)) != len(keys) or not rows:
        raise InputError(f"Expected each method once at each budget in {path}.{REDRAW_REMEDY}")
    names = sorted({row.guarantee for row in rows})
    if names not in [[name] for name in GUARANTEES]:
        raise InputError(
            f"Expected one guarantee of {', '.join(GUARANTEES)} in {path}, got {names}.{REDRAW_REMEDY}"
        )
    return rows


def draw(rows: list[FrontierRow], scale: Scale, stem: Path) -> None:
    """Draw one picture, with a panel for each model, and save it as each of `PICTURE_SUFFIXES`."""
    models = list(dict.fromkeys(row.model for row in rows))
    with house_style():
        picture = Picture(figsize=(0.6 + 5.4 * len(models), 4.6))
        panels = picture.subplots(1, len(models), squeeze=False)[0]
        for model, axis in zip(models, panels, strict=True):
            lines(axis, [row for row in rows if row.model == model])
            axis.set_title(model, fontsize=9)
        seeds = len(rows[0].by_seed.split())
        picture.suptitle(
            f"{data_title(rows[0].data)}: accuracy at equal {rows[0].guarantee} ε{scale.remark}\n"
            f"{scale.agents} agents, full batches, {seeds} seed{'s' if seeds > 1 else ''}; settings chosen "
            "on a validation split",
            fontsize=10, x=0.01, ha="left",
        )  # fmt: skip
        for suffix in PICTURE_SUFFIXES:
            save(picture, stem.with_name(stem.name + suffix))


def lines(axis: Axes, rows: Sequence[FrontierRow]) -> None:
    """Draw the lines of one model, with a legend beside them. Methods whose lines coincide share a line."""
    ends: dict[str, tuple[float, Line2D]] = {}
    budgets = sorted({row.epsilon for row in rows if math.isfinite(row.epsilon)})
    points = {
        name: sorted((row.epsilon, row.accuracy) for row in rows if row.name == name)
        for name in dict.fromkeys(row.name for row in rows)
    }
    for name, same in coinciding(
        {name: list(zip(*own, strict=True)) for name, own in points.items()}
    ).items():
        own = points[name]
        method = next(row for row in rows if row.name == name)
        style = look(f"{method.method}-{method.colluders}" if method.colluders > 1 else method.method)
        if math.isinf(own[-1][0]):
            line = axis.axhline(own[-1][1], **{**style, "marker": None, "linewidth": 1.0})
        else:
            (line,) = axis.plot(*zip(*own, strict=True), **style)
        line.set_label(joined_label(same))
        ends[joined_label(same)] = own[-1][1], line
    axis.set(xlabel=f"ε ({rows[0].guarantee}, δ = 1e-5)", ylabel="mean test accuracy", xscale="log")
    axis.xaxis.set_major_locator(FixedLocator(budgets))
    axis.xaxis.set_major_formatter(FixedFormatter([f"{budget:g}" for budget in budgets]))
    axis.xaxis.set_minor_locator(NullLocator())
    percent_axis(axis)
    axis.margins(y=0.08)
    # The legend lists the best method first. It replaces labels at the ends of lines, which would overlap.
    handles = [ends[name][1] for name in sorted(ends, key=lambda name: -ends[name][0])]
    axis.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, handlelength=3)


def table(name: str, rows: list[FrontierRow], scale: Scale) -> str:
    guarantee = rows[0].guarantee
    seeds, tried = len(rows[0].by_seed.split()), [row.settings_tried for row in rows]
    text = [
        f"### {data_title(rows[0].data)}: each method at the same ε",
        "",
        f"![{name}]({name}.png)",
        "",
        f"{'Small runs. ' if scale.quick else ''}Mean test accuracy (%); seeds: {seeds}. Settings tried on "
        f"the validation split for a method: {min(tried)} to {max(tried)}. "
        f"ε ({guarantee}) is {answer_kind(guarantee).scope}. [{name}.csv]({name}.csv) has a command for "
        "every number.",
    ]
    for model in dict.fromkeys(row.model for row in rows):
        of_model = [row for row in rows if row.model == model]
        text += ["", *accuracies(of_model, model), "", *_settings(of_model)]
    return "\n".join(text) + "\n"


def accuracies(rows: Sequence[FrontierRow], title: str) -> Iterator[str]:
    """Yield the lines of a table of accuracies, with one line per method and one column per budget.

    A method without a budget has the same number in every column.
    """
    budgets = sorted({row.epsilon for row in rows if math.isfinite(row.epsilon)})
    heads = [f"{budget:g}" for budget in budgets]
    yield f"| {title}: ε ({rows[0].guarantee}) | " + " | ".join(heads) + " |"
    yield "|---" * (1 + len(budgets)) + "|"
    for name in dict.fromkeys(row.name for row in rows):
        percents = {row.epsilon: f"{100 * row.accuracy:.1f}" for row in rows if row.name == name}
        numbers = [percents.get(budget, percents.get(math.inf, "")) for budget in budgets]
        yield f"| {name} | " + " | ".join(numbers) + " |"


def _settings(rows: Sequence[FrontierRow]) -> Iterator[str]:
    """Yield the table of the chosen settings, the spread over seeds, and ε against all others together."""
    yield from ("| method | ε | spread | ε of all others | setting |", "|---|---|---|---|---|")
    for row in rows:
        epsilon, others = (
            f"{e:g}" if math.isfinite(e) else "" for e in (row.epsilon, row.epsilon_all_others)
        )
        yield f"| {row.name} | {epsilon} | {100 * row.spread:.1f} | {others} | {row.setting()} |"
