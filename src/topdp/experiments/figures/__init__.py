"""The paper's figures, one file each: the runs a figure needs, and a check of each claim.

`FIGURES` maps the number of a figure to its `PaperFigure`. Register a new figure here.
"""

from topdp.experiments.figures.fig1_alpha import ALPHA_FIGURE
from topdp.experiments.figures.fig2_budget import BUDGET_FIGURE
from topdp.experiments.figures.fig3_connection import CONNECTION_FIGURE
from topdp.experiments.figures.fig4_agents import AGENTS_FIGURE
from topdp.experiments.figures.fig5_decay import DECAY_FIGURE
from topdp.experiments.figures.fig6_topology import TOPOLOGY_FIGURE
from topdp.experiments.figures.fig7_strategies import STRATEGIES_FIGURE
from topdp.experiments.figures.fig8_cifar import CIFAR_FIGURE
from topdp.experiments.figures.paper_figure import PaperFigure

FIGURES: dict[str, PaperFigure] = {
    figure.number: figure
    for figure in (
        ALPHA_FIGURE,
        BUDGET_FIGURE,
        CONNECTION_FIGURE,
        AGENTS_FIGURE,
        DECAY_FIGURE,
        TOPOLOGY_FIGURE,
        STRATEGIES_FIGURE,
        CIFAR_FIGURE,
    )
}
