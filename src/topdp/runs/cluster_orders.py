"""What is asked of another machine in a sweep, and what that machine does: a stack of runs, from records that
were sent along to runs that are sent back.

The machine needs topdp, and the packages of users' own models; it reads no file of the user and writes none.
How orders and answers travel is `ray_cluster.py`'s, who gives them `dispatch.py`'s.

**Guarantees.** A machine whose code differs (`fingerprint.py`) computes nothing, and says so. Plan, noise and
account are those that the same configuration has here.
"""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from topdp.base.progress import silent
from topdp.data import Shards
from topdp.errors import Interrupted, TopdpError, translate_memory_errors
from topdp.learning.gradients import DivergedError
from topdp.learning.models import MODELS
from topdp.runs.assembly import choose_device
from topdp.runs.config import RunConfig
from topdp.runs.finished_run import Finished
from topdp.runs.run_stacks import Dealer, name_of_graph
from topdp.runs.stacked import alone, together
from topdp.topology import Topology


@dataclass(frozen=True)
class Order:
    """Runs that go together, or one. Their records follow by name, apart: many orders share them."""

    configs: tuple[RunConfig, ...]
    shards: tuple[str, ...]  # the names of the records that are sent along, in their order
    graphs: dict[str, Topology]  # those that are in files
    device: str
    threads: int

    @classmethod
    def of(cls, configs: Sequence[RunConfig], dealer: Dealer, device: str, threads: int) -> Order:
        names = dict.fromkeys(dealer.name_of_shards(config) for config in configs)
        read = [config for config in configs if config.topology.kind == "file"]
        graphs = {name_of_graph(config): dealer.graph(config) for config in read}
        return cls(tuple(configs), tuple(names), graphs, device, threads)


@dataclass(frozen=True)
class Made:
    """The runs of an order."""

    runs: list[Finished]
    where: str = ""


@dataclass(frozen=True)
class Failed:
    """An order that cannot be carried out, for a reason that would be the same anywhere.

    `code` is that of an error of ours, whose message this is; None: a fault, with its traceback.
    """

    message: str
    code: int | None


@dataclass(frozen=True)
class Differs:
    """A machine that must not compute for this one."""

    message: str


@dataclass(frozen=True)
class Lost:
    """The machine, or the process there, is gone; another may do it."""

    message: str


Answer = Made | Failed | Differs | Lost


def own_modules(configs: Sequence[RunConfig]) -> tuple[str, ...]:
    """Of users' own models: machines must have the same."""
    names = {config.model.name for config in configs} - set(MODELS)
    return tuple(sorted({name.partition(":")[0] for name in names if ":" in name}))


def packed(shards: Shards) -> dict[str, Any]:
    """Arrays, which are sent without a copy where both ends are on one machine."""
    return {
        field.name: value.cpu().numpy() if isinstance(value, torch.Tensor) else value
        for field in fields(Shards)
        for value in [getattr(shards, field.name)]
    }


def unpacked(sent: Mapping[str, Any]) -> Shards:
    """In memory of its own, laid out as torch does: the last digits of products may depend on that."""
    made = dict(sent)
    for name, value in sent.items():
        if hasattr(value, "dtype"):
            made[name] = torch.empty(value.shape, dtype=getattr(torch, str(value.dtype)))
            made[name].numpy()[...] = value
    return Shards(**made)


def answer(sent: bytes, records: Sequence[Mapping[str, Any]], where: str = "") -> Answer:
    """What comes of an order, whatever happens: nothing is raised."""
    try:
        with translate_memory_errors():
            return Made(carry_out(pickle.loads(sent), records), where)
    except Interrupted:
        return Lost(f"the process on {where} was told to stop")
    except TopdpError as error:
        return Failed(str(error), int(error.code))
    except Exception:
        return Failed(traceback.format_exc(), None)


def carry_out(order: Order, records: Sequence[Mapping[str, Any]]) -> list[Finished]:
    """As the sweep does on its own machine: together, and each alone where one of them diverges."""
    torch.set_num_threads(order.threads)
    os.environ["TOPDP_CORES"] = str(order.threads)
    device = choose_device(order.device)
    dealt = {name: unpacked(one).to(device) for name, one in zip(order.shards, records, strict=True)}
    dealer = Dealer(device, dealt=dealt, graphs=order.graphs)
    if len(order.configs) > 1:
        try:
            return together(order.configs, dealer, silent)
        except DivergedError:
            pass  # one of them: alone it says so
    return [alone(config, dealer) for config in order.configs]
