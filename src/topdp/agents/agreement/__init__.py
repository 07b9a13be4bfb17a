"""What is agreed before anything runs: who an agent is, who takes part, what is run, under which rules."""
