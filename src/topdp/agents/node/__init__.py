"""One agent as a process: start and shutdown, status, orders, log, metrics, and changes of members."""
