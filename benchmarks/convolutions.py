"""Speed of topdp's GPU kernels for convolutions, compared with one grouped convolution for all agents.

    python benchmarks/convolutions.py [--agents 1440] [--examples 20] [--repeats 10]

The model is the paper's CIFAR-10 network; both variants use topdp's kernel for max-pooling. Times are medians
of CUDA events. Compare the ratio within one run, not times of different runs.
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

WARM_UP_REPEATS = 3  # compile the kernels and compare the fast path with the slow path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--agents", type=int, default=1440)
    parser.add_argument("--examples", type=int, default=20, help="images in the batch of each agent")
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("Expected a CUDA device, found none.")
    torch.set_float32_matmul_precision("high")  # as `topdp reproduce` does
    own_kernels = median_milliseconds(options)
    with mock.patch.object(ConvolutionGeometry, "has_kernels", lambda self, x: False):
        grouped = median_milliseconds(options)
    print(f"{options.agents} agents, {options.examples} images each, on {torch.cuda.get_device_name()}")
    print(f"topdp's kernels     {own_kernels:8.2f} ms")
    print(f"grouped convolution {grouped:8.2f} ms, {grouped / own_kernels:.1f} times as long")


def median_milliseconds(options: argparse.Namespace) -> float:
    """Return the median time of the clipped sums of all agents."""
    gradients = ClippedGradients(cnn(), clip=4.0)
    generator = torch.Generator("cuda").manual_seed(0)
    rows = gradients.flat.flatten().cuda().repeat(options.agents, 1)
    rows += 0.01 * torch.randn(rows.shape, generator=generator, device="cuda")
    shape = (options.agents, options.examples)
    images = torch.rand(*shape, 3, 32, 32, generator=generator, device="cuda")
    labels = torch.randint(10, shape, generator=generator, device="cuda")
    times = []
    for repeat in range(WARM_UP_REPEATS + options.repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        gradients.clipped_sum(rows, images, labels)
        end.record()
        torch.cuda.synchronize()
        if repeat >= WARM_UP_REPEATS:
            times.append(start.elapsed_time(end))
    return statistics.median(times)


if __name__ == "__main__":
    main()
