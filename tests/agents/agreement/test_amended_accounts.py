"""Tests that ledgers of an amended run bound what the sent rows reveal, however the run ended.

The oracle reads nothing from accounts: every gradient and every draw is a coordinate of the sent rows.
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

# Rounds that agents of a ring make after LAST: none, or as many as rows let agents that learn of it late.
TOGETHER, LATE = (0, 0, 0, 0, 0, 0), (0, 0, 0, 1, 2, 1)


def ended(made, extra_rounds):
    """A run in which each agent ends with round LAST, or so many rounds later."""
    wire = Wire()
    for number, more in enumerate(extra_rounds):
        agent = made.agent(number, wire.transport(made.names[number]))
        agent.ledger.end_with(LAST + more)
        abandon(agent)
    return made.lived(wire=wire)


def reached(made, owner):
    """The ε that some record of `owner` reaches against the coalitions that its guarantee is about."""
    privacy = made.setup.manifest.config.privacy
    exposure = analysis_of(made.setup.manifest.config, made.setup.counts).exposure()
    others = [j for j in range(6) if j != owner]
    observers = [tuple(others)] if privacy.guarantee == "worst-case" else others
    public = privacy.guarantee in ("adaptive", "worst-case")
    mus = [made.mu(owner, one, float(exposure.sensitivity[owner]), public) for one in observers]
    return float(epsilon_of(np.array([max(mus)]), privacy.delta)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "extra_rounds"),
    [*((case, LATE) for case in CASES), ("adaptive, hidden rows", TOGETHER), ("shared draws", TOGETHER)],
)
def test_ledgers_of_an_amended_run_bound_the_loss_of_the_sent_rows(tmp_path, case, extra_rounds):
    made = symbolic(CASES[case](tmp_path))
    run = ended(made, extra_rounds)
    assert faults(run) == []
    stated = amending.spent_by(made.setup, LAST)
    for owner in (0, 3, 4):
        more = extra_rounds[owner]
        spent = run.outcomes[owner].result["spent"]["epsilon"]
        assert made.taken[owner] == [r for r in range(LAST + more + 1) if made.setup.plan.rate[r] > 0]
        assert reached(made, owner) <= spent * (1 + 1e-9), (owner, reached(made, owner), spent)
        if more == 0:
            assert spent == pytest.approx(stated[made.names[owner]], rel=1e-9)


def hockey_stick(mu, epsilon):
    """E[(1 - e^(ε - L))+] for a loss L with distribution N(μ²/2, μ²), for any real ε."""
    if mu == 0:
        return np.maximum(0.0, 1 - np.exp(epsilon))
    return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))


def largest_expected_worth(information, worth):
    """The largest expected `worth(t, loss)` over all rules that end a run after round t, given what was seen.

    Backwards from the last round: after each, the better of ending there and going on.
    """
    losses = np.linspace(-8.0, 16.0, 4801)
    value = worth(len(information) - 1, losses)
    for t in range(len(information) - 1, 0, -1):
        value = np.maximum(worth(t - 1, losses), expected_after_release(value, losses, information[t]))
    return float(np.interp(0.0, losses, expected_after_release(value, losses, information[0])))


def expected_after_release(value, losses, information):
    """The expectation of `value` after one more release, whose loss is N(v/2, v)."""
    step = losses[1] - losses[0]
    reach = np.arange(-int(10 * information**0.5 / step) - 1, int(10 * information**0.5 / step) + 2) * step
    weights = norm.pdf(reach, information / 2, information**0.5)
    moved = [np.interp(losses + by, losses, value) for by in reach]
    return np.tensordot(weights / weights.sum(), moved, 1)


def test_budgets_hold_even_if_the_end_of_a_run_depends_on_what_was_seen():
    """This choice can make the first run alone exceed its own ε, but not the sum of both runs."""
    granted, delta, releases = 2.0, 1e-3, 8
    information = np.full(releases, mu_of(granted, delta) ** 2 / releases)
    so_far = np.sqrt(np.cumsum(information))
    spent = epsilon_of(so_far, delta)
    left = [mu_of(granted - epsilon, delta) if granted - epsilon > 1e-9 else 0.0 for epsilon in spent]
    both = largest_expected_worth(information, lambda t, loss: hockey_stick(left[t], granted - loss))
    together = max(delta_of(float(np.hypot(a, b)), granted) for a, b in zip(so_far, left, strict=True))
    assert together * 0.9 < both <= together * (1 + 1e-3) <= 2 * delta
    alone = largest_expected_worth(information, lambda t, loss: hockey_stick(0.0, spent[t] - loss))
    assert alone > 1.5 * delta


def test_an_amendment_reports_settings_whose_account_excludes_such_a_choice(tmp_path):
    def remarks(*changes):
        before = SimpleNamespace(config=configurations.read(changes=changes))
        return " ".join(amending.round_choice_remarks(before))

    assert remarks() == remarks("data.batch={cycle=10}") == remarks("privacy.guarantee=worst-case") == ""
    assert "under Poisson samples" in remarks("data.batch={poisson=10}")
    made = ring(tmp_path, "method.name=plain", "privacy.guarantee=view")
    words = amend(
        made.setup.manifest, MembershipChange(round=LAST, remove=("fay",), links=(("ada", "eve"),))
    )[2]
    assert "under privacy.guarantee = view" in " ".join(words)


def test_remaining_rounds_do_not_count_averaging_steps(tmp_path):
    made = sharing(tmp_path, rounds=6, gossip=2)
    change = {"remove": ("fay",), "links": (("ada", "eve"),)}
    left = [
        amend(made.setup.manifest, MembershipChange(round=r, **change))[0].config.rounds for r in (2, 8, 19)
    ]
    assert left == [6, 4, 1]
