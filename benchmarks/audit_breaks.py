"""How often audits catch broken noise and broken clipping, and how often they flag correct runs.

    python benchmarks/audit_breaks.py
    python benchmarks/audit_breaks.py --quick        # 3 seeds of each break and 10 of each correct run

Every audit has 1,000 canaries. The engine executes a broken plan, broken draws or broken clipping, and the
audit reads the correct plan. Exit with 1 if a break is caught in less than nine of ten seeds, or if clearly
more correct runs are flagged than the audit states: 0.1% by the checks, 5% by bounds above the proved ε.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

from topdp.audit import Audit, AuditRequest, Findings, canary_scores
from topdp.audit.noise_checks import FALSE_FLAGS
from topdp.data import Shards
from topdp.learning.gradients import ClippedGradients
from topdp.plan import PerRound, Plan
from topdp.runs.assembly import Assembly
from topdp.runs.config import parse
from topdp.runs.named_model import named_task
from topdp.runs.planning import plan_and_account
from topdp.runs.run_outline import RunOutline
from topdp.simulator.engine import Engine

AGENTS, RECORDS_PER_AGENT, ROUNDS, CANARIES, CONFIDENCE = 4, 1100, 8, 1000, 0.95
SEEDS, CORRECT_SEEDS = 10, 100
NO_CLIP = 1e9


class RenamedDraws:
    """The draws of a run, of which those of one round take the place of those of another."""

    def __init__(self, draws: Any, renamed: Callable[[int], int]) -> None:
        self._draws, self._renamed = draws, renamed

    def __getattr__(self, name: str) -> Any:
        given = getattr(self._draws, name)
        if not callable(given) or name == "fill":
            return given
        return lambda round, draws: given(self._renamed(round), draws)


class BrokenClipping:
    """Clipped gradients, of which only the sums are wrong."""

    def __init__(self, gradients: ClippedGradients, clip: float, mean: bool = False) -> None:
        """`mean`: clip the mean gradient of an agent's records instead of each record's gradient."""
        self._gradients, self._mean = gradients, mean
        self._other = ClippedGradients(gradients.flat, clip, gradients.loss)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gradients, name)

    def clipped_sum(
        self, rows: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor, **options: Any
    ) -> Tensor:
        sums = self._other.clipped_sum(rows, inputs, targets, weights, **options)
        if self._mean:
            count = weights.sum(dim=1, keepdim=True)
            lengths = sums.norm(dim=1, keepdim=True) / count
            sums *= (self._gradients.clip / lengths).clamp_max(1.0)
        return sums


@dataclass(frozen=True)
class Fault:
    """What is broken: the plan that the engine executes, its draws, or the clipping."""

    plan: Callable[[Plan], Plan] = lambda plan: plan
    draws: Callable[[Any], Any] = lambda draws: draws
    gradients: Callable[[ClippedGradients], Any] = lambda gradients: gradients

    @contextmanager
    def built_into(self, parts: Assembly) -> Iterator[None]:
        """Break the engine of the next audits of `parts` inside the `with` block."""
        gradients = parts.gradients

        def engine(plan: Plan, *arguments: Any, draws: Any, **options: Any) -> Engine:
            return Engine(self.plan(plan), *arguments, draws=self.draws(draws), **options)

        vars(parts)["gradients"] = self.gradients(gradients)
        vars(canary_scores)["Engine"] = engine
        try:
            yield
        finally:
            vars(parts)["gradients"] = gradients
            vars(canary_scores)["Engine"] = Engine


def same_draw(plan: Plan) -> Plan:
    return replace(plan, draw=PerRound(np.minimum(plan.draw.values, 0), plan.draw.which))


def silent_agent(plan: Plan) -> Plan:
    quiet = plan.std.values.copy()
    quiet[:, plan.owner == 2] = 0.0
    return replace(plan, std=PerRound(quiet, plan.std.which))


def equal_signs(plan: Plan) -> Plan:
    return replace(plan, std=PerRound(np.abs(plan.std.values), plan.std.which))


NO_FAULT = Fault()
HALVED = Fault(plan=lambda plan: plan.noise_scaled(0.5))
ONE_DRAW = Fault(plan=same_draw)
SILENT = Fault(plan=silent_agent)
EVERY_SECOND = Fault(draws=lambda draws: RenamedDraws(draws, lambda round: round - round % 2))
ONCE = Fault(draws=lambda draws: RenamedDraws(draws, lambda round: 0))
NO_CANCELLING = Fault(plan=equal_signs)
TWICE = Fault(gradients=lambda right: BrokenClipping(right, 2 * right.clip))
NEVER = Fault(gradients=lambda right: BrokenClipping(right, NO_CLIP))
MEAN_ONLY = Fault(gradients=lambda right: BrokenClipping(right, NO_CLIP, mean=True))


class Broken(NamedTuple):
    """A break and the method that it is built into."""

    name: str
    method: str
    fault: Fault


BREAKS = (
    Broken("all noise halved", "correlated", HALVED),
    Broken("all noise halved", "top", HALVED),
    Broken("pair noise that does not cancel", "correlated", NO_CANCELLING),
    Broken("one draw used by all agents", "plain", ONE_DRAW),
    Broken("one draw used by all agents", "top", ONE_DRAW),
    Broken("no noise in one agent's rows", "plain", SILENT),
    Broken("no noise in one agent's rows", "top", SILENT),
    Broken("draws reused in the next round", "plain", EVERY_SECOND),
    Broken("draws reused in the next round", "top", EVERY_SECOND),
    Broken("draws reused in every round", "plain", ONCE),
    Broken("clip twice as long", "plain", TWICE),
    Broken("no clipping", "plain", NEVER),
    Broken("only the mean is clipped", "plain", MEAN_ONLY),
)
CORRECT = ("plain", "top", "correlated", "muffliato")


def random_shards() -> Shards:
    random = np.random.default_rng(0)
    inputs = random.normal(size=(AGENTS, RECORDS_PER_AGENT, 16)).astype(np.float32)
    labels = (inputs.sum(2) > 0).astype(np.int64) + (inputs[..., 0] > 1)
    return Shards.from_arrays(list(zip(inputs, labels, strict=True)))


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 60), torch.nn.Tanh(), torch.nn.Linear(60, 3))


@dataclass(frozen=True)
class Subject:
    """An audit, and the run that it attacks."""

    audit: Audit
    parts: Assembly

    @classmethod
    def of(cls, method: str) -> Subject:
        config = parse(
            {
                "noise_seed": 0,
                "rounds": ROUNDS,
                "topology": {"kind": "ring", "agents": AGENTS},
                "method": {"name": method},
                "privacy": {"epsilon": 4.0, "clip": 1.0},
            }
        )
        parts = Assembly.given(
            RunOutline.of(config), network(), random_shards(), torch.device("cpu"), named_task(config)
        )
        plan, account = plan_and_account(parts.run)
        request = AuditRequest(canaries=CANARIES, confidence=CONFIDENCE)
        return cls(Audit.of(plan, account, config.privacy, parts.flat.dimension, request), parts)

    def findings(self, seeds: int, fault: Fault = NO_FAULT) -> list[Findings]:
        with fault.built_into(self.parts):
            return [self.audit.run(self.parts, seed) for seed in range(seeds)]


def summary(found: list[Findings]) -> str:
    """Return how many audits flag the run and by what, and the mean of their bounds on ε."""
    by = Counter(check.name for each in found for check in each.deviations)
    by["bounds on ε"] = sum("proved" in each.exceeds for each in found)
    counts = ", ".join(f"{name} {count}" for name, count in by.items() if count)
    lower = np.mean([each.lower for each in found])
    caught = sum(each.flagged for each in found)
    return (
        f"{caught:3} of {len(found)}; ε ≥ {lower:5.2f}, proved {found[0].proved:.2f}; by {counts or 'none'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer seeds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds, correct_seeds = (3, 10) if options.quick else (SEEDS, CORRECT_SEEDS)
    subjects = {method: Subject.of(method) for method in CORRECT}
    failed = False
    print("caught:")
    for name, method, fault in BREAKS:
        start = time.perf_counter()
        found = subjects[method].findings(seeds, fault)
        failed |= sum(each.flagged for each in found) < 0.9 * seeds
        print(
            f"{name + ' (' + method + ')':46} {summary(found)}; {time.perf_counter() - start:.0f} s",
            flush=True,
        )
    print("correct runs flagged:")
    deviating = exceeding = 0
    for method, subject in subjects.items():
        found = subject.findings(correct_seeds)
        deviating += sum(bool(each.deviations) for each in found)
        exceeding += sum("proved" in each.exceeds for each in found)
        print(f"{method:46} {summary(found)}", flush=True)
    runs = correct_seeds * len(subjects)
    print(
        f"{runs} correct runs: {deviating} flagged by checks (stated 0.1%), {exceeding} by bounds (stated 5%)"
    )
    stated = ((deviating, FALSE_FLAGS), (exceeding, 1 - CONFIDENCE))
    if failed or any(binom.sf(count - 1, runs, share) < 1e-3 for count, share in stated):
        sys.exit(1)


if __name__ == "__main__":
    main()
