"""Recordings and the kernel of a GPU, as far as tests of several rounds at once need them. Needs Triton."""

import numpy as np
import torch

from topdp.simulator.mixing_cuda import Fused


def by_calling(warm_up, function):
    """In the place of a recording: the same operations, one call for a replay."""
    warm_up()
    return function


class Quick(Fused):
    """In the place of the kernel, which takes long to interpret: the same, from the same tables."""

    def _launch(self, before, gradient, out, packed, clock, first, round, chosen=None, agents=0):
        assert chosen is None and agents == 0
        made = len(out)
        if clock is not None:
            position, round = clock.tolist()
            first, stop = packed.starts[position : position + 2].tolist()
            made = stop - first
        _, slot, weight, owner, step, key, draw, std = (part[first : first + made] for part in packed)
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
