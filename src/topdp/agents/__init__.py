"""Real agents: the same plan, one agent per process and organisation, over authenticated links.

The specification is docs/agents.md. Nothing here is imported by the simulator.
"""
