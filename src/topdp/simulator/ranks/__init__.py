"""One simulation over several processes: each holds some agents, and only rows on the border travel."""
