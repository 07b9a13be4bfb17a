"""Draw frontier.png, and write the tables in docs/methods.md, from results/frontier-*.csv.

    python docs/pictures/frontier.py

This script trains nothing. `topdp reproduce frontier-mnist` and the like make the files.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from topdp.experiments.frontier import FULL_SPACES
from topdp.experiments.frontier_report import FrontierRow, accuracies, lines, read_rows
from topdp.runs.pictures.chart_style import data_title, house_style, look, save

ROOT = Path(__file__).parents[2]
PICTURE = Path(__file__).with_name("frontier.png")
PAGE = ROOT / "docs" / "methods.md"
BEGIN, END = "<!-- made by docs/pictures/frontier.py -->\n", "<!-- end -->\n"

# The contenders in the picture: methods and numbers of colluders.
SHOWN_CONTENDERS = [
    ("no-noise", 1), ("central", 0), ("correlated", 1), ("correlated", 15), ("muffliato", 1), ("plain", 1),
    ("top", 1),
]  # fmt: skip
MODELS = ("scattering + linear", "mlp", "cnn")  # a panel shows the first of these that has results


def main() -> None:
    frontiers = {data: read_rows(ROOT / "results" / f"frontier-{data}.csv") for data in FULL_SPACES}
    picture(frontiers)
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), frontiers), encoding="utf-8")


def picture(frontiers: dict[str, list[FrontierRow]]) -> None:
    """Draw a few contenders, so that the picture remains legible in a column of text."""
    with house_style():
        matplotlib.rcParams.update({"xtick.labelsize": 8, "ytick.labelsize": 8, "axes.labelsize": 9})
        figure = Figure(figsize=(7.6, 4.0))
        styles: dict[str, dict[str, object]] = {}  # by the name of the line
        for axis, rows in zip(figure.subplots(1, len(frontiers)), frontiers.values(), strict=True):
            model = next(name for name in MODELS if any(row.model == name for row in rows))
            of_model = [row for row in rows if row.model == model]
            shown = [row for row in of_model if (row.method, row.colluders) in SHOWN_CONTENDERS]
            lines(axis, shown)
            axis.get_legend().remove()
            axis.set_title(data_title(rows[0].data), fontsize=10)
            axis.set_ylabel("mean test accuracy" if axis.get_subplotspec().is_first_col() else "")
            for row in sorted(shown, key=lambda row: SHOWN_CONTENDERS.index((row.method, row.colluders))):
                styles[row.name] = look(f"{row.method}-{row.colluders}" if row.colluders > 1 else row.method)
        seeds = len(rows[0].by_seed.split())
        figure.suptitle(
            f"Accuracy at the same proved ε ({rows[0].guarantee}): 30 agents, {seeds} seeds, {model}",
            fontsize=10,
            x=0.01,
            ha="left",
        )
        handles = [Line2D([], [], label=name, **style) for name, style in styles.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8.5, handlelength=3)
        save(figure, PICTURE)


def page(text: str, frontiers: dict[str, list[FrontierRow]]) -> str:
    """Return the text of a page with new tables between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = []
    for data, rows in frontiers.items():
        for model in dict.fromkeys(row.model for row in rows):
            of_model = [row for row in rows if row.model == model]
            tables.append("\n".join(accuracies(of_model, f"{data_title(data)}, {model}")) + "\n")
    return before + BEGIN + "\n" + "\n".join(tables) + "\n" + END + after


if __name__ == "__main__":
    main()
