"""Federations under random faults of messages, links, processes, clocks and disks, in virtual time.

    python benchmarks/faults.py --schedules 10000 --processes 16     # all settings in turn
    python benchmarks/faults.py --setting sync-wait --seed 7         # repeat one schedule, with a log
    python benchmarks/faults.py --planted                            # are planted faults detected?

Real agents with real ledgers run in one process; clock, network and disk are simulated
(`tests/agents/faults`). A seed determines each schedule of faults. After every schedule, no charge may be
missing, no round applied twice, no budget exceeded, no ledger damaged and no honest agent quarantined. After
all faults have healed, every agent must end. Under the rule to wait, a seeded run must also send the same
bytes and end with the same estimates as a run without faults. Exit with 1 if a condition is violated; the
output names the seeds.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "agents")]

MAX_SCHEDULE_SECONDS = 120  # real time
PLANTED_SEEDS = 150  # schedules that are tried for each planted fault; one fault needs more than a hundred
TABLE_HEADINGS = (
    "setting", "schedules", "starts", "kills", "old copies", "left waiting", "wrong", "s per schedule",
)  # fmt: skip


def run_schedule(setting_and_seed: tuple[str, int]) -> dict[str, Any]:
    """Run one schedule; return its violations and counts."""
    from faults.injector import run

    setting, seed = setting_and_seed

    def raise_timeout(*_: Any) -> None:
        raise TimeoutError(f"longer than {MAX_SCHEDULE_SECONDS} s of real time")

    signal.signal(signal.SIGALRM, raise_timeout)
    signal.alarm(MAX_SCHEDULE_SECONDS)
    start = time.perf_counter()
    counts = {"kills": 0, "starts": 0, "left_waiting": 0, "old_copies": 0}
    try:
        verdict = run(setting, seed)
        violations = verdict.faults
        counts = {
            "kills": verdict.kills,
            "starts": verdict.starts,
            "left_waiting": int(None in verdict.codes.values()),
            "old_copies": int(verdict.schedule.rolls_back),
        }
    except Exception:
        violations = [traceback.format_exc(limit=-3)]
    finally:
        signal.alarm(0)
    seconds = time.perf_counter() - start
    return {"setting": setting, "seed": seed, "violations": violations, "seconds": seconds, **counts}


def replay(setting: str, seed: int) -> int:
    """Repeat one schedule, and print its log. Return the exit code."""
    from faults.injector import run

    verdict = run(setting, seed)
    print("\n".join([*verdict.schedule.told(), *verdict.log]))
    print(f"exit codes {verdict.codes} after {verdict.seconds:.1f} virtual seconds, {verdict.kills} kills")
    for violation in verdict.faults:
        print(f"WRONG: {violation}")
    return int(bool(verdict.faults))


def detect_planted_faults() -> int:
    """Print the first seed that detects each planted fault. Return 1 if a fault is not detected, else 0."""
    from faults.planted import PLANTED, first_found

    undetected = 0
    for name in PLANTED:
        detection = first_found(name, range(PLANTED_SEEDS))
        undetected += detection is None
        text = f"seed {detection[0]}: {detection[1][0]}" if detection else "NOT DETECTED"
        print(f"{name}: {text}", flush=True)
    return int(undetected > 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--setting", help="names, separated by commas; by default all settings")
    parser.add_argument("--seed", type=int, help="repeat the schedule of this seed, and print its log")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--schedules", type=int, default=240, help="the number for all settings together")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--planted", action="store_true", help="test whether planted faults are detected")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # otherwise the order of sets differs between processes
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    os.environ["OMP_NUM_THREADS"] = "1"

    from faults.jobs import JOBS

    settings = options.setting.split(",") if options.setting else list(JOBS)
    if options.seed is not None:
        raise SystemExit(max(replay(setting, options.seed) for setting in settings))
    if options.planted:
        raise SystemExit(detect_planted_faults())
    schedules = [
        (settings[i % len(settings)], options.first + i // len(settings)) for i in range(options.schedules)
    ]
    start, results = time.perf_counter(), collections.defaultdict(list)
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        for result in pool.imap_unordered(run_schedule, schedules, chunksize=4):
            results[result["setting"]].append(result)
            for violation in result["violations"]:
                arguments = f"--setting {result['setting']} --seed {result['seed']}"
                print(f"WRONG: {arguments}: {violation}", flush=True)
    print_table(settings, results)
    wrong = sum(bool(result["violations"]) for group in results.values() for result in group)
    seconds = time.perf_counter() - start
    print(f"{len(schedules)} schedules in {seconds:.0f} s, {wrong} of them with violations")
    raise SystemExit(int(wrong > 0))


def print_table(settings: list[str], results: dict[str, list[dict[str, Any]]]) -> None:
    print("| " + " | ".join(TABLE_HEADINGS) + " |\n" + "|---" * len(TABLE_HEADINGS) + "|")
    for setting in settings:
        group = results[setting]
        sums = [sum(each[key] for each in group) for key in ("starts", "kills", "old_copies", "left_waiting")]
        wrong = sum(bool(each["violations"]) for each in group)
        mean_seconds = sum(each["seconds"] for each in group) / max(1, len(group))
        cells = [setting, len(group), *sums, wrong, f"{mean_seconds:.2f}"]
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
