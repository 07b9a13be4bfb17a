"""Private statistics of the records of all agents: sums, tables, standardisation, regression."""
