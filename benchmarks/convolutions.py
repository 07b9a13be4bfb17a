"""Clipped gradients of the paper's CIFAR-10 network on a GPU: kernels of our own, and agents as groups of one
convolution. Max-pooling is ours in both.

    python benchmarks/convolutions.py [--agents 1440] [--examples 20] [--repeats 10]

Times are medians of CUDA events; the ratio of one run is what counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from unittest import mock

import torch

from topdp.learning.gradients import ClippedGradients
from topdp.learning.gradients.ghost_norms import ConvolutionGeometry
from topdp.learning.models import cnn


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--agents", type=int, default=1440)
    options.add_argument("--examples", type=int, default=20)
    options.add_argument("--repeats", type=int, default=10)
    asked = options.parse_args()
    if not torch.cuda.is_available():
        sys.exit("Expected a CUDA device, found none.")
    torch.set_float32_matmul_precision("high")  # as topdp reproduce does
    own = measure(asked)
    with mock.patch.object(ConvolutionGeometry, "has_kernels", lambda self, x: False):
        grouped = measure(asked)
    print(f"{asked.agents} agents, {asked.examples} images each, on {torch.cuda.get_device_name()}")
    print(f"kernels of our own  {own:8.2f} ms")
    print(f"grouped convolution {grouped:8.2f} ms, {grouped / own:.1f} times as long")


def measure(asked: argparse.Namespace) -> float:
    """Median milliseconds of one clipped sum for all agents."""
    gradients = ClippedGradients(cnn(), clip=4.0)
    generator = torch.Generator("cuda").manual_seed(0)
    rows = gradients.flat.flatten().cuda().repeat(asked.agents, 1)
    rows += 0.01 * torch.randn(rows.shape, generator=generator, device="cuda")
    shape = (asked.agents, asked.examples)
    images = torch.rand(*shape, 3, 32, 32, generator=generator, device="cuda")
    labels = torch.randint(10, shape, generator=generator, device="cuda")
    times = []
    for repeat in range(asked.repeats + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        gradients.clipped_sum(rows, images, labels)
        end.record()
        torch.cuda.synchronize()
        if repeat >= 3:  # the first ones compile and check
            times.append(start.elapsed_time(end))
    return statistics.median(times)


if __name__ == "__main__":
    main()
