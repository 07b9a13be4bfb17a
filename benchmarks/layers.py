"""Duration of clipped gradients for layers that the paper's models lack: fast path and slow path.

    python benchmarks/layers.py [--agents 10] [--batch 16] [--repeats 5] [MODEL ...]

Both paths are timed in turns, in one process with one thread; the best time of each counts. Before that, the
script checks that both give the same sums.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from topdp.learning.gradients import ClippedGradients
from topdp.learning.models import cnn, mlp

VOCABULARY, TOKENS, WIDTH, CLASSES = 1000, 32, 32, 4
MAX_RELATIVE_DIFFERENCE = 1e-3  # between the sums of both paths


class RecurrentClassifier(nn.Module):
    def __init__(self, layer: Callable[..., nn.RNNBase]) -> None:
        super().__init__()
        self.embedding, self.recurrent = (
            nn.Embedding(VOCABULARY, WIDTH),
            layer(WIDTH, WIDTH, batch_first=True),
        )
        self.output = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.output(self.recurrent(self.embedding(x))[0][:, -1])
        return scores


class TransformerClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(TOKENS, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.output(self.encoder(self.embedding(x) + self.positions).mean(1))
        return scores


def conv1d_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(3, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 32, 5, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, CLASSES),
    )  # fmt: skip


def frozen_batch_norm_network() -> nn.Module:
    """Return a small network whose BatchNorm layers keep their statistics, as after pre-training."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2),
        nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES),
    ).eval()  # fmt: skip


class ModelCase(NamedTuple):
    """A model, and the shape and kind of its examples."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    is_tokens: bool = False


MODELS = {
    "mlp": ModelCase(lambda: mlp(classes=CLASSES), (784,)),
    "cnn": ModelCase(lambda: cnn(classes=CLASSES), (3, 32, 32)),
    "conv1d": ModelCase(conv1d_network, (3, 64)),
    "batchnorm": ModelCase(frozen_batch_norm_network, (3, 16, 16)),
    "gru": ModelCase(lambda: RecurrentClassifier(nn.GRU), (TOKENS,), is_tokens=True),
    "lstm": ModelCase(lambda: RecurrentClassifier(nn.LSTM), (TOKENS,), is_tokens=True),
    "transformer": ModelCase(TransformerClassifier, (TOKENS,), is_tokens=True),
}


def both_paths(name: str, agents: int, batch: int) -> dict[str, Callable[[], Tensor]]:
    """Return functions that compute the sums of all agents, by path; exit if the sums differ."""
    case = MODELS[name]
    torch.manual_seed(0)
    model = case.build()
    fast, slow = ClippedGradients(model, 1.0), ClippedGradients(model, 1.0)
    slow._folded, slow._reason = None, "the benchmark wants it"
    rows = fast.flat.flatten() + 0.01 * torch.randn(agents, fast.flat.dimension)
    shape = (agents, batch, *case.shape)
    x = torch.randint(VOCABULARY, shape) if case.is_tokens else torch.randn(shape)
    y = torch.randint(CLASSES, (agents, batch))
    fast_sum, slow_sum = fast.clipped_sum(rows, x, y), slow.clipped_sum(rows, x, y)
    if not fast.fast:
        raise SystemExit(f"Expected that {name} takes the fast path, but it takes the slow path.")
    difference = float((fast_sum - slow_sum).norm() / slow_sum.norm())
    if not difference < MAX_RELATIVE_DIFFERENCE:
        raise SystemExit(
            f"Expected equal sums of {name} on both paths, got a relative difference of {difference:.1e}."
        )
    return {"fast": lambda: fast.clipped_sum(rows, x, y), "slow": lambda: slow.clipped_sum(rows, x, y)}


def best_seconds(functions: dict[str, Callable[[], Tensor]], repeats: int) -> dict[str, float]:
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("--agents", type=int, default=10)
    parser.add_argument("--batch", type=int, default=16, help="examples per agent")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if unknown := sorted(set(options.models) - set(MODELS)):
        parser.error(f"Expected models of {', '.join(MODELS)}; got {', '.join(unknown)}.")
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Per-example gradients of this model take the slow path")
    for name in options.models:
        best = best_seconds(both_paths(name, options.agents, options.batch), options.repeats)
        fast, slow = best["fast"], best["slow"]
        print(f"{name:12}{1e3 * fast:9.1f} ms fast{1e3 * slow:9.1f} ms slow   ratio {slow / fast:.1f}")


if __name__ == "__main__":
    main()
