"""Pictures that a run folder holds: learning curves, and the style that all matplotlib figures share."""
