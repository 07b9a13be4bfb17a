"""Other ways to make the same round: Opacus with agents in sequence, `vmap`, and a loop over examples.

Each is written as its users would write it. Opacus is optional (`pip install 'topdp[bench]'`).
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
from topdp.experiments.bench.bench_job import Data, Job, Round, mix, our_round
from topdp.learning.models import FlatModel
from topdp.runs.config import did_you_mean

OURS = "topdp"
WITHOUT_OPACUS = "Opacus is not installed and not timed: pip install 'topdp[bench]'."


def _opacus(job: Job, data: Data, noise: float, *, ghost: bool) -> Round:
    """One Opacus model and optimiser per agent; their parameters are views of `rows`, so mixing is ours."""
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


def _vmap(job: Job, data: Data, noise: float) -> Round:
    """The obvious vectorisation: vmap over agents and examples, all gradients in memory."""
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


def _loop(job: Job, data: Data, noise: float) -> Round:
    """One backward pass per example."""
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


Make = Callable[[Job, Data, float], Round]
OTHERS: dict[str, tuple[str, Make]] = {
    "ghost": ("Opacus, ghost clipping, agents in sequence", partial(_opacus, ghost=True)),
    "hooks": ("Opacus, hooks, agents in sequence", partial(_opacus, ghost=False)),
    "vmap": ("vmap over agents and examples", _vmap),
    "loop": ("a loop over examples", _loop),
}
OPACUS = ("ghost", "hooks")
TITLES = {OURS: "topdp", **{name: title for name, (title, _) in OTHERS.items()}}


def chosen(names: Sequence[str]) -> dict[str, Make]:
    """This engine and those of `names` that are here; raises for a name that is none."""
    for name in names:
        if name not in OTHERS:
            raise InputError(f"--against: no contestant {name!r}." + did_you_mean(name, list(OTHERS)))
    here = [name for name in names if name not in OPACUS or has_opacus()]
    return {OURS: our_round, **{name: OTHERS[name][1] for name in here}}


def has_opacus() -> bool:
    return find_spec("opacus") is not None


def difference(job: Job, data: Data, made: dict[str, Make]) -> float:
    """The largest relative difference between our step and theirs, in one round without noise.

    Raises where rounds are not equal: then their times say nothing.
    """
    mixed = mix(data.rows, data.source, job.alpha)
    steps = {name: make(job, data, 0.0)() - mixed for name, make in made.items()}
    ours = steps.pop(OURS)
    # Opacus clips by C / (|g| + 1e-6), and a step is the difference of rounded rows.
    worst = max((float((step - ours).norm() / ours.norm()) for step in steps.values()), default=0.0)
    if not worst < 1e-3:
        raise InputError(f"Expected equal rounds without noise, got a relative difference of {worst:.1e}.")
    return worst
