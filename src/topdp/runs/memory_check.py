"""Check before a run that its rows and gradients fit into memory.

An estimate from below (Python, activations and the account come on top), so that nothing which would run is
refused. Not a limit of any kind on what is allocated later.
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

UNCHECKED_BYTES = 1 << 30  # smaller needs are not checked


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryNeed:
    """The bytes needed on one device of one machine, and their purpose."""

    place: str
    rows: int
    gradients: int
    free: int | None


def need_of(engine: Engine) -> MemoryNeed:
    """Return the bytes of rows (before and after a round), and of the gradients of one pass."""
    flat = engine.gradients.flat
    rounded = engine.plan.rounded
    width, wide = padded_width(flat.dimension, engine.device), flat.dtype.itemsize
    kept = engine.buffers.stored.itemsize
    agents, together = len(engine.layout.agents), agents_per_pass(flat.dimension, rounded is not None)
    if engine.device.type != "cpu" and rounded is None:
        together = agents
    # Beside gradients stand the rows that they are taken at, where those have to be widened.
    beside = width * wide * (1 if rounded is None else 2)
    place = platform.node() if engine.device.type == "cpu" else f"{platform.node()} {engine.device}"
    rows, gradients = 2 * engine.layout.capacity * width * kept, min(agents, together) * beside
    return MemoryNeed(place=place, rows=rows, gradients=gradients, free=free_on(engine.device))


def expect_room_for_records(shards: Shards, device: torch.device) -> None:
    """Raise InputError for records that do not fit on a GPU, before they are sent there."""
    if device.type == "cpu":
        return
    parts = (shards.inputs, shards.targets, shards.test_inputs, shards.test_targets)
    sent = [part for part in parts if part is not None and part.device.type != device.type]
    total, free = sum(part.nbytes for part in sent), free_on(device)
    if total > UNCHECKED_BYTES and free is not None and total > free:
        raise InputError(
            f"Expected room for the records of {shards.agents} agents on {device}: they take "
            f"{total / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free there. Use fewer records, smaller "
            "features, or --device cpu."
        )


def expect_room(engine: Engine, group: ProcessGroup | None = None) -> None:
    """Raise InputError for a run that does not fit; ranks of one machine share its memory."""
    mine = need_of(engine)
    needs = [mine] if group is None else group.all(mine)
    for place in dict.fromkeys(need.place for need in needs):
        there = [need for need in needs if need.place == place]
        # Records are in memory already, and are not free any more.
        rows, gradients = sum(need.rows for need in there), sum(need.gradients for need in there)
        free = [need.free for need in there if need.free is not None]
        if rows + gradients > max(UNCHECKED_BYTES, min(free, default=math.inf)):
            raise InputError(
                f"Expected room for {engine.plan.agents} agents of {engine.gradients.flat.dimension} "
                f"parameters: {rows / 1e9:.1f} GB of rows and {gradients / 1e9:.1f} GB of gradients are "
                f"needed on {place}, where {min(free) / 1e9:.1f} GB are free. Use more machines (torchrun), "
                "fewer agents, a smaller model, or train.rows = bfloat16."
            )


def free_on(device: torch.device) -> int | None:
    """Free bytes on a device; None where they are unknown."""
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
