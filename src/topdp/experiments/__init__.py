"""The experiments of `topdp reproduce` and `topdp bench`: the paper's figures, the frontier, the benchmark.

`lenses` defines the runs, `figure_runner` executes and stores them, `figures/` has the figures, and
`reproduce` is the entry point. Only the command line imports this package.
"""
