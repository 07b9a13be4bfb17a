"""The paper's figures that show graphs: drawings, and tables of the sets N_i^j. They need no runs.

Figure 1 of the paper, a sketch of the two modes, shows no graph that the paper defines, and is not drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from topdp import topology
from topdp.base.files import write_atomically
from topdp.experiments.figures.figures_three_to_twelve import GRAPH_KINDS
from topdp.topology import Topology
from topdp.views.pictures import graph_picture


@dataclass(frozen=True)
class DrawnFigure:
    """A figure of the paper that shows graphs. `graphs(agents)` returns them by name."""

    title: str
    graphs: Callable[[int], Mapping[str, Topology]]

    def draw(self, name: str, agents: int, out: Path) -> None:
        """Draw each graph of the figure, which is called `name`, and write the table of its sets."""
        graphs = self.graphs(agents)
        pictures = ", ".join(f"{name}-{kind}.png" for kind in graphs)
        lines = [
            f"### Figure {name.removeprefix('fig')}: {self.title}",
            "",
            f"Pictures: {pictures}, drawn by `topdp reproduce {name}`.",
            "",
            "| graph | agents | edges | neighbours | covered directed edges |",
            "|---|---|---|---|---|",
        ]
        sets = []
        for kind, graph in graphs.items():
            graph_picture.draw(graph, out / f"{name}-{kind}.png")
            degrees, covered = graph.degrees, graph.covered
            lines.append(
                f"| {kind} | {graph.agents} | {len(graph.edges)} | {degrees.min()} to {degrees.max()} | "
                f"{covered.sum()} of {covered.size} |"
            )
            sets += [f"- {kind}: {words}" for words in graph_picture.listed_sets(graph)]
        write_atomically(out / f"{name}.md", "\n".join([*lines, *([""] if sets else []), *sets]) + "\n")


# The agent 0 has four neighbours, of which 1 and 4 are adjacent.
EXAMPLE = topology.from_edges([(0, 1), (0, 2), (0, 3), (0, 4), (1, 4)], name="example")

DRAWN_FIGURES = {
    "fig2": DrawnFigure("An example of noise reduction, five agents", lambda agents: {"example": EXAMPLE}),
    "fig8": DrawnFigure(
        "Ring, star with two hubs, tree and partial mesh",
        lambda agents: {kind: topology.FAMILIES[kind](agents) for kind in GRAPH_KINDS},
    ),
}
