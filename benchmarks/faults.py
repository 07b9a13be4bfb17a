"""Federations under random faults, in virtual time: messages, links, kills, clocks, disks, from a seed.

    python benchmarks/faults.py --schedules 10000 --processes 16     # all settings in turn
    python benchmarks/faults.py --setting sync-wait --seed 7         # one of them again, with a log
    python benchmarks/faults.py --planted                            # does it find faults planted on purpose?

Real agents with real ledgers in one process; clock, network and disk are not real (`tests/agents/faults`).
After every schedule nothing may be under-counted, no round applied twice, every budget held, every ledger
whole, nobody honest quarantined; when all has healed everybody must end; and where the rule is to wait, a
seeded run must have sent the same bytes and ended with the same estimates as an unbroken one. Ends with 1 if
anything is wrong, and says which seed shows it.
"""

from __future__ import annotations

import argparse
import collections
import json
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
LIMIT = 120  # seconds of real time for one schedule


def one(place: tuple[str, int]) -> dict[str, Any]:
    from faults.injector import run

    name, seed = place

    def too_late(*_: Any) -> None:
        raise TimeoutError(f"longer than {LIMIT} s of real time")

    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(LIMIT)
    begun = time.perf_counter()
    counts = {"kills": 0, "starts": 0, "virtual": 0.0, "codes": {}, "old_copies": 0}
    try:
        verdict = run(name, seed)
        faults = verdict.faults
        counts = {
            "kills": verdict.kills,
            "starts": verdict.starts,
            "virtual": verdict.seconds,
            "codes": verdict.codes,
            "old_copies": int(verdict.schedule.rolls_back),
        }
    except Exception:
        faults = [traceback.format_exc(limit=-3)]
    finally:
        signal.alarm(0)
    seconds = time.perf_counter() - begun
    return {"setting": name, "seed": seed, "faults": faults, "seconds": seconds, **counts}


def replay(name: str, seed: int) -> int:
    from faults.injector import run

    verdict = run(name, seed)
    print("\n".join([*verdict.schedule.told(), *verdict.log]))
    print(f"ended with {verdict.codes} after {verdict.seconds:.1f} virtual seconds, {verdict.kills} kills")
    for fault in verdict.faults:
        print(f"WRONG: {fault}")
    return int(bool(verdict.faults))


def planted(seeds: int) -> int:
    """Each fault that is planted: the first seed that finds it."""
    from faults.planted import PLANTED, first_found

    missed = 0
    for name in PLANTED:
        found = first_found(name, range(seeds))
        missed += found is None
        print(f"{name}: " + (f"seed {found[0]}: {found[1][0]}" if found else "NOT FOUND"), flush=True)
    return int(missed > 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--setting", help="names with commas; else all")
    parser.add_argument("--seed", type=int, help="one schedule again, with a log of what happens")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--schedules", type=int, default=240, help="in all, over the settings in turn")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets are gone through in the same order
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    os.environ["OMP_NUM_THREADS"] = "1"

    from faults.jobs import JOBS

    names = options.setting.split(",") if options.setting else list(JOBS)
    if options.seed is not None:
        raise SystemExit(max(replay(name, options.seed) for name in names))
    if options.planted:
        raise SystemExit(planted(40))
    say = sys.stderr if options.json else sys.stdout
    places = [(names[i % len(names)], options.first + i // len(names)) for i in range(options.schedules)]
    begun, rows = time.perf_counter(), collections.defaultdict(list)
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        for found in pool.imap_unordered(one, places, chunksize=4):
            rows[found["setting"]].append(found)
            for fault in found["faults"]:
                print(
                    f"WRONG: --setting {found['setting']} --seed {found['seed']}: {fault}",
                    file=say,
                    flush=True,
                )
    table(names, rows, say)
    bad = sum(bool(found["faults"]) for each in rows.values() for found in each)
    seconds = time.perf_counter() - begun
    print(f"{len(places)} schedules in {seconds:.0f} s, {bad} with something wrong", file=say)
    if options.json:
        wrong = [found for each in rows.values() for found in each if found["faults"]]
        print(json.dumps({"schedules": len(places), "seconds": round(seconds, 1), "wrong": wrong}))
    raise SystemExit(int(bad > 0))


def table(names: list[str], rows: dict[str, list[dict[str, Any]]], say: Any) -> None:
    heads = ("setting", "schedules", "starts", "kills", "old copies", "left waiting", "wrong", "s each")
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", file=say)
    for name in names:
        each = rows[name]
        waiting = sum(None in found["codes"].values() for found in each)
        sums = [sum(found[key] for found in each) for key in ("starts", "kills", "old_copies")]
        wrong = sum(bool(found["faults"]) for found in each)
        mean = sum(found["seconds"] for found in each) / max(1, len(each))
        cells = [name, len(each), *sums, waiting, wrong, f"{mean:.2f}"]
        print("| " + " | ".join(map(str, cells)) + " |", file=say)


if __name__ == "__main__":
    main()
