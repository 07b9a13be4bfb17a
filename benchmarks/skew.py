"""Label skew: accuracy of the mean model and spread over agents, with gossip steps and robust rules.

    python benchmarks/skew.py                   # all: five minutes on one core
    python benchmarks/skew.py --tasks digits    # half a minute

Records are dealt out equally (iid), in Dirichlet proportions of labels (.5 and .1), or with two labels for
each agent, to 5 agents on a ring and 30 on a random graph with four neighbours each. All runs train a linear
model on records of length 1, at adaptive ε = 2 against one colluder, with full batches, the same steps and
the same rounds. A cell has the accuracy of the average of all models, then of the worst and the best agent.
Numbers are means over seeds of partition and noise.

Tasks: MNIST pixels (6,000 records), CIFAR-10 scattering features averaged to 2 x 2 places (6,000 records),
and the digits of scikit-learn (1,437 records of 64 numbers), left out if that is not installed.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import topdp

EPSILON, DELTA, ROUNDS, CLIP = 2.0, 1e-5, 60, 1.0
Arrays = tuple[NDArray[np.float32], NDArray[np.int64]]
Split = tuple[Arrays, Arrays]


def _unit(inputs: NDArray[np.float32], constant: bool = True) -> NDArray[np.float32]:
    """Return records of length 1: a function of each record alone. `constant`: add a constant feature."""
    inputs = inputs.reshape(len(inputs), -1)
    if constant:
        inputs = np.concatenate([inputs, np.ones((len(inputs), 1), np.float32)], axis=1)
    return (inputs / np.linalg.norm(inputs, axis=1, keepdims=True)).astype(np.float32)


def mnist() -> Split:
    dataset = topdp.data.load("mnist")
    (train, labels), (test, test_labels) = dataset.train(), dataset.test()
    return (_unit(train[:6000]), labels[:6000]), (_unit(test[:2000]), test_labels[:2000])


def cifar10() -> Split:
    dataset = topdp.data.load("cifar10")
    scattering = topdp.data.ScatteringFeatures()

    def features(images: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.no_grad():
            parts = [scattering(part) for part in torch.as_tensor(images).split(250)]
        places = torch.cat(parts).reshape(len(images), -1, 8, 8)
        return _unit(nn.functional.avg_pool2d(places, 4).numpy(), constant=False)

    (train, labels), (test, test_labels) = dataset.train(), dataset.test()
    return (features(train[:6000]), labels[:6000]), (features(test[:2000]), test_labels[:2000])


def digits() -> Split:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    inputs, labels = _unit((images / 8 - 1).astype(np.float32)), labels.astype(np.int64)
    held_out = np.arange(len(labels)) % 5 == 4
    return (inputs[~held_out], labels[~held_out]), (inputs[held_out], labels[held_out])


@dataclass(frozen=True)
class SkewTask:
    load: Callable[[], Split]
    learning_rate: float
    needs: str | None = None


TASKS = {
    "mnist": SkewTask(mnist, 32.0),
    "cifar10": SkewTask(cifar10, 32.0),
    "digits": SkewTask(digits, 2.0, needs="sklearn"),
}
PARTITIONS: dict[str, dict[str, Any]] = {
    "iid": {"kind": "iid"},
    "Dirichlet .5": {"kind": "dirichlet", "alpha": 0.5},
    "Dirichlet .1": {"kind": "dirichlet", "alpha": 0.1},
    "two labels": {"kind": "label", "labels_per_agent": 2},
}
GRAPHS = {5: topdp.topology.ring(5), 30: topdp.topology.regular(30, 4, seed=0)}
STEPS: dict[str, dict[str, Any]] = {
    "central": {"method": "central"},
    "alone": {"method": "alone"},
    "dsgd": {"method": "dsgd"},
    **{f"correlated, {k}": {"method": "correlated", "gossip": k} for k in (1, 2, 4, 8)},
    **{
        rule: {"method": "muffliato", "gossip": 1, "chebyshev": False, "robust": rule, "hostile": 1}
        for rule in ("mean", "clipped", "trimmed", "nearest")
    },
}


def accuracies(
    split: Split, partition: str, agents: int, rate: float, seed: int, **method: Any
) -> list[float]:
    """Return the accuracy of the mean model, of the worst agent and of the best."""
    (inputs, labels), (test, test_labels) = split
    parts = topdp.data.partition(labels, agents, seed=seed, **PARTITIONS[partition])
    shards = topdp.Shards.from_arrays(
        [(inputs[part], labels[part]) for part in parts], test=(test, test_labels), classes=10
    )
    model = nn.Linear(inputs.shape[1], 10, bias=False)
    nn.init.zeros_(model.weight)
    result = topdp.train(
        model,
        shards,
        GRAPHS[agents],
        epsilon=EPSILON,
        delta=DELTA,
        clip=CLIP,
        rounds=ROUNDS,
        learning_rate=rate,
        evaluate_every=ROUNDS,
        seed=seed,
        noise_seed=seed,
        device="cpu",
        **method,
    )
    with torch.no_grad():
        mean = result.estimates.float().mean(0).reshape(10, -1)
        outputs = torch.as_tensor(test) @ mean.T
    share = float((outputs.argmax(1) == torch.as_tensor(test_labels)).float().mean())
    return [share, result.accuracy["min"], result.accuracy["max"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--agents", default="5,30")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a CSV file of the results")
    options = parser.parse_args()
    rows: list[list[Any]] = []
    for task in options.tasks.split(","):
        if (needs := TASKS[task].needs) and not find_spec(needs):
            print(f"{task} is left out: {needs} is not installed.")
            continue
        split = TASKS[task].load()
        for agents in map(int, options.agents.split(",")):
            start = time.perf_counter()
            print(f"\n{task}, {agents} agents: mean model (worst to best agent), accuracy in %\n")
            print("| | " + " | ".join(PARTITIONS) + " |\n" + "|---" * (1 + len(PARTITIONS)) + "|")
            for name, method in STEPS.items():
                cells = []
                for partition in PARTITIONS:
                    found = np.array([
                        accuracies(split, partition, agents, TASKS[task].learning_rate, seed, **method)
                        for seed in range(options.seeds)
                    ])  # fmt: skip
                    mean, worst, best = 100 * found.mean(axis=0)
                    rows.append([task, agents, name, partition, options.seeds, mean, worst, best])
                    cells.append(f"{mean:.1f} ({worst:.1f} to {best:.1f})")
                print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
            print(f"\n{time.perf_counter() - start:.0f} s", flush=True)
    if options.out:
        with options.out.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["task", "agents", "steps", "partition", "seeds", "mean", "worst", "best"])
            writer.writerows(rows)


if __name__ == "__main__":
    main()
