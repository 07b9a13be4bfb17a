"""The contenders of the frontier: methods with their fixed settings, models, and configurations of runs.

`tuning` chooses the remaining settings; `frontier` executes the runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from topdp.experiments.lenses import Scale
from topdp.experiments.tuning import Candidate, Knob
from topdp.runs.config import RunConfig, parse


@dataclass(frozen=True)
class Contender:
    """A method, the coalition size that its ε is against, its fixed settings and its tuned ones."""

    method: str
    colluders: int = 1
    fixed: dict[str, Any] = field(default_factory=dict)
    knobs: frozenset[Knob] = frozenset()

    @property
    def name(self) -> str:
        return f"{self.method}, {self.colluders} collude" if self.colluders > 1 else self.method


def contenders(agents: int) -> dict[str, Contender]:
    """Return the contenders by name. Only for `correlated` does ε depend on the size of the coalition."""
    along: frozenset[Knob] = frozenset({"rounds", "exponent"})
    gossiping: frozenset[Knob] = along | {"gossip"}
    # An earlier search fixed these settings: the plain rule was best in pairs at every budget, Top-DP nearly
    # always in sync and with the most rounds. Accounting its plans takes minutes each.
    entrants = [
        Contender("no-noise", fixed={"alpha": 0.5}, knobs=frozenset({"rounds"})),
        Contender("plain", fixed={"mode": "async", "alpha": 0.5}, knobs=along),
        Contender("top", fixed={"alpha": 0.5}),
        Contender("dsgd", knobs=along),
        Contender("muffliato", knobs=gossiping),
        *(Contender("correlated", c, _secrets(agents, c), gossiping) for c in coalitions(agents)),
        Contender("central", 0, knobs=along),
    ]
    return {contender.name: contender for contender in entrants}


def coalitions(agents: int) -> list[int]:
    """Return the coalition sizes: one, three and half of the agents."""
    return sorted({1, min(3, agents // 2), agents // 2})


def _secrets(agents: int, colluders: int) -> dict[str, Any]:
    """Return the settings of pair secrets that `auto` chooses for 30 agents.

    Few agents or large coalitions share secrets with all others.
    """
    if colluders <= 3 and agents - 1 > SECRET_PARTNERS:
        return {"secrets_degree": SECRET_PARTNERS, "pair_noise": 7.0}
    return {"secrets": "all", "secrets_degree": agents - 1, "pair_noise": 3.8}


SECRET_PARTNERS = 16

CONTENDER_MODELS: dict[str, dict[str, Any]] = {
    "scattering + linear": {"data": {"features": "scattering"}, "model": {"name": "linear"}},
    "mlp": {"model": {"name": "mlp"}},
}


def frontier_run(
    scale: Scale,
    data: str,
    model: str,
    contender: Contender,
    epsilon: float,
    candidate: Candidate,
    seed: int,
    validation: float | None = None,
) -> RunConfig:
    """Return the configuration of one run; its noise is calibrated later.

    `epsilon`: the budget; infinite for a method without noise, and then no budget is set.
    `validation`: the share of training records to test on; None tests on the test set.
    """
    tuned: dict[str, Any] = {"gossip": candidate.gossip} if "gossip" in contender.knobs else {}
    if "exponent" in contender.knobs:
        power = {"kind": "power", "exponent": candidate.exponent}
        tuned["noise_schedule"] = power if candidate.exponent else {"kind": "constant"}
    parts = CONTENDER_MODELS[model]
    tree: dict[str, Any] = {
        "seed": seed,
        "rounds": candidate.rounds,
        "topology": {"agents": scale.agents, "connection": scale.connection or 0.2},
        "method": {"name": contender.method, **contender.fixed, **tuned},
        "privacy": {"clip": candidate.clip, "colluders": contender.colluders},
        "data": {
            "name": scale.data.get(data, data),
            **({"records": scale.records} if scale.records else {}),
            **({"validation": validation} if validation else {}),
            **parts.get("data", {}),
        },
        "model": parts["model"],
        "train": {"learning_rate": candidate.rate / candidate.clip, "evaluate_every": candidate.rounds},
    }
    if epsilon < float("inf"):
        tree["privacy"]["epsilon"] = epsilon
    return parse(tree, "frontier")
