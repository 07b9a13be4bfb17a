"""What a planner answers at all: a question too large is refused by name before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass

from topdp.runs.config import ConfigError, RunConfig
from topdp.topology import Topology


@dataclass(frozen=True)
class PlannerLimits:
    """The most agents and rounds, and the most rows along links in all rounds. `noise`: see `follows_noise`.

    >>> from topdp.runs.config import RunConfig
    >>> PAGE.check(RunConfig(rounds=100_000))
    Traceback (most recent call last):
        ...
    topdp.runs.config.ConfigError: rounds: expected at most 5000 to plan here, got 100000.
    """

    agents: int
    rounds: int
    rows: int
    noise: float

    def check(self, config: RunConfig) -> None:
        """Before a graph is made."""
        asked = (("topology.agents", config.topology.agents), ("rounds", config.rounds))
        for (key, came), most in zip(asked, (self.agents, self.rounds), strict=True):
            if came > most:
                raise ConfigError(f"{key}: expected at most {most} to plan here, got {came}.")

    def check_graph(self, config: RunConfig, graph: Topology) -> None:
        """Once the links are known; a file may have more agents than were asked for."""
        if graph.agents > self.agents:
            raise ConfigError(
                f"topology.path: expected at most {self.agents} agents to plan here, got {graph.agents}."
            )
        links = max(1, 2 * len(graph.edges))
        if links * config.rounds > self.rows:
            raise ConfigError(
                f"rounds: expected at most {self.rows // links} with {graph.agents} agents and "
                f"{len(graph.edges)} links to plan here, got {config.rounds}."
            )

    def follows_noise(self, rows: int, releases: int) -> bool:
        """Whether the covariance of all rows is followed through a plan of this size."""
        return rows**2 * releases <= self.noise


COMMAND = PlannerLimits(5_000, 1_000_000, 100_000_000, 2e9)
"""Of a command, which somebody started and can stop."""

PAGE = PlannerLimits(100, 5_000, 2_000_000, 4e7)
"""Of a page, on which others may be waiting: of what we tried nothing was silent for more than 12 s."""
