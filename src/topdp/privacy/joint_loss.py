"""The loss of a person whose records are at several agents, from the losses of the agents.

**Guarantees.** Replace the person's data at one agent after the other. Each step changes one owner, and the
loss of that owner to an observer holds whatever the data of others are. So the trade-off function of all
steps together is at least that of the sum of their μ (group privacy of Gaussian differential privacy: Dong
et al. 2019, arXiv:1905.02383, Theorem 2.14, with a μ for each step). The observer holds none of the person's
records; against one that holds some, the others are fewer. An agent's joint loss takes the agents with the
largest μ beside it, each to the observer that learns most, so it is an upper bound. Adjacency and sensitivity
are those of the losses. Losses without μ (Poisson samples) are refused.
"""

from __future__ import annotations

import numpy as np

from topdp.base.array_types import Floats
from topdp.privacy.answers import Answer
from topdp.privacy.basics.gaussian import epsilon_of, mu_of
from topdp.privacy.basics.privacy_loss import GaussianLoss
from topdp.privacy.basics.refusals import NotCovered

# Covers the rounding of sums of μ, and of the conversion to ε and back.
JOINT_LOSS_MARGIN = 1 + 1e-9


def joint_mu(mu: Floats, sites: int) -> Floats:
    """Return the μ [agents] of a person of each agent whose records are also at `sites` - 1 other agents.

    >>> joint_mu(np.array([0.1, 0.4, 0.2]), 2).round(2).tolist()
    [0.5, 0.6, 0.6]
    """
    if sites == 1:
        return mu
    if np.isinf(mu).any():
        return np.full(len(mu), np.inf)
    largest = np.sort(mu)[::-1][:sites]
    others = np.where(mu >= largest[-1], largest.sum() - mu, largest[:-1].sum())
    return np.asarray((mu + others) * JOINT_LOSS_MARGIN)


def joint_answer(answer: Answer, sites: int, deltas: Floats) -> Answer:
    """Return the answer for a person at up to `sites` agents. Raise NotCovered if a loss has no μ.

    The result has no losses of single pairs of owner and observer.
    """
    if sites == 1 or answer.epsilon is None:
        return answer
    mu = answer.mu
    if mu is None or np.isnan(mu).any():
        raise NotCovered(
            "The loss of a person at several agents is known only for Gaussian losses, and this answer has "
            "others. Use full or cyclic batches, and another answer than the claim."
        )
    joint = joint_mu(mu, sites)
    return Answer(
        np.asarray(epsilon_of(joint, deltas)),
        losses=tuple(GaussianLoss(float(value)) for value in joint),
        observers=answer.observers,
        warnings=answer.warnings,
    )


def share_of_budget(epsilon: Floats, deltas: Floats, sites: int) -> Floats:
    """Return the ε [agents] within which each of `sites` agents must stay, so that all stay within `epsilon`.

    >>> share_of_budget(np.array([1.0]), np.array([1e-5]), 2).round(3).tolist()
    [0.469]
    """
    if sites == 1:
        return epsilon
    return np.asarray(epsilon_of(mu_of(epsilon, deltas) / (sites * JOINT_LOSS_MARGIN**2), deltas))
