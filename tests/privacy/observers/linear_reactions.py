"""Gradients that react linearly to estimates: small plans of every family, random reactions, exact answers.

Under a linear reaction all rows stay Gaussian, so what an observer learns of a change is an exact number,
and no guarantee may be below it. Computed with 60 digits: with gains of 10⁴ in every round, floats would
show violations that do not exist. Used by test_reactions.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import dense_adaptive as dense
import numpy as np

from builders import WITH_VIEW
from topdp import topology
from topdp.plan import Plan, schedules
from topdp.privacy import exposure, view
from topdp.privacy.observers.observer_filter import Public
from topdp.topology import Topology

FAMILIES: dict[str, Callable[[int], Topology]] = {
    "random": lambda seed: topology.random(6, 0.4, seed),
    "ring": lambda seed: topology.ring(4 + seed % 3),
    "star": lambda seed: topology.star(6),
    "tree": lambda seed: topology.tree(6),
    "mesh": lambda seed: topology.mesh(6),
    "complete": lambda seed: topology.complete(4),
    "grid": lambda seed: topology.grid(6),
    "small-world": lambda seed: topology.small_world(6, 2, 0.3, seed),
    "regular": lambda seed: topology.regular(6, 3, seed),
}
"""Six agents or fewer, by seed."""

KINDS = ("latest", "history", "carrier", "single")
"""What reacts: to the latest estimate; to all past ones; one coordinate to another; one agent, once."""


def small_plan(family: str, protocol: str, seed: int) -> Plan:
    """Three to five rounds; the seed chooses decay, unequal noise and offline agents."""
    numbers = np.random.default_rng([seed, 1])
    graph, T = FAMILIES[family](seed), int(numbers.integers(3, 6))
    rates = schedules.learning_rates(0.5, T, str(numbers.choice(["none", "linear"])))
    decay = schedules.step_decay(float(numbers.choice([1.0, 0.8])), 2, T)
    # Received noise never replaces all own noise: messages keep a part, and all answers are finite.
    spread = 1.0 if numbers.random() < 0.5 else 1.02
    deviation = spread ** numbers.uniform(-1, 1, graph.agents)
    alpha = float(numbers.choice([0.0625, 0.125, 0.25, 0.5]))
    offline = {"offline": 0.17} if protocol.endswith("-async") else {}
    written = schedules.schedule(rates, decay, "gradient")
    return WITH_VIEW[protocol](alpha, **offline).plan(graph, written, deviation, seed)


@dataclass(frozen=True)
class Case:
    """Who observes whom in which plan, and how gradients react."""

    plan: Plan
    owner: int
    J: tuple[int, ...]
    width: int
    react: dense.Reaction

    def grams(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """M for J with reactions; J and the estimates, with reactions; J and the estimates, without."""
        rows = dense.every_row(self.plan, self.owner, self.J, Decimal, self.react, self.width)
        found = [
            dense.gram(*dense.of_rows(self.plan, rows, self.J, which)) for which in ("nothing", "estimates")
        ]
        still = dense.gram(*dense.coefficients(self.plan, self.owner, self.J, "estimates", Decimal))
        assert found[0] is not None and found[1] is not None and still is not None
        return found[0], found[1], still


def random_case(family: str, protocol: str, kind: str, seed: int) -> Case:
    """Up to two colluders; only gradients of its own agent react to an estimate."""
    plan = small_plan(family, protocol, seed)
    numbers = np.random.default_rng([seed, 2, KINDS.index(kind)])
    owner, *others = numbers.permutation(plan.agents).tolist()
    J = tuple(others[: numbers.integers(0, 3)])
    n, R, width = plan.agents, plan.releases, 1 if kind in ("latest", "history") else 2
    shape = (R, n, R, width, width)  # round, agent, round of the estimate, from, to
    size = 10.0 ** numbers.uniform(-1, numbers.choice([1, 2, 4]), shape) * numbers.choice([-1, 1], shape)
    size *= numbers.random(shape) < numbers.choice([0.2, 0.6, 1.0])
    if kind != "history":
        size *= (np.arange(R)[:, None] == np.arange(R) + 1)[:, None, :, None, None]
    if kind == "carrier":
        size[..., 0, 0] = size[..., 1, :] = 0
    if kind == "single":
        size *= (np.arange(R) == numbers.integers(1, R))[:, None, None, None, None]
        size *= (np.arange(n) == numbers.integers(n))[:, None, None, None]
    gains = np.array([Decimal(float(one)) for one in size.flat], object).reshape(shape)

    def react(round: int, rows: list[np.ndarray]) -> np.ndarray:
        gradient = np.full((n, *rows[0].shape[1:]), Decimal(0), object)
        for s, k in np.argwhere(size[round].any(axis=(2, 3)).T):
            if s < round:
                gradient[k] = gradient[k] + gains[round, k, s].T @ rows[s][k]
        return gradient

    return Case(plan, owner, J, width, react)


@dataclass(frozen=True)
class Verdict:
    """`ratio`: what J learns divided by what `adaptive` states, in μ; `view`: divided by the view instead.

    `excess`: by how much M with reactions exceeds M of the bound, as matrices; `moved`: by how much reactions
    change what J learns if it sees all estimates. Both should be 0.
    """

    ratio: float
    view: float
    excess: float
    moved: float


def judge(case: Case) -> Verdict:
    reacting, public, bound = case.grams()
    size = max(np.abs(bound).max(), 1e-300)
    learned = dense.bracket(reacting)[0] ** 0.5
    exposed = exposure(case.plan.agents, 1.0)
    said = [
        view(case.plan, exposed, [case.J], [case.owner], public=which).upper
        for which in ((Public.ESTIMATES, Public.NOTHING) if case.J else (Public.ESTIMATES,))
    ]
    ratio, *of_view = (
        learned / one[case.owner, 0] if learned > 0 else 0.0 for one in said if one is not None
    )
    return Verdict(
        ratio=ratio,
        view=of_view[0] if of_view else 0.0,
        excess=max(0.0, float(np.linalg.eigvalsh(reacting - bound)[-1]) / size),
        moved=float(np.abs(public - bound).max()) / size,
    )
