"""Tables, progress and consoles for the command line."""
