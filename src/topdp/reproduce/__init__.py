"""The paper's figures, each under three lenses, with a verdict on each claim. One file per figure."""
