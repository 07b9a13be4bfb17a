"""How often the lower bounds of audits exceed a correct ε, and how close to it they come.

    python benchmarks/audit.py
    python benchmarks/audit.py --quick        # 10 seeds instead of 100

The cases are small runs on random records, for every noisy method, mode, batch and guarantee. Exit with 1 if
the share of lower bounds that exceed the proved ε is larger than the confidence allows.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from topdp.audit import Audit, AuditRequest
from topdp.data import Shards
from topdp.errors import InputError
from topdp.runs.assembly import Assembly
from topdp.runs.config import parse
from topdp.runs.methods import METHODS
from topdp.runs.named_model import named_task
from topdp.runs.planning import plan_and_account
from topdp.runs.run_outline import RunOutline

AGENTS, RECORDS_PER_AGENT, ROUNDS, CONFIDENCE = 6, 200, 6, 0.95
FULL_SEEDS, QUICK_SEEDS = 100, 10
BATCHES = {"full": "full", "cycle": {"cycle": 100}, "poisson": {"poisson": 100}}
GUARANTEES = ("view", "adaptive", "worst-case")


class Case(NamedTuple):
    """The settings of the audited runs."""

    method: str
    mode: str
    batch: str
    guarantee: str

    def __str__(self) -> str:
        return " ".join(self)


@dataclass(frozen=True)
class CaseResult:
    """The results of the audits of one case."""

    proved: float  # the proved ε
    mean_lower_bound: float
    exceeded: int  # the number of audits whose lower bound exceeds the proved ε

    def __str__(self) -> str:
        return (
            f"{self.exceeded:2} lower bounds exceed ε; mean {self.mean_lower_bound:.2f}, "
            f"proved {self.proved:.2f}"
        )


def random_shards() -> Shards:
    random = np.random.default_rng(0)
    inputs = random.normal(size=(AGENTS, RECORDS_PER_AGENT, 16)).astype(np.float32)
    labels = (inputs.sum(2) > 0).astype(np.int64)
    return Shards.from_arrays(list(zip(inputs, labels, strict=True)))


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))


def audit_case(case: Case, seeds: int, case_of_plan: dict[str, Case]) -> CaseResult | Case:
    """Audit a case, once per seed. If an earlier case has the same plan, return that case instead.

    `case_of_plan`: the cases so far; this function adds `case`.
    """
    config = parse(
        {
            "rounds": ROUNDS,
            "topology": {"agents": AGENTS, "connection": 0.5},
            "method": {"name": case.method, "mode": case.mode, "noise_schedule": {"period": 2}},
            "privacy": {"epsilon": 4.0, "clip": 1.0, "guarantee": case.guarantee},
            "data": {"batch": BATCHES[case.batch]},
        }
    )
    assembly = Assembly.given(
        RunOutline.of(config), network(), random_shards(), torch.device("cpu"), named_task(config)
    )
    plan, account = plan_and_account(assembly.run)
    earlier = case_of_plan.setdefault(f"{plan.digest()} {case.batch} {case.guarantee}", case)
    if earlier != case:
        return earlier
    request = AuditRequest(confidence=CONFIDENCE)
    audit = Audit.of(plan, account, config.privacy, assembly.flat.dimension, request)
    findings = [audit.run(assembly, seed) for seed in range(seeds)]
    return CaseResult(
        proved=findings[0].proved,
        mean_lower_bound=float(np.mean([each.lower for each in findings])),
        exceeded=sum("proved" in each.exceeds for each in findings),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SEEDS} seeds instead of {FULL_SEEDS}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = QUICK_SEEDS if options.quick else FULL_SEEDS
    results: list[CaseResult] = []
    case_of_plan: dict[str, Case] = {}
    noisy_methods = [name for name, method in METHODS.items() if method.noisy]
    for settings in itertools.product(noisy_methods, ("sync", "async"), BATCHES, GUARANTEES):
        case = Case(*settings)
        start = time.perf_counter()
        try:
            result = audit_case(case, seeds, case_of_plan)
        except InputError as error:
            print(f"{case!s:40} refused: {error}", flush=True)
            continue
        if isinstance(result, Case):
            print(f"{case!s:40} same plan as {result}", flush=True)
            continue
        results.append(result)
        print(f"{case!s:40} {result}, {time.perf_counter() - start:.1f} s", flush=True)
    if not results:
        sys.exit("Expected at least one case that can be audited, but all were refused.")
    largest = max(result.exceeded for result in results)
    share = sum(result.exceeded for result in results) / (seeds * len(results))
    print(f"{len(results)} cases: {share:.2%} of all lower bounds exceed ε; at most {largest} of {seeds}")
    if share > 1 - CONFIDENCE:
        sys.exit(1)


if __name__ == "__main__":
    main()
