"""From a configuration to a plan with its noise, and to how private it is. No data, no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from topdp.base.files import UNREADABLE_FILE_ERRORS
from topdp.base.progress import Progress, silent
from topdp.plan import Plan
from topdp.privacy.accounting import FALSE_ALARMS, Account, account
from topdp.privacy.answers import expect_on_request
from topdp.privacy.noise_calibration import calibrate
from topdp.privacy.observers.coalitions import Coalitions, coalitions
from topdp.privacy.observers.view import View
from topdp.privacy.published.claims import Analysis
from topdp.privacy.query import Observe, Query, observe
from topdp.runs.auto_values import noise_shares
from topdp.runs.config import RunConfig
from topdp.runs.resolve import resolve
from topdp.runs.resolved_run import ResolvedRun
from topdp.runs.run_folder import RunFolder, RunFolderError
from topdp.runs.run_outline import RunOutline, budgets, guarantee_of
from topdp.topology import Topology, read_edge_list

MAX_EXACT_COALITIONS = 500  # more than these are sampled


def plan_and_account(
    run: ResolvedRun, progress: Progress = silent, observe: Observe = observe
) -> tuple[Plan, Account]:
    """The plan, calibrated unless σ is given, and its answers. `observe` computes what observers learn."""
    privacy, seen = run.config.privacy, None
    if run.sigma is not None:
        deviation = run.sigma * privacy.clip  # Algorithm 1: the noise is G(σ²C²)
    else:
        assert run.epsilon is not None
        calibrated = calibrate(
            run.write_plan,
            run.analysis,
            privacy.guarantee,
            run.epsilon,
            privacy.delta,
            query_of(run.config, progress, observe),
            noise_shares(run),
        )
        deviation, seen = calibrated.deviation, calibrated.view
    plan = run.write_plan(deviation)
    return plan, accounted(run, plan, seen, progress, observe)


def accounted(
    run: ResolvedRun, plan: Plan, known: View | None, progress: Progress, observe: Observe = observe
) -> Account:
    """The answers that the configuration asks for; `known`: that of its guarantee, where it is computed."""
    privacy = run.config.privacy
    return account(
        plan,
        run.analysis,
        privacy.delta,
        answers=run.answers,
        guarantee=run.guarantee,
        known=known,
        query=query_of(run.config, progress, observe),
    )


def query_of(config: RunConfig, progress: Progress = silent, observe: Observe = observe) -> Query:
    """Return the query with which the configuration asks for its account."""
    return Query(
        colluders=config.privacy.colluders,
        allow_slow=config.privacy.allow_slow,
        progress=progress,
        observe=observe,
    )


def expect_plan_of(run: ResolvedRun, plan: Plan, path: Path) -> None:
    """Raise RunFolderError for a plan that its configuration would not write with that noise."""
    deviation = plan.full_scale
    same = plan.agents == run.graph.agents
    if same and run.sigma is not None:
        same = np.array_equal(run.sigma * run.config.privacy.clip, deviation)
    if not same or run.write_plan(deviation).digest() != plan.digest():
        raise RunFolderError(f"Expected plan.npz in {path} to be the plan of its config.toml; it is not.")


def sealed(plan: Plan, account: Account) -> dict[str, Any]:
    """Return the content of privacy.json: the account, the digest of its plan, and a digest over both.

    **Guarantees.** An account that was changed, or lies beside another plan, is not read as a run's own: a
    file under which a run goes on never says less than was spent. It does not stop who computes it anew.
    """
    details = {"plan": plan.digest(), **account.details()}
    return {**details, "seal": seal_of(details)}


def seal_of(details: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(details, sort_keys=True).encode()).hexdigest()


def expect_account_of(config: RunConfig, analysis: Analysis, folder: RunFolder) -> Account:
    """The account in privacy.json of a run; refused if it was written for other settings.

    Those are records, batches, clip, δ, adjacency, colluders and the guarantee. A plan knows none of them, so
    the same plan under others would be less private than the file says. Nor may the budget be smaller.
    """
    privacy = folder.read_json("privacy.json")
    seal = privacy.pop("seal", None) if isinstance(privacy, dict) else None
    if seal is None or seal != seal_of(privacy) or privacy.get("plan") != folder.plan.digest():
        raise RunFolderError(
            f"Expected the account of plan.npz in {folder.path / 'privacy.json'}; it is of another plan, or "
            "was changed."
        )
    begun = {"records": folder.fact("records"), **privacy}
    now = {
        "records": [batches.records for batches in analysis.batches],
        "delta": config.privacy.delta,
        "colluders": config.privacy.colluders,
        "guarantee": guarantee_of(config),
        **analysis.facts(),
    }
    others = [key for key, value in now.items() if begun.get(key) != value]
    if others:
        raise RunFolderError(
            f"Expected the {', '.join(others)} with which the run in {folder.path} was begun, got others: "
            "its privacy.json does not hold for them."
        )
    try:
        account = Account.from_details(privacy, analysis)
    except UNREADABLE_FILE_ERRORS as error:
        raise RunFolderError(
            f"Expected the account of a run in {folder.path / 'privacy.json'}, could not read it: {error!r}."
        ) from error
    if account.guarantee is not None:
        _expect_within(config, account, folder)
    return account


def _expect_within(config: RunConfig, account: Account, folder: RunFolder) -> None:
    spent = account.answer(account.guarantee or "").epsilon
    budget = budgets(config, len(account.analysis.batches))
    if spent is None or (spent > budget * (1 + 1e-9)).any():
        raise RunFolderError(
            f"Expected the epsilon with which the run in {folder.path} was begun, got a smaller one than its "
            "privacy.json says."
        )


def graph_of_run(config: RunConfig, path: Path) -> Topology:
    """A run started from Python keeps its graph beside it."""
    beside = path / str(config.topology.path)
    if config.topology.kind == "file" and beside.exists():
        return read_edge_list(beside)
    return RunOutline.of(config).graph


def account_of_run(
    path: Path, answers: Collection[str] = (), progress: Progress = silent
) -> tuple[ResolvedRun, Plan, Account]:
    """The account of the plan that a run executed, taken afresh from its plan.npz; also of other answers."""
    folder = RunFolder.open(path)
    config, plan = folder.config, folder.plan
    run = resolve(asking(config, answers), graph_of_run(config, path), counts_of_run(folder))
    expect_plan_of(run, plan, path)
    expect_account_of(run.config, run.analysis, folder)
    return run, plan, accounted(run, plan, None, progress)


def asking(config: RunConfig, answers: Collection[str]) -> RunConfig:
    """The configuration that asks for more answers; those must exist."""
    expect_on_request(answers)
    named = [*dict.fromkeys([*config.privacy.answers, *answers])]
    return config.model_copy(update={"privacy": config.privacy.model_copy(update={"answers": named})})


def counts_of_run(folder: RunFolder) -> tuple[int, ...]:
    """The number of records of each agent, as run.json states them."""
    records = folder.fact("records")
    if not isinstance(records, list) or not all(type(count) is int and count > 0 for count in records):
        raise RunFolderError(f"Expected whole numbers of records in run.json of {folder.path}, got others.")
    return tuple(records)


def coalition_account(
    plan: Plan, account: Account, size: int, seed: int, progress: Progress = silent
) -> Coalitions | None:
    """Return the answer for coalitions of `size` agents; None for single agents, which the account covers."""
    if size == 1:
        return None
    exposure = account.analysis.exposure()
    query = Query(allow_slow=True, progress=progress)
    return coalitions(plan, exposure, size, limit=MAX_EXACT_COALITIONS, seed=seed, bound="upper", query=query)


def powers(account: Account) -> dict[str, dict[str, float | None]]:
    """The largest power of an attacker over agents, by answer and share of false alarms."""
    return {
        name: {
            f"{share:g}": None if (power := answer.power(share)) is None else float(power.max())
            for share in FALSE_ALARMS
        }
        for name, answer in account.answers.items()
        if answer.asked
    }


def account_json(
    config: RunConfig, plan: Plan, account: Account, together: Coalitions | None
) -> dict[str, Any]:
    """The JSON object of `topdp account`."""
    details = {"releases": plan.releases, **account.details(), "power": powers(account)}
    details["sigma"] = (plan.full_scale / config.privacy.clip).tolist()
    if together is not None:
        epsilon, members = together.worst_epsilon(account.delta)
        details["coalition"] = {
            "size": together.size,
            "statement": together.statement,
            "epsilon": [float(e) if np.isfinite(e) else None for e in epsilon],
            "members": [list(group) for group in members],
            **({"reason": "null: infinite, not hidden by noise."} if np.isinf(epsilon).any() else {}),
        }
    return details
