"""Privacy losses: how much an observer of rows learns about the records of an agent.

The observer is all other agents together (`worst_case`), or one agent or coalition (`view`, `coalitions`).
In the second case the rows of all rounds are one Gaussian vector: `observer_filter` computes its covariance,
`gram_matrix` the effect of a change, and `_mu_bounds` the effect of the worst record.
"""
