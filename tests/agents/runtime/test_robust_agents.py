"""Tests of robust rules of agents: they mix as the simulator does, and far rows are reported and left out."""

import logging

import numpy as np
import pytest
import torch
from history import faults, federation, live, on_virtual_time, sharing

from topdp import topology
from topdp.agents.runtime import planned_loop
from topdp.agents.runtime.row_monitor import RowMonitor
from topdp.agents.wire import row_payload
from topdp.agents.wire.link_refusals import RefusalLog
from topdp.errors import InputError

pytestmark = pytest.mark.usefixtures("quick")

GRAPH = topology.random(6, 0.7, 1)
DSGD, MUFFLIATO = ("method.name=dsgd",), ("method.name=muffliato", "method.gossip=2")
CASES = {
    "clipped": (*MUFFLIATO, "robust.rule=clipped", "train.optimiser=momentum"),
    "clipped in pairs": ("method.name=top", "method.mode=async", "robust.rule=clipped", "robust.radius=0.2"),
    "trimmed": (*DSGD, "robust.rule=trimmed"),
    "nearest": (*MUFFLIATO, "robust.rule=nearest", "robust.hostile=2", "train.optimiser=adam"),
}


def close(made, dtype=torch.float32):
    torch.testing.assert_close(made.estimates(), made.simulated(dtype), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_agents_mix_robustly_as_the_simulator_does(tmp_path, name):
    # Adam divides by small numbers, which enlarges the rounding of float32, so this case uses float64.
    dtype = "float64" if "train.optimiser=adam" in CASES[name] else "float32"
    made = federation(tmp_path, *CASES[name], graph=GRAPH, rounds=5, guarantee="adaptive", dtype=dtype)
    assert made.setup.plan.robust is not None
    run = on_virtual_time(live(made))
    close(made, getattr(torch, dtype))
    assert faults(run) == []
    assert {result["spent"]["charged_by"] for result in made.results()} == {"adaptive"}
    assert all(result["spent"]["epsilon"] <= 50 * (1 + 1e-6) for result in made.results())


def test_agents_with_pair_noise_mix_robustly_as_the_simulator_does(tmp_path):
    made = sharing(tmp_path, "robust.rule=trimmed", graph=GRAPH, gossip=1, rounds=3)
    on_virtual_time(live(made))
    close(made)


def far(watch, *distances, round=0):
    rows = {f"peer{k}": torch.full((4,), away / 2.0) for k, away in enumerate(distances)}
    return watch.find_far(round, torch.zeros(4), rows)


def test_far_rows_are_counted_logged_once_and_left_out_by_the_rule(caplog):
    caplog.set_level(logging.WARNING)
    watch = RowMonitor(RefusalLog("ant"), largest_drift=8.0)
    assert far(watch, 1.0, 1.2, 0.8, 6.0) == [] and watch.drifts["peer3"] == pytest.approx(6 / 1.1)
    assert far(watch, 1.0, 1.2, 0.8, 60.0) == ["peer3"] == far(watch, 1.0, 1.2, 0.8, 60.0)
    assert watch.refusals.counts == {("peer3", "drift"): 3}
    assert [record.event for record in caplog.records] == ["drift"]


def test_a_jump_is_logged_if_there_are_no_other_rows_to_compare_with(caplog):
    caplog.set_level(logging.WARNING)
    watch = RowMonitor(RefusalLog("ant"))
    for round in range(5):
        assert far(watch, 1.0 + round / 10, round=round) == []
    assert not caplog.records and far(watch, 30.0, round=5) == []
    assert [record.event for record in caplog.records] == ["jump"]


@pytest.mark.parametrize("limited", [False, True])
def test_a_hostile_agent_is_reported_and_left_out_if_drifts_are_limited(tmp_path, monkeypatch, limited):
    """It follows the protocol, but its rows are large, within the limit of norms."""
    made = federation(
        tmp_path, *DSGD, graph=topology.complete(5), rounds=6, largest_drift=6.0 if limited else 0.0
    )
    hostile, honest = made.setup.manifest.names[0], list(range(1, 5))
    encode, number = row_payload.encode, iter(range(10**6))
    release = planned_loop.PlannedLoop._release

    def forged(self, round, kind, cost, bodies, *others, **more):
        if self.name == hostile:
            row = np.full(len(self.context.start), 1e3 + next(number), np.float32)
            bodies = dict.fromkeys(bodies, encode(row))
        release(self, round, kind, cost, bodies, *others, **more)

    reports = []
    monkeypatch.setattr(planned_loop.PlannedLoop, "_release", forged)
    monkeypatch.setattr(
        RefusalLog, "report", lambda self, peer, kind, words, *more: reports.append((self.name, peer, kind))
    )
    on_virtual_time(live(made))
    assert {(peer, kind) for name, peer, kind in reports if name != hostile} == {(hostile, "drift")}
    assert all(set(made.results()[agent]["suspects"]) == {hostile} for agent in honest)
    norms = made.estimates()[honest].norm(dim=1)
    departed = {made.results()[agent]["departed"] is not None for agent in honest}
    if limited:
        assert (norms < 50).all() and departed == {True}
    else:
        assert (norms > 200).all() and departed == {False}


def test_attacks_rounded_rows_and_robust_live_pairing_are_refused(tmp_path):
    with pytest.raises(InputError, match="real agents"):
        federation(tmp_path, *DSGD, "attack.name=sign-flip")
    with pytest.raises(InputError, match="real agents"):
        federation(tmp_path, *DSGD, "train.rows=bfloat16")
    changes = ("method.mode=async", "method.name=plain", "robust.rule=clipped", "robust.radius=1.0")
    made = federation(tmp_path, *changes, agents=3, rounds=2)
    with pytest.raises(ExceptionGroup) as refused:
        on_virtual_time(live(made, options={i: {"live_pairing": True} for i in range(3)}))
    assert all("live pairing" in str(one) for one in refused.value.exceptions)
