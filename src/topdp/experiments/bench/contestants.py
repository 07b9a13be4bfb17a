"""Other implementations of the same round: Opacus with agents in sequence, `vmap`, and a loop over examples.

Each is written as its users would write it. Opacus is optional (`pip install -c constraints.txt '.[bench]'`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from topdp.errors import InputError
from topdp.experiments.bench.bench_job import BenchData, BenchJob, Round, mix, topdp_round
from topdp.learning.models import FlatModel
from topdp.runs.config import did_you_mean

TOPDP = "topdp"
NO_OPACUS_REMARK = (
    "Opacus is not installed and therefore not timed: pip install -c constraints.txt '.[bench]'."
)


def _opacus(job: BenchJob, data: BenchData, noise: float, *, ghost: bool) -> Round:
    """Return a round with one Opacus model and optimiser per agent. Their parameters are views of `rows`."""
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    rows = data.rows.clone()
    flat = FlatModel(job.network())
    settings = {"noise_multiplier": noise, "max_grad_norm": job.clip, "expected_batch_size": job.batch}
    agents: list[tuple[Any, Any, Any]] = []
    for row in rows:
        module = copy.deepcopy(flat.module)
        for parameter, value in zip(module.parameters(), flat.named(row).values(), strict=True):
            parameter.data = value
        sgd = torch.optim.SGD(module.parameters(), lr=job.learning_rate)
        model: Any
        if ghost:
            model = GradSampleModuleFastGradientClipping(
                module, max_grad_norm=job.clip, use_ghost_clipping=True
            )
            optimiser = DPOptimizerFastGradientClipping(sgd, **settings)
            criterion = DPLossFastGradientClipping(model, optimiser, nn.CrossEntropyLoss())
        else:
            model = GradSampleModule(module)
            optimiser, criterion = DPOptimizer(sgd, **settings), nn.CrossEntropyLoss()
        agents.append((model, optimiser, criterion))

    def run() -> Tensor:
        pull = rows[data.source].mean(1).sub_(rows)
        for i, (model, optimiser, criterion) in enumerate(agents):
            optimiser.zero_grad()
            criterion(model(data.inputs[i]), data.targets[i]).backward()
            optimiser.step()
        return rows.add_(pull, alpha=1 - job.alpha)

    return run


def _vmap(job: BenchJob, data: BenchData, noise: float) -> Round:
    """Return a round with the obvious vectorisation: vmap over agents and examples, gradients in memory."""
    flat = FlatModel(job.network())

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


def _loop(job: BenchJob, data: BenchData, noise: float) -> Round:
    """Return a round with one backward pass per example."""
    flat = FlatModel(job.network())
    rows = data.rows.clone()

    def run() -> Tensor:
        nonlocal rows
        step = torch.randn_like(rows).mul_(noise * job.clip)
        for i in range(job.agents):
            parameters = {name: view.detach().requires_grad_() for name, view in flat.named(rows[i]).items()}
            leaves = list(parameters.values())
            for x, y in zip(data.inputs[i].unsqueeze(1), data.targets[i].unsqueeze(1), strict=True):
                outputs = functional_call(flat.module, parameters, (x,))
                parts = torch.autograd.grad(nn.functional.cross_entropy(outputs, y), leaves)
                gradient = torch.cat([part.reshape(-1) for part in parts])
                step[i].add_(gradient, alpha=min(1.0, job.clip / float(gradient.norm())))
        rows = mix(rows, data.source, job.alpha).add_(step, alpha=-job.learning_rate / job.batch)
        return rows

    return run


Contestant = Callable[[BenchJob, BenchData, float], Round]
"""A function that returns a round, given a job, data and a noise multiplier."""

OTHER_CONTESTANTS: dict[str, tuple[str, Contestant]] = {
    "ghost": ("Opacus, ghost clipping, agents in sequence", partial(_opacus, ghost=True)),
    "hooks": ("Opacus, hooks, agents in sequence", partial(_opacus, ghost=False)),
    "vmap": ("vmap over agents and examples", _vmap),
    "loop": ("a loop over examples", _loop),
}
OPACUS_CONTESTANTS = ("ghost", "hooks")
CONTESTANT_TITLES = {TOPDP: "topdp", **{name: title for name, (title, _) in OTHER_CONTESTANTS.items()}}


def available(names: Sequence[str]) -> dict[str, Contestant]:
    """Return topdp and the installed contestants of `names`. Raise InputError for an unknown name."""
    for name in names:
        if name not in OTHER_CONTESTANTS:
            hint = did_you_mean(name, list(OTHER_CONTESTANTS))
            raise InputError(f"--against: expected names of contestants, got {name!r}.{hint}")
    installed = [name for name in names if name not in OPACUS_CONTESTANTS or has_opacus()]
    return {TOPDP: topdp_round, **{name: OTHER_CONTESTANTS[name][1] for name in installed}}


def has_opacus() -> bool:
    return find_spec("opacus") is not None


def largest_difference(job: BenchJob, data: BenchData, contestants: dict[str, Contestant]) -> float:
    """Return the contestants' largest relative difference from topdp's step, in one round without noise.

    Raise InputError if steps differ by more than rounding, because times are then not comparable.
    """
    mixed = mix(data.rows, data.source, job.alpha)
    steps = {name: contestant(job, data, 0.0)() - mixed for name, contestant in contestants.items()}
    own = steps.pop(TOPDP)
    # Opacus clips by C / (|g| + 1e-6), and a step is the difference of rounded rows.
    worst = max((float((step - own).norm() / own.norm()) for step in steps.values()), default=0.0)
    if not worst < 1e-3:
        raise InputError(
            "Expected the same rows from all contestants without noise, got a relative difference of "
            f"{worst:.1e}. Name other contestants with --against."
        )
    return worst
