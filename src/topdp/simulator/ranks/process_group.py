"""The processes of one simulation, on top of torch.distributed.

They trust each other: each unpickles what the others send. For the machines of one owner behind one firewall;
organisations that do not trust each other run agents (`agents/`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from topdp.errors import ExitCode, TopdpError
from topdp.learning.gradients import DivergedError
from topdp.simulator.ranks.torchrun_environment import RankError, local_rank, restarts, timeout_of_environment

Value = TypeVar("Value")


@final
class OtherRankError(RankError):
    """An error of another rank, with its exit code."""

    def __init__(self, rank: int, message: str, code: int) -> None:
        super().__init__(f"Rank {rank} ended: {message}")
        self.code = ExitCode(code)  # type: ignore[misc]  # of this one error, not of the class


@final
@dataclass(frozen=True)
class ProcessGroup:
    """This process among those of the run. All of them must call the same methods in the same order."""

    rank: int
    size: int
    timeout: float

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which prints and writes the run folder."""
        return self.rank == 0

    def all(self, value: Any) -> list[Any]:
        """Return the `value` of each rank, in their order."""
        said: list[Any] = [None] * self.size
        with self._lost():
            dist.all_gather_object(said, value)
        return said

    def gathered(self, value: Any) -> list[Any] | None:
        """Return on rank 0 the `value` of each rank, in their order; None on other ranks."""
        said: list[Any] | None = [None] * self.size if self.leads else None
        with self._lost():
            dist.gather_object(value, said, dst=0)
        return said

    def led(self, value: Any) -> Any:
        """Return the `value` of rank 0; those of others are ignored."""
        box = [value if self.leads else None]
        with self._lost():
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def any(self, value: bool) -> bool:
        """Return whether `value` is true on some rank."""
        flag = torch.tensor(int(value))
        with self._lost():
            dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag)

    def together(self, step: Callable[[], Value]) -> Value:
        """Return the result of `step` on this rank; raise an error on every rank if `step` fails on any."""
        result: Value | None = None
        failed: Exception | None = None
        try:
            result = step()
        except RankError:
            raise
        except Exception as error:
            failed = error
        if self.any(failed is not None):
            errors = self.all(None if failed is None else _described(failed))
            if failed is not None:
                raise failed
            rank, (message, code, diverged) = next(item for item in enumerate(errors) if item[1] is not None)
            raise DivergedError(message) if diverged else OtherRankError(rank, message, code)
        return result  # type: ignore[return-value]  # set where nothing failed

    def expect_same(self, what: str, value: object, to_do: str) -> None:
        """Raise RankError on all ranks if the `value` of some rank differs from that of rank 0."""
        values = self.all(value)
        others = [rank for rank, other in enumerate(values) if other != values[0]]
        if others:
            named = f"rank {others[0]}" if len(others) == 1 else f"ranks {', '.join(map(str, others))}"
            raise RankError(f"Expected the same {what} on all ranks, got another on {named}: {to_do}")

    def exchange(
        self, sent: Sequence[tuple[int, Tensor]], received: Sequence[tuple[int, Tensor]]
    ) -> Callable[[], None]:
        """Start to send and receive (rank, tensor) pairs; the function that it returns waits for both."""
        ops = [
            dist.P2POp(dist.irecv if into else dist.isend, tensor, rank)
            for into, pairs in ((True, received), (False, sent))
            for rank, tensor in pairs
        ]
        with self._lost():
            works = dist.batch_isend_irecv(ops) if ops else []

        def wait() -> None:
            with self._lost():
                for work in works:
                    work.wait(timedelta(seconds=self.timeout))
            works.clear()
            ops.clear()  # tensors that were sent may be overwritten now

        return wait

    @contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError) as error:  # torch has no special error for a lost peer
            waited = "timed out" in str(error).lower() or "timeout" in str(error).lower()
            how = f"it was silent for {self.timeout:g} seconds" if waited else "its connection is closed"
            raise RankError(
                f"Rank {self.rank} lost another rank: {how}. Checkpoints are intact. Start the same command "
                "again to continue from the last one."
            ) from error


@contextmanager
def join_group(device: torch.device) -> Iterator[ProcessGroup]:
    """Join the processes that torchrun started; NCCL transfers tensors on GPUs."""
    timeout = timeout_of_environment()
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        wait = timedelta(seconds=timeout)
        store, rank, size = next(rendezvous("env://", timeout=wait))
        # torchrun keeps one store over its restarts: ignore the keys of earlier ones.
        store = PrefixStore(f"topdp/{restarts()}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
    except (RuntimeError, ValueError) as error:
        raise RankError(f"Could not join the other ranks: {str(error).strip().splitlines()[0]}") from error
    try:
        yield ProcessGroup(dist.get_rank(), dist.get_world_size(), timeout)
    finally:
        with contextlib.suppress(Exception):  # of a lost peer, which was reported before
            dist.destroy_process_group()


def local_device(name: str) -> str:
    """Return the device of this rank: `cuda` is the GPU with the number of the rank on this machine."""
    local = local_rank()
    if name == "auto":
        return f"cuda:{local}" if torch.cuda.device_count() > local else "cpu"
    return f"cuda:{local}" if name == "cuda" else name


def _described(error: Exception) -> tuple[str, int, bool]:
    """Return the message of an error, its exit code, and whether training diverged."""
    if isinstance(error, TopdpError):
        return str(error), int(error.code), isinstance(error, DivergedError)
    return f"{type(error).__name__}: {error}", int(ExitCode.UNEXPECTED), False
