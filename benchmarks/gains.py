"""What each partner gains: training alone, together, on pooled records, and with Opacus on pooled records.

    python benchmarks/gains.py                                   # all tables, 50 splits: ten minutes
    python benchmarks/gains.py --tables hospitals --splits 10
    python benchmarks/gains.py --sizes equal                     # the same records in equal shards
    python benchmarks/gains.py --tables hospitals --weighting agents   # every agent counts the same

Five agents hold shards of very different sizes; each has the same budget (ε = 1, δ = 1e-5). For every split,
the records are shuffled and dealt out, and the rest are test records. All methods train the same linear model
for the same number of rounds with the same steps and the same clip (`TABLES`), without tuning for any method.
`together` is `correlated` on the complete graph, against one colluder. A difference is paired: both methods
have the same split. Intervals are t intervals (95%) over splits, each of which has its own noise.

Needs scikit-learn (digits), statsmodels (randhie) and Opacus; what is not installed is left out, and said.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import nn

import topdp

DELTA, COLLUDERS = 1e-5, 1
MAX_OPACUS_EPSILON = 100.0  # larger budgets show the methods without noise, and need no Opacus
Arrays = tuple[NDArray[np.float32], NDArray[np.float32] | NDArray[np.int64]]


@dataclass(frozen=True)
class GainTable:
    """One table of records, the shards, and the settings of training."""

    load: Callable[[], Arrays]
    sizes: tuple[int, ...]
    needs: str | None  # a package
    outputs: int
    metric: str
    loss: str = "cross-entropy"
    rounds: int = 100
    learning_rate: float = 1.0
    clip: float = 1.0


def _unit(inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return records of length 1, with a constant feature for the bias: a function of each record alone."""
    inputs = np.concatenate([inputs, np.ones((len(inputs), 1), np.float32)], axis=1)
    return (inputs / np.linalg.norm(inputs, axis=1, keepdims=True)).astype(np.float32)


def _catalogue(name: str) -> Arrays:
    dataset = topdp.data.load(name)
    parts = [dataset.train(), dataset.test()]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def hospitals() -> Arrays:
    inputs, labels = _catalogue("breast-cancer")  # public ranges, scaled to [-1, 1]
    return _unit(inputs), labels


def digits() -> Arrays:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return _unit((images / 8 - 1).astype(np.float32)), labels.astype(np.int64)


BUCKETS = 512


def spam() -> Arrays:
    tokens, labels = _catalogue("spam-assassin")
    words = np.zeros((len(tokens), BUCKETS), np.float32)
    for column in tokens.astype(np.int64).T:  # which words occur, hashed; 0 is padding
        words[np.arange(len(words)), column % BUCKETS] = column > 0
    words[:, 0] = 0
    return _unit(words), labels


def randhie() -> Arrays:
    """RAND health insurance experiment: visits to a doctor in a year, from nine facts about a person."""
    from statsmodels.datasets import randhie as source

    table = source.load_pandas().data
    visits = table.pop("mdvis").to_numpy()
    ends = {"lncoins": (0, 4.7), "lpi": (0, 7.2), "fmde": (0, 8.5), "physlm": (0, 1), "disea": (0, 60)}
    columns = []
    for name in table.columns:
        low, high = ends.get(name, (0, 1))
        columns.append(np.clip(2 * (table[name].to_numpy() - low) / (high - low) - 1, -1, 1))
    # From no visit to 80, on a logarithmic scale.
    target = 2 * np.log1p(np.clip(visits, 0, 80)) / math.log(81) - 1
    return _unit(np.stack(columns, axis=1).astype(np.float32)), target.astype(np.float32)


SHARES = (200, 120, 70, 40, 26)
TABLES = {
    "hospitals": GainTable(hospitals, SHARES, None, 2, "auroc"),
    "digits": GainTable(digits, tuple(3 * size for size in SHARES), "sklearn", 10, "accuracy"),
    "spam": GainTable(spam, tuple(10 * size for size in SHARES), None, 2, "auroc"),
    "randhie": GainTable(
        randhie, tuple(10 * size for size in SHARES), "statsmodels", 1, "r2", loss="mse", learning_rate=0.5
    ),
}


def shards_of(arrays: Arrays, sizes: tuple[int, ...], split: int) -> topdp.Shards:
    order = np.random.default_rng(split).permutation(len(arrays[0]))
    *parts, test = np.split(order, np.cumsum(sizes))
    dealt = [(arrays[0][part], arrays[1][part]) for part in parts]
    return topdp.Shards.from_arrays(dealt, test=(arrays[0][test], arrays[1][test]))


def trained(
    table: GainTable, shards: topdp.Shards, method: str, split: int, weighting: str, epsilon: float
) -> list[float]:
    """Return the metric of each agent's model; one number for `central`."""
    torch.manual_seed(0)
    model = nn.Linear(shards.inputs.shape[-1], table.outputs, bias=False)
    nn.init.zeros_(model.weight)
    result = topdp.train(
        model,
        shards,
        topdp.topology.complete(len(shards.counts)),
        method=method,
        epsilon=epsilon,
        delta=DELTA,
        colluders=COLLUDERS,
        clip=table.clip,
        rounds=table.rounds,
        learning_rate=table.learning_rate,
        loss=table.loss,
        metrics=[table.metric],
        evaluate_every=table.rounds,
        noise_seed=split,
        weighting=weighting,
        seed=0,
        device="cpu",
    )
    return [float(value) for value in result.metrics[-1][f"{table.metric}_per_agent"]]


@lru_cache
def opacus_noise(steps: int, epsilon: float) -> float:
    """Return the noise multiplier by Opacus's own accountant; full batches are samples of rate 1."""
    from opacus.accountants.utils import get_noise_multiplier

    return float(
        get_noise_multiplier(
            target_epsilon=epsilon, target_delta=DELTA, sample_rate=1.0, steps=steps, accountant="prv"
        )
    )


def opacus_trained(table: GainTable, shards: topdp.Shards, split: int, epsilon: float) -> list[float]:
    """Return the metric of a model that Opacus trains on the pooled records, with full batches."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    pooled = shards.pooled()
    inputs, targets = pooled.inputs[0], pooled.targets[0]
    module = nn.Linear(inputs.shape[-1], table.outputs, bias=False)
    nn.init.zeros_(module.weight)
    model = GradSampleModule(module)
    sgd = torch.optim.SGD(model.parameters(), lr=table.learning_rate)
    optimiser = DPOptimizer(
        sgd,
        noise_multiplier=opacus_noise(table.rounds + 1, epsilon),
        max_grad_norm=table.clip,
        expected_batch_size=len(inputs),
        generator=torch.Generator().manual_seed(split),
    )
    rates = topdp.plan.schedules.learning_rates(table.learning_rate, table.rounds, "linear")
    loss = nn.MSELoss() if table.loss == "mse" else nn.CrossEntropyLoss()
    targets = targets.float()[:, None] if table.loss == "mse" else targets.long()
    for rate in rates:
        sgd.param_groups[0]["lr"] = float(rate)
        optimiser.zero_grad()
        loss(model(inputs), targets).backward()
        optimiser.step()
    assert shards.test_inputs is not None and shards.test_targets is not None
    with torch.no_grad():
        outputs = module(shards.test_inputs)
    from topdp.learning.metrics import METRICS

    test = shards.test_targets
    return [float(METRICS[table.metric](outputs, test[:, None] if table.loss == "mse" else test))]


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean and half the width of the 95% t interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean()), float(half)


def measured(
    table: GainTable, sizes: tuple[int, ...], splits: int, weighting: str, epsilon: float
) -> dict[str, NDArray[np.float64]]:
    """Return the metric of each method, [splits, models]."""
    arrays = table.load()
    values: dict[str, list[list[float]]] = {"alone": [], "together": [], "central": []}
    if find_spec("opacus") and epsilon <= MAX_OPACUS_EPSILON:
        values["opacus"] = []
    for split in range(splits):
        shards = shards_of(arrays, sizes, split)
        for name, method in (("alone", "alone"), ("together", "correlated"), ("central", "central")):
            values[name].append(trained(table, shards, method, split, weighting, epsilon))
        if "opacus" in values:
            values["opacus"].append(opacus_trained(table, shards, split, epsilon))
    return {name: np.array(of) for name, of in values.items()}


def lines_of(
    name: str, table: GainTable, sizes: tuple[int, ...], found: dict[str, NDArray[np.float64]]
) -> dict:
    """Return the results of a table for JSON: means, and paired differences with their intervals."""
    together = found["together"]
    own = together - found["alone"]
    result = {
        "table": name,
        "metric": table.metric,
        "sizes": list(sizes),
        "splits": len(together),
        "means": {method: of.mean(axis=0).tolist() for method, of in found.items()},
        "together - alone": [interval(own[:, agent]) for agent in range(own.shape[1])],
        "together - central": interval(together.mean(axis=1) - found["central"][:, 0]),
    }
    if "opacus" in found:
        result["together - opacus"] = interval(together.mean(axis=1) - found["opacus"][:, 0])
        result["central - opacus"] = interval(found["central"][:, 0] - found["opacus"][:, 0])
    return result


def printed(result: dict) -> str:
    means = result["means"]

    def signed(pair: tuple[float, float]) -> str:
        return f"{pair[0]:+.4f} ± {pair[1]:.4f}"

    rows = [
        f"| {size} | {alone:.4f} | {together:.4f} | {signed(gain)} |"
        for size, alone, together, gain in zip(
            result["sizes"], means["alone"], means["together"], result["together - alone"], strict=True
        )
    ]
    opacus = f"{means['opacus'][0]:.4f}" if "opacus" in means else "left out"
    text = [
        f"{result['table']}: {result['metric']}, {result['splits']} splits",
        "",
        "| records | alone | together | together - alone |",
        "|---|---|---|---|",
        *rows,
        "",
        f"central {means['central'][0]:.4f}, Opacus {opacus}",
        f"together - central: {signed(result['together - central'])}",
    ]
    text += [f"{key}: {signed(result[key])}" for key in result if key.endswith("- opacus")]
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--splits", type=int, default=50)
    parser.add_argument("--sizes", choices=("unequal", "equal"), default="unequal")
    parser.add_argument("--epsilon", type=float, default=1.0, help="1e6: hardly any noise")
    parser.add_argument("--weighting", choices=("records", "agents"), default="records")
    parser.add_argument("--out", type=Path, help="a JSON file of the results")
    options = parser.parse_args()
    if not find_spec("opacus"):
        print("Opacus is not installed and left out: pip install opacus")
    warnings.filterwarnings("ignore", module="opacus|torch|__main__")  # about full batches
    results = []
    for name in options.tables.split(","):
        table = TABLES[name]
        if table.needs and not find_spec(table.needs):
            print(f"{name} is left out: {table.needs} is not installed.")
            continue
        sizes = table.sizes
        if options.sizes == "equal":
            sizes = (sum(sizes) // len(sizes),) * len(sizes)
        start = time.perf_counter()
        results.append(
            lines_of(
                name, table, sizes, measured(table, sizes, options.splits, options.weighting, options.epsilon)
            )
        )
        print(f"\n{printed(results[-1])}\n{time.perf_counter() - start:.0f} s", flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
