"""Tests of figures: the numbers in CSV files, and pictures, verdicts and captions made from them."""

import csv
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

from topdp.errors import InputError
from topdp.experiments import frontier_report, reproduce
from topdp.experiments.figure_runner import FigureRuns
from topdp.experiments.figures.drawn_figures import DRAWN_FIGURES
from topdp.experiments.figures.figure_picture import caption
from topdp.experiments.figures.figures_three_to_twelve import FIGURES
from topdp.experiments.figures.paper_figure import FigureNumbers, PaperFigure, read_numbers
from topdp.experiments.lenses import FULL_SCALE
from topdp.privacy.answers import answer_kind
from topdp.views.pictures import graph_picture

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.slow
def test_the_numbers_of_a_figure_agree_with_its_runs(out, scale):
    runs = FigureRuns(out / "runs", "cpu", test_records=lambda config: 50, progress=print)
    for name in ("fig3", "fig4"):  # over epochs, and over budgets
        panels = FIGURES[name].panels(scale, "same")
        numbers = read_numbers("same", panels, out / f"{name}-same.csv")
        for panel in panels:
            for label, points in panel.lines.items():
                for at, seeds in enumerate(points):
                    x = None if panel.x is None else panel.x[at]
                    for config in seeds:
                        curve = runs[config] if x is None else runs[config][-1:]
                        assert numbers.curves[panel.title, label, x, config.seed] == curve


@pytest.mark.slow
def test_pictures_and_verdicts_follow_from_the_numbers_alone(made, scale, tmp_path):
    out, verdicts = made
    (tmp_path / "runs").mkdir()
    for name in ("fig4-same.csv", "frontier-mnist.csv", "made.json"):
        shutil.copy(out / name, tmp_path)
    again = reproduce.redraw(["fig4", "frontier-mnist"], ["same"], scale, tmp_path)
    assert again.verdicts == [v for v in verdicts if v.figure == "fig4"]
    for name in ("fig4-same.png", "fig4-same.md", "frontier-mnist.png", "frontier-mnist.md"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()
    assert "ε from 0.25 to 4" in caption_in(tmp_path / "fig4-same.svg")
    assert "adaptive, δ = 1e-5" in caption_in(tmp_path / "frontier-mnist.svg")
    with pytest.raises(InputError, match="fig3-same"):
        reproduce.redraw(["fig3"], ["same"], scale, tmp_path)


def caption_in(svg):
    """Text is drawn as shapes; comments beside them contain the words."""
    return "\n".join(re.findall("<!-- (.*?) -->", svg.read_text(encoding="utf-8"), re.DOTALL))


def test_incomplete_or_damaged_numbers_are_refused(out, scale, tmp_path):
    panels, file = FIGURES["fig4"].panels(scale, "same"), tmp_path / "fig4-same.csv"
    whole = (out / file.name).read_text()
    for damaged, said in (
        (whole.replace("top-dp", "another"), "top-dp"),
        (whole.replace("over_agents", "over"), "over_agents"),
        (whole.replace(",mean,", ",mean,x"), "fig4-same"),
        ("", "columns"),
        (whole.splitlines()[0] + "\n", "no-noise"),
    ):
        file.write_text(damaged)
        with pytest.raises(InputError, match=said):
            read_numbers("same", panels, file)


def test_the_results_in_the_repository_give_the_stored_verdicts(topdp, tmp_path, monkeypatch):
    """Every table of full runs follows from its CSV file by the current checks. No picture is drawn."""
    shutil.copytree(RESULTS, tmp_path / "results")
    monkeypatch.setattr(reproduce, "draw", lambda *arguments: None)
    monkeypatch.setattr(frontier_report, "draw", lambda *arguments: None)
    monkeypatch.setattr(graph_picture, "draw", lambda *arguments: None)
    assert topdp("reproduce", "all", "--redraw", "--out", tmp_path / "results").code == 0
    tables = sorted([*RESULTS.glob("fig*.md"), *RESULTS.glob("frontier-*.md")])
    assert len(tables) == 3 * len(FIGURES) + len(DRAWN_FIGURES) + 3
    for file in tables:
        assert file.read_text() == (tmp_path / "results" / file.name).read_text()


def test_a_frontier_is_read_back_unchanged(tmp_path):
    for file in RESULTS.glob("frontier-*.csv"):
        frontier_report.write_rows(frontier_report.read_rows(file), tmp_path / file.name)
        assert (tmp_path / file.name).read_text() == file.read_text()
    double = tmp_path / "double.csv"
    lines = file.read_text().splitlines(keepends=True)
    for text in ([*lines, lines[-1]], lines[:1]):
        double.write_text("".join(text))
        with pytest.raises(InputError, match="each method once at each budget"):
            frontier_report.read_rows(double)


@pytest.mark.parametrize("other", ["claimed", "", "worst-case"])
def test_a_frontier_with_several_guarantees_or_none_is_refused(tmp_path, other):
    """Its title and its table name only one guarantee: that of the file."""
    mixed = tmp_path / "mixed.csv"
    mixed.write_text((RESULTS / "frontier-mnist.csv").read_text().replace(",adaptive,", f",{other},", 1))
    with pytest.raises(InputError, match="one guarantee"):
        frontier_report.read_rows(mixed)


def test_every_frontier_states_the_guarantee_of_its_numbers(out):
    made = (out / "frontier-mnist.md").read_text()
    assert "| mlp: ε (adaptive) | 1 | 4 |" in made and "whatever gradients do" in made
    assert "| correlated, 1 colludes |" in made and "central (trusted party)" in made
    for file in RESULTS.glob("frontier-*.csv"):
        (guarantee,) = {row.guarantee for row in frontier_report.read_rows(file)}
        words = file.with_suffix(".md").read_text()
        assert f": ε ({guarantee}) |" in words and answer_kind(guarantee).scope in words


@pytest.mark.parametrize(
    ("name", "lens", "words"),
    [
        ("fig3", "honest", "MNIST, ε = 1 (adaptive, δ = 1e-5), 30 agents, 200 rounds, 3 seeds"),
        ("fig4", "same", "MNIST, ε from 0.25 to 4 (claimed, δ = 1e-5), 30 agents, 6000 rounds, 3 seeds"),
        ("fig6", "printed", "MNIST, ε = 1 (claimed, δ = 1e-5), 30, 40 and 50 agents, 6000 rounds, 3 seeds"),
        ("fig12", "honest", "CIFAR-10, ε = 1 (adaptive, δ = 1e-5), 30 agents, 200 rounds, 3 seeds"),
    ],
)
def test_a_picture_names_its_data_budget_and_guarantee(name, lens, words):
    assert caption(FigureNumbers(lens, FIGURES[name].panels(FULL_SCALE, lens), {})) == words


def test_pictures_and_results_are_small(out):
    with Image.open(out / "fig3-same.png") as picture:
        assert picture.mode == "P"
    assert sum(file.stat().st_size for file in RESULTS.rglob("*") if file.suffix in (".csv", ".md")) < 2e6


def test_verdicts_count_cases():
    numbers = FigureNumbers("same", [], {})
    for cases, word in (([True, True], "holds"), ([True, False], "partly"), ([False], "does not hold")):
        claims = {
            "x": lambda numbers, cases=cases: [(case, "y") for case in cases],
            "none": lambda numbers: [],
        }
        (verdict,) = PaperFigure("title", lambda scale, lens: [], claims).verdicts("fig3", numbers)
        assert (verdict.claim, verdict.verdict) == ("x", word)


def test_the_csv_of_a_figure_has_rows_of_equal_length(out):
    with (out / "fig3-same.csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0][:6] == ["panel", "line", "x", "seed", "sigma", "over_agents"]
    assert len({len(row) for row in rows}) == 1 and rows[0][6:] == ["0", "2", "4"]
