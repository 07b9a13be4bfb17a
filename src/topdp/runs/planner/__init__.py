"""The planner: privacy, noise and traffic of a setting before training; a recommendation. Needs no torch."""
