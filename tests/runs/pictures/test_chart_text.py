"""Text in charts: letters of any script are drawn or replaced by codes, without warnings; uncut titles."""

import doctest

import pytest
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.text import Text

from topdp.runs.pictures import chart_style, chart_text, learning_curves
from topdp.topology import from_edges
from topdp.views.pictures import graph_picture

NAMES = ("東京", "Łódź", "القاهرة", "दिल्ली", "a$b$c", r"$\frac{", "\U0001f3e5", "tab\there", "\udcff", "_x")


@pytest.fixture(autouse=True)
def _nothing_kept():
    chart_text.fonts_for.cache_clear()
    yield
    chart_text.fonts_for.cache_clear()


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_labels_in_any_script_are_drawn_without_a_warning(tmp_path, caplog, ending):
    links = [(i, i + 1) for i in range(len(NAMES) - 1)]
    path = graph_picture.draw(
        from_edges(links, labels=NAMES), tmp_path / f"graph.{ending}", title=" ".join(NAMES)
    )
    assert path.stat().st_size > 1000
    assert caplog.records == []  # not even about fonts


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text)]


def test_letters_that_no_font_has_are_replaced_by_codes(monkeypatch):
    monkeypatch.setattr(chart_text, "_other_fonts", lambda: iter(()))
    figure = Figure()
    figure.suptitle("Spital 東京, Łódź")
    chart_text.make_drawable(figure)
    assert texts(figure) == ["Spital [U+6771 +1], Łódź"]


def test_letters_missing_in_the_default_font_use_another_installed_font(monkeypatch):
    """In this test the default font has only a, b and c; DejaVu Serif has Ł."""
    other = font_manager.findfont("DejaVu Serif")
    monkeypatch.setattr(chart_text, "_default_letters", lambda: frozenset("abc"))
    monkeypatch.setattr(chart_text, "_other_fonts", lambda: iter([("DejaVu Serif", other, 0)]))
    figure = Figure()
    figure.suptitle("abc Ł 東")
    chart_text.make_drawable(figure)
    (text,) = figure.findobj(Text)
    assert text.get_text() == "abc Ł [U+6771]" and text.get_fontfamily() == ["DejaVu Sans", "DejaVu Serif"]


def test_fonts_that_draw_boxes_are_not_used():
    assert not any(name.startswith("Last Resort") for name, *_ in chart_text._other_fonts())


def test_a_long_title_is_wrapped_inside_the_picture(tmp_path, monkeypatch):
    """The user chooses the name of a data set, and ε and guarantee follow it in the title."""
    kept = []
    monkeypatch.setattr(
        learning_curves, "save", lambda figure, path: kept.append(figure) or chart_style.save(figure, path)
    )
    value = {"mean": 0.5, "min": 0.4, "max": 0.6}
    lines = [{"round": r, "accuracy": value} for r in (0, 1)]
    title = "東" * 8 + "-patients-of-the-whole-north, 30 agents, sync, ε = 1 (adaptive, δ = 1e-5)"
    learning_curves.curves({"top": lines}, tmp_path / "one.png", title)
    figure = kept[0]
    figure.draw_without_rendering()
    for text in (figure.axes[0]._left_title, figure.axes[0].yaxis.label):
        box, sheet = text.get_window_extent(figure._get_renderer()), figure.bbox
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= sheet.x1 and box.y1 <= sheet.y1, text
    assert "δ = 1e-5)" in figure.axes[0].get_title("left")


def test_coinciding_lines_are_drawn_once_with_both_names(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(learning_curves, "save", lambda figure, path: kept.append(figure.axes[0]))

    def run(end):
        values = ({"mean": v, "min": v - 0.1, "max": v + 0.1} for v in (0.1, 0.4, end))
        return [{"round": r, "accuracy": value} for r, value in enumerate(values)]

    runs = {"top": run(0.8), "plain": run(0.7), "top-dp": run(0.8), "dsgd": run(0.8)[:2]}
    learning_curves.curves(runs, tmp_path / "one.png", "a title")
    (axes,) = kept
    assert [line.get_label() for line in axes.lines] == ["top = top-dp", "plain", "dsgd"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["top = top-dp", "plain", "dsgd"]
    low, high = axes.get_ylim()
    assert low <= 0.0 and high >= 0.9, "the band is cut"


def test_lines_coincide_if_rounds_values_and_gaps_are_equal():
    gap = float("nan")
    here, other = ([0, 1], [0.1, gap]), ([0, 2], [0.1, gap])
    found = learning_curves.coinciding({"a": here, "b": here, "c": other, "d": ([0, 1], [0.1, 0.5])})
    assert found == {"a": ["a", "b"], "c": ["c"], "d": ["d"]}
    assert learning_curves.coinciding({}) == {} and learning_curves.coinciding({"a": ([], [])}) == {
        "a": ["a"]
    }


def test_examples_of_lettering_and_coinciding_run():
    for module in (chart_text, learning_curves):
        failed, tried = doctest.testmod(module)
        assert tried > 0 and failed == 0
