"""Hostile agents in a simulated run: which agents they are, the rows that they send, and their records.

By default, the seed determines which agents are hostile. They know all rows and act together, which is more
than real neighbours can do. Accounts hold for honest agents whatever the hostile agents send. Evaluations
cover honest agents only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from topdp.base.array_types import Ints
from topdp.data.shards import Shards
from topdp.errors import InputError
from topdp.plan.random_streams import stream

if TYPE_CHECKING:
    from topdp.runs.config import AttackConfig

MAX_ACCEPTED_NORM = 1e6  # the default of the manifest's `largest_norm`, above which real agents refuse rows

# (honest estimates [h, d], number of hostile agents, strength, random generator) -> the row [d] they send.
Attacker = Callable[[Tensor, int, float, torch.Generator], Tensor]


def sign_flip(rows: Tensor, hostile: int, strength: float, random: torch.Generator) -> Tensor:
    """Return the average honest row with the opposite sign, times `strength`."""
    return -strength * rows.mean(dim=0)


def large_norm(rows: Tensor, hostile: int, strength: float, random: torch.Generator) -> Tensor:
    """Return a row in a random direction.

    Its norm is `strength` times the largest norm of an honest row, but at most MAX_ACCEPTED_NORM.
    """
    longest = float(torch.linalg.vector_norm(rows, dim=1).max())
    return min(strength * longest, MAX_ACCEPTED_NORM) * _direction(rows, random)


def drift(rows: Tensor, hostile: int, strength: float, random: torch.Generator) -> Tensor:
    """Return the average honest row, moved by `strength` times the mean distance of honest rows from it.

    The direction is the same in the whole run. At strength 1, the row is no further from the average than
    honest rows are, so its distance does not reveal that it is hostile.
    """
    mean = rows.mean(dim=0)
    spread = float(torch.linalg.vector_norm(rows - mean, dim=1).mean())
    return mean + strength * spread * _direction(rows, random)


def a_little(rows: Tensor, hostile: int, strength: float, random: torch.Generator) -> Tensor:
    """Return the row of the attack "a little is enough" (Baruch, Baruch and Goldberg 2019).

    It differs from the average honest row by z·strength standard deviations in every coordinate. Here z is
    the largest number for which enough honest rows, if normally distributed, are further from the average to
    form a majority together with the hostile rows. The shift is against the sign of the average, because a
    shift in the same direction in all coordinates, as in the paper, does not change the output of a linear
    classifier.
    """
    # Algorithm 3 there: s = ⌊n/2 + 1⌋ - m and z = Φ⁻¹((n - m - s)/(n - m))
    honest, mean = len(rows), rows.mean(dim=0)
    supporters = (honest + hostile) // 2 + 1 - hostile
    within = min(max((honest - supporters) / honest, 0.5), 1 - 0.5 / honest)
    z = float(torch.special.ndtri(torch.tensor(within, dtype=torch.float64)))
    return mean - strength * z * rows.std(dim=0, correction=0) * torch.sign(mean)


def noise(rows: Tensor, hostile: int, strength: float, random: torch.Generator) -> Tensor:
    """Return a normal row; its standard deviation is `strength` times the root mean square of honest rows."""
    drawn = torch.randn(rows.shape[1], generator=random, dtype=torch.float64)
    return strength * rows.square().mean().sqrt() * drawn.to(rows)


def _direction(like: Tensor, random: torch.Generator) -> Tensor:
    """Return a random vector [d] of norm 1; `like` [h, d] gives its length, number type and device."""
    drawn = torch.randn(like.shape[1], generator=random, dtype=torch.float64)
    unit: Tensor = drawn / torch.linalg.vector_norm(drawn)
    return unit.to(like)


# By name: the attack, its default strength, and whether its random numbers are the same in every round.
ATTACKERS: dict[str, tuple[Attacker, float, bool]] = {
    "sign-flip": (sign_flip, 1.0, False),
    "large-norm": (large_norm, 100.0, False),
    "drift": (drift, 1.0, True),
    "a-little": (a_little, 1.0, False),
    "random": (noise, 1.0, False),
}


LABEL_FLIP = "label-flip"


def choose_attack(settings: AttackConfig, agents: int, seed: int) -> Attack | None:
    """Return the attack that `settings` describe among `agents` agents; None if no agent is hostile.

    Raise InputError if an agent does not exist, or if no agent would be honest.
    """
    if settings.name == "none":
        return None
    if settings.agents is not None:
        hostile = sorted(set(settings.agents))
        if hostile and hostile[-1] >= agents:
            raise InputError(f"Expected attack.agents from 0 to {agents - 1}, got {hostile[-1]}.")
    else:
        # The order does not depend on the share, so a larger share only adds hostile agents.
        order = stream(seed, "hostile").permutation(agents)
        hostile = sorted(order[: round(settings.share * agents)].tolist())
    if len(hostile) > agents - 1:
        raise InputError(
            f"Expected at least one honest agent, got {len(hostile)} hostile agents of {agents}."
        )
    if not hostile:
        return None
    return Attack(settings.name, hostile=tuple(hostile), agents=agents, seed=seed, strength=settings.strength)


@dataclass(frozen=True)
class Attack:
    """An attack by the agents `hostile`; if `strength` is None, it has the attack's default strength.

    >>> import numpy as np, torch
    >>> rows = torch.ones(4, 2)
    >>> Attack("sign-flip", hostile=(3,), agents=4, seed=0)(0, rows, np.arange(4))
    >>> rows[2:].tolist()
    [[1.0, 1.0], [-1.0, -1.0]]
    """

    name: str
    _: KW_ONLY
    hostile: tuple[int, ...]
    agents: int
    seed: int
    strength: float | None = None

    def __call__(self, round: int, rows: Tensor, owner: Ints) -> None:
        """Replace the rows of hostile agents in `rows` [rows, d] by the rows that they send instead."""
        if self.name == LABEL_FLIP:
            return  # the hostile agents follow the plan, but with wrong labels
        attacker, default_strength, steady = ATTACKERS[self.name]
        is_hostile = np.isin(owner, self.hostile)
        honest = rows[: self.agents][torch.from_numpy(~is_hostile[: self.agents]).to(rows.device)]
        name = 0 if steady else round + 1
        random = torch.Generator().manual_seed(int(stream(self.seed, "attack", name).integers(2**63)))
        strength = default_strength if self.strength is None else self.strength
        sent = attacker(honest, len(self.hostile), strength, random)
        rows[torch.from_numpy(is_hostile).to(rows.device)] = sent

    def records(self, shards: Shards) -> Shards:
        """Return the records on which agents train: in a label-flip attack, hostile agents flip their labels.

        Raise InputError if the attack is label-flip and the targets are not class labels.
        """
        if self.name != LABEL_FLIP:
            return shards
        if shards.classes is None or shards.targets.is_floating_point():
            raise InputError(f"Expected class labels for label-flip, got {shards.targets.dtype} targets.")
        targets = shards.targets.clone()
        hostile = list(self.hostile)
        # Label y becomes C - 1 - y (Fang et al. 2020)
        targets[hostile] = shards.classes - 1 - targets[hostile]
        return replace(shards, targets=targets)
