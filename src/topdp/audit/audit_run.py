"""The walk of an audit: who is audited against whom, one run with canaries, scores, bounds. Read this first.

    named      guarantee, names       -> owner, observer, what is proved of them    observer.py
    plant      batches, coins         -> canaries in the owner's shard              canaries.py
    execute    plan, data, canaries   -> rows, round by round                       execution.py
    score      what the observer saw  -> one number a canary                        scores.py
    bound      scores, coins          -> ε at least, with confidence                bounds.py

An audit cannot show that a run is private: it can show that it is not. It executes the plan once more, with
canaries in the place of records, so its models are not those of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from topdp.audit import epsilon_bounds
from topdp.audit.audit_observer import Observer, expect_agent, expect_named, named, seen_by_guarantee
from topdp.audit.canaries import KINDS, AuditError, Canaries, expect_room, planted, signs
from topdp.audit.canary_run import execute
from topdp.audit.canary_scores import Scores, Seen, information
from topdp.audit.findings import Findings, Kind
from topdp.base.array_types import Bools, Floats
from topdp.base.progress import Progress, silent
from topdp.plan import Capability, Plan, unsupported
from topdp.privacy.account import Account, account
from topdp.privacy.answers import ON_REQUEST
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.basics.privacy_loss import Loss
from topdp.privacy.basics.refusals import expect_delta
from topdp.privacy.query import Query
from topdp.runs import builders
from topdp.runs.assembly import Assembly, choose_device
from topdp.runs.config import PrivacyConfig, RunConfig
from topdp.runs.planning import expect_account_of, expect_plan_of, plan_and_account
from topdp.runs.run_folder import GIVEN, RunFolder
from topdp.simulator.simulated_noise import Draws


@dataclass(frozen=True)
class Question:
    """What is asked; None: what the guarantee of the run says, or as many canaries as fit up to 1,000."""

    owner: int | None = None
    observer: str = "worst"
    sees: str | None = None
    canaries: int | None = None
    confidence: float = 0.95
    delta: float | None = None
    seed: int = 0

    def expect_possible(self, agents: int) -> None:
        """Refuses what cannot be asked of so many agents: before data are read and accounts are made."""
        if not 0.5 <= self.confidence < 1:
            raise AuditError(f"--confidence: expected 0.5 or more, and below 1, got {self.confidence}.")
        if self.delta is not None:
            expect_delta(self.delta)
        expect_named(self.observer, self.sees, self.owner, agents)


def supports(plan: Plan) -> str | None:
    """None, or what in `plan` the attacks cannot take apart."""
    return unsupported(plan, {Capability.ADAPTIVE_STEPS, Capability.ROBUST_MIXING, Capability.SHARED_DRAWS})


@dataclass(frozen=True, eq=False)
class Audit:
    """Everything that is known before anything is run. It holds no data."""

    owner: int
    observer: Observer
    loss: Loss  # of the owner, to this observer, as proved
    exposure: Exposure
    answers: dict[str, float | str]  # of the account for the owner
    canaries: int
    dimension: int
    confidence: float
    delta: float
    signs: Floats  # [releases, kinds · classes]
    worth: Floats  # [kinds · classes] μ² of a canary

    @classmethod
    def of(
        cls,
        plan: Plan,
        found: Account,
        privacy: PrivacyConfig,
        dimension: int,
        asked: Question,
        progress: Progress = silent,
    ) -> Audit:
        """What is asked of a plan and its account, or a refusal. `dimension`: parameters of the model."""
        asked.expect_possible(plan.agents)
        if reason := supports(plan):
            raise AuditError(
                f"Expected rows that are sums for an audit, got {reason}: its attacks take sums apart. Use "
                "train.rows=model."
            )
        query = Query(colluders=found.colluders, allow_slow=privacy.allow_slow, progress=progress)
        if asked.delta is not None and asked.delta != found.delta:
            found = _at(asked.delta, plan, found, query)
        owner = _owner(asked.owner, found, privacy.guarantee)
        exposure = found.analysis.exposure()
        sees = asked.sees or seen_by_guarantee(privacy.guarantee)
        observer = named(asked.observer, sees, owner, plan, found, query)
        period = min(exposure.batches[owner].period, plan.releases)
        pushes = signs(observer.aim(owner, period), period)
        worth = information(observer, owner, float(exposure.sensitivity[owner]), pushes)
        if not worth.any():
            raise AuditError(
                f"{observer} sees nothing that depends on the records of agent {owner}: nothing to audit. "
                "Name another --observer, or one that --sees more."
            )
        answers = {
            name: str(answer.status) if answer.epsilon is None else float(answer.epsilon[owner])
            for name, answer in found.answers.items()
        }
        return cls(
            owner=owner,
            observer=observer,
            loss=observer.proved(exposure, owner),
            exposure=exposure,
            answers=answers,
            canaries=expect_room(
                asked.canaries, owner, exposure.batches, _of_classes(worth), dimension, asked.seed
            ),
            dimension=dimension,
            confidence=asked.confidence,
            delta=found.delta,
            signs=pushes,
            worth=worth,
        )

    def plant(self, seed: int, order: int) -> Canaries:
        """Canaries and their coins; `order`: the seed of the order of cyclic batches."""
        return planted(
            self.owner,
            self.exposure.batches,
            _of_classes(self.worth),
            self.canaries,
            self.dimension,
            self.exposure.adjacency == "replace-one",
            seed,
            order,
        )

    def with_signs(self, signs: Floats) -> Audit:
        """The same with canaries that push otherwise: those of a run that was recorded."""
        sensitivity = float(self.exposure.sensitivity[self.owner])
        return replace(self, signs=signs, worth=information(self.observer, self.owner, sensitivity, signs))

    def run(
        self, parts: Assembly, seed: int, noise: Draws | None = None, progress: Progress = silent
    ) -> Findings:
        """One run with canaries. `noise`: instead of the seed's, to audit another generator."""
        canaries = self.plant(seed, order=seed)
        rounds = execute(parts, self.observer.plan, canaries, self.signs, seed, noise)
        start = parts.start[canaries.coordinates].double().cpu().numpy()
        return self.judge(canaries, start, rounds, seed, progress)

    def judge(
        self,
        canaries: Canaries,
        start: Floats,
        rounds: Iterable[Seen],
        seed: int,
        progress: Progress = silent,
    ) -> Findings:
        """What follows from the rounds of a run with these canaries; `start`: at their coordinates."""
        sensitivity = float(self.exposure.sensitivity[self.owner])
        scores = Scores(self.observer, self.owner, sensitivity, self.signs, canaries.column, start)
        for done, seen in enumerate(rounds):
            scores.see(seen)
            progress("training", done, self.observer.plan.releases - 1, unit="round")
        found, batches = scores.result(), self.exposure.batches[self.owner]
        expected = np.sqrt(self.worth)[canaries.column] * (batches.rate if batches.sampled else 1.0)
        kinds = {}
        for k, name in enumerate(KINDS):
            these = np.arange(len(canaries)) % len(KINDS) == k
            kinds[name] = self._kind(found[these], canaries.there[these], float(expected[these].mean()))
        return Findings(
            self.owner,
            str(self.observer),
            self.observer.sees,
            self.delta,
            self.confidence,
            seed,
            kinds,
            self.loss.epsilon(self.delta),
            None if math.isnan(self.loss.mu) else self.loss.mu,
            self.answers,
        )

    def _kind(self, scores: Floats, there: Bools, mu: float) -> Kind:
        sampled = self.exposure.batches[self.owner].sampled
        error = (1 - self.confidence) / (len(KINDS) * (1 if sampled else 2))
        guesses = epsilon_bounds.guesses_for(len(scores), mu, self.delta, error)
        distance = None if sampled else epsilon_bounds.gaussian(scores, there, error)
        return Kind(
            scores,
            there,
            mu,
            distance,
            distance.epsilon(self.delta) if distance else 0.0,
            epsilon_bounds.guessing(scores, there, guesses, self.delta, error),
            guesses,
        )


@dataclass(frozen=True)
class Prepared:
    """An audit that has only to be carried out: all that could be refused was not."""

    config: RunConfig
    agents: int
    carry_out: Callable[[Progress], Findings]


def of_config(
    config: RunConfig,
    asked: Question,
    device: str = "auto",
    progress: Progress = silent,
) -> Prepared:
    """An audit of the plan that a configuration would run."""
    asked.expect_possible(builders.graph(config).agents)
    parts = Assembly.of(config, choose_device(device), progress)
    plan, found = plan_and_account(config, parts.graph, parts.shards.counts, progress)
    return _prepared(parts, plan, found, asked, progress)


def of_run(
    path: Path,
    asked: Question,
    device: str = "auto",
    progress: Progress = silent,
) -> Prepared:
    """An audit of the very plan that a run executes."""
    folder = RunFolder.open(path)
    config, plan = folder.config, folder.plan
    if config.data.name == GIVEN:
        raise AuditError(
            f"The run in {path} was started from Python with its own data and model, which are not in its "
            "folder: audit it there, with topdp.audit.Audit."
        )
    asked.expect_possible(plan.agents)
    parts = Assembly.of(config, choose_device(device), progress)
    counts = parts.shards.counts
    expect_plan_of(config, parts.graph, counts, plan, path)
    return _prepared(parts, plan, expect_account_of(config, counts, folder), asked, progress)


def _prepared(parts: Assembly, plan: Plan, found: Account, asked: Question, progress: Progress) -> Prepared:
    audit = Audit.of(plan, found, parts.config.privacy, parts.flat.dimension, asked, progress)
    return Prepared(parts.config, plan.agents, lambda shown: audit.run(parts, asked.seed, progress=shown))


def _at(delta: float, plan: Plan, found: Account, query: Query) -> Account:
    """The same answers at another δ."""
    names = [name for name in ON_REQUEST if found.answer(name).asked]
    return account(plan, found.analysis, delta, answers=names, guarantee=found.guarantee, query=query)


def _owner(asked: int | None, found: Account, guarantee: str) -> int:
    agents = len(found.analysis.batches)
    if asked is not None:
        return expect_agent("--owner", asked, agents)
    epsilon = found.answer(guarantee).epsilon
    if epsilon is None:
        epsilon = found.worst_case.epsilon
    return int(np.argmax(epsilon)) if epsilon is not None else 0


def _of_classes(worth: Floats) -> Floats:
    """[classes]: what a place is worth to canaries of both kinds."""
    return np.asarray(worth.reshape(len(KINDS), -1).sum(axis=0))
