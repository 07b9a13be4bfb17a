"""The self-check: before the fast path is used, it must agree with the plain path on a few random examples.

It finds what no list of layers can: models that mix the examples of a batch, functions that read a layer's
weights, outputs changed in place. Privacy rests on it, so it runs for every new shape of example.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd

from topdp.errors import InputError
from topdp.learning.gradients.folded import FoldedGradients
from topdp.learning.gradients.ghost import Contribution, total_norms
from topdp.learning.gradients.plain import PlainGradients, first_line
from topdp.learning.losses import Loss
from topdp.learning.models import FlatModel, Slot

AGENTS, EXAMPLES = 2, 3


@final
@dataclass(frozen=True)
class Verdict:
    """`reason`: why the fast path may not be used; `elements`: what one example keeps in memory there."""

    reason: str | None
    elements: int = 0


def compare(flat: FlatModel, loss: Loss, rows: Tensor, inputs: Tensor, targets: Tensor) -> Verdict:
    """Whether folded and plain gradients of random examples, shaped like these, are equal.

    **Guarantees.** Compared are the norms of single gradients and one clipped, weighted sum, in float64 where
    the model can (to 1e-8; else to 1e-3 in its own type; on a GPU, where other code may run for other types,
    both), with different parameters per agent. Layers are in the mode in which they will run, but for
    dropout; a model that draws random numbers itself can only be compared in evaluation mode. A model that
    vmap refuses may look at values to decide, so it fails too.
    """
    generator = torch.Generator().manual_seed(0)
    x = _like(inputs, generator)
    y = _some(targets, generator)
    few = near_rows(flat, rows, generator)
    with _undisturbed(rows.device), exact_products():
        module = copy.deepcopy(flat.module)
        for layer in module.modules():
            if isinstance(layer, _DropoutNd):
                layer.eval()
        reason = "the fast path failed"
        for dtype, tolerance in ((torch.float64, 1e-8), (rows.dtype, 1e-3)):
            sample = few.to(dtype), x.to(dtype) if x.is_floating_point() else x, _as(y, dtype)
            try:
                folded = FoldedGradients(FlatModel(module), loss)
                losses, found = folded.contributions(*sample)
                if not torch.equal(losses, folded.contributions(*sample)[0]):
                    module.eval()
                    folded = FoldedGradients(FlatModel(module), loss)
                    losses, found = folded.contributions(*sample)
            except Exception as error:  # a model that cannot run folded raises anything
                reason = first_line(error)
                continue
            refusals: list[str] = []
            plain = PlainGradients(FlatModel(module), loss, refusals.append).contributions(*sample)
            if refusals:
                # A branch on data would be taken for a whole batch; random examples may all take the same.
                return Verdict(refusals[0])
            if _differ((losses, found), plain, flat.dimension, tolerance):
                return Verdict(
                    "examples of a batch influence each other, or a layer is used in a way it misses"
                )
            if rows.is_cuda and dtype != rows.dtype:
                continue
            return Verdict(None, folded.elements // (AGENTS * EXAMPLES))
    return Verdict(reason)


def _undisturbed(device: torch.device) -> AbstractContextManager[None]:
    """Whatever draws from torch's global generators inside leaves them as they were."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


@contextmanager
def exact_products() -> Iterator[None]:
    """Products in full float32 inside, whatever the user has allowed."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def near_rows(flat: FlatModel, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Rows of two agents, all parameters different, near the model's own: those of a run may be far off."""
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    row = flat.flatten().to(like)
    noise = torch.randn(AGENTS, flat.dimension, generator=generator).to(like)
    return row + noise * (0.05 + 0.1 * row.abs())


def _like(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Random examples: in [0, 1) where real, else drawn from the numbers there are, so they are valid."""
    shape = (AGENTS, EXAMPLES, *inputs.shape[2:])
    if inputs.is_floating_point():
        return torch.rand(shape, generator=generator).to(inputs)
    pool = inputs.reshape(-1)
    return pool[torch.randint(pool.numel(), shape, generator=generator).to(pool.device)]


def _some(targets: Tensor, generator: torch.Generator) -> Tensor:
    pool = targets.flatten(0, 1)
    return pool[torch.randint(pool.shape[0], (AGENTS, EXAMPLES), generator=generator).to(pool.device)]


def _as(y: Tensor, dtype: torch.dtype) -> Tensor:
    return y.to(dtype) if y.is_floating_point() else y


def try_once(flat: FlatModel, loss: Loss, rows: Tensor, inputs: Tensor, targets: Tensor) -> None:
    """Runs model and loss as torch would: errors of their own come out here, as they are.

    **Guarantees.** A model whose forward pass writes into a buffer is refused: the buffer would
    carry data past the clipping and the noise.
    """
    probe = copy.deepcopy(flat.module).to(device=rows.device, dtype=rows.dtype)
    before = {name: buffer.clone() for name, buffer in probe.named_buffers()}
    with torch.no_grad(), _undisturbed(rows.device):
        outputs = functional_call(probe, flat.named(rows[0]), (inputs[0, :EXAMPLES],))
        loss(outputs, targets[0, :EXAMPLES])
    for name, buffer in probe.named_buffers():
        if name not in before or not torch.equal(buffer, before[name]):
            raise InputError(
                f"Expected a model without statistics of the data, got a buffer {name!r} that a forward pass "
                "changes. It would leave without noise. Remove it, or put its layer into evaluation mode."
            )


Found = tuple[Tensor, list[tuple[Slot, Contribution]]]


def _differ(fast: Found, plain: Found, dimension: int, tolerance: float) -> bool:
    expected = total_norms([c for _, c in plain[1]])
    scale = float(expected.max())
    if not (
        scale > 0
        and torch.allclose(total_norms([c for _, c in fast[1]]), expected, tolerance, tolerance * scale)
    ):
        return True
    # Some clipped, some not, no two examples alike.
    coefficients = expected.mean() / expected.clamp_min(expected.mean())
    coefficients = coefficients * torch.linspace(0.5, 1, coefficients.numel()).view_as(coefficients).to(
        expected
    )
    sums = []
    for losses, found in (fast, plain):
        out = losses.new_zeros(losses.shape[0], dimension)
        for slot, contribution in found:
            contribution.add_to(out[:, slot.start : slot.stop], coefficients)
        sums.append(out)
    return not torch.allclose(sums[0], sums[1], tolerance, tolerance * float(sums[1].abs().max()))
