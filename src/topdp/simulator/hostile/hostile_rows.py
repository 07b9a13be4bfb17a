"""What hostile agents send instead of their rows, given the rows of the honest ones: one function an attack.

The attackers know everything and act as one: that is more than a real neighbour has. For simulated runs
alone; real agents are never made to attack.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LONGEST = 1e6
"""What real agents refuse by the manifest's `largest_norm`, unless it says otherwise."""

Attacker = Callable[[Tensor, int, float, torch.Generator], Tensor]
"""(honest estimates [h, d], how many are hostile, strength, random numbers) -> [d]: what those send."""


def sign_flip(now: Tensor, hostile: int, strength: float, random: torch.Generator) -> Tensor:
    """The honest average with the other sign."""
    return -strength * now.mean(dim=0)


def large_norm(now: Tensor, hostile: int, strength: float, random: torch.Generator) -> Tensor:
    """A random direction, so many times as long as the longest honest row, and no longer than LONGEST."""
    longest = float(torch.linalg.vector_norm(now, dim=1).max())
    return min(strength * longest, LONGEST) * _direction(now, random)


def drift(now: Tensor, hostile: int, strength: float, random: torch.Generator) -> Tensor:
    """The honest average, moved in one direction for the whole run, by so many times the honest spread.

    At strength 1 it is no further from the average than honest rows are: distance alone does not betray it.
    """
    mean = now.mean(dim=0)
    spread = float(torch.linalg.vector_norm(now - mean, dim=1).mean())
    return mean + strength * spread * _direction(now, random)


def a_little(now: Tensor, hostile: int, strength: float, random: torch.Generator) -> Tensor:
    """A little is enough (Baruch, Baruch and Goldberg 2019): off by z deviations in every coordinate.

    z times the strength: z is the most with which, of normal numbers, so many honest ones are further off
    that the hostile ones are in the majority with them.
    Towards the other sign of what was learned: moved alike in all coordinates, as there, a linear classifier
    does not change what it says.
    """
    # Algorithm 3 there: s = ⌊n/2 + 1⌋ - m and z = Φ⁻¹((n - m - s)/(n - m))
    honest, mean = len(now), now.mean(dim=0)
    supporters = (honest + hostile) // 2 + 1 - hostile
    within = min(max((honest - supporters) / honest, 0.5), 1 - 0.5 / honest)
    z = float(torch.special.ndtri(torch.tensor(within, dtype=torch.float64)))
    return mean - strength * z * now.std(dim=0, correction=0) * torch.sign(mean)


def noise(now: Tensor, hostile: int, strength: float, random: torch.Generator) -> Tensor:
    """Normal numbers, so many times as large as those of honest rows."""
    drawn = torch.randn(now.shape[1], generator=random, dtype=torch.float64)
    return strength * now.square().mean().sqrt() * drawn.to(now)


def _direction(like: Tensor, random: torch.Generator) -> Tensor:
    drawn = torch.randn(like.shape[1], generator=random, dtype=torch.float64)
    unit: Tensor = drawn / torch.linalg.vector_norm(drawn)
    return unit.to(like)


ATTACKERS: dict[str, tuple[Attacker, float, bool]] = {
    "sign-flip": (sign_flip, 1.0, False),
    "large-norm": (large_norm, 100.0, False),
    "drift": (drift, 1.0, True),
    "a-little": (a_little, 1.0, False),
    "random": (noise, 1.0, False),
}
"""By name: what is sent, the usual strength, and whether random numbers are the same in every round."""
