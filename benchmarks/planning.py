"""How soon does the planner answer: for every method and graph of 30 agents, quick answers and all of them.

Seconds of one processor, so that other work on the machine does not count. The time to import is apart: it is
paid once by a command, and never by a page. `again`: with another budget, from what was remembered.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

GRAPHS = ("random", "ring", "star", "tree", "mesh", "complete", "grid", "small-world", "regular")


def imported() -> float:
    """Seconds of a fresh process until the planner is there, less those of Python itself."""

    def once(code: str) -> float:
        began = os.times()
        subprocess.run([sys.executable, "-c", code], check=True)
        ended = os.times()
        return ended.children_user + ended.children_system - began.children_user - began.children_system

    return min(once("import topdp.runs.planner.setting_answers") for _ in range(3)) - min(
        once("pass") for _ in range(3)
    )


def timed(changes: list[str], whole: bool) -> dict[str, float | str]:
    from topdp.base.progress import silent
    from topdp.runs import config
    from topdp.runs.planner.observer_cache import ObserverCache
    from topdp.runs.planner.setting_answers import PlannerQuestion, recommendation, stages

    memory = ObserverCache()

    def ask(*more: str, quick: bool) -> tuple[float, float]:
        """Until the first answer, and until the last."""
        began, first = time.process_time(), 0.0
        for _ in stages(PlannerQuestion.of(config.read(changes=[*changes, *more])), quick, silent, memory):
            first = first or time.process_time() - began
        return first, time.process_time() - began

    first, quick = ask(quick=True)
    began = time.process_time()
    recommendation(PlannerQuestion.of(config.read(changes=changes)))
    found = {"first": first, "quick": quick, "advice": time.process_time() - began}
    if whole:
        found["all"] = ask(quick=False)[1]
        found["again"] = ask("privacy.epsilon=2.5", quick=False)[1]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--whole", action="store_true", help="also all answers, which takes minutes")
    parser.add_argument("--graphs", default=",".join(GRAPHS))
    parser.add_argument("--methods", default="plain,top,top-dp,dsgd,muffliato,correlated,central")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    from topdp.errors import TopdpError
    from topdp.runs.methods import METHODS

    results = [{"import": imported()}]
    print(f"import {results[0]['import']:.2f} s", file=sys.stderr)
    for graph in chosen.graphs.split(","):
        for name in chosen.methods.split(","):
            for mode in METHODS[name].modes:
                changes = [
                    f"topology.kind={graph}", f"topology.agents={chosen.agents}", f"rounds={chosen.rounds}",
                    f"method.name={name}", f"method.mode={mode}",
                ]  # fmt: skip
                try:
                    found = timed(changes, chosen.whole)
                except TopdpError as error:
                    found = {"refused": str(error)}
                results.append({"graph": graph, "method": name, "mode": mode, **found})
                words = " ".join(
                    f"{key} {value:.2f}" if isinstance(value, float) else f"{key}: {value}"
                    for key, value in found.items()
                )
                print(f"{graph:12}{name:12}{mode:6}{words}", file=sys.stderr, flush=True)
    slowest = {
        key: max((one[key] for one in results if key in one), default=None)
        for key in ("first", "quick", "advice", "all", "again")
    }
    print(json.dumps({"slowest": slowest, "results": results}) if chosen.json else f"slowest: {slowest}")


if __name__ == "__main__":
    main()
