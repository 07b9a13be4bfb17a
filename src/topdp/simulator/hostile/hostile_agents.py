"""Hostile agents in a simulated run: which agents they are, what they send, and their records.

By default the seed chooses them. Accounts hold for honest agents, whatever others send, and evaluations cover
honest agents only.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from topdp.base.array_types import Ints
from topdp.data.shards import Shards
from topdp.errors import InputError
from topdp.plan.random_streams import stream
from topdp.simulator.hostile.hostile_rows import ATTACKERS

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
