"""The rows that hostile agents send, given the rows of the honest ones: one function per attack.

The attackers know all rows and act together, which is more than real neighbours can. For simulated runs only.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

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
