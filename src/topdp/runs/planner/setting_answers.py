"""Answers about a setting before training: its noise, all privacy answers, its traffic, a recommendation.

Combines calibration, accounting and recommendation. Slow answers come last: `stages` yields the answers so
far, and marks the others as not computed yet. Questions that are too large are refused before anything is
computed.

**Guarantees.** The noise and the answers are those that a run of the configuration has, and writes into its
privacy.json: to the last bit, or, with an `ObserverCache`, up to rounding. Nothing is guessed: a number is
that of the plan, or it is missing. `sigma_at_most` is sufficient noise: first that of the worst case, which
covers all observers; then that of a quick bound on the answer that has to meet the budget.
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
from topdp.privacy.observers.view_effort import OPERATIONS_PER_MINUTE
from topdp.privacy.query import Observe, Query, observe
from topdp.privacy.residual_noise import residual_noise
from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.named_records import record_counts
from topdp.runs.planner.observer_cache import ObserverCache
from topdp.runs.planner.plan_traffic import traffic
from topdp.runs.planning import plan_and_account, powers, query_of
from topdp.runs.recommend import Recommendation, pooled_noise, recommend
from topdp.runs.resolve import resolve_outline
from topdp.runs.resolved_run import ResolvedRun
from topdp.runs.run_outline import RunOutline
from topdp.topology import Topology

NOT_YET = "not computed yet"
"""The status of an answer that is still to come."""

QUICKEST_FIRST = [kind for kind in reversed(ANSWERS.values()) if kind.on_request]
"""The answers that are computed from the views of observers; those that are usually quickest first."""


INSTANT_SECONDS = 1.0  # up to which an answer is computed without a faster one before it

QUICK_BOUND_SECONDS = 6.0  # up to which a quick bound is computed first, in at most half of the time


@dataclass(frozen=True)
class PlannerLimits:
    """The largest question that is answered: agents, rounds, and rows along edges in all rounds.

    `noise`: the largest rows² · releases of a plan through which the covariance of all rows is followed.

    >>> from topdp.runs.config import RunConfig
    >>> PAGE.check(RunConfig(rounds=100_000))
    Traceback (most recent call last):
        ...
    topdp.runs.config.ConfigError: rounds: expected at most 5000 to plan here, got 100000.
    """

    agents: int
    rounds: int
    rows: int
    noise: float

    def check(self, config: RunConfig) -> None:
        """Raise ConfigError for too many agents or rounds, before a graph is made."""
        for key, count, limit in (
            ("topology.agents", config.topology.agents, self.agents),
            ("rounds", config.rounds, self.rounds),
        ):
            if count > limit:
                raise ConfigError(f"{key}: expected at most {limit} to plan here, got {count}.")

    def check_graph(self, config: RunConfig, graph: Topology) -> None:
        """The same for a graph, once its edges are known; a file may have more agents than configured."""
        if graph.agents > self.agents:
            raise ConfigError(
                f"topology.path: expected at most {self.agents} agents to plan here, got {graph.agents}."
            )
        links = max(1, 2 * len(graph.edges))
        if links * config.rounds > self.rows:
            raise ConfigError(
                f"rounds: expected at most {self.rows // links} with {graph.agents} agents and "
                f"{len(graph.edges)} edges to plan here, got {config.rounds}."
            )


COMMAND = PlannerLimits(5_000, 1_000_000, 100_000_000, 2e9)
"""Limits of a command, which its user can stop."""

PAGE = PlannerLimits(100, 5_000, 2_000_000, 4e7)
"""Limits of a page, on which others may be waiting: no question that we tried took more than 12 s."""


@dataclass(frozen=True)
class PlannerQuestion:
    """A configuration as it was given, resolved, and the limits within which it is answered."""

    given: RunConfig
    run: ResolvedRun
    limits: PlannerLimits

    @classmethod
    def of(cls, config: RunConfig, limits: PlannerLimits = COMMAND) -> PlannerQuestion:
        """Raise ConfigError for a configuration that cannot be run, or is too large to be planned."""
        limits.check(config)
        outline = RunOutline.of(config)
        limits.check_graph(config, outline.graph)
        return cls(config, resolve_outline(outline, record_counts(outline)), limits)


def answer_seconds(kind: AnswerKind, plan: Plan, query: Query) -> float:
    """Estimate how long an answer takes on one core; 0 for a closed form, or a refusal.

    >>> import numpy as np
    >>> from topdp import protocols, topology
    >>> from topdp.plan import Schedule
    >>> from topdp.privacy.answers import ADAPTIVE, OUTSIDER, VIEW
    >>> steps = Schedule(rate=np.ones(150), noise=np.ones(150))
    >>> plan = protocols.TopSynchronous(0.5).plan(topology.ring(30), steps, np.ones(30), seed=0)
    >>> [answer_seconds(kind, plan, Query()) > INSTANT_SECONDS for kind in (VIEW, ADAPTIVE, OUTSIDER)]
    [True, False, False]
    """
    return 60 * kind.work(plan, query) / OPERATIONS_PER_MINUTE


def stages(
    question: PlannerQuestion,
    quick: bool = False,
    progress: Progress = silent,
    memory: ObserverCache | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the answers about a setting as they become known: each dictionary has all of the one before.

    With `quick` only those that take up to about a second.

    >>> config = RunConfig.model_validate({"rounds": 5, "topology": {"agents": 4, "kind": "ring"}})
    >>> *_, answers = stages(PlannerQuestion.of(config))
    >>> answers["pending"], round(answers["privacy"]["epsilon"]["adaptive"], 4)
    ([], 1.0)
    """
    config, write = question.run.config, question.run.write_plan
    observer = observe if memory is None else memory.observe(write)
    query = query_of(config, progress, observer)
    guarantee = answer_kind(config.privacy.guarantee).key
    shape = write(np.ones(question.run.graph.agents))
    waits = {kind.key: answer_seconds(kind, shape, query) for kind in QUICKEST_FIRST}
    answers: dict[str, Any] = {
        **_setting(question, shape),
        **_no_answers(),
        "seconds_left": sum(waits.values()),
    }
    if waits.get(guarantee, 0.0) > INSTANT_SECONDS:
        yield {**answers, "sigma_at_most": _sufficient_sigma(question)}
        quick_bound = waits[guarantee] <= QUICK_BOUND_SECONDS
        if quick_bound and (sigma := _sufficient_sigma(question, observer)) is not None:
            yield {**answers, "sigma_at_most": sigma}
        if quick:
            return
    plan, account = plan_and_account(question.run, progress, observer)
    answers |= {"sigma": (plan.full_scale / config.privacy.clip).tolist(), "noise": _noise(question, plan)}
    left = [kind.key for kind in QUICKEST_FIRST if not account.answers[kind.key].asked]
    while True:
        later = [name for name in left if not quick or waits[name] <= INSTANT_SECONDS]
        yield {
            **answers,
            "privacy": _privacy_details(account, plan, left),
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
    """The recommended method and settings, with reasons; `refused` says why there are none.

    `given`: command-line arguments of the question, which the recommended command repeats.
    """

    def find() -> Recommendation:
        return recommend(question.given, question.run.graph, question.run.counts, progress)

    try:
        advice = find() if memory is None else memory.cached(_advice_key(question), find)
    except TopdpError as error:
        return {"refused": str(error)}
    return advice.details(given)


def _advice_key(question: PlannerQuestion) -> tuple[object, ...]:
    """Return everything that advice depends on. The method, its mode and the rounds do not matter."""
    given = question.given
    name = given.method.name if question.run.method.pools else "plain"
    method = given.method.model_copy(update={"name": name, "mode": "sync"})
    same = given.model_copy(update={"rounds": 1, "method": method})
    return "advice", same.model_dump_json(), question.run.graph.edges.tobytes(), question.run.counts


def _setting(question: PlannerQuestion, shape: Plan) -> dict[str, Any]:
    config, graph, counts = question.run.config, question.run.graph, question.run.counts
    method = config.method
    return {
        "method": method.name,
        "mode": method.mode,
        "topology": config.topology.kind,
        "agents": graph.agents,
        "links": len(graph.edges),
        "records": [min(counts), max(counts)],
        "rounds": config.rounds,
        "releases": shape.releases,
        "chosen": {key: getattr(method, key) for key in question.run.method.tuned},
        "traffic": traffic(shape, config),
    }


def _no_answers() -> dict[str, Any]:
    nothing = dict.fromkeys(ANSWERS)
    status = dict.fromkeys(ANSWERS, NOT_YET)
    return {
        "sigma": None,
        "sigma_at_most": None,
        "noise": {"average": None, "between": None, "reason": f"{NOT_YET}: it follows from σ."},
        "privacy": {"epsilon": nothing, "mu": nothing, "status": status, "power": {}},
        "pending": list(ANSWERS),
    }


def _sufficient_sigma(question: PlannerQuestion, observer: Observe | None = None) -> list[float] | None:
    """σ with which the worst case meets the budget, and so does every other answer; takes no time.

    With `observer`: σ with which a quick bound on the guarantee's own answer meets it, in about half of the
    time of the answer itself; None unless all agents are alike.
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
    write = question.run.write_plan
    try:
        calibration = calibrate(write, analysis, guarantee, epsilon, privacy.delta, query)
    except TopdpError:
        return None
    return [float(sigma) for sigma in calibration.deviation / privacy.clip]


def _quick_bound(
    observer: Observe, kind: AnswerKind, plan: Plan, exposure: Exposure, query: Query, bound: Bound
) -> View:
    return observer(kind, plan, exposure, query, "quick" if bound == "upper" else bound)


def _noise(question: PlannerQuestion, plan: Plan) -> dict[str, Any]:
    """Return the variance of the average of all estimates and around it, over that with pooled records."""
    if plan.rows**2 * plan.releases > question.limits.noise:
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


def _privacy_details(account: Account, plan: Plan, pending: list[str]) -> dict[str, Any]:
    details = {"plan": plan.digest(), **account.details(), "power": powers(account)}
    details["status"] = {
        name: NOT_YET if name in pending else status for name, status in details["status"].items()
    }
    return details
