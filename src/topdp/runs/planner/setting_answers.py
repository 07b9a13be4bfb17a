"""What is known of a setting before training: its noise, every answer to "how private?", what it sends.

Puts together what calibrates, accounts and recommends; computes nothing of that itself. What takes long comes
last: `stages` hands out what is known so far, and what is not is said to be not computed yet.

**Guarantees.** The noise and the answers are those that a run of the configuration has, and writes into its
privacy.json: to the last bit, or, with a `Memory`, but for rounding. Nothing is guessed: a number is that of
the plan, or there is none. `sigma_at_most` is enough noise: that of the worst case, which covers all;
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
from topdp.privacy.budget_excess import Writer
from topdp.privacy.noise_calibration import calibrate
from topdp.privacy.observers.view import Bound, View
from topdp.privacy.query import Observe, Query, observe
from topdp.privacy.residual_noise import residual_noise
from topdp.runs import builders
from topdp.runs.config import RunConfig
from topdp.runs.planner.answer_time import BEARABLE, SOON, seconds
from topdp.runs.planner.observer_cache import Memory
from topdp.runs.planner.plan_traffic import traffic
from topdp.runs.planner.planner_limits import COMMAND, Limits
from topdp.runs.planner.row_size import numbers_in_a_row
from topdp.runs.planning import plan_and_account, plan_writer, powers, query_of
from topdp.runs.recommend import Recommendation, pooled_noise, recommend
from topdp.runs.resolve_auto import settled
from topdp.topology import Topology

NOT_YET = "not computed yet"
"""The status of an answer that takes longer."""

QUICKEST_FIRST = [kind for kind in reversed(ANSWERS.values()) if kind.on_request]
"""The answers that look at observers, what is usually quickest first."""


@dataclass(frozen=True)
class Question:
    """A configuration as it was `asked`; with what it left open chosen, its graph, and records of agents."""

    asked: RunConfig
    config: RunConfig
    graph: Topology
    counts: tuple[int, ...]
    write: Writer
    limits: Limits

    @classmethod
    def of(cls, config: RunConfig, limits: Limits = COMMAND) -> Question:
        """Refuses what cannot be run, or is too large to be planned."""
        limits.check(config)
        graph = builders.graph(config)
        limits.check_graph(config, graph)
        counts = builders.counts(config, graph.agents)
        chosen = settled(config, graph, counts)
        return cls(config, chosen, graph, counts, plan_writer(chosen, graph, counts), limits)


def plan_answers(
    config: RunConfig,
    quick: bool = False,
    progress: Progress = silent,
    memory: Memory | None = None,
    limits: Limits = COMMAND,
) -> dict[str, Any]:
    """All that is known of a setting; `quick`: without what takes longer than about a second.

    >>> config = RunConfig.model_validate({"rounds": 5, "topology": {"agents": 4, "kind": "ring"}})
    >>> found = plan_answers(config)
    >>> found["pending"], round(found["privacy"]["epsilon"]["adaptive"], 4)
    ([], 1.0)
    """
    *_, last = stages(Question.of(config, limits), quick, progress, memory)
    return last


def stages(
    question: Question,
    quick: bool = False,
    progress: Progress = silent,
    memory: Memory | None = None,
) -> Iterator[dict[str, Any]]:
    """The same answers, as they become known: each has all that the one before it had."""
    config, write = question.config, question.write
    observer = observe if memory is None else memory.observe(write)
    query = query_of(config, progress, observer)
    guarantee = answer_kind(config.privacy.guarantee).key
    shape = write(np.ones(question.graph.agents))
    waits = {kind.key: seconds(kind, shape, query) for kind in QUICKEST_FIRST}
    known: dict[str, Any] = {
        **_setting(question, shape),
        **_nothing_yet(),
        "seconds_left": sum(waits.values()),
    }
    if waits.get(guarantee, 0.0) > SOON:
        enough = _enough(question)
        yield {**known, "sigma_at_most": enough}
        if waits[guarantee] <= BEARABLE and (less := _enough(question, observer)) is not None:
            enough = less
            yield {**known, "sigma_at_most": enough}
        if quick:
            return
    plan, found = plan_and_account(config, question.graph, question.counts, progress, observer)
    known |= {"sigma": (plan.full_scale / config.privacy.clip).tolist(), "noise": _noise(question, plan)}
    left = [kind.key for kind in QUICKEST_FIRST if not found.answers[kind.key].asked]
    while True:
        later = [name for name in left if not quick or waits[name] <= SOON]
        yield {
            **known,
            "privacy": _said(found, plan, left),
            "pending": left,
            "seconds_left": sum(waits[name] for name in left),
        }
        if not later:
            return
        found = with_answer(found, ANSWERS[later[0]], plan, query=query)
        left = [name for name in left if name != later[0]]


def recommendation(
    question: Question,
    given: Sequence[str] = (),
    progress: Progress = silent,
    memory: Memory | None = None,
) -> dict[str, Any]:
    """The method and settings that we would take, with reasons; `refused` says why there are none.

    `given`: arguments that the question was asked with, for the command.
    """

    def find() -> Recommendation:
        return recommend(question.asked, question.graph, question.counts, progress)

    try:
        found = find() if memory is None else memory.recalled(_advice_key(question), find)
    except TopdpError as error:
        return {"refused": str(error)}
    return found.details(given)


def _advice_key(question: Question) -> tuple[object, ...]:
    """All that advice depends on: the method, its mode and the rounds of the question are not looked at."""
    asked = question.asked
    name = asked.method.name if builders.method(asked).pools else "plain"
    method = asked.method.model_copy(update={"name": name, "mode": "sync"})
    same = asked.model_copy(update={"rounds": 1, "method": method})
    return "advice", same.model_dump_json(), question.graph.edges.tobytes(), question.counts


def _setting(question: Question, shape: Plan) -> dict[str, Any]:
    config, graph = question.config, question.graph
    method, numbers = config.method, numbers_in_a_row(config)
    chosen = {key: getattr(method, key) for key in builders.method(config).tuned}
    return {
        "method": method.name,
        "mode": method.mode,
        "topology": config.topology.kind,
        "agents": graph.agents,
        "links": len(graph.edges),
        "records": [min(question.counts), max(question.counts)],
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


def _enough(question: Question, observer: Observe | None = None) -> list[float] | None:
    """σ under which the worst case keeps the budget, and so does every other answer; it takes no time.

    With `observer`: σ under which the guarantee's own answer keeps it by a quick bound, which takes about
    half of the time of the answer itself; only where all agents are alike.
    """
    config, privacy = question.config, question.config.privacy
    n = question.graph.agents
    if builders.sigma(config, n) is not None:
        return None
    epsilon = builders.per_agent("privacy.epsilon", privacy.epsilon, n)
    analysis = builders.analysis(config, question.counts)
    guarantee = WORST_CASE.name if observer is None else privacy.guarantee
    if observer is not None and (np.ptp(epsilon) > 0 or len(set(analysis.exposure().batches)) > 1):
        return None
    query = query_of(config, observe=observe if observer is None else partial(_quick_bound, observer))
    try:
        found = calibrate(
            question.write,
            analysis,
            guarantee,
            epsilon,
            privacy.delta,
            query,
        )
    except TopdpError:
        return None
    return [float(one) for one in found.deviation / privacy.clip]


def _quick_bound(
    observer: Observe, kind: AnswerKind, plan: Plan, exposure: Exposure, query: Query, bound: Bound
) -> View:
    return observer(kind, plan, exposure, query, "quick" if bound == "upper" else bound)


def _noise(question: Question, plan: Plan) -> dict[str, Any]:
    """Variance in the average of all estimates and around it, over what pooled records would leave."""
    if not question.limits.follows_noise(plan.rows, plan.releases):
        size = f"{plan.rows} rows in {plan.releases} releases"
        return _no_noise(f"A plan of {size} is too large to follow it here.")
    try:
        left = residual_noise(plan)
        least = float(np.min(np.asarray(question.config.privacy.epsilon)))
        pooled = pooled_noise(question.config, question.counts, least)
    except InputError as error:
        return _no_noise(str(error))
    return {"average": float(left.average[-1]) / pooled, "between": float(left.between[-1]) / pooled}


def _no_noise(reason: str) -> dict[str, Any]:
    return {"average": None, "between": None, "reason": reason}


def _said(found: Account, plan: Plan, pending: list[str]) -> dict[str, Any]:
    details = {"plan": plan.digest(), **found.details(), "power": powers(found)}
    details["status"] = {
        name: NOT_YET if name in pending else status for name, status in details["status"].items()
    }
    return details
