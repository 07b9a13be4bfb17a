"""Code for development only: demonstrations on one machine, rehearsals for audits, failpoints for tests."""
