"""Substitutes for CUDA recordings and kernels, for tests with several rounds at once. Needs Triton."""

import inspect

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from topdp.simulator.row_mixing_cuda import CudaMixer


def by_calling(warm_up, function):
    """A substitute for a recording: the same operations, one call per replay."""
    warm_up()
    return function


class Written(TorchDispatchMode):
    """A closer substitute for a recording: it stores operations with the tensors that they read
    and write, and a replay repeats them on these tensors. A replay runs no Python code of topdp.
    """

    now = None  # the recording in progress

    def __init__(self, warm_up, function):
        super().__init__()
        warm_up()
        # A device computes nothing while it records; here the clock must show an existing round.
        inspect.getclosurevars(function).nonlocals["program"]._clock.sub_(1)
        self.steps = []
        Written.now = self
        try:
            with self:
                function()
        finally:
            Written.now = None

    def __torch_dispatch__(self, function, types, arguments=(), others=None):
        made = function(*arguments, **(others or {}))
        returns = function._schema.returns
        if not any(one.alias_info is not None and not one.alias_info.is_write for one in returns):  # no view
            self.steps.append(lambda: self._again(function, arguments, others or {}, made))
        return made

    @staticmethod
    def _again(function, arguments, others, made):
        new = function(*arguments, **others)
        for old, one in zip(*((x,) if isinstance(x, torch.Tensor) else x for x in (made, new)), strict=True):
            if isinstance(old, torch.Tensor) and one is not old:
                old.detach().copy_(one)

    def __call__(self):
        with torch.no_grad():
            for step in self.steps:
                step()


class Quick(CudaMixer):
    """A substitute for the kernel, which is slow to interpret: the same result from the same tables."""

    def _launch(self, *arguments):
        if Written.now is not None:
            Written.now.steps.append(lambda: self._made(*arguments))
            return  # nothing is computed while recording
        self._made(*arguments)

    def _made(self, work, packed, clock, first=0, chosen=None):
        assert chosen is None and work.first == 0
        before, gradient, out, round, made = work.before, work.gradient, work.out, work.round, len(work.out)
        if clock is not None:
            position, round = clock.tolist()
            first, stop = packed.starts[position : position + 2].tolist()
            made = stop - first
        _, *tables = packed.tables()
        slot, weight, owner, step, key, draw, std = (table[first : first + made] for table in tables)
        total = torch.zeros(made, out.shape[1])
        for row in range(made):
            for source, share in zip(slot[row].tolist(), weight[row].tolist(), strict=True):
                if share:
                    total[row] += share * before[source]
            if step[row]:
                total[row] += step[row] * gradient[owner[row]]
            for *name, deviation in zip(
                key[row].tolist(), draw[row].tolist(), std[row].tolist(), strict=True
            ):
                if deviation:
                    drawn = np.random.default_rng([*name, round]).standard_normal(out.shape[1])
                    total[row] += deviation * torch.from_numpy(drawn).float()
        out[:made] = total
