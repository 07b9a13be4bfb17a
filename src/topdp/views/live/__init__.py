"""A live page over runs and agents. Reads what is on disk, and what agents publish; changes nothing."""
