"""From a configuration to a plan with its noise, and to how private it is. No data, no torch."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from topdp import build
from topdp.config import RunConfig, parse
from topdp.plan import Plan
from topdp.privacy.account import Account, account
from topdp.privacy.calibrate import Writer, calibrate
from topdp.privacy.coalitions import Coalitions, coalitions
from topdp.privacy.gaussian import epsilon_of
from topdp.privacy.view import Progress
from topdp.result import RunFolder
from topdp.topology import Topology

COALITIONS = 500  # more than these are sampled


def plan_and_account(
    config: RunConfig, graph: Topology, counts: tuple[int, ...], progress: Progress | None = None
) -> tuple[Plan, Account]:
    """The plan, calibrated unless σ is given, and its three answers; agent i holds counts[i] records."""
    n, analysis, seen = graph.agents, build.analysis(config, counts), None
    patient = config.privacy.patient
    write, delta = plan_writer(config, graph, counts), config.privacy.delta
    sigma = build.sigma(config, n)
    if sigma is not None:
        deviation = sigma * config.privacy.clip  # Algorithm 1: the noise is G(σ²C²)
    else:
        epsilon = build.per_agent("privacy.epsilon", config.privacy.epsilon, n)
        calibrated = calibrate(write, analysis, config.privacy.guarantee, epsilon, delta, progress, patient)
        deviation, seen = calibrated.deviation, calibrated.seen
    plan = write(deviation)
    return plan, account(plan, analysis, delta, seen, progress, patient)


def plan_writer(config: RunConfig, graph: Topology, counts: tuple[int, ...]) -> Writer:
    """The plan of the configuration for any noise; the random choices are the same every time."""
    protocol, schedule = build.protocol(config), build.schedule(config, min(counts))

    def write(deviation: np.ndarray) -> Plan:
        return protocol.plan(graph, schedule, deviation, config.seed)

    return write


def account_of_run(path: Path, progress: Progress | None = None) -> tuple[RunConfig, Plan, Account]:
    """The account of the plan that a run executed, taken afresh from its plan.npz."""
    folder = RunFolder.open(path)
    config, plan = parse(tomllib.loads(folder.config), str(path / "config.toml")), folder.plan
    analysis = build.analysis(config, tuple(folder.read_json("run.json")["records"]))
    patient = config.privacy.patient
    return config, plan, account(plan, analysis, config.privacy.delta, None, progress, patient)


def coalition_account(
    plan: Plan, found: Account, size: int, seed: int, progress: Progress | None = None
) -> Coalitions | None:
    """What coalitions of `size` agents see; None for single agents, which the account has already."""
    if size == 1:
        return None
    exposure = found.analysis.exposure()
    return coalitions(plan, exposure, size, limit=COALITIONS, seed=seed, bound="upper", progress=progress)


def account_json(
    config: RunConfig, plan: Plan, found: Account, together: Coalitions | None
) -> dict[str, Any]:
    """The JSON object of `topdp account`."""
    details = {"guarantee": config.privacy.guarantee, "releases": plan.rounds, **found.details()}
    details["sigma"] = (plan.std[0][: plan.agents, 0] / config.privacy.clip).tolist()
    if together is not None:
        mu, members = together.worst()
        details["coalition"] = {
            "size": together.size,
            "statement": together.statement,
            "epsilon": [None if not np.isfinite(m) else float(epsilon_of(float(m), found.delta)) for m in mu],
            "members": [list(group) for group in members],
        }
    return details
