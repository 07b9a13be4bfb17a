"""What no organisation runs: demonstrations on one machine, rehearsals for audits, failpoints for tests."""
