"""The tape: the weights of all agents, and the uses of parameters that layer rules record during one pass.

A `LayerRule` replaces a layer. It gets the folded batch of all agents, or one example of this batch inside
`isolated_vmap`, and records on the `Tape` what `ghost_norms` needs. `layer_rules` lists the layers that have
rules.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from topdp.learning.gradients import ghost_norms
from topdp.learning.models import Slot


@final
class NotFoldedError(Exception):
    """An error for a module that cannot run on a folded batch; the message says which part, and why."""


@final
@dataclass(frozen=True)
class ParameterUse:
    """One use of one parameter.

    `saved`: what the gradient needs in addition to the output gradient δ. `join`: makes one contribution from
    the pairs (saved, δ) of all uses of the same `kind`.
    """

    slot: Slot
    kind: str
    saved: Any
    join: Callable[[Sequence[tuple[Any, Tensor]]], ghost_norms.Contribution]


@final
class Tape:
    """The state that the layer rules of one model share during one pass."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.begin(torch.empty(0, 0), 0, recording=False)

    def begin(
        self, rows: Tensor, examples: int, *, recording: bool, shared: bool = False, copies: int = 1
    ) -> None:
        """Start a pass.

        `examples`: the number of examples of each agent. `recording`: whether rules record the uses of
        parameters. `shared`: all agents get the same batch, given once as [b, ...]; the first rule folds it.
        `copies`: rows i, i + n/copies, ... get the same batch; the first rule, which is linear, folds it.
        """
        self.rows, self.examples, self.recording = rows, examples, recording
        self.shared, self.copies = shared, copies
        self.anchor: Tensor | None = None  # the current example, if rules run inside `isolated_vmap`
        self.unrecorded = 0  # how many numbers one example needs in memory in addition to those recorded
        self.records: list[tuple[Tensor, list[ParameterUse]]] = []

    @property
    def agents(self) -> int:
        """The number of agents, n."""
        return self.rows.shape[0]

    def weights(self, slot: Slot) -> Tensor:
        """Return a view [n, *shape] of every agent's own weights."""
        return self.rows[:, slot.start : slot.stop].view(-1, *slot.shape)

    def unfold(self, x: Tensor) -> Tensor:
        """Return the folded `x` as [n, b, m, ...].

        The leading axis of `x` is n·b·m: m is 1, unless the model has moved m positions into the batch axis.
        Raise NotFoldedError if the leading axis is not a multiple of n·b.
        """
        n, b = self.agents, self.examples
        if self.shared:
            self.shared = False
            if x.dim() and x.shape[0] == b:
                return x.unsqueeze(1).expand(n, *x.shape[:1], 1, *x.shape[1:])
        if not x.dim() or x.shape[0] == 0 or x.shape[0] % (n * b):
            raise NotFoldedError(f"a layer got a leading axis of {tuple(x.shape)}, not the batch of {n * b}")
        return x.reshape(n, b, x.shape[0] // (n * b), *x.shape[1:])

    def record(self, output: Tensor, uses: Sequence[ParameterUse]) -> Tensor:
        """Record the uses of parameters from which `output` was computed, and return `output`."""
        if self.recording:
            if not output.requires_grad:
                output.requires_grad_()
            self.records.append((output, list(uses)))
        return output

    def copy_per_example(self, slots: Sequence[Slot]) -> dict[str, Tensor]:
        """Return the parameters that a model reads itself, by name: a recorded copy for each example.

        Each is [n·b, *shape]. The gradient of an example's copy is the gradient of that example, however the
        model uses the copy.
        """
        copies = {}
        for slot in slots:
            repeated = self.weights(slot).detach().repeat_interleave(self.examples, 0)
            copies[slot.name] = self.record(
                repeated, [ParameterUse(slot, "a parameter that is read", None, _join_copies)]
            )
        return copies

    def contributions(self, loss: Tensor) -> ghost_norms.SlotContributions:
        """Return the per-example gradients of `loss`, a sum over examples, for every parameter that was used.

        Raise NotFoldedError if parameters are tied in a way that no rule covers.
        """
        if not self.records:
            return []
        outputs = [output for output, _ in self.records]
        deltas = torch.autograd.grad(loss, outputs, allow_unused=True)
        by_slot: dict[Slot, dict[str, list[tuple[ParameterUse, Tensor]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for (_, uses), delta in zip(self.records, deltas, strict=True):
            if delta is not None:
                # Gradients of a loss may have gaps in memory; contiguous gradients are faster.
                unfolded = self.unfold(delta.contiguous() if delta.dim() == 2 else delta)
                for use in uses:
                    by_slot[use.slot][use.kind].append((use, unfolded))
        _expect_no_overlap(list(by_slot))
        result = []
        for slot, kinds in by_slot.items():
            joined = [
                uses_and_deltas[0][0].join([(use.saved, delta) for use, delta in uses_and_deltas])
                for uses_and_deltas in kinds.values()
            ]
            combined = ghost_norms.combine(joined)
            if combined is None:
                raise NotFoldedError(f"parameter {slot.name!r} is tied between {' and '.join(sorted(kinds))}")
            result.append((slot, combined))
        return result


def _join_copies(saved_and_deltas: Sequence[tuple[Any, Tensor]]) -> ghost_norms.Contribution:
    return ghost_norms.Dense(sum_tensors([delta.flatten(2) for _, delta in saved_and_deltas]))


def _expect_no_overlap(slots: Sequence[Slot]) -> None:
    """Raise NotFoldedError if slots overlap, because norms are added up as if all slots were disjoint."""
    ordered = sorted(slots, key=lambda slot: slot.start)
    for first, second in pairwise(ordered):
        if second.start < first.stop:
            raise NotFoldedError(
                f"parameter {first.name!r} is tied to {second.name!r}, which is a part of it"
            )


class LayerRule(nn.Module):
    """A module that replaces one layer: it knows the layer's shapes, and the tape gives it the weights of all
    agents.
    """

    def __init__(self, tape: Tape, slots: Mapping[str, Slot]) -> None:
        """Create the rule; `slots` are the layer's own parameters by their names in the layer."""
        super().__init__()
        self.tape = tape
        self.path = ""
        self._weight = slots["weight"]
        self._bias = slots.get("bias")

    def forward(self, x: Tensor) -> Tensor:
        return apply_folded(self, x)

    @abstractmethod
    def folded(self, x: Tensor) -> Tensor:
        """Return the layer's output for x [n·b·m, ...] with every agent's own weights, and record the use."""

    def __getattr__(self, name: str) -> Any:
        if name in ("weight", "bias"):
            raise AttributeError(f"{self.path}: {name} is read outside the layer's call")
        return super().__getattr__(name)

    def _bias_use(self, axis: int, width: int = 1) -> list[ParameterUse]:
        """Return the use of the bias, in a list that is empty if the layer has no bias.

        The bias belongs to `width` axes of the unfolded output, from `axis` on. Its gradient is δ summed over
        the other axes.
        """
        if self._bias is None:
            return []

        def join(saved_and_deltas: Sequence[tuple[Any, Tensor]]) -> ghost_norms.Contribution:
            return ghost_norms.Dense(
                sum_tensors([sum_positions(delta, axis, width) for _, delta in saved_and_deltas])
            )

        return [ParameterUse(self._bias, f"a bias of {width} axes from {axis}", None, join)]


class FoldedLayer(Protocol):
    """A layer of topdp that treats the examples of a folded batch one by one."""

    tape: Tape
    path: str

    def folded(self, x: Tensor) -> Tensor:
        """Return the output [n·b·m, ...] for x [n·b·m, ...]."""


def apply_folded(layer: FoldedLayer, x: Tensor) -> Tensor:
    """Return the output of `layer` for a folded batch, or for one example inside `isolated_vmap`."""
    anchor = layer.tape.anchor
    if anchor is None:
        return layer.folded(x)
    output: Tensor = _LeaveIsolation.apply(x, anchor, layer)  # type: ignore[no-untyped-call]
    return output


@final
class _LeaveIsolation(torch.autograd.Function):
    """A call of a topdp layer from inside `isolated_vmap`.

    The layer gets the folded batch of all examples. The caller gets the output for its own example.
    """

    @staticmethod
    def forward(x: Tensor, anchor: Tensor, layer: FoldedLayer) -> Tensor:
        raise NotFoldedError(f"{layer.path}: the layer is called where examples are not isolated")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, *deltas: Tensor) -> Any:
        raise NotFoldedError("a layer is differentiated inside the model")

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, anchor: Tensor, layer: FoldedLayer) -> tuple[Tensor, int]:
        count = info.batch_size
        x = x.expand(count, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
        if x.dim() < 2:
            raise NotFoldedError(f"{layer.path}: expected a batch of one, got an input without axes")
        if in_dims[1] is None:  # the model called vmap itself; its axis joins the positions of an example
            output = _LeaveIsolation.apply(  # type: ignore[no-untyped-call]
                x.flatten(0, 1), anchor, layer
            )
        else:
            # Only code of topdp runs here, so the guard against batch access is switched off.
            with torch._C.DisableTorchFunction():
                output = layer.folded(x.flatten(0, 1))
        return output.unflatten(0, (count, -1)), 0


def sum_tensors(parts: Sequence[Tensor]) -> Tensor:
    return sum(parts[1:], start=parts[0])


def sum_positions(x: Tensor, axis: int, width: int) -> Tensor:
    """Return [n, b, size] the sum of x [n, b, ...] over all axes from 2 on except `axis .. axis+width-1`."""
    axis %= x.dim()
    others = [k for k in range(2, x.dim()) if not axis <= k < axis + width]
    return (x.sum(others) if any(x.shape[k] > 1 for k in others) else x).reshape(*x.shape[:2], -1)


def has_user_hooks(layer: nn.Module) -> bool:
    """Return whether hooks or a replaced `forward` are attached to the layer."""
    hooks = (
        layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    )  # fmt: skip
    return any(hooks) or "forward" in vars(layer)
