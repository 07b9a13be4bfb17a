"""Robust rules in plans: they are saved, loaded and hashed, and rejected where they make no sense."""

import json
from dataclasses import replace

import numpy as np
import pytest

from builders import PROTOCOLS, constant_schedule
from topdp import topology
from topdp.plan import Optimiser, PlanError, Robust, describe, load, optimised, prune, save
from topdp.protocols import Alone, Central, Dsgd, Muffliato

GRAPH = topology.random(10, 0.4, 1)


def plan_of(protocol, optimiser=None, graph=GRAPH):
    schedule = constant_schedule(4)
    plan = protocol.plan(graph, schedule, np.ones(graph.agents), 0)
    return optimised(plan, optimiser, schedule.rate) if optimiser else plan


def test_the_digest_and_the_file_contain_the_robust_rule(tmp_path):
    plain = plan_of(Dsgd())
    plans = [plain, *(replace(plain, robust=Robust(rule)) for rule in ("clipped", "trimmed", "nearest"))]
    plans += [replace(plain, robust=Robust("trimmed", 2)), replace(plain, robust=Robust("clipped", 1, 0.5))]
    assert len({plan.digest() for plan in plans}) == len(plans)
    for number, plan in enumerate(plans):
        save(plan, tmp_path / f"{number}.npz")
        again = load(tmp_path / f"{number}.npz")
        assert again.robust == plan.robust and again.digest() == plan.digest()
    assert "trimmed" in describe(plans[2]) and "Robust" not in describe(plain)


def test_older_versions_cannot_read_a_file_with_a_robust_rule(tmp_path):
    """Otherwise they would take the plan for a linear one, and account for it as such."""
    save(replace(plan_of(Dsgd()), robust=Robust("clipped")), tmp_path / "plan.npz")
    with np.load(tmp_path / "plan.npz") as file:
        assert json.loads(str(file["meta"]))["format"] != 1


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if name != "alone"])
@pytest.mark.parametrize("optimiser", [None, Optimiser("momentum", average=0.5)], ids=["sgd", "momentum"])
def test_rules_that_compare_rows_are_rejected_if_an_agent_mixes_one_received_row(name, optimiser):
    make = PROTOCOLS[name]
    protocol = make(0.5, chebyshev=False) if hasattr(make(0.5), "gossip") else make(0.5)
    plan = plan_of(protocol, optimiser)
    assert replace(plan, robust=Robust("clipped", radius=1.0)).robust
    one_at_a_time = name.split("-")[0] in ("plain", "top")
    for rule in ("clipped", "trimmed", "nearest"):
        if one_at_a_time:
            with pytest.raises(PlanError, match="got one at a time in"):
                replace(plan, robust=Robust(rule))
        else:
            assert prune(replace(plan, robust=Robust(rule))).robust


def test_plans_without_a_robust_form_and_invalid_rules_are_rejected():
    with pytest.raises(PlanError, match="chebyshev = false"):
        replace(plan_of(Muffliato(gossip=3)), robust=Robust("trimmed"))
    with pytest.raises(PlanError, match="none in central"):
        replace(plan_of(Central(), graph=topology.single()), robust=Robust("trimmed"))
    with pytest.raises(PlanError, match="none in alone"):
        replace(plan_of(Alone()), robust=Robust("clipped", radius=1.0))
    with pytest.raises(ValueError, match="radius"):
        Robust("trimmed", radius=2.0)
    with pytest.raises(ValueError, match="hostile >= 1, got 0"):
        Robust("trimmed", hostile=0)
