"""Hostile agents in simulated runs: an `Attack` says who they are and what they send. Not for real agents."""

from topdp.simulator.hostile.hostile_agents import Attack, chosen
from topdp.simulator.hostile.hostile_rows import ATTACKERS

__all__ = ["ATTACKERS", "Attack", "chosen"]
