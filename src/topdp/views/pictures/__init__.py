"""Pictures of graphs and sweeps."""
