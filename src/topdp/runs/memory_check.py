"""Check before a run that its rows and gradients fit into memory.

The estimate is a lower bound, because it omits Python, activations and the account. So no run that would fit
is refused. Later allocations are not limited.
"""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from topdp.data.shards import Shards
from topdp.errors import InputError
from topdp.simulator.engine import Engine, agents_per_pass
from topdp.simulator.ranks.process_group import ProcessGroup
from topdp.simulator.row_buffers import padded_width

UNCHECKED_BYTES = 1 << 30  # a run that needs less memory is not checked


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryNeed:
    """The bytes that rows and gradients need on one device of one machine, and the free bytes there."""

    place: str  # the name of the machine, and of the device if it is a GPU
    rows: int
    gradients: int
    free: int | None  # None: unknown


def need_of(engine: Engine) -> MemoryNeed:
    """Return the bytes of rows (before and after a round), and of the gradients that one pass computes."""
    flat = engine.gradients.flat
    rounded = engine.plan.rounded
    width = padded_width(flat.dimension, engine.device)
    agents, pass_size = len(engine.layout.agents), agents_per_pass(flat.dimension, rounded is not None)
    if engine.device.type != "cpu" and rounded is None:
        pass_size = agents
    # If rows are rounded, gradients also need a copy of their rows in the type of the model.
    bytes_per_agent = width * flat.dtype.itemsize * (1 if rounded is None else 2)
    place = platform.node() if engine.device.type == "cpu" else f"{platform.node()} {engine.device}"
    rows = 2 * engine.layout.capacity * width * engine.buffers.stored.itemsize
    gradients = min(agents, pass_size) * bytes_per_agent
    return MemoryNeed(place=place, rows=rows, gradients=gradients, free=free_on(engine.device))


def expect_room_for_records(shards: Shards, device: torch.device) -> None:
    """Raise InputError if the records do not fit on a GPU, before they are copied to it."""
    if device.type == "cpu":
        return
    parts = (shards.inputs, shards.targets, shards.test_inputs, shards.test_targets)
    sent = [part for part in parts if part is not None and part.device.type != device.type]
    total, free = sum(part.nbytes for part in sent), free_on(device)
    if total > UNCHECKED_BYTES and free is not None and total > free:
        raise InputError(
            f"Expected {total / 1e9:.1f} GB of free memory on {device} for the records of {shards.agents} "
            f"agents, got {free / 1e9:.1f} GB. Use fewer records, smaller features, or --device cpu."
        )


def expect_room(engine: Engine, group: ProcessGroup | None = None) -> None:
    """Raise InputError if the rows and gradients of a run do not fit into memory.

    `group`: all ranks of the run; ranks on one machine share its memory.
    """
    own_need = need_of(engine)
    needs = [own_need] if group is None else group.all(own_need)
    for place in dict.fromkeys(need.place for need in needs):
        there = [need for need in needs if need.place == place]
        # The records are in memory already, so that the free memory no longer includes them.
        rows, gradients = sum(need.rows for need in there), sum(need.gradients for need in there)
        free = [need.free for need in there if need.free is not None]
        if rows + gradients > max(UNCHECKED_BYTES, min(free, default=math.inf)):
            raise InputError(
                f"Expected memory for {engine.plan.agents} agents with {engine.gradients.flat.dimension} "
                f"parameters each: {rows / 1e9:.1f} GB of rows and {gradients / 1e9:.1f} GB of gradients on "
                f"{place}, got {min(free) / 1e9:.1f} GB of free memory. Use more machines (torchrun), fewer "
                "agents, a smaller model, or train.rows = bfloat16."
            )


def free_on(device: torch.device) -> int | None:
    """Return the number of free bytes on a device; None if it is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    limits = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            limits.append(int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError, IndexError):
        pass
    return min(limits) if limits else None
