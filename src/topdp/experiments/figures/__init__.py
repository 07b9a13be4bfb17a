"""The paper's figures, one file each: which runs a figure needs, and how each of the paper's claims about it
is checked. `FIGURES` is all of them by their number; a figure joins it here.
"""

from topdp.experiments.figures import (
    fig1_alpha,
    fig2_budget,
    fig3_connection,
    fig4_agents,
    fig5_decay,
    fig6_topology,
    fig7_strategies,
    fig8_cifar,
)
from topdp.experiments.figures.paper_figure import PaperFigure

FIGURES: dict[str, PaperFigure] = {
    module.FIGURE.number: module.FIGURE
    for module in (
        fig1_alpha,
        fig2_budget,
        fig3_connection,
        fig4_agents,
        fig5_decay,
        fig6_topology,
        fig7_strategies,
        fig8_cifar,
    )
}
