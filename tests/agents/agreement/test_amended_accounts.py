"""A run that is amended costs what its books say: against the rows that were really sent, however it ended.

The oracle reads nothing from accounts: every gradient and every draw is a coordinate of the rows on the wire.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from history import Wire, abandon, faults, federation, sharing
from scipy.stats import norm
from symbolic import symbolic

from topdp import topology
from topdp.agents.node import amending
from topdp.agents.node.amending import MembershipChange, amend
from topdp.privacy.basics.gaussian import delta_of, epsilon_of, mu_of
from topdp.runs import config as configurations
from topdp.runs.run_outline import analysis_of

pytestmark = pytest.mark.usefixtures("quick")
LAST = 3
RING = topology.ring(6)
TOP = ("method.name=top", "method.alpha=0.125", "method.offline=0.0")


def ring(folder, *changes, **how):
    return federation(folder, *changes, graph=RING, guarantee=None, **how)


CASES = {
    "adaptive, hidden rows": lambda f: ring(f, *TOP),
    "adaptive, a reserve for one": lambda f: ring(f, *TOP, departures=1),
    "adaptive, pairs": lambda f: ring(f, *TOP, "method.mode=async"),
    "adaptive, momentum": lambda f: ring(f, *TOP, "train.optimiser=momentum"),
    "view": lambda f: ring(f, *TOP, "privacy.guarantee=view"),
    "claimed": lambda f: ring(f, "method.name=plain", "privacy.guarantee=claimed"),
    "worst case": lambda f: ring(f, *TOP, "privacy.guarantee=worst-case"),
    "shared draws": lambda f: sharing(f),
    "shared draws, momentum": lambda f: sharing(f, "train.optimiser=momentum"),
    "shared draws, averaging": lambda f: sharing(f, rounds=4, gossip=1),
    "shared draws, go on": lambda f: sharing(f, tolerates_silence=True),
}

# Of a ring, as far as rows reach those who have not heard of the amendment.
TOGETHER, LATE = (0, 0, 0, 0, 0, 0), (0, 0, 0, 1, 2, 1)


def ended(made, beyond):
    """Everybody ends with the named round, or so many rounds later; what became of it."""
    wire = Wire()
    for number, more in enumerate(beyond):
        agent = made.agent(number, wire.transport(made.names[number]))
        agent.ledger.end_with(LAST + more)
        abandon(agent)
    return made.lived(wire=wire)


def reached(made, owner):
    """ε that some record of `owner` reaches against the coalitions that its guarantee is about."""
    privacy = made.setup.manifest.config.privacy
    exposure = analysis_of(made.setup.manifest.config, made.setup.counts).exposure()
    others = [j for j in range(6) if j != owner]
    observers = [tuple(others)] if privacy.guarantee == "worst-case" else others
    public = privacy.guarantee in ("adaptive", "worst-case")
    mus = [made.mu(owner, one, float(exposure.sensitivity[owner]), public) for one in observers]
    return float(epsilon_of(np.array([max(mus)]), privacy.delta)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "beyond"),
    [*((case, LATE) for case in CASES), ("adaptive, hidden rows", TOGETHER), ("shared draws", TOGETHER)],
)
def test_books_of_a_run_that_was_amended_hold_for_the_rows_that_were_sent(tmp_path, case, beyond):
    made = symbolic(CASES[case](tmp_path))
    run = ended(made, beyond)
    assert faults(run) == []
    stated = amending.spent_by(made.setup, LAST)
    for owner in (0, 3, 4):
        more = beyond[owner]
        spent = run.outcomes[owner].result["spent"]["epsilon"]
        assert made.taken[owner] == [r for r in range(LAST + more + 1) if made.setup.plan.rate[r] > 0]
        assert reached(made, owner) <= spent * (1 + 1e-9), (owner, reached(made, owner), spent)
        if more == 0:
            assert spent == pytest.approx(stated[made.names[owner]], rel=1e-9)


def hockey_stick(mu, epsilon):
    """E[(1 - e^(ε - L))+] of a loss N(μ²/2, μ²), for any real ε."""
    if mu == 0:
        return np.maximum(0.0, 1 - np.exp(epsilon))
    return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))


def most_told(information, worth):
    """The largest expected `worth(t, loss)` over all rules that end a run after round t by what was seen.

    From the last round backwards: after each, the better of ending there and going on.
    """
    losses = np.linspace(-8.0, 16.0, 4801)
    value = worth(len(information) - 1, losses)
    for t in range(len(information) - 1, 0, -1):
        value = np.maximum(worth(t - 1, losses), spread(value, losses, information[t]))
    return float(np.interp(0.0, losses, spread(value, losses, information[0])))


def spread(value, losses, information):
    """E of `value` after one more release: its loss is N(v/2, v)."""
    step = losses[1] - losses[0]
    reach = np.arange(-int(10 * information**0.5 / step) - 1, int(10 * information**0.5 / step) + 2) * step
    weights = norm.pdf(reach, information / 2, information**0.5)
    moved = [np.interp(losses + by, losses, value) for by in reach]
    return np.tensordot(weights / weights.sum(), moved, 1)


def test_budgets_hold_whatever_it_was_that_made_people_end_a_run():
    """Also by what they saw. The first run alone would not be held to its own ε by that: the sum is."""
    granted, delta, releases = 2.0, 1e-3, 8
    information = np.full(releases, mu_of(granted, delta) ** 2 / releases)
    so_far = np.sqrt(np.cumsum(information))
    spent = epsilon_of(so_far, delta)
    left = [mu_of(granted - epsilon, delta) if granted - epsilon > 1e-9 else 0.0 for epsilon in spent]
    both = most_told(information, lambda t, loss: hockey_stick(left[t], granted - loss))
    together = max(delta_of(float(np.hypot(a, b)), granted) for a, b in zip(so_far, left, strict=True))
    assert together * 0.9 < both <= together * (1 + 1e-3) <= 2 * delta
    alone = most_told(information, lambda t, loss: hockey_stick(0.0, spent[t] - loss))
    assert alone > 1.5 * delta


def test_where_no_account_covers_such_a_choice_it_is_said(tmp_path):
    def said(*changes):
        before = SimpleNamespace(config=configurations.read(changes=changes))
        return " ".join(amending.round_choice_remarks(before))

    assert said() == said("data.batch={cycle=10}") == said("privacy.guarantee=worst-case") == ""
    assert "under Poisson samples" in said("data.batch={poisson=10}")
    made = ring(tmp_path, "method.name=plain", "privacy.guarantee=view")
    words = amend(
        made.setup.manifest, MembershipChange(round=LAST, remove=("fay",), links=(("ada", "eve"),))
    )[2]
    assert "under privacy.guarantee = view" in " ".join(words)


def test_averaging_steps_are_no_rounds_that_are_left(tmp_path):
    made = sharing(tmp_path, rounds=6, gossip=2)
    change = {"remove": ("fay",), "links": (("ada", "eve"),)}
    left = [
        amend(made.setup.manifest, MembershipChange(round=r, **change))[0].config.rounds for r in (2, 8, 19)
    ]
    assert left == [6, 4, 1]
