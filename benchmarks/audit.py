"""How often audits of correct runs accuse them, and how near they come: every method, mode and batch.

    python benchmarks/audit.py --quick        # 10 seeds instead of 100
    python benchmarks/audit.py                # --json: one JSON object as the last line

Small runs on random records; ends with 1 where one method is accused more often than the confidence allows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from typing import Any

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

AGENTS, RECORDS, ROUNDS, CONFIDENCE = 6, 200, 6, 0.95
BATCHES = {"full": "full", "cycle": {"cycle": 100}, "poisson": {"poisson": 100}}
Row = dict[str, Any]
GUARANTEES = ("view", "adaptive", "worst-case")


def records() -> Shards:
    random = np.random.default_rng(0)
    inputs = random.normal(size=(AGENTS, RECORDS, 16)).astype(np.float32)
    labels = (inputs.sum(2) > 0).astype(np.int64)
    return Shards.from_arrays(list(zip(inputs, labels, strict=True)))


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))


def one(method: str, mode: str, batch: str, guarantee: str, seeds: int, known: dict[str, str]) -> Row | str:
    """What was found, or the case that has the same plan."""
    config = parse(
        {
            "rounds": ROUNDS,
            "topology": {"agents": AGENTS, "connection": 0.5},
            "method": {"name": method, "mode": mode, "decay": {"period": 2}},
            "privacy": {"epsilon": 4.0, "clip": 1.0, "guarantee": guarantee},
            "data": {"batch": BATCHES[batch]},
        }
    )
    parts = Assembly.given(
        RunOutline.of(config), network(), records(), torch.device("cpu"), named_task(config)
    )
    plan, found = plan_and_account(parts.run)
    case = f"{method} {mode} {batch} {guarantee}"
    alike = known.setdefault(f"{plan.digest()} {batch} {guarantee}", case)
    if alike != case:
        return alike
    asked = AuditRequest(confidence=CONFIDENCE)
    audit = Audit.of(plan, found, config.privacy, parts.flat.dimension, asked)
    results = [audit.run(parts, seed) for seed in range(seeds)]
    return {
        "method": method,
        "mode": mode,
        "batch": batch,
        "guarantee": guarantee,
        "proved": results[0].proved,
        "lower": float(np.mean([result.lower for result in results])),
        "accused": sum("proved" in result.exceeds for result in results),
        "seeds": seeds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 seeds instead of 100")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = 10 if arguments.quick else 100
    rows: list[Row] = []
    known: dict[str, str] = {}
    noisy = [name for name, method in METHODS.items() if method.noisy]
    for case in itertools.product(noisy, ("sync", "async"), BATCHES, GUARANTEES):
        begun = time.perf_counter()
        try:
            row = one(*case, seeds, known)
        except InputError as refusal:
            print(f"{' '.join(case):40} refused: {refusal}", flush=True)
            continue
        if isinstance(row, str):
            print(f"{' '.join(case):40} the plan of {row}", flush=True)
            continue
        rows.append(row)
        print(
            f"{' '.join(case):40} accused {row['accused']:2} of {seeds}, at least {row['lower']:.2f} of "
            f"{row['proved']:.2f} on average, {time.perf_counter() - begun:.1f} s",
            flush=True,
        )
    most = max(row["accused"] for row in rows)
    total = sum(row["accused"] for row in rows) / sum(row["seeds"] for row in rows)
    print(f"{len(rows)} cases: {total:.2%} of all audits accuse; the most of {seeds}: {most}")
    if arguments.json:
        print(json.dumps({"cases": rows}))
    if total > 1 - CONFIDENCE:
        sys.exit(1)


if __name__ == "__main__":
    main()
