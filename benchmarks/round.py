"""One private round of many agents: topdp against what people use today, on the same machine in the same run.

A round is: per-example clipped gradients of every agent, Gaussian noise for every agent, one step, and mixing
with one random neighbour's row. Contestants take turns, so that a busy moment hits all; the best time of each
counts. Before the clock starts, one round without noise must move all rows alike: equal work is compared.

    python benchmarks/round.py [--all] [--json] [--agents 30] [--batch 64] [--repeats 20] [--threads 1]
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from topdp.learning.gradients import ClippedGradients
from topdp.learning.models import FlatModel, initial_row, mlp


@dataclass(frozen=True)
class Job:
    agents: int
    batch: int
    threads: int
    repeats: int
    model: str = "mlp 784-100-10"
    dtype: str = "float32"
    clip: float = 7.0  # near the median norm of these examples: some are clipped, some are not
    noise_multiplier: float = 1.0
    alpha: float = 0.25
    learning_rate: float = 0.5


@dataclass(frozen=True)
class Data:
    """Random images and labels, one batch per agent; row i mixes with row source[i]."""

    rows: Tensor
    inputs: Tensor
    targets: Tensor
    source: Tensor


Round = Callable[[], Tensor]  # runs one round and returns the rows after it


def mix(rows: Tensor, source: Tensor, alpha: float) -> Tensor:
    """α · own row + (1 - α) · the neighbour's."""
    return rows[source].mul_(1 - alpha).add_(rows, alpha=alpha)


def our_round(job: Job, data: Data, noise: float) -> Round:
    gradients = ClippedGradients(mlp(), job.clip)
    generator = torch.Generator().manual_seed(0)
    rows, spare, z = data.rows.clone(), torch.empty_like(data.rows), torch.empty_like(data.rows[0])
    source = data.source.tolist()

    def run() -> Tensor:
        nonlocal rows, spare
        step = -job.learning_rate / job.batch
        for i in range(job.agents):  # a row at a time stays in the processor's cache
            torch.lerp(rows[source[i]], rows[i], job.alpha, out=spare[i])
            spare[i].add_(z.normal_(generator=generator), alpha=step * noise * job.clip)
        gradients.clipped_sum(rows, data.inputs, data.targets, out=spare, scale=step)
        rows, spare = spare, rows
        return rows

    return run


def _opacus(job: Job, data: Data, noise: float, ghost: bool) -> Round:
    """One Opacus model and optimizer per agent; their parameters are views of `rows`, so mixing is ours."""
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    rows = data.rows.clone()
    flat = FlatModel(mlp())
    settings = {"noise_multiplier": noise, "max_grad_norm": job.clip, "expected_batch_size": job.batch}
    agents = []
    for row in rows:
        module = copy.deepcopy(flat.module)
        for parameter, value in zip(module.parameters(), flat.named(row).values(), strict=True):
            parameter.data = value
        sgd = torch.optim.SGD(module.parameters(), lr=job.learning_rate)
        if ghost:
            model = GradSampleModuleFastGradientClipping(
                module, max_grad_norm=job.clip, use_ghost_clipping=True
            )
            optimizer = DPOptimizerFastGradientClipping(sgd, **settings)
            criterion = DPLossFastGradientClipping(model, optimizer, nn.CrossEntropyLoss())
        else:
            model = GradSampleModule(module)
            optimizer = DPOptimizer(sgd, **settings)
            criterion = nn.CrossEntropyLoss()
        agents.append((model, optimizer, criterion))

    def run() -> Tensor:
        pull = rows[data.source].sub_(rows)
        for i, (model, optimizer, criterion) in enumerate(agents):
            optimizer.zero_grad()
            criterion(model(data.inputs[i]), data.targets[i]).backward()
            optimizer.step()
        return rows.add_(pull, alpha=1 - job.alpha)

    return run


def opacus_ghost(job: Job, data: Data, noise: float) -> Round:
    return _opacus(job, data, noise, ghost=True)


def opacus_hooks(job: Job, data: Data, noise: float) -> Round:
    return _opacus(job, data, noise, ghost=False)


def vmap_agents(job: Job, data: Data, noise: float) -> Round:
    """The obvious vectorisation: vmap over agents and examples, all gradients in memory."""
    flat = FlatModel(mlp())

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = functional_call(flat.module, parameters, (x.unsqueeze(0),))
        return nn.functional.cross_entropy(outputs, y.unsqueeze(0))

    per_example = vmap(vmap(grad(loss), (None, 0, 0)))
    rows = data.rows.clone()

    def run() -> Tensor:
        nonlocal rows
        named = {slot.name: rows[:, slot.start : slot.stop].view(-1, *slot.shape) for slot in flat.slots}
        gradients = [g.flatten(2) for g in per_example(named, data.inputs, data.targets).values()]
        norms = torch.stack([torch.linalg.vector_norm(g, dim=2) for g in gradients]).norm(dim=0)
        scale = (job.clip / norms.clamp_min(job.clip)).unsqueeze(1)
        step = torch.cat([torch.bmm(scale, g).squeeze(1) for g in gradients], 1)
        step.add_(torch.randn_like(rows), alpha=noise * job.clip)
        rows = mix(rows, data.source, job.alpha).add_(step, alpha=-job.learning_rate / job.batch)
        return rows

    return run


def example_loop(job: Job, data: Data, noise: float) -> Round:
    """One backward pass per example."""
    flat = FlatModel(mlp())
    rows = data.rows.clone()

    def run() -> Tensor:
        nonlocal rows
        step = torch.randn_like(rows).mul_(noise * job.clip)
        for i in range(job.agents):
            parameters = {name: view.detach().requires_grad_() for name, view in flat.named(rows[i]).items()}
            leaves = list(parameters.values())
            for x, y in zip(data.inputs[i].split(1), data.targets[i].split(1), strict=True):
                outputs = functional_call(flat.module, parameters, (x,))
                gradient = torch.autograd.grad(nn.functional.cross_entropy(outputs, y), leaves)
                gradient = torch.cat([part.reshape(-1) for part in gradient])
                step[i].add_(gradient, alpha=min(1.0, job.clip / float(gradient.norm())))
        rows = mix(rows, data.source, job.alpha).add_(step, alpha=-job.learning_rate / job.batch)
        return rows

    return run


CONTESTANTS = {"topdp": our_round, "opacus_ghost": opacus_ghost}
OTHERS = {"opacus_hooks": opacus_hooks, "vmap": vmap_agents, "loop": example_loop}


def draw(job: Job) -> Data:
    generator = torch.Generator().manual_seed(0)
    rows = initial_row(mlp, 0) + 0.01 * torch.randn(job.agents, 79510, generator=generator)
    inputs = torch.rand(job.agents, job.batch, 1, 28, 28, generator=generator)
    targets = torch.randint(10, (job.agents, job.batch), generator=generator)
    return Data(rows, inputs, targets, torch.randperm(job.agents, generator=generator))


def verify(job: Job, data: Data, names: dict[str, Callable[[Job, Data, float], Round]]) -> float:
    """The largest relative difference between our summed gradients and theirs, in one round without noise."""
    mixed = mix(data.rows, data.source, job.alpha)
    steps = {name: make(job, data, 0.0)() - mixed for name, make in names.items()}
    ours = steps.pop("topdp")
    # Opacus clips by C / (|g| + 1e-6), and a step is the difference of rounded rows.
    worst = max(float((step - ours).norm() / ours.norm()) for step in steps.values())
    if not worst < 1e-3:
        raise SystemExit(f"Expected equal rounds without noise, got a relative difference of {worst:.1e}.")
    return worst


def measure(job: Job, rounds: dict[str, Round]) -> dict[str, float]:
    best = dict.fromkeys(rounds, float("inf"))
    for repeat in range(job.repeats + 1):  # the first one warms up
        for name, run in rounds.items():
            start = time.perf_counter()
            run()
            if repeat:
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=30)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--all", action="store_true", help="also Opacus hooks, vmap, and a loop over examples"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.filterwarnings("ignore", module="opacus")
    warnings.filterwarnings("ignore", message="Full backward hook is firing")

    job = Job(arguments.agents, arguments.batch, arguments.threads, arguments.repeats)
    data = draw(job)
    names = CONTESTANTS | (OTHERS if arguments.all else {})
    difference = verify(job, data, names)
    seconds = measure(job, {name: make(job, data, job.noise_multiplier) for name, make in names.items()})
    ratio = {name: seconds[name] / seconds["topdp"] for name in names if name != "topdp"}
    if arguments.json:
        described = asdict(job) | {
            "torch": torch.__version__,
            "machine": platform.processor() or platform.machine(),
        }
        print(json.dumps({"job": described, "seconds_per_round": seconds, "ratio": ratio}))
        return
    print(
        f"{job.agents} agents, batch {job.batch}, {job.model}, {job.threads} thread(s), best of {job.repeats}"
    )
    print(f"rounds without noise agree to {difference:.0e}", file=sys.stderr)
    for name, value in seconds.items():
        print(f"{name:14}{1e3 * value:9.1f} ms a round{ratio.get(name, 1):8.2f} x")


if __name__ == "__main__":
    main()
