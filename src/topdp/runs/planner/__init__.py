"""Before training: what a setting costs and hides, and which one to take. No data, no torch."""
