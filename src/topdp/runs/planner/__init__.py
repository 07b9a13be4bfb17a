"""The planner: privacy, noise and traffic of a setting before training, and a recommendation. No torch."""
