"""What several fits on the same records cost together, and a record of the fits of an estimator's clones."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from topdp.base.number_text import rounded_up
from topdp.privacy.accounting import Account
from topdp.privacy.basics.gaussian import epsilon_of


@dataclass(frozen=True)
class FitCost:
    """The largest (ε, δ) of one fit over its sites, and μ if the fit has one."""

    epsilon: float
    delta: float
    mu: float | None


@dataclass
class FitHistory:
    """The fits of an estimator and of all its clones, which share this object."""

    fits: list[FitCost] = field(default_factory=list)

    def add(self, account: Account) -> None:
        """Note the cost of a fit under its guarantee, or under the worst case if the noise was given."""
        answer = account.answer(account.guarantee or "worst-case")
        epsilon, mu = answer.largest, answer.mu
        largest = None if mu is None or not np.isfinite(mu).all() else float(mu.max())
        self.fits.append(
            FitCost(float("inf") if epsilon is None else epsilon, float(account.deltas.max()), largest)
        )

    def cost(self) -> tuple[float, float]:
        """Return an (ε, δ) of all fits together, if each has used the same records.

        **Guarantees.** An upper bound against an observer of all fits, each under its own guarantee. Their
        noise is independent. The ε and the δ add up. If each fit has μ (Gaussian differential privacy), the
        composition √Σμ² holds as well, at the smallest δ; the smaller of the two ε is returned.
        """
        delta = min(fit.delta for fit in self.fits)
        added = sum(fit.epsilon for fit in self.fits)
        losses = [fit.mu for fit in self.fits if fit.mu is not None]
        if len(losses) == len(self.fits):
            composed = epsilon_of(float(np.sqrt(np.square(losses).sum())), delta)
            if composed <= added:
                return composed, delta
        return added, sum(fit.delta for fit in self.fits)

    def warning(self) -> str:
        """Return a sentence about the cost of all fits together."""
        epsilon, delta = self.cost()
        return (
            f"This is fit {len(self.fits)} of this estimator and its clones. Accounts add up: if the fits "
            f"used the same records, as the folds of cross_val_score mostly do, all together cost at most "
            f"ε = {rounded_up(epsilon)} at δ = {delta:g}. Tune on public records if you can."
        )
