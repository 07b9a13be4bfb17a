"""Linear regression from sufficient statistics in one release, beside gradient descent, at the same ε.

    python benchmarks/private_regression.py [--epsilon 1] [--seeds 3] [--quick] [TABLE.csv SCHEMA.toml ...]

The table `diabetes` of the catalogue comes first. Of other tables, a fifth of the records is the test set.
Five sites of unequal size share the rest. Gradient descent is `correlated`, with its default settings, and
with the best of a sweep by the test set itself, which favours it. The regression has no settings.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np
import torch

import topdp
from topdp.data import load
from topdp.data.readers.record_paths import read_records
from topdp.data.readers.table_schema import Schema

SHARES = (0.4, 0.25, 0.15, 0.12, 0.08)
SWEEP = tuple(itertools.product((0.1, 0.3, 1.0), (10, 40), (0.25, 0.5, 1.0)))  # step size, rounds, clip
QUICK_SWEEP = ((0.3, 20, 0.5),)
DEFAULT = (0.5, 150, 4.0)
GRAPH = topdp.topology.complete(len(SHARES))


def tables(files: list[str]) -> dict[str, tuple[np.ndarray, ...]]:
    """Training inputs and targets, then those of the test set, by the name of the table."""
    diabetes = load("diabetes")
    test = diabetes.test()
    assert test is not None
    found = {"diabetes": (diabetes.scale(diabetes.train_inputs), diabetes.train_targets, *test)}
    for table, schema in zip(files[::2], files[1::2], strict=True):
        records = read_records(table, Schema.of(schema))
        order = np.random.default_rng(0).permutation(len(records.inputs))
        held_out, kept = np.split(order, [len(order) // 5])
        found[table] = tuple(
            part[rows] for rows in (kept, held_out) for part in (records.inputs, records.targets)
        )
    return found


def shared(table: tuple[np.ndarray, ...], seed: int) -> topdp.Shards:
    x, y, *test = table
    order = np.random.default_rng(seed).permutation(len(x))
    parts = np.split(order, (np.cumsum(SHARES)[:-1] * len(x)).astype(int))
    return topdp.Shards.from_arrays([(x[part], y[part]) for part in parts], test=tuple(test))


def descent(shards: topdp.Shards, epsilon: float, setting: tuple[float, int, float], seed: int) -> float:
    step, rounds, clip = setting
    model = torch.nn.Linear(shards.inputs.shape[2], 1)
    torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
    result = topdp.train(
        model, shards, GRAPH, loss="mse", method="correlated", epsilon=epsilon, learning_rate=step,
        rounds=rounds, clip=clip, evaluate_every=rounds, noise_seed=seed,
    )  # fmt: skip
    return float(result.scores["r2"]["mean"])


def least_squares(table: tuple[np.ndarray, ...]) -> float:
    x, y, tx, ty = (np.asarray(part, float) for part in table)
    x, tx = (np.c_[part, np.ones(len(part))] for part in (x, tx))
    error = ty - tx @ np.linalg.lstsq(x, y, rcond=None)[0]
    return float(1 - (error**2).sum() / ((ty - ty.mean()) ** 2).sum())


def spread(values: list[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("files", nargs="*")
    given = parser.parse_args()
    for name, table in tables(given.files).items():
        print(f"{name}: {len(table[0])} records, R² without privacy {least_squares(table):.3f}", flush=True)
        for epsilon in given.epsilon:
            splits = [shared(table, seed) for seed in range(given.seeds)]
            fits = [
                topdp.linear_regression(shards, GRAPH, epsilon=epsilon, noise_seed=seed).r2(*table[2:])
                for seed, shards in enumerate(splits)
            ]
            tried = {
                setting: [descent(shards, epsilon, setting, seed) for seed, shards in enumerate(splits)]
                for setting in (QUICK_SWEEP if given.quick else SWEEP)
            }
            plain = [descent(shards, epsilon, DEFAULT, seed) for seed, shards in enumerate(splits)]
            best = max(tried, key=lambda setting: np.mean(tried[setting]))
            print(
                f"  ε = {epsilon:g}: one release {spread(fits)}; descent {spread(plain)} by default, "
                f"{spread(tried[best])} at best, with step, rounds, clip {best}",
                flush=True,
            )


if __name__ == "__main__":
    main()
