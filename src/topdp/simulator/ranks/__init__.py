"""Ranks: one simulation over several processes, each of which holds some agents."""
