"""Tests of pictures of graphs: readable sizes, agents that do not overlap, and no torch."""

from __future__ import annotations

import doctest
import subprocess
import sys
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist

from topdp.runs.methods import METHODS
from topdp.runs.pictures import chart_style
from topdp.topology import (
    Topology,
    complete,
    from_edges,
    grid,
    mesh,
    random,
    regular,
    ring,
    small_world,
    star,
    tree,
)
from topdp.views.pictures import graph_picture as pictures

EXAMPLES = {
    "random": random(30, 0.2, seed=1),
    "ring": ring(30),
    "two": ring(2),
    "star": star(30),
    "star one hub": star(12, hubs=1),
    "star three hubs": star(31, hubs=3),
    "star shared": star(20, attach="all"),
    "star of two": star(2, hubs=1),
    "tree": tree(30),
    "tree large": tree(100),
    "mesh": mesh(30),
    "complete": complete(10),
    "grid": grid(30),
    "small world": small_world(30),
    "regular": regular(20, 3),
    "labels": from_edges([(0, 1), (1, 2), (0, 2), (2, 3)], labels=("north", "east", "south", "west")),
    "large": random(100, 0.06, seed=1),
}


@pytest.mark.parametrize("graph", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_agents_keep_a_distance_inside_the_picture(graph: Topology) -> None:
    place = pictures.layout(graph)
    assert place.shape == (graph.agents, 2)
    assert np.abs(place).max() == pytest.approx(1)
    assert pdist(place).min() > 0.5 / graph.agents
    assert (place == pictures.layout(graph)).all()


@pytest.mark.parametrize("name", ["random", "two", "star", "labels", "large"])
def test_a_picture_is_written_in_a_readable_size(name: str, tmp_path: Path) -> None:
    path = pictures.draw(EXAMPLES[name], tmp_path / "new folder" / "graph.png", title="Ours")
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.width == 1280 and 600 < image.height < 2000
        shade = np.asarray(image.convert("L"))
    assert 0.002 < (shade < 128).mean() < 0.5  # neither empty nor black


@pytest.mark.parametrize("agents", [200, 1000])
@pytest.mark.parametrize("make", [tree, star, partial(star, hubs=3), partial(star, hubs=1)])
def test_agents_of_large_trees_and_stars_do_not_overlap(make, agents: int, monkeypatch) -> None:
    """Discs do not touch, and links are not dashed, because dashes would form rings around a hub."""
    monkeypatch.setattr(chart_style, "save", lambda figure, path: figure)
    figure = pictures.draw(make(agents), Path("unused.png"))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    (discs,) = (c for c in axes.collections if type(c).__name__ == "PathCollection")
    place = axes.transData.transform(discs.get_offsets()) * 72 / figure.dpi  # points
    radii = np.sqrt(discs.get_sizes()) / 2
    near, other = cKDTree(place).query(place, k=2)
    assert (near[:, 1] > 0.9 * (radii + radii[other[:, 1]])).mean() > 0.99
    links = [c for c in axes.collections if type(c).__name__ == "LineCollection"]
    assert all(line[1] is None for c in links for line in c.get_linestyles())


def test_a_rare_colour_is_kept(tmp_path: Path) -> None:
    """A thousand edges must not change the colour of an edge in the legend."""
    path = pictures.draw(tree(1000), tmp_path / "tree.png")
    with Image.open(path) as image:
        seen = {colour for _, colour in image.convert("RGB").getcolors(1 << 20)}
    for wanted in (chart_style.BLUE, chart_style.RED):
        channels = [int(wanted[at : at + 2], 16) for at in (1, 3, 5)]
        assert min(max(abs(a - b) for a, b in zip(one, channels, strict=True)) for one in seen) < 12


def colours_in(graph: Topology) -> dict[str, int]:
    """The number of edges per kind in the legend."""
    axes = matplotlib.figure.Figure().add_subplot()
    handles = pictures._links(axes, graph, pictures.layout(graph))
    return {text: int(number) for text, number in (handle.get_label().split(": ") for handle in handles)}


def test_edges_are_counted_by_covered_directions() -> None:
    # 1 and 2 have neighbours besides each other, 0 is a leaf at 1, and {3, 4, 5} is a triangle behind 2
    graph = from_edges([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (3, 5)])
    assert colours_in(graph) == {
        "covered both ways": 2,
        "covered one way, as the arrow points": 3,
        "not covered": 1,
    }
    assert colours_in(complete(4)) == {"not covered": 6}
    assert colours_in(random(100, 0.06, seed=1)) == {"covered both ways": 293, "covered one way": 2}


def test_arrows_point_in_the_covered_direction() -> None:
    axes = matplotlib.figure.Figure().add_subplot()
    graph = star(5, hubs=1)  # hub→leaf is covered, leaf→hub is not
    place = pictures.layout(graph)
    pictures._links(axes, graph, place)
    heads = [c for c in axes.collections if type(c).__name__ == "PolyCollection"]
    tips = np.array([path.vertices[0] for path in heads[0].get_paths()])
    tails = np.array([path.vertices[1:3].mean(axis=0) for path in heads[0].get_paths()])
    assert len(tips) == 4
    assert (np.linalg.norm(tips - place[0], axis=1) > np.linalg.norm(tails - place[0], axis=1)).all()


def test_svg_and_pdf_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    for ending, start in (("svg", b"<?xml"), ("pdf", b"%PDF")):
        first = pictures.draw(ring(5), tmp_path / f"a.{ending}").read_bytes()
        assert first.startswith(start)
        assert b"CreationDate" not in first and b"<dc:date>" not in first
        assert first == pictures.draw(ring(5), tmp_path / f"b.{ending}").read_bytes()


def test_unknown_ending_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ending in .png, .svg, .pdf, got 'graph.bmp'"):
        pictures.draw(ring(5), tmp_path / "there" / "graph.bmp")
    assert list(tmp_path.iterdir()) == []


def test_the_house_style_is_undone_afterwards() -> None:
    with matplotlib.rc_context({"axes.grid": False, "lines.linewidth": 7}):
        before = dict(matplotlib.rcParams)
        with chart_style.house_style():
            assert matplotlib.rcParams["axes.grid"] is True
            assert matplotlib.rcParams["lines.linewidth"] < 7
        assert dict(matplotlib.rcParams) == before


def test_methods_differ_without_colour() -> None:
    looks = [(str(look["linestyle"]), look["marker"]) for look in chart_style.METHOD_LOOKS.values()]
    assert len(set(looks)) == len(looks)
    assert len({look["color"] for look in chart_style.METHOD_LOOKS.values()}) == 8
    of_methods = [chart_style.look(method) for method in METHODS]
    assert len({(str(look["linestyle"]), look["marker"]) for look in of_methods}) == len(METHODS)
    axes = matplotlib.figure.Figure().add_subplot()
    for method in (*chart_style.METHOD_LOOKS, "one of mine"):
        axes.plot([0, 1], [0, 1], **chart_style.look(method))
    chart_style.look("top")["color"] = "changed"
    assert chart_style.look("top")["color"] == chart_style.BLUE


def test_examples_in_the_docstrings_run() -> None:
    for module in (pictures, chart_style):
        failed, tried = doctest.testmod(module)
        assert tried > 0 and failed == 0


def test_pictures_need_no_torch_and_no_pyplot() -> None:
    module = "topdp.views.pictures.graph_picture"
    check = f"import sys, {module}; print({{'torch', 'matplotlib.pyplot'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
