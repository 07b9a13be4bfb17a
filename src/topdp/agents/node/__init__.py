"""One agent as a process on a machine: commands, log, metrics, and a whole federation as a demonstration."""
