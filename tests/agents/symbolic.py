"""Federations whose rows show their components, and what an observer learns from the rows that were sent.

Every gradient that an agent computes and every draw that it makes is a coordinate of its own, so the sent
rows are the coefficients of an exact account. From the plan only the knowledge of draws is read. A draw or
gradient that an agent leaves out is missing in its rows and so in the account.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from unittest import mock

import numpy as np
import torch
from history import Federation, Wire, live, on_virtual_time

from topdp.agents.agreement import hidden_rows
from topdp.agents.runtime import agent_context, planned_loop
from topdp.agents.wire import row_payload
from topdp.agents.wire.transport import MessageKind
from topdp.privacy.basics.gaussian import epsilon_of


@dataclass
class Coordinates:
    """[gradients of all agents and rounds | draws of all rounds]"""

    agents: int
    releases: int
    draws: int

    @property
    def dimension(self):
        return self.releases * (self.agents + self.draws)

    def gradient(self, agent, round):
        return agent * self.releases + round

    def draw(self, round, draw):
        return self.releases * self.agents + round * self.draws + draw

    def unit(self, place):
        vector = torch.zeros(self.dimension, dtype=torch.float64)
        vector[place] = 1.0
        return vector


@dataclass
class AgentGradients:
    """Replaces an agent's gradients."""

    names: Coordinates
    agent: int
    taken: list[int]
    rehearsal: None = None

    def mean(self, round, estimate):
        self.taken.append(round)
        return self.names.unit(self.names.gradient(self.agent, round))


@dataclass
class Draws:
    """Replaces an agent's draws."""

    names: Coordinates
    seeded: bool = True

    def set_pair_seeds(self, seeds):
        """Does nothing: a shared draw is a coordinate like any other."""

    def add(self, row, std, round, draw):
        row.add_(self.names.unit(self.names.draw(round, draw)), alpha=std)


@dataclass
class Symbolic(Federation):
    """Replaces a federation in `live`. `taken`: the rounds in which each agent read its data."""

    taken: dict[int, list[int]] = field(default_factory=dict)
    sent: dict[tuple[str, str, int], bytes] = field(default_factory=dict)
    estimates_made: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    _known: dict[tuple, tuple] = field(default_factory=dict)  # until the next row

    @property
    def coordinates(self):
        plan = self.setup.plan
        return Coordinates(plan.agents, plan.releases, plan.draws)

    def context(self, agent, **options):
        names = self.coordinates
        return replace(
            super().context(agent, **options),
            start=torch.zeros(names.dimension, dtype=torch.float64),
            gradients=AgentGradients(names, agent, self.taken.setdefault(agent, [])),
            draws=Draws(names),
        )

    def lived(self, **how):
        wire = how.pop("wire", None) or Wire()

        def note(sender, receiver, message):
            if message.kind is MessageKind.ROW:
                self._known.clear()
                self.sent[sender, receiver, message.round] = message.body

        original = planned_loop.rows_needed_later

        def rows_needed_later(part, round, rows):
            self._known.clear()
            self.estimates_made[part.agent, round] = rows[part.agent].numpy().copy()
            return original(part, round, rows)

        wire.lose = note
        # Coordinates are exact coefficients without noise; the grid of rows would only round them.
        with (
            mock.patch.object(planned_loop, "rows_needed_later", rows_needed_later),
            mock.patch.object(hidden_rows, "GRID_STEP_PER_STD", 2.0**-50),
            mock.patch.object(agent_context, "expect_exact", lambda *facts: None),
        ):
            return on_virtual_time(live(self, wire=wire, **how))

    def seen_by(self, observer, estimates=False):
        """[rows, coordinates]: the rows sent to `observer`; with `estimates`, also all estimates."""
        names, d = self.setup.manifest.names, self.coordinates.dimension
        rows = [
            row_payload.decode(body, d, "float64")
            for (_, receiver, _), body in sorted(self.sent.items())
            if receiver == names[observer]
        ]
        return np.array(rows + (list(self.estimates_made.values()) if estimates else []))

    def mu(self, owner, observer, sensitivity, estimates=False):
        """What a record of `owner` reaches against `observer`, which knows its own draws and gradients, or
        against several that pool what they see.

        The gradients of all others count as fixed. μ² = uᵀMu with M = Aᵀ(BBᵀ)⁺A for signs u, improved one by
        one. Some record reaches this value, so it never exceeds the truth.
        """
        names = self.coordinates
        observers = (observer,) if isinstance(observer, int) else observer
        rows, precision = self._weighed(observers, estimates)
        A = rows[:, [names.gradient(owner, r) for r in range(names.releases)]]
        M = A.T @ precision @ A
        u = np.ones(names.releases)
        for _ in range(3):
            for t in range(names.releases):
                u[t] = 1.0 if M[t] @ u - M[t, t] * u[t] >= 0 else -1.0
        return sensitivity * float(np.sqrt(u @ M @ u))

    def _weighed(self, observers, estimates):
        """The rows sent to `observers`, and (BBᵀ)⁺: the same for every owner, and most of the work."""
        asked = observers, estimates
        if asked not in self._known:
            names, plan = self.coordinates, self.setup.plan
            rows = np.concatenate([self.seen_by(one, estimates) for one in observers])
            unknown = [k for k in range(names.draws) if not np.isin(observers, plan.known_by[k]).any()]
            B = rows[:, [names.draw(r, k) for r in range(names.releases) for k in unknown]]
            self._known[asked] = rows, np.linalg.pinv(B @ B.T, rcond=1e-12, hermitian=True)
        return self._known[asked]

    def epsilon(self, owner, sensitivity, delta, estimates=False):
        """The largest ε over all other agents; with `estimates`, over observers that also read those."""
        others = [j for j in range(len(self.names)) if j != owner]
        mus = [self.mu(owner, j, sensitivity, estimates) for j in others]
        return float(epsilon_of(np.array([max(mus)]), delta)[0])


def symbolic(made: Federation) -> Symbolic:
    return Symbolic(made.setup, made.shards, made.folder, made.identities)
