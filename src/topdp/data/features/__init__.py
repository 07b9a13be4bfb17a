"""Feature maps: fixed before data are read, and applied to each record separately."""
