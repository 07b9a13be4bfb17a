"""The method that follows from a job: it meets the budget in every job for which it is chosen."""

import numpy as np
import pytest

from topdp.privacy.answers import GUARANTEES
from topdp.runs import config
from topdp.runs.job_method import job_method
from topdp.runs.planning import plan_and_account
from topdp.runs.resolve import resolve


def job(agents, *changes):
    sizes = ["topology.kind=complete", f"topology.agents={agents}", "rounds=5", "privacy.clip=1.0"]
    return config.read(preset="auto", changes=[*sizes, "train.learning_rate=0.1", *changes])


@pytest.mark.parametrize(
    ("agents", "changes", "name"),
    [
        (2, [], "muffliato"),
        (3, [], "correlated"),
        (4, ["privacy.colluders=2"], "correlated"),
        (4, ["privacy.colluders=3"], "muffliato"),
        (9, ["privacy.guarantee=worst-case"], "muffliato"),
        (9, ["robust.rule=trimmed"], "muffliato"),
        (9, ["method.mode=async"], "plain"),
        (9, ["privacy.guarantee=claimed"], "plain"),
    ],
)
def test_the_method(agents, changes, name):
    assert job_method(job(agents, *changes), agents) == name


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("agents", [2, 3, 5])
def test_it_meets_the_budget(agents, guarantee, mode):
    wanted = job(agents, f"privacy.guarantee={guarantee}", f"method.mode={mode}")
    _, account = plan_and_account(resolve(wanted, counts=(200,) * agents))
    epsilon = account.answer(guarantee).epsilon
    assert epsilon is not None and np.max(epsilon) <= 1.0 + 1e-9


def test_a_single_agent_trains_alone():
    assert job_method(job(3), 1) == "central"
