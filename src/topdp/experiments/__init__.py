"""`topdp reproduce`: the paper's figures under three lenses, with a verdict on each claim, and the frontier
beyond them. `lenses` says which runs, `runner` executes and keeps them, `figures/` has one file for each
figure, and `make` is what the command calls. Nothing outside this room but the command line uses it.
"""
