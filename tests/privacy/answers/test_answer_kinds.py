"""Every privacy answer is one frozen object that states its observer, its assumptions and what it covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import FrozenInstanceError, fields, is_dataclass
from inspect import isabstract

import numpy as np
import pytest

from topdp import topology
from topdp.plan import Batches, Cycle, Full, Plan, Poisson, prune, schedules
from topdp.privacy.accounting import account
from topdp.privacy.answers import (
    ANSWERS,
    BY_RANK,
    GUARANTEES,
    ON_REQUEST,
    AnswerKind,
    Status,
    answer_kind,
    guarantee_kind,
)
from topdp.privacy.basics.refusals import PrivacyError
from topdp.privacy.noise_calibration import calibrate
from topdp.privacy.published.claims import Analysis
from topdp.privacy.query import DEFAULT_QUERY
from topdp.privacy.spending_curve import spending
from topdp.protocols import TopSynchronous

AGENTS = 5
DELTA = 1e-5
KINDS = pytest.mark.parametrize("kind", ANSWERS.values(), ids=list(ANSWERS))


def plan(deviation: Sequence[float] = (5.0,) * AGENTS) -> Plan:
    rates = schedules.learning_rates(0.3, 3, "linear")
    schedule = schedules.schedule(rates, np.ones(4), "gradient")
    return TopSynchronous(0.5).plan(topology.ring(AGENTS), schedule, np.asarray(deviation), seed=0)


def analysis(batches: Batches, calibration: str = "tight", adjacency: str = "add-remove") -> Analysis:
    return Analysis(calibration, (batches,) * AGENTS, clip=20.0, adjacency=adjacency)


@KINDS
def test_an_answer_is_frozen_and_final_and_has_no_fields(kind):
    assert is_dataclass(kind) and not fields(kind) and not isabstract(type(kind))
    assert type(kind).__final__
    for name in ("name", "proved", "anything"):
        with pytest.raises(FrozenInstanceError):
            setattr(kind, name, "view")
    assert {kind: 1}[kind] == 1 and kind == answer_kind(kind.name)


@KINDS
def test_an_answer_states_its_name_observer_and_assumptions(kind):
    assert ANSWERS[kind.key] is kind is answer_kind(kind.key)
    assert kind.key.isidentifier() and kind.label.replace(" ", "-") == kind.name
    assert kind.assumptions.endswith(".") and kind.scope and not kind.scope.endswith(".")
    assert all(kind.against(colluders) for colluders in (0, 1, 3))
    assert (kind.against(1) != kind.against(3)) == kind.counts_colluders


def test_lists_of_answers_follow_from_the_objects():
    assert [kind.rank for kind in BY_RANK] == list(range(len(ANSWERS)))
    assert [kind.proved for kind in BY_RANK] == sorted((kind.proved for kind in BY_RANK), reverse=True)
    for kind in ANSWERS.values():
        assert (kind.name in GUARANTEES) == kind.takes_budget
        assert (kind.name in ON_REQUEST) == kind.on_request
        if kind.takes_budget:
            assert guarantee_kind(kind.name) is kind
        else:
            with pytest.raises(PrivacyError, match="Expected guarantee"):
                guarantee_kind(kind.name)
    with pytest.raises(PrivacyError, match="Expected an answer among"):
        answer_kind("anything")


@KINDS
@pytest.mark.parametrize("batches", [Full(20), Cycle(20, 5), Poisson(20, 5)], ids=lambda each: each.kind)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_an_account_has_a_number_exactly_where_the_answer_covers_adjacency_and_batches(
    kind, batches, adjacency
):
    uses = analysis(batches, adjacency=adjacency)
    asked = [kind.name] if kind.on_request else []
    answer = account(plan(), uses, DELTA, answers=asked).answers[kind.key]
    reason = kind.covers(uses)
    assert (answer.status is Status.REFUSED) == (reason is not None) and answer.reason == reason
    assert reason is None or (batches.sampled and adjacency == "replace-one" and not kind.proved)


@pytest.mark.parametrize("calibration", ["udp", "advanced", "theorem1"])
def test_a_claim_covers_only_batches_that_its_calibration_covers(calibration):
    claimed = ANSWERS["claimed"]
    assert claimed.covers(analysis(Cycle(20, 5), calibration)) is None
    sampled = analysis(Poisson(20, 5), calibration)
    reason = claimed.covers(sampled)
    assert reason.startswith(f"Calibration '{calibration}' with Poisson batches: ")
    assert account(plan(), sampled, DELTA).claimed.reason == reason


@KINDS
def test_an_answer_supports_a_plan_or_states_the_reason(kind):
    assert kind.supports(plan(), DEFAULT_QUERY) is None
    assert kind.supports(prune(plan()), DEFAULT_QUERY)
    assert kind.work(plan(), DEFAULT_QUERY) >= 0 and kind.curve_seconds(plan(), DEFAULT_QUERY) > 0


@KINDS
def test_the_last_value_of_a_spending_curve_is_the_account(kind: AnswerKind):
    uses = analysis(Full(20))
    if not kind.takes_budget:
        with pytest.raises(PrivacyError, match="Expected guarantee"):
            spending(plan(), uses, 0, DELTA).curve(kind.name)
        return
    asked = [kind.name] if kind.on_request else []
    found = account(plan(), uses, DELTA, answers=asked).answers[kind.key]
    curve = spending(plan(), uses, 0, DELTA).curve(kind.name)
    assert curve[-1] == pytest.approx(found.epsilon[0], rel=1e-9)
    assert (np.diff(curve) >= 0).all()


@pytest.mark.parametrize("name", GUARANTEES)
def test_every_guarantee_can_be_met(name):
    uses = analysis(Full(20))
    noise = calibrate(plan, uses, name, np.ones(AGENTS), DELTA)
    met = account(plan(noise.deviation), uses, DELTA, guarantee=name).answer(name)
    assert 0.99 < met.largest <= 1 + 1e-9
