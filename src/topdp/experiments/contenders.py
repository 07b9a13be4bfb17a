"""Who takes part in the frontier: methods with what is fixed of them, models, and their configurations.

What is left open is chosen by `tuning`; runs and results are `frontier`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from topdp.experiments.lenses import Scale
from topdp.experiments.tuning import Candidate
from topdp.runs.config import RunConfig, parse

ROUNDS, EXPONENT, GOSSIP = "rounds", "exponent", "gossip"


@dataclass(frozen=True)
class Contender:
    """A method as it takes part. `colluders`: how many agents its ε is against."""

    method: str
    colluders: int = 1
    fixed: dict[str, Any] = field(default_factory=dict)
    knobs: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return f"{self.method}, {self.colluders} collude" if self.colluders > 1 else self.method


def contenders(agents: int) -> dict[str, Contender]:
    """By name. Under `plain` and the methods after it but `correlated` all coalitions learn the same."""
    along = frozenset({ROUNDS, EXPONENT})
    gossiping = along | {GOSSIP}
    # In pairs the plain rule was best at every budget of an earlier search, Top-DP nearly always in sync, and
    # with the most rounds. The account of its plans takes minutes: these are kept.
    made = [
        Contender("no-noise", fixed={"alpha": 0.5}, knobs=frozenset({ROUNDS})),
        Contender("plain", fixed={"mode": "async", "alpha": 0.5}, knobs=along),
        Contender("top", fixed={"alpha": 0.5}),
        Contender("dsgd", knobs=along),
        Contender("muffliato", knobs=gossiping),
        *(Contender("correlated", c, _secrets(agents, c), gossiping) for c in coalitions(agents)),
        Contender("central", 0, knobs=along),
    ]
    return {one.name: one for one in made}


def coalitions(agents: int) -> list[int]:
    """One, three, and half of the agents collude."""
    return sorted({1, min(3, agents // 2), agents // 2})


def _secrets(agents: int, colluders: int) -> dict[str, Any]:
    """As `auto` chooses among 30 agents; all of them where those are too few, or coalitions too many."""
    if colluders <= 3 and agents - 1 > PARTNERS:
        return {"secrets_degree": PARTNERS, "pair_noise": 7.0}
    return {"secrets": "all", "secrets_degree": agents - 1, "pair_noise": 3.8}


PARTNERS = 16

MODELS: dict[str, dict[str, Any]] = {
    "scattering + linear": {"data": {"features": "scattering"}, "model": {"name": "linear"}},
    "mlp": {"model": {"name": "mlp"}},
    "cnn": {"model": {"name": "cnn"}},
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
    """One run; its σ is still to be calibrated. An infinite ε is that of a method without noise."""
    rounds, rate, clip, exponent, gossip = candidate
    chosen: dict[str, Any] = {"gossip": gossip} if GOSSIP in contender.knobs else {}
    if EXPONENT in contender.knobs:
        law = {"kind": "power", "exponent": exponent} if exponent else {"kind": "constant"}
        chosen["noise_schedule"] = law
    parts = MODELS[model]
    tree: dict[str, Any] = {
        "seed": seed,
        "rounds": rounds,
        "topology": {"agents": scale.agents, "connection": scale.connection or 0.2},
        "method": {"name": contender.method, **contender.fixed, **chosen},
        "privacy": {"clip": clip, "colluders": contender.colluders},
        "data": {
            "name": scale.data.get(data, data),
            **({"records": scale.records} if scale.records else {}),
            **({"validation": validation} if validation else {}),
            **parts.get("data", {}),
        },
        "model": parts["model"],
        "train": {"learning_rate": rate / clip, "evaluate_every": rounds},
    }
    if epsilon < float("inf"):
        tree["privacy"]["epsilon"] = epsilon
    return parse(tree, "frontier")
