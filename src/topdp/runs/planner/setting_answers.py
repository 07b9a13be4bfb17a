"""Answers about a setting before training: its noise, all privacy answers, its traffic, a recommendation.

This module combines calibration, accounting and recommendation. Slow answers are computed last: `stages`
yields the answers so far, and marks the others as not computed yet. Questions that are too large raise an
error before anything is computed.

**Guarantees.** The noise and the answers are those that a run of the configuration has and writes to its
privacy.json: equal to the last bit or, with an `ObserverCache`, up to rounding. Nothing is guessed: a number
is that of the plan, or it is missing. `sigma_at_most` is sufficient noise. First it is the noise with which
the worst case, which covers all observers, meets the budget. Then it is the noise with which a quick bound on
the guarantee's answer meets the budget.
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
from topdp.runs.config import ConfigError, RunConfig, is_auto
from topdp.runs.job_settings import chosen_for_job
from topdp.runs.named_records import record_counts
from topdp.runs.planner.member_gains import member_gains
from topdp.runs.planner.observer_cache import ObserverCache
from topdp.runs.planner.plan_traffic import traffic
from topdp.runs.planning import plan_and_account, powers, query_of
from topdp.runs.recommend import Recommendation, pooled_noise, recommend
from topdp.runs.resolve import resolve_outline
from topdp.runs.resolved_run import ResolvedRun
from topdp.runs.run_outline import RunOutline
from topdp.runs.statistics.standardisation_cost import training_epsilon
from topdp.topology import Topology

# The status of an answer that is not computed yet.
NOT_YET = "not computed yet"

# The answers that are computed from the views of observers; the usually quickest answer is first.
QUICKEST_FIRST = [kind for kind in reversed(ANSWERS.values()) if kind.on_request]


INSTANT_SECONDS = 1.0  # an answer that takes longer comes after a faster bound

QUICK_BOUND_SECONDS = 6.0  # up to this time of an answer, a quick bound is computed first, in half the time


@dataclass(frozen=True)
class PlannerLimits:
    """Limits on settings: the number of agents, of rounds, and of rows sent over all edges in all rounds.

    `noise`: the residual noise is computed only if rows² · releases of the plan is at most this.

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
        """Raise ConfigError if `config` has too many agents or rounds. No graph is needed for this check."""
        for key, count, limit in (
            ("topology.agents", config.topology.agents, self.agents),
            ("rounds", config.rounds, self.rounds),
        ):
            if not is_auto(count) and count > limit:
                raise ConfigError(f"{key}: expected at most {limit} to plan here, got {count}.")

    def check_graph(self, config: RunConfig, graph: Topology) -> None:
        """Raise ConfigError if `graph` has too many agents, or too many edges for the rounds of `config`.

        A graph in a file may have more agents than the configuration states.
        """
        if graph.agents > self.agents:
            raise ConfigError(
                f"topology.path: expected at most {self.agents} agents to plan here, got {graph.agents}."
            )
        directed_edges = max(1, 2 * len(graph.edges))
        if directed_edges * config.rounds > self.rows:
            raise ConfigError(
                f"rounds: expected at most {self.rows // directed_edges} with {graph.agents} agents and "
                f"{len(graph.edges)} edges to plan here, got {config.rounds}."
            )


# The limits of a command, which its user can stop.
COMMAND = PlannerLimits(5_000, 1_000_000, 100_000_000, 2e9)

# The limits of a page, where other users may be waiting. No question that we tried took more than 12 s.
PAGE = PlannerLimits(100, 5_000, 2_000_000, 4e7)


@dataclass(frozen=True)
class PlannerQuestion:
    """A question about a setting: the configuration as given, the resolved run, and the limits that apply."""

    given: RunConfig
    run: ResolvedRun
    limits: PlannerLimits

    @classmethod
    def of(cls, config: RunConfig, limits: PlannerLimits = COMMAND) -> PlannerQuestion:
        """Return the question about `config`. Raise ConfigError if it cannot be run or exceeds the limits."""
        limits.check(config)
        outline = RunOutline.of(config)
        if not is_auto(config.rounds):
            limits.check_graph(config, outline.graph)
        run = resolve_outline(outline, record_counts(outline))
        limits.check_graph(run.config, run.graph)
        return cls(config, run, limits)


def answer_seconds(kind: AnswerKind, plan: Plan, query: Query) -> float:
    """Return the estimated seconds that an answer takes on one core; 0 for a formula, or if it is refused.

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
    """Yield the answers about a setting as soon as they are computed. Each dictionary has all answers so far.

    `quick`: compute only answers that take up to about a second. `memory`: a cache of earlier answers.

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
    seconds = {kind.key: answer_seconds(kind, shape, query) for kind in QUICKEST_FIRST}
    answers: dict[str, Any] = {
        **_setting(question, shape),
        **_no_answers(),
        "seconds_left": sum(seconds.values()),
    }
    if seconds.get(guarantee, 0.0) > INSTANT_SECONDS:
        yield {**answers, "sigma_at_most": _sufficient_sigma(question)}
        quick_bound = seconds[guarantee] <= QUICK_BOUND_SECONDS
        if quick_bound and (sigma := _sufficient_sigma(question, observer)) is not None:
            yield {**answers, "sigma_at_most": sigma}
        if quick:
            return
    plan, account = plan_and_account(question.run, progress, observer)
    answers |= {"sigma": (plan.full_scale / config.privacy.clip).tolist(), **_noise(question, plan)}
    pending = [kind.key for kind in QUICKEST_FIRST if not account.answers[kind.key].asked]
    while True:
        to_compute = [name for name in pending if not quick or seconds[name] <= INSTANT_SECONDS]
        yield {
            **answers,
            "privacy": _privacy_details(account, plan, pending),
            "pending": pending,
            "seconds_left": sum(seconds[name] for name in pending),
        }
        if not to_compute:
            return
        account = with_answer(account, ANSWERS[to_compute[0]], plan, query=query)
        pending = [name for name in pending if name != to_compute[0]]


def recommendation(
    question: PlannerQuestion,
    given: Sequence[str] = (),
    progress: Progress = silent,
    memory: ObserverCache | None = None,
) -> dict[str, Any]:
    """Return the recommended method and settings, with reasons, or only `refused`: why there are none.

    `given`: command-line arguments of the question, which the recommended command repeats.
    """

    def compute() -> Recommendation:
        return recommend(question.given, question.run.graph, question.run.counts, progress)

    try:
        advice = compute() if memory is None else memory.cached(_advice_key(question), compute)
    except TopdpError as error:
        return {"refused": str(error)}
    return advice.details(given)


def _advice_key(question: PlannerQuestion) -> tuple[object, ...]:
    """Return everything on which advice depends. It does not depend on the method, its mode or the rounds."""
    given, run = question.given, question.run
    settings = given.model_dump_json(exclude={"rounds": True, "method": {"name", "mode"}})
    return "advice", settings, run.method.pools, run.graph.edges.tobytes(), run.counts


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
        "unit": config.privacy.unit,
        "rounds": config.rounds,
        "releases": shape.releases,
        "chosen": chosen_for_job(question.given, config)
        | {key: getattr(method, key) for key in question.run.method.tuned},
        "traffic": traffic(shape, config),
    }


def _no_answers() -> dict[str, Any]:
    """Return the answers of a setting before any of them is computed."""
    nothing = dict.fromkeys(ANSWERS)
    status = dict.fromkeys(ANSWERS, NOT_YET)
    return {
        "sigma": None,
        "sigma_at_most": None,
        **_no_noise(f"{NOT_YET}, because it depends on σ."),
        "privacy": {"epsilon": nothing, "mu": nothing, "status": status, "power": {}},
        "pending": list(ANSWERS),
    }


def _sufficient_sigma(question: PlannerQuestion, observer: Observe | None = None) -> list[float] | None:
    """Return σ of each agent with which the worst case, and so every other answer, meets the budget.

    This takes almost no time. With `observer`, return σ with which a quick bound on the guarantee's own
    answer meets the budget. This takes about half of the time of the answer itself. Return None if σ is
    configured or cannot be calibrated or, with `observer`, if agents have different budgets or batches.
    """
    privacy, analysis = question.run.config.privacy, question.run.analysis
    if question.run.epsilon is None:
        return None
    epsilon = training_epsilon(question.run)
    guarantee = WORST_CASE.name if observer is None else privacy.guarantee
    exposure = analysis.exposure()
    differ = any(np.ptp(each) > 0 for each in (epsilon, question.run.delta, exposure.sensitivity))
    if observer is not None and (differ or not exposure.same_participation):
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
    """Return the variance of the average of all estimates, and of estimates around the average, relative to
    the residual noise with pooled records, and what each member gains; None and a reason for what cannot be
    computed.
    """
    run = question.run
    if plan.rows**2 * plan.releases > question.limits.noise:
        size = f"{plan.rows} rows in {plan.releases} releases"
        return _no_noise(f"The noise of {size} takes too long to compute here.")
    try:
        residual = residual_noise(plan)
        pooled = pooled_noise(run.config, run.counts)
    except InputError as error:
        return _no_noise(str(error))
    # Steps of the average are as long as with pooled records if its total weight is 1.
    unit = pooled * run.total_weight**2
    noise = {"average": float(residual.average[-1]) / unit, "between": float(residual.between[-1]) / unit}
    try:
        gains = member_gains(run, residual, pooled)
    except InputError as error:
        gains = _no_gains(str(error))
    return {"noise": noise, "gains": gains}


def _no_noise(reason: str) -> dict[str, Any]:
    return {"noise": {"average": None, "between": None, "reason": reason}, "gains": _no_gains(reason)}


def _no_gains(reason: str) -> dict[str, Any]:
    return {"alone": None, "together": None, "costly": [], "reason": reason}


def _privacy_details(account: Account, plan: Plan, pending: list[str]) -> dict[str, Any]:
    details = {"plan": plan.digest(), **account.details(), "power": powers(account)}
    details["status"] = {
        name: NOT_YET if name in pending else status for name, status in details["status"].items()
    }
    return details
