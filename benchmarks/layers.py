"""Clipped gradients of models with other layers than the paper's: the fast path beside the slow one.

Both take turns in one process, so that a busy moment hits both; the best time of each counts, and the ratio.
Before the clock starts, both must give the same sums: equal work is compared.

    python benchmarks/layers.py [--agents 10] [--batch 16] [--repeats 5] [--threads 1] [--json] [names ...]
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from topdp.learning.gradients import ClippedGradients
from topdp.learning.models import cnn, mlp

WORDS, LENGTH, WIDTH, CLASSES = 1000, 32, 32, 4


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.RNNBase]) -> None:
        super().__init__()
        self.embed, self.read = nn.Embedding(WORDS, WIDTH), kind(WIDTH, WIDTH, batch_first=True)
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.read(self.embed(x))[0][:, -1])
        return scores


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.encode(self.embed(x) + self.positions).mean(1))
        return scores


def signals() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(3, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 32, 5, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, CLASSES),
    )  # fmt: skip


def frozen_batch_norm() -> nn.Module:
    """A small network as it comes out of pre-training: its BatchNorm keeps the statistics it has."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2),
        nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES),
    ).eval()  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    # name: (model, shape of a record, whether it is made of tokens)
    "mlp": (lambda: mlp(classes=CLASSES), (784,), False),
    "cnn": (lambda: cnn(classes=CLASSES), (3, 32, 32), False),
    "conv1d": (signals, (3, 64), False),
    "batchnorm": (frozen_batch_norm, (3, 16, 16), False),
    "gru": (lambda: Recurrent(nn.GRU), (LENGTH,), True),
    "lstm": (lambda: Recurrent(nn.LSTM), (LENGTH,), True),
    "transformer": (Transformer, (LENGTH,), True),
}


def paths(name: str, agents: int, batch: int) -> dict[str, Callable[[], Tensor]]:
    """What is timed: the sums of all agents, by either path."""
    make, shape, tokens = MODELS[name]
    torch.manual_seed(0)
    model = make()
    fast, slow = ClippedGradients(model, 1.0), ClippedGradients(model, 1.0)
    slow._folded, slow._reason = None, "asked for"
    rows = fast.flat.flatten() + 0.01 * torch.randn(agents, fast.flat.dimension)
    x = torch.randint(WORDS, (agents, batch, *shape)) if tokens else torch.randn(agents, batch, *shape)
    y = torch.randint(CLASSES, (agents, batch))
    runs = {"fast": lambda: fast.clipped_sum(rows, x, y), "slow": lambda: slow.clipped_sum(rows, x, y)}
    one, other = (run() for run in runs.values())
    difference = float((one - other).norm() / other.norm())
    if not (fast.fast and difference < 1e-3):
        raise SystemExit(
            f"Expected equal sums of {name} on both paths, got a difference of {difference:.1e}."
        )
    return runs


def measure(runs: dict[str, Callable[[], Tensor]], repeats: int) -> dict[str, float]:
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for path, run in runs.items():
            start = time.perf_counter()
            run()
            best[path] = min(best[path], time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("--agents", type=int, default=10)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    warnings.filterwarnings("ignore", message="Per-example gradients of this model take the slow path")
    found = {}
    for name in asked.names:
        found[name] = measure(paths(name, asked.agents, asked.batch), asked.repeats)
        if not asked.json:
            fast, slow = found[name].values()
            print(f"{name:12}{1e3 * fast:9.1f} ms fast{1e3 * slow:9.1f} ms slow{slow / fast:8.1f} x")
    if asked.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
