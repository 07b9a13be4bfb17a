"""From a configuration to a plan with its noise, and to the account of the plan. No data, no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from topdp.base.files import UNREADABLE_FILE_ERRORS
from topdp.base.progress import Progress, silent
from topdp.errors import InputError
from topdp.plan import Plan
from topdp.privacy.accounting import FALSE_ALARMS, Account, account
from topdp.privacy.answers import expect_on_request
from topdp.privacy.noise_calibration import calibrate
from topdp.privacy.observers.coalitions import Coalitions, coalitions
from topdp.privacy.observers.view import View
from topdp.privacy.published.claims import Analysis
from topdp.privacy.query import Observe, Query, observe
from topdp.runs.auto_values import noise_shares
from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.resolve import resolve
from topdp.runs.resolved_run import ResolvedRun
from topdp.runs.run_folder import RunFolder, RunFolderError
from topdp.runs.run_outline import RunOutline, budgets, deltas, guarantee_of
from topdp.runs.statistics.standardisation_cost import (
    expect_standardisable,
    release_plan,
    release_run,
    standardises,
    training_epsilon,
    with_release,
)
from topdp.topology import Topology, read_edge_list

MAX_EXACT_COALITIONS = 500  # if there are more coalitions, a sample of them is examined


def plan_and_account(
    run: ResolvedRun, progress: Progress = silent, observe: Observe = observe
) -> tuple[Plan, Account]:
    """Return the plan, calibrated unless σ is configured, and its account.

    `observe` computes how much observers learn.
    """
    privacy, view = run.config.privacy, None
    if standardises(run.config):
        expect_standardisable(run)
    if run.sigma is not None:
        deviation = run.sigma * privacy.clip  # Algorithm 1: the noise is G(σ²C²)
    else:
        calibrated = calibrate(
            run.write_plan,
            run.analysis,
            privacy.guarantee,
            training_epsilon(run),
            privacy.delta,
            query_of(run.config, progress, observe),
            noise_shares(run),
        )
        deviation, view = calibrated.deviation, calibrated.view
    plan = run.write_plan(deviation)
    return plan, accounted(run, plan, view, progress, observe)


def accounted(
    run: ResolvedRun, plan: Plan, view: View | None, progress: Progress, observe: Observe = observe
) -> Account:
    """Return the account with the answers that the configuration asks for.

    `view`: what observers learn under the guarantee, if it is already computed; None: it is computed.
    """
    privacy = run.config.privacy
    training = account(
        plan,
        run.analysis,
        privacy.delta,
        answers=run.answers,
        guarantee=run.guarantee,
        known=view,
        query=query_of(run.config, progress, observe),
    )
    if not standardises(run.config):
        return training
    _, released = release_plan(release_run(run), query_of(run.config, progress))
    return with_release(training, released, run.config.data.standardise_share)


def query_of(config: RunConfig, progress: Progress = silent, observe: Observe = observe) -> Query:
    """Return the query (the settings of an account) of a configuration."""
    return Query(
        colluders=config.privacy.colluders,
        allow_slow=config.privacy.allow_slow,
        progress=progress,
        observe=observe,
    )


def expect_plan_of(run: ResolvedRun, plan: Plan, path: Path) -> None:
    """Raise RunFolderError unless `plan`, from the run in `path`, is the plan that `run` writes with the same
    noise.
    """
    deviation = plan.full_scale
    same = plan.agents == run.graph.agents
    if same and run.sigma is not None:
        same = np.array_equal(run.sigma * run.config.privacy.clip, deviation)
    if not same or run.write_plan(deviation).digest() != plan.digest():
        raise RunFolderError(
            f"Expected the plan of config.toml in {path / 'plan.npz'}, got another plan. Restore both files, "
            "or start the run again in another folder."
        )


def sealed(plan: Plan, account: Account) -> dict[str, Any]:
    """Return the content of privacy.json: the account, the digest of its plan, and a digest over both.

    **Guarantees.** A run does not continue under an account that was changed or belongs to another plan, so
    privacy.json never states less than was spent. The digest does not stop a person who computes it again
    after a change.
    """
    details = {"plan": plan.digest(), **account.details()}
    return {**details, "seal": seal_of(details)}


def seal_of(details: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(details, sort_keys=True).encode()).hexdigest()


def expect_account_of(config: RunConfig, analysis: Analysis, folder: RunFolder) -> Account:
    """Return the account in privacy.json of a run. Raise RunFolderError if it was written for other settings.

    These settings are records, batches, clip, δ, adjacency, colluders and the guarantee. The plan contains
    none of them, so the same plan under other settings could be less private than the file states. An error
    is also raised if the budget in `config` is smaller than the ε in the file.
    """
    privacy = folder.read_json("privacy.json")
    seal = privacy.pop("seal", None) if isinstance(privacy, dict) else None
    if seal is None or seal != seal_of(privacy) or privacy.get("plan") != folder.plan.digest():
        raise RunFolderError(
            f"Expected the account of plan.npz in {folder.path / 'privacy.json'}, got one that was changed "
            "or belongs to another plan. Restore both files, or start the run again in another folder."
        )
    counted, agents = f"{analysis.unit}s", len(analysis.batches)
    stored = {counted: folder.fact(counted), **privacy}
    if not isinstance(privacy.get("delta"), list):
        stored["delta"] = [privacy.get("delta")] * agents
    current = {
        counted: [batches.records for batches in analysis.batches],
        "delta": deltas(config, agents).tolist(),
        "colluders": config.privacy.colluders,
        "guarantee": guarantee_of(config),
        **analysis.facts(),
    }
    changed = [key for key, value in current.items() if stored.get(key) != value]
    if changed:
        raise RunFolderError(
            f"Expected the same {', '.join(changed)} as at the start of the run in {folder.path}, got other "
            "values, for which its privacy.json does not hold. Use the original values, or another folder."
        )
    try:
        account = Account.from_details(privacy, analysis)
    except UNREADABLE_FILE_ERRORS as error:
        raise RunFolderError(
            f"Expected an account that this version of topdp can read in {folder.path / 'privacy.json'}, got "
            f"{error!r}. Continue the run with the version of topdp that run.json names, or start it again "
            "in another folder."
        ) from error
    if account.guarantee is not None:
        _expect_within(config, account, folder)
    return account


def _expect_within(config: RunConfig, account: Account, folder: RunFolder) -> None:
    spent = account.answer(account.guarantee or "").epsilon
    budget = budgets(config, len(account.analysis.batches))
    if spent is None or (spent > budget * (1 + 1e-9)).any():
        raise RunFolderError(
            f"Expected an epsilon of at least the one in privacy.json of the run in {folder.path}, got a "
            "smaller epsilon. Use the original epsilon, or another folder."
        )


def graph_of_run(config: RunConfig, path: Path) -> Topology:
    """Return the graph of the run in `path`. It is in that folder if the run was started from Python."""
    graph_file = path / str(config.topology.path)
    if config.topology.kind == "file" and graph_file.exists():
        return read_edge_list(graph_file)
    return RunOutline.of(config).graph


def account_of_run(
    path: Path, answers: Collection[str] = (), progress: Progress = silent
) -> tuple[ResolvedRun, Plan, Account]:
    """Return the resolved run, the plan and a new account of the run in `path`.

    The account is computed again from plan.npz. `answers`: names of further answers for the account.
    """
    folder = RunFolder.open(path)
    config, plan = folder.config, folder.plan
    run = resolve(with_further_answers(config, answers), graph_of_run(config, path), counts_of_run(folder))
    expect_plan_of(run, plan, path)
    stored = expect_account_of(run.config, run.analysis, folder)
    account = accounted(run, plan, None, progress)
    if account.prepared != stored.prepared:  # no other setting is about what was released before training
        raise RunFolderError(
            f"Expected the same data.standardise and data.standardise_share as at the start of the run in "
            f"{path}, got other values, for which the account would be wrong. Restore config.toml."
        )
    return run, plan, account


def with_further_answers(config: RunConfig, answers: Collection[str]) -> RunConfig:
    """Return the configuration with further answers. Raise an error if one of them does not exist."""
    expect_on_request(answers)
    named = [*dict.fromkeys([*config.privacy.answers, *answers])]
    return config.model_copy(update={"privacy": config.privacy.model_copy(update={"answers": named})})


def counts_of_run(folder: RunFolder) -> tuple[int, ...]:
    """Return the number of records (or persons) of each agent, as run.json states it."""
    counted = f"{folder.config.privacy.unit}s"
    records = folder.fact(counted)
    if not isinstance(records, list) or not all(type(count) is int and count > 0 for count in records):
        raise RunFolderError(
            f"Expected a list of whole numbers > 0 for `{counted}` in {folder.path / 'run.json'}, got "
            f"{records!r:.80}. Restore the file."
        )
    return tuple(records)


def coalition_account(
    plan: Plan, account: Account, size: int, seed: int, progress: Progress = silent
) -> Coalitions | None:
    """Return the answer for coalitions of `size` agents; None if `size` is 1, which the account covers.

    If there are more than `MAX_EXACT_COALITIONS` coalitions, `seed` selects a sample of them.
    """
    if size == 1:
        return None
    if account.analysis.sites > 1:
        raise InputError(
            f"--coalition: expected 1 with privacy.sites_per_person = {account.analysis.sites}, got {size}: "
            "the account of a person at several agents is against the colluders of the guarantee. Set "
            "privacy.colluders."
        )
    if account.prepared is not None:
        raise ConfigError(
            "--coalition: expected a run without private standardisation, whose release is not counted "
            f"there. Set privacy.colluders to {size} instead."
        )
    exposure = account.analysis.exposure()
    query = Query(allow_slow=True, progress=progress)
    return coalitions(plan, exposure, size, limit=MAX_EXACT_COALITIONS, seed=seed, bound="upper", query=query)


def powers(account: Account) -> dict[str, dict[str, float | None]]:
    """Return the largest power of an attacker over agents, by answer and by share of false alarms."""
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
    """Return the JSON object of `topdp account`. `together`: the answer for coalitions, if computed."""
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
