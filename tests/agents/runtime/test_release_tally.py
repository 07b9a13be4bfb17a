"""Tests of the tally of releases: it agrees with the account, and adds each release once."""

import math
from fractions import Fraction

import numpy as np
import pytest
from history import Wire, abandon, federation, sharing
from hypothesis import given
from hypothesis import strategies as st

from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_entries import ReleaseCost
from topdp.agents.runtime.budget_meter import ReleaseTally
from topdp.privacy.observers.worst_case import every_round

NUMBERS = st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=60)


@given(NUMBERS, st.integers(1, 7), st.integers(0, 4))
def test_a_tally_is_the_sum_of_the_largest_class_and_never_less(values, period, reserved):
    tally = ReleaseTally(period)
    for round, value in enumerate(values[:-1]):
        tally.add(round, value)
    found = tally.mu((len(values) - 1, values[-1]), reserved)
    tally.add(len(values) - 1, values[-1])
    assert found == tally.mu(reserved=reserved)
    exact = max(sum(map(Fraction, values[s::period]), Fraction(0)) for s in range(period))
    exact += reserved * Fraction(max(values))
    assert Fraction(found) ** 2 >= exact
    padded = np.concatenate([values, np.full(period, reserved * max(values))])
    assert found == pytest.approx(every_round(padded, period), rel=1e-13)


def test_a_release_without_noise_has_an_infinite_mu():
    tally = ReleaseTally()
    tally.add(0, 1.0)
    assert tally.mu((1, math.inf)) == math.inf
    tally.add(1, math.inf)
    assert tally.mu() == math.inf
    tally = ReleaseTally()
    tally.add(0, 1.5e308)
    assert tally.mu((1, 1.5e308)) == math.inf  # more than float64 can represent


@pytest.mark.parametrize("shares", [False, True])
def test_a_meter_adds_every_release_once(tmp_path, monkeypatch, shares):
    made = (sharing if shares else federation)(tmp_path, "data.batch={cycle=7}", rounds=12)
    meter, history, added = made.context(0).meter, [], []
    add = ReleaseTally.add
    monkeypatch.setattr(
        ReleaseTally, "add", lambda self, *release: added.append(release) or add(self, *release)
    )
    for round in range(13):
        cost = meter.cost(round, history, 0.0, float(meter.planned[round]), True)
        assert cost.worst_case == pytest.approx(
            meter.spending.worst_case([*history, (round, float(meter.planned[round]))]), rel=1e-12
        )
        history.append((round, cost.information))
    assert len(added) == 12 * (2 if shares else 1)
    again = list(history)  # as a restart reads it from the ledger
    assert meter.worst_case(again) == meter.worst_case(history)


def test_a_release_without_noise_stays_infinite_after_a_restart(tmp_path):
    made = federation(tmp_path, agents=3, rounds=2)
    ledger = Ledger(made.state(0), made.setup.manifest.hash, "ada")
    ledger.release(0, ReleaseCost(0.1, None, None), {"bob": b"row"}, b"state")
    ledger.close()
    agent = made.agent(0, Wire().transport("ada"), seeded=False)
    assert agent.loop.history == [(0, math.inf)]
    abandon(agent)
