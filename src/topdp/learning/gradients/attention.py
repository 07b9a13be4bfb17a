"""The layer rule of MultiheadAttention: four linear layer rules, and torch's formulas between them.

Attention mixes the positions of one example and never mixes examples: the first axis of queries, keys and
values is the batch. torch's attention kernels cannot be used, because they have no batching rule for `vmap`,
or read the weights without calling the layer. Attention is therefore computed with plain matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from topdp.learning.gradients.linear_layers import LinearRule
from topdp.learning.gradients.tape import NotFoldedError, Tape
from topdp.learning.models import Slot


@final
class AttentionRule(nn.Module):
    """The rule of MultiheadAttention layers without bias_k, bias_v and add_zero_attn."""

    in_proj_bias = None  # so that a TransformerEncoderLayer does not use torch's inference kernels
    _qkv_same_embed_dim = False

    def __init__(self, layer: nn.MultiheadAttention, tape: Tape, slots: Mapping[str, Slot]) -> None:
        super().__init__()
        if layer.bias_k is not None or layer.add_zero_attn:
            raise NotFoldedError("bias_k, bias_v and add_zero_attn have no fast form")
        self.tape = tape
        self.path = ""
        self.embed_dim, self.num_heads, self.head_dim = layer.embed_dim, layer.num_heads, layer.head_dim
        self.kdim, self.vdim = layer.kdim, layer.vdim
        self.dropout, self.batch_first = layer.dropout, layer.batch_first
        E = layer.embed_dim
        packed = slots.get("in_proj_weight")
        for at, name in enumerate(("q", "k", "v")):
            # Always three parts, even if the keys are the queries, because slots in use must not overlap.
            weight = slots[f"{name}_proj_weight"] if packed is None else packed.part(at * E, (at + 1) * E)
            part_slots = {"weight": weight}
            if "in_proj_bias" in slots:
                part_slots["bias"] = slots["in_proj_bias"].part(at * E, (at + 1) * E)
            setattr(self, name, LinearRule(layer, tape, part_slots))
        out = {name.removeprefix("out_proj."): slot for name, slot in slots.items() if "out_proj" in name}
        self.out_proj = LinearRule(layer, tape, out)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return what `nn.MultiheadAttention.forward` returns.

        Raise NotFoldedError for arguments that this rule does not cover.
        """
        if query.dim() not in (2, 3) or key.dim() != query.dim() or value.dim() != query.dim():
            raise NotFoldedError(f"{self.path} got a query of shape {tuple(query.shape)}")
        if is_causal and attn_mask is None:
            raise NotFoldedError(f"{self.path} got is_causal=True without attn_mask")
        batched = query.dim() == 3
        if not batched:
            query, key, value = (part.unsqueeze(0) for part in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (part.transpose(0, 1) for part in (query, key, value))
        q = self._heads(self.q, query)
        k = self._heads(self.k, key)
        v = self._heads(self.v, value)
        mask = self._mask(q, k, attn_mask, key_padding_mask, is_causal and not need_weights)
        weights = self._weights(q, k, mask, need_weights)
        # The backward pass needs scores, weights, and the weights after dropout in memory.
        examples = 1 if self.tape.anchor is not None else self.tape.agents * self.tape.examples
        self.tape.unrecorded += 4 * weights.numel() // examples
        mixed = (weights @ v).transpose(1, 2).flatten(2)
        output = self.out_proj(mixed)
        if not batched:
            output = output.squeeze(0)
        elif not self.batch_first:
            output = output.transpose(0, 1)
        if not need_weights:
            return output, None
        weights = weights.mean(1) if average_attn_weights else weights
        return output, weights if batched else weights.squeeze(0)

    def _heads(self, project: Any, x: Tensor) -> Tensor:
        """Return the result of the linear layer `project` for `x`, as [N, heads, positions, head width]."""
        projected: Tensor = project(x)
        return projected.view(*projected.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def _mask(
        self, q: Tensor, k: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None, causal: bool
    ) -> Tensor | None:
        """Return the mask to add to the scores [N, heads, L, S]; None if there is none."""
        L, S = q.shape[2], k.shape[2]
        if causal and key_padding_mask is None:
            # In this case torch uses a causal mask, and ignores `attn_mask`.
            return _additive_mask(torch.ones(L, S, dtype=torch.bool, device=q.device).triu(1), q.dtype)
        mask = None if attn_mask is None else _additive_mask(attn_mask, q.dtype)
        if mask is not None and mask.dim() == 3:
            mask = mask.reshape(-1, self.num_heads if len(mask) > 1 else 1, *mask.shape[1:])
        if key_padding_mask is None:
            return mask
        padding = _additive_mask(key_padding_mask, q.dtype)[:, None, None, :]
        return padding if mask is None else mask + padding

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor | None, needed: bool) -> Tensor:
        """Return [N, heads, L, S] the weight with which each position enters each query's output.

        `needed`: whether the caller of the layer asked for the weights.
        """
        scores = (q * math.sqrt(1 / self.head_dim)) @ k.mT
        if mask is not None:
            scores = scores + mask
        if mask is None or needed:
            weights = torch.softmax(scores, -1)
        else:
            # Without need_weights, a query whose mask excludes all positions gets 0 instead of NaN in torch.
            fully_masked = (mask == -math.inf).all(-1, keepdim=True)
            weights = torch.softmax(scores.masked_fill(fully_masked, 0), -1).masked_fill(fully_masked, 0)
        return functional.dropout(weights, self.dropout, self.training)


def _additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to scores: a Boolean mask (True means leave out) becomes 0 and -∞."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -math.inf)
