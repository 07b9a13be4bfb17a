"""Feature maps: fixed before data are read, and blind to all records but one."""
