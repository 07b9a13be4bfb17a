"""Tests of a budget that ends before the plan: noise continues, data stop, and all ledgers are correct."""

import pytest
import torch
from history import Wire, faults, federation, live, on_virtual_time
from symbolic import symbolic

from topdp import topology
from topdp.agents.agreement import run_setup as setups
from topdp.agents.agreement.manifest import new_manifest
from topdp.agents.development import development_hooks
from topdp.agents.ledger.ledger import Ledger
from topdp.runs.config import parse
from topdp.runs.run_outline import analysis_of

pytestmark = pytest.mark.usefixtures("quick")


def read_ledger(made, number):
    ledger = Ledger(made.state(number), writable=False)
    entries, stopped = list(ledger.entries()), ledger.stopped_at
    ledger.close()
    return entries, stopped


def ring(tmp_path, *changes, granted=100.0, rounds=10):
    """Noise for ε = 1 and budgets far above it, so that only agents with an own budget stop."""
    changes = ("privacy.epsilon=1.0", "method.offline=0.0", *changes)
    made = federation(tmp_path, *changes, graph=topology.ring(6), rounds=rounds)
    terms = made.setup.manifest
    tree = terms.config.model_dump(exclude_none=True)
    tree["privacy"]["epsilon"] = granted
    links = [(terms.names[i], terms.names[j]) for i, j in terms.links]
    made.setup = setups.RunSetup.of(new_manifest(terms.cards, links, parse(tree, "test"), terms.rules))
    return symbolic(made)


def truth(made, agent, estimates=False):
    analysis = analysis_of(made.setup.manifest.config, made.setup.counts)
    return made.epsilon(agent, float(analysis.exposure().sensitivity[agent]), 1e-5, estimates)


CASES = {
    "sync, .125": ("sync", "top", 0.125, 0.8, 6),  # its own ledger was 4.7% too low when it fell silent
    "sync, .03": ("sync", "top", 0.03, 0.5, 12),
    "sync, plain": ("sync", "plain", 0.03, 0.5, 6),  # 2% too low on the other side of the ring
    "pairs, .03": ("async", "top", 0.03, 0.5, 12),  # 70%
    "pairs, plain": ("async", "plain", 0.125, 0.5, 12),  # 22%
}


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["adaptive", "view"])
@pytest.mark.parametrize("case", CASES)
def test_ledgers_bound_the_true_loss_when_one_agent_has_a_smaller_budget(tmp_path, case, guarantee):
    mode, method, alpha, own, rounds = CASES[case]
    changes = (f"method.mode={mode}", f"method.name={method}", f"method.alpha={alpha}")
    made = ring(tmp_path, *changes, f"privacy.guarantee={guarantee}", rounds=rounds)
    public = guarantee == "adaptive"
    run = made.lived(options={0: {"epsilon": own}})
    assert faults(run) == []
    assert {i: outcome.code for i, outcome in run.outcomes.items()} == {i: 0 if i else 3 for i in range(6)}
    for agent in range(6):
        entries, stopped = read_ledger(made, agent)
        assert made.taken[agent] == list(range(rounds + 1 if stopped is None else stopped))
        assert truth(made, agent, public) <= entries[-1].total * (1 + 1e-9)
        assert run.outcomes[agent].result["spent"]["charged_by"] == guarantee
    entries, stopped = read_ledger(made, 0)
    assert 0 < stopped < rounds and entries[-1].total == entries[stopped - 1].total <= own
    assert entries[-1].total == pytest.approx(truth(made, 0, public), rel=1e-4)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_worst_case_counts_the_rounds_that_data_entered(tmp_path, mode):
    made = ring(tmp_path, f"method.mode={mode}", "method.name=top")
    made.lived(options={0: {"epsilon": 0.6}})
    entries, stopped = read_ledger(made, 0)
    spending = made.context(0).meter.spending
    expected = spending.worst_case([(r, spending.information[r]) for r in range(stopped)])
    assert made.taken[0] == list(range(stopped))
    assert entries[-1].total == pytest.approx(expected, rel=1e-12) and truth(made, 0) <= expected
    assert [entry.worst_case for entry in entries[stopped:]] == [entries[-1].total] * (11 - stopped)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A ring in which one agent has an own budget, and the ledger of that agent."""
    made = ring(tmp_path_factory.mktemp("unbroken"), "privacy.guarantee=view", "method.name=top")
    made.lived(options={0: {"epsilon": 0.6}})
    return made, *read_ledger(made, 0)


# All points in the round in which the budget ends; points around the ledger in the rounds before and after.
AROUND = [(place, 0) for place in development_hooks.ROUND_POINTS] + [
    (place, around) for around in (-1, 1) for place in ("before_ledger", "in_ledger", "after_ledger")
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("place", "around"), AROUND)
def test_a_crash_around_the_end_of_the_budget_neither_spends_twice_nor_resumes_data(
    tmp_path, unbroken, place, around
):
    """This holds after a start with another budget too: the end stays."""
    made, unkilled, stopped = unbroken
    made = symbolic(made)
    made.folder = tmp_path / "killed"
    each = {"before_send": 2, "after_send": 2, "before_receive": 2, "after_receive": 2}.get(place, 1)
    run = made.lived(
        failpoints={0: f"{place}:{each * (stopped + around) + 1}"},
        options={0: {"epsilon": 0.6}},
    )
    assert faults(run) == [] and run.starts[0] == 2
    killed, again = read_ledger(made, 0)
    assert again == stopped and set(made.taken[0]) == set(range(stopped))
    assert [(e.kind, e.charge, e.total) for e in killed] == [(e.kind, e.charge, e.total) for e in unkilled]


def test_a_restart_without_the_option_keeps_the_own_budget_and_admits_no_data(tmp_path):
    made = federation(tmp_path, "privacy.epsilon=2.0", agents=3, rounds=8)
    own = {"epsilon": 1.0}
    on_virtual_time(live(made, options={0: own}))
    entries, stopped = read_ledger(made, 0)
    assert 0 < stopped < 7

    made.folder = tmp_path / "again"
    wishes = iter([own, {}])

    class Starts(dict):
        def get(self, number, default=None):
            return next(wishes) if number == 0 else {}

    run = on_virtual_time(live(made, failpoints={0: f"after_ledger:{stopped + 1}"}, options=Starts({0: own})))
    assert faults(run) == [] and run.starts[0] == 2 and run.outcomes[0].code == 3
    again, where = read_ledger(made, 0)
    assert where == stopped and [e.kind for e in again] == [e.kind for e in entries]
    assert run.outcomes[0].result["budget"] == 1.0  # the first choice stays


@pytest.mark.parametrize(("batch", "own"), [("{cycle=7}", 1.95), ("{poisson=10}", 1.2)])
def test_batches_are_not_read_once_the_budget_has_ended(tmp_path, batch, own, monkeypatch):
    made = federation(
        tmp_path, f"data.batch={batch}", "method.name=plain", "privacy.epsilon=2.0", agents=3, rounds=9
    )
    from topdp.agents.runtime.agent_gradients import AgentGradients

    read, original = [], AgentGradients._records_of
    monkeypatch.setattr(
        AgentGradients,
        "_records_of",
        lambda self, round: read.append((self.agent, round)) or original(self, round),
    )
    monkeypatch.setattr(AgentGradients, "order_digest", lambda self, key: "the same")
    on_virtual_time(live(made, options={0: {"epsilon": own}}))
    _, stopped = read_ledger(made, 0)
    assert 0 < stopped < 9 and [r for agent, r in read if agent == 0] == list(range(stopped))


@pytest.mark.parametrize("method", ["plain", "top"])
def test_live_pairing_continues_without_data_after_the_budget_ends(tmp_path, method):
    made = federation(
        tmp_path,
        "method.mode=async",
        f"method.name={method}",
        "privacy.epsilon=2.0",
        graph=topology.complete(6),
        rounds=12,
    )
    options = {i: {"live_pairing": True, "seeded": False} for i in range(6)}
    options[0]["epsilon"] = 0.8
    run = on_virtual_time(live(made, wire=Wire(delay=0.05), options=options))
    assert faults(run) == [] and run.outcomes[0].code == 3 and run.outcomes[0].finished
    entries, stopped = read_ledger(made, 0)
    assert 0 < stopped < 12 and len(entries) == 13
    assert all(entry.kind == "noise" and entry.charge == 0 for entry in entries[stopped:])
    ledger = Ledger(made.state(0), writable=False)
    late = ledger.database.rows("SELECT id FROM pairs WHERE status = 'committed' AND applied > ?", stopped)
    ledger.close()
    assert late, "exchanges must continue after the budget has ended"
    assert entries[-1].total == pytest.approx(entries[-1].worst_case, rel=1e-12)
    assert entries[-1].total <= 0.8 and torch.isfinite(made.estimates()).all()


@pytest.mark.parametrize("own", [None, 0.5], ids=["up to the end", "with an own budget"])
@pytest.mark.parametrize("method", ["correlated", "muffliato"])
def test_averaging_steps_cost_nothing_read_no_data_and_ledgers_are_correct(tmp_path, method, own):
    changes = (f"method.name={method}", "method.gossip=2", "method.secrets_degree=4")
    made = ring(tmp_path, *changes, "privacy.guarantee=adaptive", rounds=5)
    run = made.lived(options={0: {"epsilon": own}})
    assert faults(run) == []
    for agent in range(6):
        entries, stopped = read_ledger(made, agent)
        noisy = [entry.round for entry in entries if entry.round % 3 == 0]
        assert len(entries) == 18 and made.taken[agent] == [
            r for r in noisy if stopped is None or r < stopped
        ]
        for entry in entries:
            assert bool(entry.digests) == (entry.round % 3 < 2), "the last averaging step is not sent"
            assert entry.round % 3 == 0 or entry.charge == entry.information == 0
        assert truth(made, agent, True) <= entries[-1].total * (1 + 1e-9)
        assert entries[-1].total == pytest.approx(truth(made, agent, True), rel=1e-3)
    assert (
        run.outcomes[0].code == (0 if own is None else 3)
        and made.results()[1]["spent"]["epsilon"] <= 1 + 1e-9
    )
