"""What is known of a setting before training: its noise, every answer to "how private?", what it sends.

Puts together what calibrates, accounts and recommends; computes nothing of that itself. What takes long comes
last: `stages` hands out what is known so far, and what is not is said to be not computed yet.

**Guarantees.** The noise and the answers are those that a run of the configuration has, and writes into its
privacy.json: to the last bit, or, with an `ObserverCache`, but for rounding. Nothing is guessed: a number is
that of the plan, or there is none. `sigma_at_most` is enough noise: that of the worst case, which covers all;
then that of a quick bound on the answer that the budget is on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from topdp.base.progress import Progress, silent
from topdp.errors import InputError, TopdpError
from topdp.plan import Plan
from topdp.privacy.accounting import Account, with_answer
from topdp.privacy.answers import ANSWERS, WORST_CASE, AnswerKind, answer_kind
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.noise_calibration import calibrate
from topdp.privacy.observers.view import Bound, View
from topdp.privacy.query import Observe, Query, observe
from topdp.privacy.residual_noise import residual_noise
from topdp.runs.config import RunConfig
from topdp.runs.named_records import record_counts
from topdp.runs.planner.answer_time import INSTANT_SECONDS, QUICK_BOUND_SECONDS, seconds
from topdp.runs.planner.observer_cache import ObserverCache
from topdp.runs.planner.plan_traffic import traffic
from topdp.runs.planner.planner_limits import COMMAND, PlannerLimits
from topdp.runs.planner.row_size import numbers_in_a_row
from topdp.runs.planning import plan_and_account, powers, query_of
from topdp.runs.recommend import Recommendation, pooled_noise, recommend
from topdp.runs.resolve import resolve_outline
from topdp.runs.resolved_run import ResolvedRun
from topdp.runs.run_outline import RunOutline

NOT_YET = "not computed yet"
"""The status of an answer that takes longer."""

QUICKEST_FIRST = [kind for kind in reversed(ANSWERS.values()) if kind.on_request]
"""The answers that look at observers, what is usually quickest first."""


@dataclass(frozen=True)
class PlannerQuestion:
    """A configuration as it was `asked`, what it means, and the limits within which it is answered."""

    asked: RunConfig
    run: ResolvedRun
    limits: PlannerLimits

    @classmethod
    def of(cls, config: RunConfig, limits: PlannerLimits = COMMAND) -> PlannerQuestion:
        """Raise what cannot be run, or is too large to be planned."""
        limits.check(config)
        outline = RunOutline.of(config)
        limits.check_graph(config, outline.graph)
        return cls(config, resolve_outline(outline, record_counts(outline)), limits)


def plan_answers(
    config: RunConfig,
    quick: bool = False,
    progress: Progress = silent,
    memory: ObserverCache | None = None,
    limits: PlannerLimits = COMMAND,
) -> dict[str, Any]:
    """All that is known of a setting; `quick`: without what takes longer than about a second.

    >>> config = RunConfig.model_validate({"rounds": 5, "topology": {"agents": 4, "kind": "ring"}})
    >>> found = plan_answers(config)
    >>> found["pending"], round(found["privacy"]["epsilon"]["adaptive"], 4)
    ([], 1.0)
    """
    *_, last = stages(PlannerQuestion.of(config, limits), quick, progress, memory)
    return last


def stages(
    question: PlannerQuestion,
    quick: bool = False,
    progress: Progress = silent,
    memory: ObserverCache | None = None,
) -> Iterator[dict[str, Any]]:
    """The same answers, as they become known: each has all that the one before it had."""
    config, write = question.run.config, question.run.write_plan
    observer = observe if memory is None else memory.observe(write)
    query = query_of(config, progress, observer)
    guarantee = answer_kind(config.privacy.guarantee).key
    shape = write(np.ones(question.run.graph.agents))
    waits = {kind.key: seconds(kind, shape, query) for kind in QUICKEST_FIRST}
    known: dict[str, Any] = {
        **_setting(question, shape),
        **_nothing_yet(),
        "seconds_left": sum(waits.values()),
    }
    if waits.get(guarantee, 0.0) > INSTANT_SECONDS:
        enough = _enough(question)
        yield {**known, "sigma_at_most": enough}
        if waits[guarantee] <= QUICK_BOUND_SECONDS and (less := _enough(question, observer)) is not None:
            enough = less
            yield {**known, "sigma_at_most": enough}
        if quick:
            return
    plan, account = plan_and_account(question.run, progress, observer)
    known |= {"sigma": (plan.full_scale / config.privacy.clip).tolist(), "noise": _noise(question, plan)}
    left = [kind.key for kind in QUICKEST_FIRST if not account.answers[kind.key].asked]
    while True:
        later = [name for name in left if not quick or waits[name] <= INSTANT_SECONDS]
        yield {
            **known,
            "privacy": _said(account, plan, left),
            "pending": left,
            "seconds_left": sum(waits[name] for name in left),
        }
        if not later:
            return
        account = with_answer(account, ANSWERS[later[0]], plan, query=query)
        left = [name for name in left if name != later[0]]


def recommendation(
    question: PlannerQuestion,
    given: Sequence[str] = (),
    progress: Progress = silent,
    memory: ObserverCache | None = None,
) -> dict[str, Any]:
    """The method and settings that we would take, with reasons; `refused` says why there are none.

    `given`: arguments that the question was asked with, for the command.
    """

    def find() -> Recommendation:
        return recommend(question.asked, question.run.graph, question.run.counts, progress)

    try:
        advice = find() if memory is None else memory.recalled(_advice_key(question), find)
    except TopdpError as error:
        return {"refused": str(error)}
    return advice.details(given)


def _advice_key(question: PlannerQuestion) -> tuple[object, ...]:
    """All that advice depends on: the method, its mode and the rounds of the question are not looked at."""
    asked = question.asked
    name = asked.method.name if question.run.method.pools else "plain"
    method = asked.method.model_copy(update={"name": name, "mode": "sync"})
    same = asked.model_copy(update={"rounds": 1, "method": method})
    return "advice", same.model_dump_json(), question.run.graph.edges.tobytes(), question.run.counts


def _setting(question: PlannerQuestion, shape: Plan) -> dict[str, Any]:
    config, graph, counts = question.run.config, question.run.graph, question.run.counts
    method, numbers = config.method, numbers_in_a_row(config)
    chosen = {key: getattr(method, key) for key in question.run.method.tuned}
    return {
        "method": method.name,
        "mode": method.mode,
        "topology": config.topology.kind,
        "agents": graph.agents,
        "links": len(graph.edges),
        "records": [min(counts), max(counts)],
        "rounds": config.rounds,
        "releases": shape.releases,
        "chosen": chosen,
        "traffic": traffic(shape, config.rounds, *numbers),
    }


def _nothing_yet() -> dict[str, Any]:
    nothing = dict.fromkeys(ANSWERS)
    status = dict.fromkeys(ANSWERS, NOT_YET)
    return {
        "sigma": None,
        "sigma_at_most": None,
        "noise": {"average": None, "between": None, "reason": f"{NOT_YET}: it follows from σ."},
        "privacy": {"epsilon": nothing, "mu": nothing, "status": status, "power": {}},
        "pending": list(ANSWERS),
    }


def _enough(question: PlannerQuestion, observer: Observe | None = None) -> list[float] | None:
    """σ under which the worst case keeps the budget, and so does every other answer; it takes no time.

    With `observer`: σ under which the guarantee's own answer keeps it by a quick bound, which takes about
    half of the time of the answer itself; only where all agents are alike.
    """
    privacy, epsilon, analysis = question.run.config.privacy, question.run.epsilon, question.run.analysis
    if epsilon is None:
        return None
    guarantee = WORST_CASE.name if observer is None else privacy.guarantee
    if observer is not None and (np.ptp(epsilon) > 0 or len(set(analysis.exposure().batches)) > 1):
        return None
    query = query_of(
        question.run.config, observe=observe if observer is None else partial(_quick_bound, observer)
    )
    try:
        calibration = calibrate(
            question.run.write_plan,
            analysis,
            guarantee,
            epsilon,
            privacy.delta,
            query,
        )
    except TopdpError:
        return None
    return [float(one) for one in calibration.deviation / privacy.clip]


def _quick_bound(
    observer: Observe, kind: AnswerKind, plan: Plan, exposure: Exposure, query: Query, bound: Bound
) -> View:
    return observer(kind, plan, exposure, query, "quick" if bound == "upper" else bound)


def _noise(question: PlannerQuestion, plan: Plan) -> dict[str, Any]:
    """Variance in the average of all estimates and around it, over what pooled records would leave."""
    if not question.limits.follows_noise(plan.rows, plan.releases):
        size = f"{plan.rows} rows in {plan.releases} releases"
        return _no_noise(f"A plan of {size} is too large to follow it here.")
    try:
        left = residual_noise(plan)
        least = float(np.min(np.asarray(question.run.config.privacy.epsilon)))
        pooled = pooled_noise(question.run.config, question.run.counts, least)
    except InputError as error:
        return _no_noise(str(error))
    return {"average": float(left.average[-1]) / pooled, "between": float(left.between[-1]) / pooled}


def _no_noise(reason: str) -> dict[str, Any]:
    return {"average": None, "between": None, "reason": reason}


def _said(account: Account, plan: Plan, pending: list[str]) -> dict[str, Any]:
    details = {"plan": plan.digest(), **account.details(), "power": powers(account)}
    details["status"] = {
        name: NOT_YET if name in pending else status for name, status in details["status"].items()
    }
    return details
