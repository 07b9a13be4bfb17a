"""Layer rules of recurrent layers and cells: linear rules, unrolled in time with every agent's own weights.

The input is projected for all steps at once. The term of the hidden state is a linear layer that is used once
per step; its gradient is the sum over steps, as for any layer that is used several times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from topdp.learning.gradients.linear_layers import LinearRule
from topdp.learning.gradients.tape import NotFoldedError, Tape
from topdp.learning.models import Slot

RecurrentState = tuple[Tensor, ...]
"""(h,), or (h, c) of an LSTM; each is [N, size]."""


def _linear(layer: nn.Module, tape: Tape, slots: Mapping[str, Slot], ending: str) -> LinearRule:
    own = {name: slots[f"{name}_{ending}"] for name in ("weight", "bias") if f"{name}_{ending}" in slots}
    return LinearRule(layer, tape, own)


def _lstm(inputs: Tensor, hidden: Tensor, state: RecurrentState) -> RecurrentState:
    i, f, g, o = (inputs + hidden).chunk(4, -1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(inputs: Tensor, hidden: Tensor, state: RecurrentState) -> RecurrentState:
    (ir, iz, new), (hr, hz, hn) = inputs.chunk(3, -1), hidden.chunk(3, -1)
    z = torch.sigmoid(iz + hz)
    n = torch.tanh(new + torch.sigmoid(ir + hr) * hn)
    return (n + z * (state[0] - n),)


def _tanh(inputs: Tensor, hidden: Tensor, state: RecurrentState) -> RecurrentState:
    return (torch.tanh(inputs + hidden),)


def _relu(inputs: Tensor, hidden: Tensor, state: RecurrentState) -> RecurrentState:
    return (torch.relu(inputs + hidden),)


RECURRENT_STEPS = {"LSTM": _lstm, "GRU": _gru, "RNN_TANH": _tanh, "RNN_RELU": _relu}
"""(term of the input, term of the hidden state, state) -> next state"""


@final
class RecurrentRule(nn.Module):
    """The rule of an RNN, GRU or LSTM, also with several layers, both directions, or projections."""

    def __init__(self, layer: nn.RNNBase, tape: Tape, slots: Mapping[str, Slot]) -> None:
        super().__init__()
        self.path = ""
        self.mode, self.hidden_size, self.proj_size = layer.mode, layer.hidden_size, layer.proj_size
        self.input_size, self.num_layers, self.dropout = layer.input_size, layer.num_layers, layer.dropout
        self.batch_first, self.bidirectional = layer.batch_first, layer.bidirectional
        directions = ["", "_reverse"] if layer.bidirectional else [""]
        self._directions = len(directions)
        endings = [f"l{at}{way}" for at in range(layer.num_layers) for way in directions]
        self.inputs = nn.ModuleList(_linear(layer, tape, slots, f"ih_{ending}") for ending in endings)
        self.hidden = nn.ModuleList(_linear(layer, tape, slots, f"hh_{ending}") for ending in endings)
        self.projections = nn.ModuleList(
            _linear(layer, tape, slots, f"hr_{ending}") for ending in endings if layer.proj_size
        )

    def forward(self, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """Return what the layer returns. Raise NotFoldedError for packed sequences."""
        if not isinstance(x, Tensor) or x.dim() not in (2, 3):
            raise NotFoldedError(f"{self.path}: packed sequences have no fast form")
        batched = x.dim() == 3
        start = None if hx is None else (hx if self.mode == "LSTM" else (hx,))
        if not batched:
            x = x.unsqueeze(0)
            start = None if start is None else tuple(part.unsqueeze(1) for part in start)
        elif not self.batch_first:
            x = x.transpose(0, 1)
        outputs, ends = self._layers(x, start)
        last = [torch.stack(part) for part in zip(*ends, strict=True)]  # h, c: [layers·directions, N, size]
        if not batched:
            outputs, last = outputs.squeeze(0), [part.squeeze(1) for part in last]
        elif not self.batch_first:
            outputs = outputs.transpose(0, 1)
        return outputs, tuple(last) if self.mode == "LSTM" else last[0]

    def _layers(self, x: Tensor, start: RecurrentState | None) -> tuple[Tensor, list[RecurrentState]]:
        ends: list[RecurrentState] = []
        for layer in range(self.num_layers):
            if layer:
                x = functional.dropout(x, self.dropout, self.training)
            sequences = []
            for way in range(self._directions):
                at = layer * self._directions + way
                layer_start = None if start is None else tuple(part[at] for part in start)
                steps = list(self._steps(at, x, layer_start, backwards=way == 1))
                ends.append(steps[-1])
                ordered = reversed(steps) if way else steps
                sequences.append(torch.stack([state[0] for state in ordered], 1))
            x = torch.cat(sequences, -1) if len(sequences) > 1 else sequences[0]
        return x, ends

    def _steps(
        self, at: int, x: Tensor, state: RecurrentState | None, backwards: bool
    ) -> Iterator[RecurrentState]:
        """Yield the state after each step of x [N, T, in]."""
        inputs = self.inputs[at](x)
        if state is None:
            zeros = inputs.new_zeros(len(inputs), self.hidden_size)
            state = (zeros[:, : self.proj_size or self.hidden_size], zeros)
        for part in inputs.flip(1).unbind(1) if backwards else inputs.unbind(1):
            state = RECURRENT_STEPS[self.mode](part, self.hidden[at](state[0]), state)
            if self.proj_size:
                state = (self.projections[at](state[0]), *state[1:])
            yield state


@final
class CellRule(nn.Module):
    """The rule of an RNNCell, GRUCell or LSTMCell: one step."""

    def __init__(self, layer: nn.RNNCellBase, tape: Tape, slots: Mapping[str, Slot]) -> None:
        super().__init__()
        self.path = ""
        self.input_size, self.hidden_size = layer.input_size, layer.hidden_size
        self._lstm = isinstance(layer, nn.LSTMCell)
        nonlinearity = f"RNN_{layer.nonlinearity.upper()}" if isinstance(layer, nn.RNNCell) else ""
        self._step = RECURRENT_STEPS[nonlinearity or ("LSTM" if self._lstm else "GRU")]
        self.inputs, self.hidden = (_linear(layer, tape, slots, name) for name in ("ih", "hh"))

    def forward(self, x: Tensor, hx: Any = None) -> Any:
        """Return what the cell returns."""
        batched = x.dim() == 2
        inputs = self.inputs(x if batched else x.unsqueeze(0))
        if hx is None:
            zeros = inputs.new_zeros(len(inputs), self.hidden_size)
            state: Sequence[Tensor] = (zeros, zeros)
        else:
            state = hx if self._lstm else (hx,)
            state = state if batched else [part.unsqueeze(0) for part in state]
        after = self._step(inputs, self.hidden(state[0]), tuple(state))
        after = after if batched else tuple(part.squeeze(0) for part in after)
        return after if self._lstm else after[0]
