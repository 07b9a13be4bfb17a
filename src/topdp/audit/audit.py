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

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from topdp.audit import bounds
from topdp.audit.canaries import KINDS, AuditError, expect_room, planted, signs
from topdp.audit.execution import execute
from topdp.audit.findings import Findings, Kind
from topdp.audit.observer import BY_GUARANTEE, Observer, expect_agent, named
from topdp.audit.scores import Scores, information
from topdp.data.progress import Progress
from topdp.plan import Plan
from topdp.plan.arrays import Bools, Floats
from topdp.privacy.account import Account, account
from topdp.privacy.basics.checks import expect_delta
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.basics.loss import GaussianLoss, Loss
from topdp.runs.assembly import Assembly, choose_device
from topdp.runs.folder import GIVEN, RunFolder
from topdp.runs.loop import Watcher
from topdp.runs.planning import expect_account_of, expect_plan_of, plan_and_account
from topdp.settings.config import RunConfig
from topdp.simulator.draws import Draws


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


@dataclass(frozen=True, eq=False)
class Audit:
    """Everything that is known before anything is run."""

    parts: Assembly
    plan: Plan
    owner: int
    observer: Observer
    loss: Loss
    exposure: Exposure
    answers: dict[str, float | str]
    canaries: int
    confidence: float
    delta: float
    signs: Floats  # [releases, kinds · classes]
    worth: Floats  # [kinds · classes] μ² of a canary

    @classmethod
    def of(
        cls, parts: Assembly, plan: Plan, found: Account, asked: Question, watch: Watcher | None = None
    ) -> Audit:
        """What is asked of a plan and its account, or a refusal."""
        if not 0.5 <= asked.confidence < 1:
            raise AuditError(f"--confidence: expected 0.5 or more, and below 1, got {asked.confidence}.")
        if asked.delta is not None and expect_delta(asked.delta) != found.delta:
            found = account(plan, found.analysis, asked.delta, guarantee=found.guarantee)
        guarantee = found.guarantee or parts.config.privacy.guarantee
        owner = _owner(asked.owner, found, guarantee)
        exposure = found.analysis.exposure()
        colluders = getattr(parts.config.privacy, "colluders", 1)
        observer = named(
            asked.observer,
            plan,
            exposure,
            owner,
            asked.sees or BY_GUARANTEE[guarantee],
            colluders,
            accounting(watch),
        )
        batches, sensitivity = exposure.batches[owner], float(exposure.sensitivity[owner])
        period = min(batches.period, plan.releases)
        pushes = signs(observer.aim(owner, period), period)
        worth = information(observer.plan, observer.coalition, owner, sensitivity, pushes)
        if not worth.any():
            raise AuditError(
                f"{observer} sees nothing that depends on the records of agent {owner}: nothing to audit. "
                "Name another --observer, or one that --sees more."
            )
        count = expect_room(
            asked.canaries, owner, parts.batches, _of_classes(worth), parts.flat.dimension, asked.seed
        )
        answers = {
            name: str(answer.status) if answer.epsilon is None else float(answer.epsilon[owner])
            for name, answer in found.answers.items()
        }
        loss = observer.proved(exposure, owner)
        return cls(
            parts,
            plan,
            owner,
            observer,
            loss,
            exposure,
            answers,
            count,
            asked.confidence,
            found.delta,
            pushes,
            worth,
        )

    def run(self, seed: int, noise: Draws | None = None, watch: Watcher | None = None) -> Findings:
        """One run with canaries. `noise`: instead of the seed's, to audit another generator."""
        replaced = self.exposure.adjacency == "replace-one"
        canaries = planted(
            self.owner,
            self.parts.batches,
            _of_classes(self.worth),
            self.canaries,
            self.parts.flat.dimension,
            replaced,
            seed,
        )
        start = self.parts.start[canaries.coordinates].double().cpu().numpy()
        sensitivity = float(self.exposure.sensitivity[self.owner])
        scores = Scores(
            self.observer.plan,
            self.observer.coalition,
            self.owner,
            sensitivity,
            self.signs,
            canaries.column,
            start,
        )
        rounds = execute(self.parts, self.plan, canaries, self.signs, seed, noise)
        for done, seen in enumerate(rounds):
            scores.see(seen)
            if watch is not None:
                watch("training", done, self.plan.releases - 1, None)
        found, kind = scores.result(), np.arange(len(canaries)) % len(KINDS)
        batches = self.exposure.batches[self.owner]
        expected = np.sqrt(self.worth)[canaries.column] * (batches.rate if batches.sampled else 1.0)
        kinds = {
            name: self._kind(found[kind == k], canaries.there[kind == k], float(expected[kind == k].mean()))
            for k, name in enumerate(KINDS)
        }
        return Findings(
            self.owner,
            str(self.observer),
            self.observer.sees,
            self.delta,
            self.confidence,
            seed,
            kinds,
            self.loss.epsilon(self.delta),
            self.loss.mu if isinstance(self.loss, GaussianLoss) else None,
            self.answers,
        )

    def _kind(self, scores: Floats, there: Bools, mu: float) -> Kind:
        sampled = self.exposure.batches[self.owner].sampled
        error = (1 - self.confidence) / (len(KINDS) * (1 if sampled else 2))
        guesses = bounds.guesses_for(len(scores), mu, self.delta, error)
        distance = None if sampled else bounds.gaussian(scores, there, error)
        return Kind(
            scores,
            there,
            mu,
            distance,
            distance.epsilon(self.delta) if distance else 0.0,
            bounds.guessing(scores, there, guesses, self.delta, error),
            guesses,
        )


def of_config(
    config: RunConfig,
    asked: Question,
    device: str = "auto",
    watch: Watcher | None = None,
    progress: Progress | None = None,
) -> Audit:
    """An audit of the plan that a configuration would run."""
    parts = Assembly.of(config, choose_device(device), progress)
    plan, found = plan_and_account(config, parts.graph, parts.shards.counts, accounting(watch))
    return Audit.of(parts, plan, found, asked, watch)


def of_run(
    path: Path,
    asked: Question,
    device: str = "auto",
    watch: Watcher | None = None,
    progress: Progress | None = None,
) -> Audit:
    """An audit of the very plan that a run executes."""
    folder = RunFolder.open(path)
    config, plan = folder.config, folder.plan
    if config.data.name == GIVEN:
        raise AuditError(
            f"The run in {path} was started from Python with its own data and model, which are not in its "
            "folder: audit it there, with topdp.audit.Audit.of."
        )
    parts = Assembly.of(config, choose_device(device), progress)
    expect_plan_of(config, parts.graph, parts.shards.counts, plan, path)
    return Audit.of(parts, plan, expect_account_of(config, parts.shards.counts, folder), asked, watch)


def accounting(watch: Watcher | None) -> Callable[[int, int], None] | None:
    """The part of a watcher that accountants call."""
    return None if watch is None else lambda done, total: watch("accounting", done, total, None)


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
