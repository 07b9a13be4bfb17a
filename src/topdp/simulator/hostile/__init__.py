"""Hostile agents in simulated runs: an `Attack` states who they are and what they send."""

from topdp.simulator.hostile.hostile_agents import Attack, choose_attack
from topdp.simulator.hostile.hostile_rows import ATTACKERS

__all__ = ["ATTACKERS", "Attack", "choose_attack"]
