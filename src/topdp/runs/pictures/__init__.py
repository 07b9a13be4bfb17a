"""Pictures of run folders: learning curves, and the style that all matplotlib figures share."""
