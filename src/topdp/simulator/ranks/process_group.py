"""The processes of one simulation, on top of torch.distributed.

The processes trust each other, because each unpickles what the others send. Use them only on machines of one
owner behind one firewall. Organisations that do not trust each other run real agents (`agents/`) instead.
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
    """An error for the failure of another rank, with the exit code of that failure."""

    def __init__(self, rank: int, message: str, code: int) -> None:
        super().__init__(f"Rank {rank} ended: {message}")
        self.code = ExitCode(code)  # type: ignore[misc]  # of this one error, not of the class


@final
@dataclass(frozen=True)
class ProcessGroup:
    """The processes of the run, as seen from this one. All must call the same methods in the same order.

    If another process is lost, every method raises RankError.
    """

    rank: int
    size: int
    timeout: float

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which prints and writes the run folder."""
        return self.rank == 0

    def all(self, value: Any) -> list[Any]:
        """Return the `value` of each rank, in the order of ranks."""
        values: list[Any] = [None] * self.size
        with self._report_lost_rank():
            dist.all_gather_object(values, value)
        return values

    def gathered(self, value: Any) -> list[Any] | None:
        """Return on rank 0 the `value` of each rank, in the order of ranks; return None on other ranks."""
        values: list[Any] | None = [None] * self.size if self.leads else None
        with self._report_lost_rank():
            dist.gather_object(value, values, dst=0)
        return values

    def led(self, value: Any) -> Any:
        """Return the `value` of rank 0; the values of other ranks are ignored."""
        values = [value if self.leads else None]
        with self._report_lost_rank():
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def any(self, value: bool) -> bool:
        """Return whether `value` is true on at least one rank."""
        flag = torch.tensor(int(value))
        with self._report_lost_rank():
            dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag)

    def together(self, step: Callable[[], Value]) -> Value:
        """Call `step` on every rank, and return its result on this rank.

        If `step` fails on a rank, raise an error on every rank: the rank's own error if it failed itself, and
        otherwise OtherRankError or DivergedError.
        """
        result: Value | None = None
        failed: Exception | None = None
        try:
            result = step()
        except RankError:
            raise
        except Exception as error:
            failed = error
        if self.any(failed is not None):
            errors = self.all(None if failed is None else _description(failed))
            if failed is not None:
                raise failed
            rank, (message, code, diverged) = next(item for item in enumerate(errors) if item[1] is not None)
            raise DivergedError(message) if diverged else OtherRankError(rank, message, code)
        return result  # type: ignore[return-value]  # not None, because `step` did not fail

    def expect_same(self, what: str, value: object, to_do: str) -> None:
        """Raise RankError on all ranks if the `value` of some rank differs from that of rank 0.

        `what` names the value in the message; `to_do` states what the user can do.
        """
        values = self.all(value)
        different = [rank for rank, other in enumerate(values) if other != values[0]]
        if different:
            ranks = f"{'rank' if len(different) == 1 else 'ranks'} {', '.join(map(str, different))}"
            raise RankError(f"Expected the same {what} on all ranks, got another one on {ranks}: {to_do}")

    def exchange(
        self, sent: Sequence[tuple[int, Tensor]], received: Sequence[tuple[int, Tensor]]
    ) -> Callable[[], None]:
        """Start to send and to receive tensors; return a function that waits until this is complete.

        `sent`, `received`: pairs (rank, tensor).
        """
        ops = [
            dist.P2POp(dist.irecv if into else dist.isend, tensor, rank)
            for into, pairs in ((True, received), (False, sent))
            for rank, tensor in pairs
        ]
        with self._report_lost_rank():
            works = dist.batch_isend_irecv(ops) if ops else []

        def wait() -> None:
            with self._report_lost_rank():
                for work in works:
                    work.wait(timedelta(seconds=self.timeout))
            works.clear()
            ops.clear()  # from now on, tensors that were sent may be overwritten

        return wait

    @contextmanager
    def _report_lost_rank(self) -> Iterator[None]:
        """Raise RankError if torch raises an error inside the `with` block."""
        try:
            yield
        except (RuntimeError, ValueError) as error:  # torch has no special error for a lost process
            waited = "timed out" in str(error).lower() or "timeout" in str(error).lower()
            how = f"it was silent for {self.timeout:g} seconds" if waited else "its connection is closed"
            raise RankError(
                f"Rank {self.rank} lost another rank: {how}. Checkpoints are intact. Start the same command "
                "again to continue from the last checkpoint."
            ) from error


@contextmanager
def join_group(device: torch.device) -> Iterator[ProcessGroup]:
    """Join the processes that torchrun started, yield the process group, and leave it afterwards.

    NCCL transfers tensors between GPUs. Raise RankError if this process cannot join the others.
    """
    timeout = timeout_of_environment()
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        wait = timedelta(seconds=timeout)
        store, rank, size = next(rendezvous("env://", timeout=wait))
        # torchrun uses the same store after a restart, so the prefix separates the keys of each restart.
        store = PrefixStore(f"topdp/{restarts()}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
    except (RuntimeError, ValueError) as error:
        raise RankError(f"Could not join the other ranks: {str(error).strip().splitlines()[0]}") from error
    try:
        yield ProcessGroup(dist.get_rank(), dist.get_world_size(), timeout)
    finally:
        with contextlib.suppress(Exception):  # another process may be lost, which was reported before
            dist.destroy_process_group()


def local_device(name: str) -> str:
    """Return the device of this rank for the setting `name`.

    `cuda` means the GPU whose number is the number of this rank on its machine. `auto` means this GPU if it
    exists, and otherwise the CPU.
    """
    local = local_rank()
    if name == "auto":
        return f"cuda:{local}" if torch.cuda.device_count() > local else "cpu"
    return f"cuda:{local}" if name == "cuda" else name


def _description(error: Exception) -> tuple[str, int, bool]:
    """Return the message of an error, its exit code, and whether it is a DivergedError."""
    if isinstance(error, TopdpError):
        return str(error), int(error.code), isinstance(error, DivergedError)
    return f"{type(error).__name__}: {error}", int(ExitCode.UNEXPECTED), False
