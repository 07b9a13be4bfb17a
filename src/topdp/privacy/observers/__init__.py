"""Privacy losses: how much an observer of rows learns about the records of an agent.

In `worst_case`, the observer is all other agents together. In the other modules it is one agent, a coalition
or an outsider. The rows that it reads in all rounds are then one Gaussian vector. `observer_filter` computes
the covariance of this vector, `gram_matrix` the effect of a change of the gradients on it, and `_mu_bounds`
the effect of the worst record.
"""
