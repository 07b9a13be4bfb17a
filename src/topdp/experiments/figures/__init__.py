"""The paper's figures: their runs, their numbers, their pictures, and a check of each claim."""
