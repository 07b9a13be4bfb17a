"""Pages about runs: what they show, as one file (report), as a statement for people, and the scripts."""
