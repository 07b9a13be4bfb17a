"""Tests of the budget meter: an agent knows each charge before it sends, and stops within its budget."""

import math
from dataclasses import replace

import numpy as np
import pytest
from history import faults, federation, live, on_virtual_time

from builders import cyclic_pairs
from topdp import topology
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_entries import ReleaseCost
from topdp.agents.runtime.budget_meter import allows, build_meter
from topdp.privacy.accounting import account
from topdp.privacy.basics.refusals import PrivacyError
from topdp.privacy.observers import gram_matrix
from topdp.privacy.observers import view as views
from topdp.privacy.query import Query
from topdp.runs.run_outline import analysis_of

pytestmark = pytest.mark.usefixtures("quick")


def read_ledger(made, number):
    ledger = Ledger(made.state(number), writable=False)
    entries, meta = list(ledger.entries()), dict(ledger.meta)
    ledger.close()
    return entries, meta


def sent_to(made, number, round):
    return [made.names[to] for to in made.context(number).part.sent_rows(round)]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_agent_with_a_quarter_of_the_budget_stops_with_code_3_and_the_others_finish(tmp_path, mode):
    made = federation(
        tmp_path,
        f"method.mode={mode}",
        "privacy.epsilon=2.0",
        "method.offline=0.0",
        graph=topology.complete(6),
        rounds=12,
    )
    quarter = made.setup.budget(2) / 4
    run = on_virtual_time(live(made, options={2: {"epsilon": quarter}}))
    assert {i: outcome.code for i, outcome in run.outcomes.items()} == {
        i: 3 if i == 2 else 0 for i in range(6)
    }
    assert faults(run) == []
    entries, meta = read_ledger(made, 2)
    stopped = int(meta["stopped"])
    assert 0 < stopped < 12 and len(entries) == 13
    assert entries[stopped - 1].total <= quarter < entries[stopped - 1].total * 2.5
    assert all(entry.kind == "noise" and entry.charge == 0 for entry in entries[stopped:])
    assert all(set(entry.digests) == set(sent_to(made, 2, entry.round)) for entry in entries)
    assert [entry for entry in read_ledger(made, 0)[0] if entry.kind != "release"] == []
    assert run.outcomes[2].result["stopped_at"] == stopped
    assert all(result["spent"]["epsilon"] <= 2.0 * (1 + 1e-9) for result in made.results())


def test_the_checker_detects_data_after_the_end_of_the_budget(tmp_path):
    made = federation(tmp_path, "privacy.epsilon=2.0", agents=3, rounds=6)
    run = on_virtual_time(live(made, options={0: {"epsilon": 1.2}}))
    assert faults(run) == []
    ledger = Ledger(made.state(0), made.setup.manifest.hash, "ada")
    stopped = ledger.stopped_at
    found = {}
    for round in (stopped - 1, stopped + 1):
        ledger.stop_data(round)
        found[round] = faults(run)
    ledger.close()
    assert 0 < stopped < 6 and found == {
        stopped - 1: [
            "ada: Facts of the run are impossible: stopped, and data entered later.",
            f"ada charged a release in round {stopped - 1}, its budget ended at {stopped - 1}",
        ],
        stopped + 1: [f"ada charged a noise in round {stopped}, its budget ended at {stopped + 1}"],
    }


SHARED = ("correlated", "method.secrets_degree=4", "method.gossip=1")


CHARGED = [
    *[(("top",), name) for name in ("adaptive", "adaptive by 2", "view", "worst-case", "claimed")],
    (("muffliato", "method.gossip=1"), "adaptive"),
    *[(SHARED, name) for name in ("adaptive", "adaptive by 2", "worst-case")],
    (("top", "method.noise_on=estimate", "method.calibration=theorem1"), "claimed"),
]
"""Each entry runs with one kind of batch; Poisson samples, which take longest, with each way of charging."""
SAMPLED = [(("top",), "adaptive"), (("top",), "claimed"), (SHARED, "adaptive by 2"), (SHARED, "worst-case")]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("method", "guarantee", "batch"),
    [
        *[(*one, batch) for one, batch in cyclic_pairs(CHARGED, ["{cycle=10}", '"full"'], 1)],
        *[(*one, "{poisson=10}") for one in SAMPLED],
    ],
)
def test_the_total_of_all_charges_agrees_with_the_account(tmp_path, method, guarantee, batch):
    guarantee, _, colluders = guarantee.partition(" by ")
    name, *settings = method
    made = federation(
        tmp_path,
        f"method.name={name}",
        *settings,
        f"privacy.guarantee={guarantee}",
        f"privacy.colluders={colluders or 1}",
        f"data.batch={batch}",
        "privacy.epsilon=1.0",
        graph=topology.random(6, 0.5, 1),
        rounds=9,
    )
    analysis = analysis_of(made.setup.manifest.config, made.setup.counts)
    asked = [guarantee] if guarantee in ("adaptive", "view") else []
    whole = account(
        made.setup.plan, analysis, 1e-5, answers=asked, query=Query(colluders=int(colluders or 1))
    )
    said = whole.answer(guarantee).epsilon
    assert said.max() == pytest.approx(1.0, rel=1e-3)
    for agent in range(6):
        meter = made.context(agent).meter
        total, history, totals = 0.0, [], []
        for r in range(made.setup.plan.releases):
            cost = meter.cost(r, history, total, float(meter.planned[r]), True)
            assert allows(made.setup.budget(agent), total, cost)
            total += cost.charge
            history.append((r, cost.information))
            totals.append(total)
        assert total == pytest.approx(said[agent], rel=1e-6)
        assert totals == sorted(totals) and totals[0] > 0


@pytest.mark.parametrize("batch", ['"full"', "{cycle=10}"])
def test_the_short_computation_for_long_plans_gives_the_same_charges(tmp_path, monkeypatch, batch):
    graph = topology.random(6, 0.5, 1)
    made = federation(tmp_path, f"data.batch={batch}", graph=graph, rounds=60, guarantee="view")
    whole = build_meter(made.setup, 0).by_plan
    monkeypatch.setattr(views, "LONG_PLAN_RELEASES", 10)
    monkeypatch.setattr(gram_matrix, "ROUNDS_PER_BLOCK", 8)
    near = build_meter(made.setup, 0).by_plan
    np.testing.assert_allclose(near, whole, rtol=1e-6)
    assert (near >= whole * (1 - 1e-7)).all()  # both contain bounds on their own rounding


def test_charges_for_poisson_batches_increase_up_to_the_account(tmp_path):
    made = federation(tmp_path, "data.batch={poisson=10}", "method.name=plain", agents=3, rounds=5)
    analysis = analysis_of(made.setup.manifest.config, made.setup.counts)
    meter = build_meter(made.setup, 0)
    history = [(r, float(meter.planned[r])) for r in range(6)]
    curve = [meter.worst_case(history[: r + 1]) for r in range(6)]
    said = account(made.setup.plan, analysis, 1e-5).worst_case.epsilon[0]
    assert curve == sorted(curve) and curve[-1] == pytest.approx(said, rel=1e-6)


def test_releases_without_data_cost_nothing_unless_the_plan_was_departed_from(tmp_path):
    meter = build_meter(federation(tmp_path, "privacy.guarantee=view", agents=4, rounds=4).setup, 0)
    history = [(r, float(meter.planned[r])) for r in range(3)]
    worst = meter.worst_case(history)
    assert meter.cost_without_data(history, 0.5 * worst, planned=True) == ReleaseCost(0.0, worst, 0.0)
    late = meter.cost_without_data(history, 0.3 * worst, planned=False)
    assert 0.3 * worst + late.charge >= worst and late.charge == pytest.approx(0.7 * worst)
    assert (
        meter.cost_without_data(history, worst, planned=False).charge
        == 0
        == meter.cost_without_data([], 0.0, False).charge
    )


@pytest.mark.parametrize("guarantee", ["adaptive", "view", "claimed"])
def test_agents_that_do_not_wait_for_neighbours_are_charged_by_worst_case(tmp_path, guarantee):
    made = federation(tmp_path, f"privacy.guarantee={guarantee}", agents=4, rounds=4)
    assert build_meter(made.setup, 0).by_plan is not None
    going_on = made.setup.manifest.rules.model_copy(update={"dead_neighbour": "go-on"})
    setup = replace(made.setup, manifest=replace(made.setup.manifest, rules=going_on))
    assert build_meter(setup, 0).by_plan is None


def test_agents_charge_by_the_adaptive_answer_by_default(tmp_path):
    made = federation(tmp_path, "privacy.epsilon=1.0", agents=4, rounds=4, guarantee=None)
    run = on_virtual_time(live(made))
    assert faults(run) == []
    for number, result in enumerate(made.results()):
        spent = result["spent"]
        assert (spent["charged_by"], spent["colluders"]) == ("adaptive", 1) and result["code"] == 0
        assert spent["epsilon"] == read_ledger(made, number)[0][-1].total == pytest.approx(1.0, rel=0.1)
        assert spent["epsilon"] < spent["worst_case"]


def test_a_charge_that_would_exceed_the_budget_is_not_allowed():
    assert allows(1.0, 0.75, ReleaseCost(0.25)) and not allows(1.0, 0.75, ReleaseCost(0.26))
    assert not allows(1.0, 0.0, ReleaseCost(math.inf))


def test_rows_without_noise_are_refused_before_anything_is_sent(tmp_path):
    made = federation(tmp_path, agents=3, rounds=2)
    silent = replace(made.setup.plan, scale=np.zeros_like(made.setup.plan.scale))
    with pytest.raises(PrivacyError, match="Expected noise in every row"):
        build_meter(replace(made.setup, plan=silent), 0)
