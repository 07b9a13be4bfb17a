"""Hostile agents in a simulated run: which agents they are, the rows that they send, and their records.

By default the seed chooses them. They know all rows and act together, which is more than real neighbours can.
Accounts hold for honest agents, whatever others send, and evaluations cover honest agents only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from topdp.base.array_types import Ints
from topdp.data.shards import Shards
from topdp.errors import InputError
from topdp.plan.random_streams import stream

MAX_ACCEPTED_NORM = 1e6  # the default of the manifest's `largest_norm`, above which real agents refuse rows

# (honest estimates [h, d], number of hostile agents, strength, random generator) -> their row [d].
Attacker = Callable[[Tensor, int, float, torch.Generator], Tensor]


def sign_flip(now: Tensor, hostile: int, strength: float, random: torch.Generator) -> Tensor:
    """Return the honest average with the other sign."""
    return -strength * now.mean(dim=0)


def large_norm(now: Tensor, hostile: int, strength: float, random: torch.Generator) -> Tensor:
    """Return a random direction, `strength` times as long as the longest honest row, at most
    MAX_ACCEPTED_NORM.
    """
    longest = float(torch.linalg.vector_norm(now, dim=1).max())
    return min(strength * longest, MAX_ACCEPTED_NORM) * _direction(now, random)


def drift(now: Tensor, hostile: int, strength: float, random: torch.Generator) -> Tensor:
    """Return the honest average plus `strength` times the honest spread, in one direction for the whole run.

    At strength 1 it is no further from the average than honest rows are: its distance does not reveal it.
    """
    mean = now.mean(dim=0)
    spread = float(torch.linalg.vector_norm(now - mean, dim=1).mean())
    return mean + strength * spread * _direction(now, random)


def a_little(now: Tensor, hostile: int, strength: float, random: torch.Generator) -> Tensor:
    """Return the row of the attack "a little is enough" (Baruch, Baruch and Goldberg 2019).

    It differs from the honest average by z·strength standard deviations in every coordinate.

    z is the largest number for which, among normal numbers, enough honest ones are further off to form a
    majority with the hostile ones. The shift is against the sign of the average: a shift in the same
    direction in all coordinates, as in the paper, does not change the output of a linear classifier.
    """
    # Algorithm 3 there: s = ⌊n/2 + 1⌋ - m and z = Φ⁻¹((n - m - s)/(n - m))
    honest, mean = len(now), now.mean(dim=0)
    supporters = (honest + hostile) // 2 + 1 - hostile
    within = min(max((honest - supporters) / honest, 0.5), 1 - 0.5 / honest)
    z = float(torch.special.ndtri(torch.tensor(within, dtype=torch.float64)))
    return mean - strength * z * now.std(dim=0, correction=0) * torch.sign(mean)


def noise(now: Tensor, hostile: int, strength: float, random: torch.Generator) -> Tensor:
    """Return a normal row; its standard deviation is `strength` times the root mean square of honest rows."""
    drawn = torch.randn(now.shape[1], generator=random, dtype=torch.float64)
    return strength * now.square().mean().sqrt() * drawn.to(now)


def _direction(like: Tensor, random: torch.Generator) -> Tensor:
    drawn = torch.randn(like.shape[1], generator=random, dtype=torch.float64)
    unit: Tensor = drawn / torch.linalg.vector_norm(drawn)
    return unit.to(like)


# By name: the attack, its usual strength, and whether its random numbers are the same in every round.
ATTACKERS: dict[str, tuple[Attacker, float, bool]] = {
    "sign-flip": (sign_flip, 1.0, False),
    "large-norm": (large_norm, 100.0, False),
    "drift": (drift, 1.0, True),
    "a-little": (a_little, 1.0, False),
    "random": (noise, 1.0, False),
}


LABEL_FLIP = "label-flip"


class AttackSettings(Protocol):
    """The attributes that the section `attack` of a configuration has."""

    @property
    def name(self) -> str: ...
    @property
    def share(self) -> float: ...
    @property
    def strength(self) -> float | None: ...
    @property
    def agents(self) -> list[int] | None: ...


def choose_attack(settings: AttackSettings, agents: int, seed: int) -> Attack | None:
    """Return the attack that `settings` describe among `agents` agents; None if no agent is hostile."""
    if settings.name == "none":
        return None
    if settings.agents is not None:
        hostile = sorted(set(settings.agents))
        if hostile and hostile[-1] >= agents:
            raise InputError(f"Expected attack.agents from 0 to {agents - 1}, got {hostile[-1]}.")
    else:
        # The order does not depend on the share: a larger share adds hostile agents.
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
    """One attack by the agents `hostile`; `strength` None: the default of the attack.

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
        """Replace, in `rows` [rows, d], the rows of hostile agents by the rows that they send instead."""
        if self.name == LABEL_FLIP:
            return  # they follow the plan, on wrong records
        attacker, usual, steady = ATTACKERS[self.name]
        theirs = np.isin(owner, self.hostile)
        now = rows[: self.agents][torch.from_numpy(~theirs[: self.agents]).to(rows.device)]
        name = 0 if steady else round + 1
        random = torch.Generator().manual_seed(int(stream(self.seed, "attack", name).integers(2**63)))
        strength = usual if self.strength is None else self.strength
        sent = attacker(now, len(self.hostile), strength, random)
        rows[torch.from_numpy(theirs).to(rows.device)] = sent

    def records(self, shards: Shards) -> Shards:
        """Return the records on which agents train: with the flipped labels of a label-flip attack."""
        if self.name != LABEL_FLIP:
            return shards
        if shards.classes is None or shards.targets.is_floating_point():
            raise InputError("Expected labels of classes for the attack label-flip, got other targets.")
        targets = shards.targets.clone()
        theirs = list(self.hostile)
        # Label y becomes C - 1 - y (Fang et al. 2020)
        targets[theirs] = shards.classes - 1 - targets[theirs]
        return replace(shards, targets=targets)
