"""topdp: agents on a graph train one model together, and know what each neighbour can learn."""

__version__ = "0.1.0"
