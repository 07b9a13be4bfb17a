"""Duration of the planner's quick answers and of its advice, for every method and graph of 30 agents.

    python benchmarks/planning.py [--agents 30] [--rounds 150] [--graphs ring,star] [--methods top,dsgd]

All times are CPU time in seconds, because other processes do not affect it. `import` is the time to import
the planner, which a command needs once and a page never. `first` is the time to the first answer, `quick` to
the last quick answer, `advice` to the recommendation.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

GRAPHS = ("random", "ring", "star", "tree", "mesh", "complete", "grid", "small-world", "regular")
METHODS = ("plain", "top", "top-dp", "dsgd", "muffliato", "correlated", "central")
IMPORT_REPEATS = 3


def import_seconds() -> float:
    """Return the CPU time of a new process to import the planner, without that of Python itself."""

    def best_cpu_seconds(code: str) -> float:
        seconds = []
        for _ in range(IMPORT_REPEATS):
            start = os.times()
            subprocess.run([sys.executable, "-c", code], check=True)
            end = os.times()
            seconds.append(
                end.children_user + end.children_system - start.children_user - start.children_system
            )
        return min(seconds)

    return best_cpu_seconds("import topdp.runs.planner.setting_answers") - best_cpu_seconds("pass")


def planner_seconds(changes: list[str]) -> dict[str, float]:
    """Return the CPU times of one setting, by name."""
    from topdp.base.progress import silent
    from topdp.runs import config
    from topdp.runs.planner.observer_cache import ObserverCache
    from topdp.runs.planner.setting_answers import PlannerQuestion, recommendation, stages

    start, first = time.process_time(), 0.0
    for _ in stages(PlannerQuestion.of(config.read(changes=changes)), True, silent, ObserverCache()):
        first = first or time.process_time() - start
    quick = time.process_time() - start
    start = time.process_time()
    recommendation(PlannerQuestion.of(config.read(changes=changes)))
    return {"first": first, "quick": quick, "advice": time.process_time() - start}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--graphs", default=",".join(GRAPHS), help="names, separated by commas")
    parser.add_argument("--methods", default=",".join(METHODS), help="names, separated by commas")
    options = parser.parse_args()
    from topdp.errors import TopdpError
    from topdp.runs.methods import METHODS as ALL_METHODS

    print(f"import {import_seconds():.2f}")
    results = []
    for graph in options.graphs.split(","):
        for method in options.methods.split(","):
            for mode in ALL_METHODS[method].modes:
                changes = [
                    f"topology.kind={graph}", f"topology.agents={options.agents}", f"rounds={options.rounds}",
                    f"method.name={method}", f"method.mode={mode}",
                ]  # fmt: skip
                try:
                    seconds = planner_seconds(changes)
                except TopdpError as error:
                    text = f"refused: {error}"
                else:
                    results.append(seconds)
                    text = " ".join(f"{name} {value:.2f}" for name, value in seconds.items())
                print(f"{graph:12}{method:12}{mode:6}{text}", flush=True)
    if results:
        longest = {name: max(seconds[name] for seconds in results) for name in results[0]}
        print("longest: " + " ".join(f"{name} {value:.2f}" for name, value in longest.items()))


if __name__ == "__main__":
    main()
