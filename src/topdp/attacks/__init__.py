"""Hostile agents in simulated runs: an `Attack` says who they are and what they send. Not for real agents."""

from topdp.attacks.attack import Attack, chosen
from topdp.attacks.rows import ATTACKERS

__all__ = ["ATTACKERS", "Attack", "chosen"]
