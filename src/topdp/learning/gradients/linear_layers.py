"""Layer rules of linear layers and embeddings: layers that multiply by a matrix or look up its rows.

In stacked runs on the same data, a linear layer at the start of a model reads its records only once: for S
rows that share an agent's records, it is computed as one linear layer of S times the width. The following
layers process each row separately.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from topdp.errors import InputError
from topdp.learning.gradients import agent_products, ghost_norms
from topdp.learning.gradients.safe_norms import squared_norms
from topdp.learning.gradients.tape import LayerRule, NotFoldedError, ParameterUse, Tape
from topdp.learning.models import Slot


def _side_by_side(values: Tensor, copies: int) -> Tensor:
    """Return `values` [copies·agents, out, ...] as [agents, copies·out, ...]."""
    return by_copy(values, copies).transpose(0, 1).flatten(1, 2)


def by_copy(values: Tensor, copies: int) -> Tensor:
    """Return a view of `values` [copies·agents, ...] as [copies, agents, ...]."""
    return values.view(copies, len(values) // copies, *values.shape[1:])


@final
class SharedOuter(ghost_norms.Contribution):
    """The gradients δ aᵀ of a linear layer's weight; a [agents, b, in] for all copies, δ [n, b, out]."""

    def __init__(self, a: Tensor, delta: Tensor) -> None:
        self.a = a
        self.delta = delta
        self.copies = len(delta) // len(a)

    def squared_norms(self) -> Tensor:
        lengths = squared_norms(self.a).expand(self.copies, -1, -1)
        return lengths.flatten(0, 1) * squared_norms(self.delta)

    def add_to(self, out: Tensor, coefficients: Tensor, fresh: bool = False) -> None:
        out = out.zero_() if fresh else out
        scaled = (self.delta * coefficients.unsqueeze(2)).mT  # [n, out, b]
        wide = _side_by_side(scaled, self.copies)  # [agents, copies·out, b]
        sums = self.a.new_empty(*wide.shape[:2], self.a.shape[2])
        agent_products.add_outer(sums, wide.mT, self.a, fresh=True)
        by_copies = sums.view(len(self.a), self.copies, -1).transpose(0, 1)
        by_copy(out, self.copies).add_(by_copies)

    def blank(self, where: Tensor) -> None:
        self.delta = self.delta.masked_fill(where.unsqueeze(2), 0)
        # If the common factor `a` is not finite, no copy has a finite norm, so all copies are blanked.
        self.a = self.a.masked_fill(~torch.isfinite(self.a).all(2, keepdim=True), 0)


@final
class LinearRule(LayerRule):
    def __init__(self, layer: nn.Module, tape: Tape, slots: Mapping[str, Slot]) -> None:
        """Create the rule of `layer`, any layer that multiplies by slots["weight"].

        The slot determines the sizes.
        """
        super().__init__(tape, slots)
        self.out_features, self.in_features = self._weight.shape

    def folded(self, x: Tensor) -> Tensor:
        tape = self.tape
        if x.dim() < 2 or x.shape[-1] != self.in_features:
            raise NotFoldedError(f"a Linear of {self.in_features} got an input of shape {tuple(x.shape)}")
        if tape.copies > 1:
            return self._shared_by_copies(x)
        a = tape.unfold(x)
        a = a.reshape(a.shape[0], -1, self.in_features)
        output = self._product(a).view(-1, *x.shape[1:-1], self.out_features)
        return tape.record(
            output, [ParameterUse(self._weight, "Linear", a.detach(), _join_outer), *self._bias_use(-1)]
        )

    def _product(self, a: Tensor) -> Tensor:
        """Return the outputs [n, ..., out] for activations `a` [n, ..., in] with each agent's own weights."""
        weight = self.tape.weights(self._weight)
        bias = None if self._bias is None else self.tape.weights(self._bias)
        return agent_products.agent_linear(a, weight, bias)

    def _shared_by_copies(self, x: Tensor) -> Tensor:
        """Return the outputs [n·b, out] for x [agents·b, in], the records that all copies share.

        The result is the same as if x were repeated for each copy.
        """
        tape = self.tape
        copies, tape.copies = tape.copies, 1
        if x.dim() != 2 or x.shape[0] * copies != tape.agents * tape.examples:
            raise NotFoldedError(f"a Linear got an input of shape {tuple(x.shape)} for {copies} copies")
        a = x.view(-1, tape.examples, self.in_features)
        wide = _side_by_side(tape.weights(self._weight), copies)  # [agents, copies·out, in]
        bias = None if self._bias is None else _side_by_side(tape.weights(self._bias), copies)
        outputs = agent_products.agent_linear(a, wide, bias).view(*a.shape[:2], copies, -1)
        output = outputs.permute(2, 0, 1, 3).flatten(0, 2)
        uses = [ParameterUse(self._weight, "Linear of copies", a.detach(), _join_shared), *self._bias_use(-1)]
        return tape.record(output, uses)


def _join_shared(saved_and_deltas: Sequence[tuple[Any, Tensor]]) -> ghost_norms.Contribution:
    ((a, delta),) = saved_and_deltas
    return SharedOuter(a, delta.flatten(2))


def _join_outer(saved_and_deltas: Sequence[tuple[Any, Tensor]]) -> ghost_norms.Contribution:
    pairs = []
    for a, delta in saved_and_deltas:
        n, b = delta.shape[:2]
        delta = delta.reshape(n, b, -1, delta.shape[-1])
        pairs.append((a.reshape(n, b, delta.shape[2], -1), delta))
    return ghost_norms.Outer(
        ghost_norms.concatenate(2, [a for a, _ in pairs]),
        ghost_norms.concatenate(2, [delta for _, delta in pairs]),
    )


@final
class EmbeddingRule(LayerRule):
    def __init__(self, layer: nn.Embedding, tape: Tape, slots: Mapping[str, Slot]) -> None:
        super().__init__(tape, slots)
        self.num_embeddings, self.embedding_dim = layer.num_embeddings, layer.embedding_dim
        self.padding_idx = layer.padding_idx

    def folded(self, x: Tensor) -> Tensor:
        unfolded = self.tape.unfold(x)
        n = unfolded.shape[0]
        tokens = unfolded.reshape(n, -1)
        agent = torch.arange(n, device=x.device).unsqueeze(1)
        # A negative index would be a second name of the same row, but norms identify rows by their index.
        valid = tokens.clamp(0, self.num_embeddings - 1)
        vectors = self.tape.weights(self._weight)[agent, valid]
        invalid = tokens != valid
        if not self.tape.recording and bool(invalid.any()):
            raise InputError(
                f"Expected token ids from 0 to {self.num_embeddings - 1} for {self.path}, got "
                f"{int(tokens[invalid][0])} in a record to evaluate."
            )
        # NaN invalidates only the example with the invalid token, as an error would.
        vectors = vectors.masked_fill(invalid.unsqueeze(2), math.nan)
        kind = f"Embedding (padding_idx={self.padding_idx})"
        output = vectors.view(-1, *x.shape[1:], self.embedding_dim)
        return self.tape.record(output, [ParameterUse(self._weight, kind, valid, self._join)])

    def _join(self, saved_and_deltas: Sequence[tuple[Any, Tensor]]) -> ghost_norms.Contribution:
        all_tokens, all_deltas = [], []
        for tokens, delta in saved_and_deltas:
            n, b = delta.shape[:2]
            delta = delta.reshape(n, b, -1, self.embedding_dim)
            tokens = tokens.view(n, b, -1)
            if self.padding_idx is not None:
                delta = delta.masked_fill((tokens == self.padding_idx).unsqueeze(3), 0)
            all_tokens.append(tokens)
            all_deltas.append(delta)
        return ghost_norms.Lookup(
            ghost_norms.concatenate(2, all_tokens), ghost_norms.concatenate(2, all_deltas)
        )
