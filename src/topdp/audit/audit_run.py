"""The stages of an audit: owner and observer, one run with canaries, scores, bounds. Read this first.

    observer   guarantee, names       -> owner, observer, proved bound              audit_observer.py
    plant      batches, coins         -> canaries in the owner's shard              canaries.py
               model, free records    -> records whose clipped gradient is known    planted_records.py
    execute    plan, data, canaries   -> rows, round by round                       canary_scores.py
    score      what the observer saw  -> one number per canary                      canary_scores.py
    check      everything, the plan   -> whether the noise is as planned            noise_checks.py
    bound      scores, coins          -> lower bounds on ε, with confidence         findings.py

An audit cannot show that a run is private; it can only show that a run is not private. It executes the plan
once more, with canaries in place of some records, so its models differ from those of the audited run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from topdp.audit.audit_observer import Observer, expect_observer, observer_named, seen_by
from topdp.audit.canaries import CANARY_KINDS, AuditError, Canaries, canary_count, plant_canaries, signs
from topdp.audit.canary_scores import ObservedRound, canary_scores, execute, information
from topdp.audit.findings import Findings, KindFindings, gaussian, guesses_for, guessing
from topdp.audit.noise_checks import Columns, NoiseChecks
from topdp.audit.planted_records import plant_records
from topdp.base.array_types import Floats
from topdp.base.progress import Progress, silent
from topdp.plan import Capability, Plan, unsupported
from topdp.privacy.accounting import Account
from topdp.privacy.accounting import account as compute_account
from topdp.privacy.answers import ON_REQUEST, guarantee_kind
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.basics.privacy_loss import Loss
from topdp.privacy.basics.refusals import expect_delta
from topdp.privacy.query import Query
from topdp.runs.assembly import Assembly, choose_device
from topdp.runs.config import PrivacyConfig, RunConfig
from topdp.runs.planning import expect_account_of, expect_plan_of, plan_and_account
from topdp.runs.run_folder import RunFolder
from topdp.runs.run_outline import RunOutline
from topdp.runs.statistics.standardisation_cost import standardises
from topdp.simulator.simulated_noise import Draws


@dataclass(frozen=True, kw_only=True)
class AuditRequest:
    """The settings of an audit. None stands for a default, which follows from the run and its guarantee."""

    owner: int | None = None  # by default the agent with the largest ε
    observer: str = "worst"
    sees: str | None = None  # by default what the observer of the guarantee sees
    canaries: int | None = None  # by default as many as fit, up to 1,000
    confidence: float = 0.95
    delta: float | None = None  # by default the owner's, as in the account
    seed: int = 0

    def expect_possible(self, agents: int) -> None:
        """Raise AuditError or PrivacyError if a setting is impossible.

        Called before data are read and accounts are computed, so that the error comes early.
        """
        if not 0.5 <= self.confidence < 1:
            raise AuditError(f"--confidence: expected at least 0.5 and below 1, got {self.confidence}.")
        if self.delta is not None:
            expect_delta(self.delta)
        expect_observer(self.observer, self.sees, self.owner, agents)


def supports(plan: Plan) -> str | None:
    """Return None if the attack can audit `plan`, and otherwise the reason why it cannot.

    The attack needs rows that are exact sums of rows, gradients and noise.
    """
    return unsupported(plan, {Capability.ADAPTIVE_STEPS, Capability.ROBUST_MIXING, Capability.SHARED_DRAWS})


@dataclass(frozen=True, eq=False, kw_only=True)
class Audit:
    """An audit before its run: observer, signs and proved bound. It contains no records."""

    owner: int
    observer: Observer
    loss: Loss  # the proved bound on what the observer learns about a record of the owner
    exposure: Exposure
    answers: dict[str, float | str]  # the account's ε for the owner, or the status if there is none
    canaries: int
    dimension: int  # the number of parameters of the model
    confidence: float
    delta: float
    signs: Floats  # [releases, kinds · classes], as `canaries.signs` returns them
    worth: Floats  # [kinds · classes] μ² of a canary

    @classmethod
    def of(
        cls,
        plan: Plan,
        account: Account,
        privacy: PrivacyConfig,
        dimension: int,
        request: AuditRequest,
        progress: Progress = silent,
        recorded_signs: Floats | None = None,
    ) -> Audit:
        """Return the audit of a plan; raise AuditError if `request` is impossible for it.

        `dimension`: the number of parameters of the model. `recorded_signs`: the signs that a recorded
        rehearsal used; by default, the signs are chosen for this observer (`Observer.aim`).
        """
        request.expect_possible(plan.agents)
        if reason := supports(plan):
            raise AuditError(
                f"Expected rows that are exact sums, which the attack can separate, got {reason}. Use "
                "train.rows=model."
            )
        query = Query(colluders=account.colluders, allow_slow=privacy.allow_slow, progress=progress)
        if request.delta is not None and request.delta != account.delta:
            requested = [name for name in ON_REQUEST if account.answer(name).asked]
            account = compute_account(
                plan, account.analysis, request.delta, requested, account.guarantee, query=query
            )
        owner = request.owner
        if owner is None:
            epsilon = account.answer(privacy.guarantee).epsilon
            epsilon = account.worst_case.epsilon if epsilon is None else epsilon
            owner = 0 if epsilon is None else int(np.argmax(epsilon))
        exposure = account.analysis.exposure()
        sees = request.sees or seen_by(guarantee_kind(privacy.guarantee).public)
        observer = observer_named(request.observer, sees, owner, plan, account, query)
        period = min(exposure.batches[owner].period, plan.releases)
        pushes = signs(observer.aim(owner, period), period) if recorded_signs is None else recorded_signs
        worth = information(observer, owner, float(exposure.sensitivity[owner]), pushes)
        if not worth.any():
            raise AuditError(
                f"Expected an observer that sees something of agent {owner}, got {observer}. Nothing that it "
                f"sees depends on the records of agent {owner}. Change --observer or --sees."
            )
        answers = {
            name: str(answer.status) if answer.epsilon is None else float(answer.epsilon[owner])
            for name, answer in account.answers.items()
        }
        return cls(
            owner=owner,
            observer=observer,
            loss=observer.proved(exposure, owner),
            exposure=exposure,
            answers=answers,
            canaries=canary_count(
                request.canaries, owner, exposure.batches, _class_worth(worth), dimension, request.seed
            ),
            dimension=dimension,
            confidence=request.confidence,
            delta=float(account.deltas[owner]),
            signs=pushes,
            worth=worth,
        )

    def plant(self, seed: int, order: int) -> Canaries:
        """Return canaries that follow from `seed`. `order`: the seed of the order of `cycle` batches."""
        return plant_canaries(
            self.owner,
            self.exposure.batches,
            _class_worth(self.worth),
            count=self.canaries,
            dimension=self.dimension,
            replace_one=self.exposure.adjacency == "replace-one",
            seed=seed,
            order=order,
        )

    def run(
        self, parts: Assembly, seed: int, noise: Draws | None = None, progress: Progress = silent
    ) -> Findings:
        """Execute the plan with canaries, and return the findings.

        `noise`: draws that replace those that follow from `seed`, for audits of another noise generator.
        """
        canaries = self.plant(seed, order=seed)
        free = np.setdiff1d(np.arange(self.exposure.batches[self.owner].records), canaries.records)
        planted = plant_records(parts.gradients, parts.shards, parts.start, self.owner, free)
        rounds = execute(parts, self.observer.plan, canaries, self.signs, seed, noise, planted)
        start = parts.start[canaries.coordinates].double().cpu().numpy()
        return self.judge(canaries, start, rounds, seed, progress)

    def judge(
        self,
        canaries: Canaries,
        start: Floats,
        rounds: Iterable[ObservedRound],
        seed: int,
        progress: Progress = silent,
    ) -> Findings:
        """Return the findings that follow from the rounds of a run.

        `start` [canaries]: the public initial row at the canaries' coordinates.
        """

        checks = NoiseChecks(self.observer.plan, self.owner)

        def reported() -> Iterator[ObservedRound]:
            before = np.broadcast_to(start, (self.observer.plan.rows, len(canaries)))
            for number, observed in enumerate(rounds):
                yield observed
                gradients = observed.gradients.copy()
                gradients[self.owner] += observed.added
                columns = Columns(before, observed.rows, gradients)
                checks.add(number, columns, observed.added, observed.planted)
                before = observed.rows
                progress("training", number, self.observer.plan.releases - 1, unit="round")

        scores = canary_scores(
            self.observer,
            self.owner,
            float(self.exposure.sensitivity[self.owner]),
            reported(),
            signs=self.signs,
            column=canaries.column,
            start=start,
        )
        batches = self.exposure.batches[self.owner]
        expected = np.sqrt(self.worth)[canaries.column] * (batches.rate if batches.sampled else 1.0)
        error = (1 - self.confidence) / (len(CANARY_KINDS) * (1 if batches.sampled else 2))
        kinds = {}
        for k, name in enumerate(CANARY_KINDS):
            own = np.arange(len(canaries)) % len(CANARY_KINDS) == k
            mu, present = float(expected[own].mean()), canaries.present[own]
            guesses = guesses_for(int(own.sum()), mu, self.delta, error)
            distance = None if batches.sampled else gaussian(scores[own], present, error)
            kinds[name] = KindFindings(
                scores=scores[own],
                present=present,
                mu=mu,
                gaussian=distance,
                epsilon_gaussian=distance.epsilon(self.delta) if distance else 0.0,
                epsilon_guessing=guessing(scores[own], present, guesses, self.delta, error),
                guesses=guesses,
            )
        return Findings(
            owner=self.owner,
            observer=str(self.observer),
            sees=self.observer.sees,
            delta=self.delta,
            confidence=self.confidence,
            seed=seed,
            kinds=kinds,
            proved=self.loss.epsilon(self.delta),
            mu=None if math.isnan(self.loss.mu) else self.loss.mu,
            answers=self.answers,
            checks=checks.results(),
        )


@dataclass(frozen=True)
class PreparedAudit:
    """An audit with checked settings, ready to be executed."""

    config: RunConfig
    agents: int
    execute: Callable[[Progress], Findings]


def of_config(
    config: RunConfig, request: AuditRequest, device: str = "auto", progress: Progress = silent
) -> PreparedAudit:
    """Return the prepared audit of the plan that follows from a configuration."""
    outline = RunOutline.of(config)
    request.expect_possible(outline.graph.agents)
    _expect_no_release(config)
    parts = Assembly.of(outline, choose_device(device), progress)
    plan, account = plan_and_account(parts.run, progress)
    return _prepared(parts, plan, account, request, progress)


def of_run(
    path: Path, request: AuditRequest, device: str = "auto", progress: Progress = silent
) -> PreparedAudit:
    """Return the prepared audit of the plan in the run folder `path`."""
    folder = RunFolder.open(path)
    config, plan = folder.config, folder.plan
    if config.started_from_python:
        raise AuditError(
            f"Expected a run of a configuration, got {path}, which was started from Python. Its folder does "
            "not contain the data and the model. Audit it from Python with topdp.audit.Audit."
        )
    request.expect_possible(plan.agents)
    _expect_no_release(config)
    parts = Assembly.of(RunOutline.of(config), choose_device(device), progress)
    expect_plan_of(parts.run, plan, path)
    account = expect_account_of(parts.run.config, parts.run.analysis, folder)
    return _prepared(parts, plan, account, request, progress)


def _expect_no_release(config: RunConfig) -> None:
    if standardises(config):
        raise AuditError(
            'Expected a run without data.standardise = "private", whose release before training an audit '
            'does not attack. Audit the run with data.standardise = "none".'
        )


def _prepared(
    parts: Assembly, plan: Plan, account: Account, request: AuditRequest, progress: Progress
) -> PreparedAudit:
    audit = Audit.of(plan, account, parts.run.config.privacy, parts.flat.dimension, request, progress)
    return PreparedAudit(
        parts.run.config, plan.agents, lambda shown: audit.run(parts, request.seed, progress=shown)
    )


def _class_worth(worth: Floats) -> Floats:
    """Return the sum of `worth` over both kinds, [classes]."""
    return np.asarray(worth.reshape(len(CANARY_KINDS), -1).sum(axis=0))
