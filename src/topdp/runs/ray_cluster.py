"""A sweep on a Ray cluster: every stack of runs is one task. No other file imports Ray.

Ray schedules tasks, moves objects and repeats tasks whose process or node died. Tasks that share records get
them from Ray's object store, which receives them once. This machine, the driver, writes results as soon as
they arrive. A task that fails does not stop the others. docs/scale.md states what Ray itself stores, and
where.

**Guarantees.** Every task compares the code of its machine with that of the driver before it computes
(`code_fingerprint.py`), also on nodes that joined later. A difference ends the sweep. The noise key of a run
travels in the arguments of its task, which Ray keeps in memory, and may spill to the disks of its nodes.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, final

from topdp.base.progress import Progress
from topdp.errors import InputError
from topdp.runs.cluster_tasks import StackResult, StackTask
from topdp.runs.code_fingerprint import fingerprint
from topdp.runs.config import ConfigError
from topdp.runs.finished_run import FinishedRun
from topdp.runs.kept_keys import kept_or_new_key
from topdp.runs.run_stacks import Dealer, name_of_shards
from topdp.runs.sweep_grid import SweepPoint

JOIN_TIMEOUT_SECONDS = 40.0
MAX_TASK_RETRIES = 3  # how often Ray repeats a task whose process or node died
QUEUED_TASKS = 2  # tasks beyond those that can run at once, so that no machine waits for its next task
WAIT_SECONDS = 1.0  # between two reports of progress

RAY_OPTIONS = {"log_to_driver": False, "configure_logging": False, "logging_level": "error"}

# Joins the cluster like the driver, but in another process, because Ray may wait for ever or end its process.
JOIN_PROBE = f"import ray, sys; ray.init(address=sys.argv[1], **{RAY_OPTIONS!r}); ray.shutdown()"


class ClusterError(InputError):
    """A cluster that cannot be reached, has other code, or lacks resources that a task needs."""


@contextmanager
def ray_cluster(address: str | None = None, cpus: int = 1, gpus: float = 0.0) -> Iterator[RayCluster]:
    """Join the Ray cluster at `address`, and yield the connection. Raise ClusterError if that is impossible.

    `address`: "local" starts a new cluster; None: RAY_ADDRESS, or else the cluster on this machine.
    """
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise ConfigError(
            f"--executor ray: expected the package 'ray', could not import it: {error}. Install it with pip "
            "install -c constraints.txt '.[ray]'."
        ) from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # unless the user sets it, no reports to Ray
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    if address != "local":
        _expect_cluster(address)
    ray.init(address=address, include_dashboard=False if address == "local" else None, **RAY_OPTIONS)
    try:
        yield RayCluster(ray, cpus, gpus)
    finally:
        ray.shutdown()


@final
class RayCluster:
    """A connection to a cluster. Each task gets `cpus` processors, as many threads, and `gpus`."""

    def __init__(self, ray: Any, cpus: int, gpus: float) -> None:
        self._ray, self.cpus, self.device = ray, cpus, "cuda" if gpus else "cpu"
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": MAX_TASK_RETRIES}
        self._task = ray.remote(remote_function()).options(**options, scheduling_strategy="SPREAD")
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
            sizes = "; ".join(f"{node.get('CPU', 0):g} and {node.get('GPU', 0):g}" for node in nodes)
            raise ClusterError(
                f"Expected a node with {cpus} CPUs and {gpus:g} GPUs for each run, got nodes with "
                f"{sizes or 'none'}. Request less with --cpus and --gpus, or add nodes first."
            )

    def run(
        self, stacks: Sequence[list[SweepPoint]], dealer: Dealer, place: Path, progress: Progress, done: int
    ) -> None:
        """Compute all stacks and write each run to its folder in `place`, where `done` runs are already.

        If tasks fail, the others are still computed, and then the first error is raised.
        """
        _expect_no_sinks(stacks)
        total = done + sum(map(len, stacks))
        waiting = deque(sorted(stacks, key=lambda stack: name_of_shards(stack[0].run)))
        running: dict[Any, list[SweepPoint]] = {}
        records: dict[str, Any] = {}
        errors: list[Exception] = []
        last: dict[str, Any] | None = None
        try:
            while waiting or running:
                progress("sweeping", done, total, unit="run", metrics=last)
                slots = int(self._ray.cluster_resources().get("CPU", 0.0) // self.cpus)
                while waiting and len(running) < slots + QUEUED_TASKS:
                    stack = waiting.popleft()
                    keys = [kept_or_new_key(place / point.folder, point.config) for point in stack]
                    task = StackTask.of([point.run for point in stack], keys, self.device, self.cpus)
                    for run in task.runs:
                        if (name := name_of_shards(run)) not in records:
                            records[name] = self._ray.put(pickle.dumps(dealer.shards(run)))
                    records = {name: records[name] for name in task.records}  # Ray drops what no task needs
                    code = fingerprint(task.user_modules), task.user_modules
                    handle = self._task.remote(*code, self.cpus, pickle.dumps(task), *records.values())
                    running[handle] = stack
                ready, _ = self._ray.wait(list(running), num_returns=1, timeout=WAIT_SECONDS)
                for handle in ready:
                    stack = running.pop(handle)
                    result = self._result(handle)
                    if isinstance(result, Exception):
                        result.args = (f"{_name(stack)}: {result}",)
                        errors.append(result)
                        continue
                    for point, finished in zip(stack, result, strict=True):
                        finished.write(place / point.folder)
                        last = finished.metrics[-1] if finished.metrics else last
                        done += 1
            progress("sweeping", done, total, unit="run", metrics=last)
        finally:
            for handle in running:
                self._ray.cancel(handle, force=True)
        if errors:
            others = f" {len(errors) - 1} more tasks failed as well." if len(errors) > 1 else ""
            errors[0].args = (f"{errors[0]}{others} All other runs are done; the same command tries again.",)
            raise errors[0]

    def _result(self, handle: Any) -> list[FinishedRun] | Exception:
        try:
            result: StackResult | str = self._ray.get(handle)
        except self._ray.exceptions.RayTaskError as error:
            return RuntimeError(f"failed on another machine:\n{error}")
        except self._ray.exceptions.RayError as error:
            reason = " ".join(str(error).split()).partition(". ")[0].rstrip(".")
            return ClusterError(f"{type(error).__name__}: {reason}, also after {MAX_TASK_RETRIES} retries.")
        if isinstance(result, str):
            raise ClusterError(result)
        return result.error or result.runs


def remote_function() -> Callable[..., Any]:
    """Return the function that Ray sends to other machines.

    That function returns a `StackResult`, or a text with the reason why its machine must not compute.
    """

    # Ray sends the code of an inner function instead of its name, so that it runs even if topdp is missing.
    def compute_there(
        expected: dict[str, str], modules: tuple[str, ...], cpus: int, task: bytes, *records: Any
    ) -> Any:
        import os
        import socket

        import ray

        # Set before torch is imported: spinning threads slow down everything else on a shared machine.
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ["OMP_NUM_THREADS"] = str(cpus)
        where = f"{socket.gethostname()} (node {ray.get_runtime_context().get_node_id()[:8]})"
        message = (
            f"Expected the code of this machine on every node, got other code on {where}: {{}}. Install the "
            "same version of topdp there, with the same constraints. That node computed nothing; finished "
            "runs stay."
        )
        try:
            from topdp.runs.code_fingerprint import difference, fingerprint
        except ImportError as error:
            return message.format(f"topdp could not be imported, or is older ({error})")
        if differs := difference(expected, fingerprint(modules)):
            return message.format(differs)
        from topdp.runs.cluster_tasks import compute

        return compute(task, records, where)

    return compute_there


def _expect_cluster(address: str) -> None:
    command = [sys.executable, "-c", JOIN_PROBE, address]
    try:
        probe = subprocess.run(command, capture_output=True, text=True, timeout=JOIN_TIMEOUT_SECONDS)
        reason = (probe.stderr.strip().splitlines() or ["Ray ended"])[-1] if probe.returncode else ""
    except subprocess.TimeoutExpired:
        reason = f"no answer within {JOIN_TIMEOUT_SECONDS:.0f} s"
    if reason:
        raise ClusterError(
            f"--address: expected a Ray cluster at {address}, could not join it: {reason}. Use auto, local, "
            "host:port of the GCS (usually port 6379), or ray://host:port from outside the cluster. "
            "`ray start --head` starts a cluster."
        )


def _expect_no_sinks(stacks: Sequence[list[SweepPoint]]) -> None:
    if sinks := {sink for stack in stacks for sink in stack[0].config.report.sinks}:
        raise ConfigError(
            f"report.sinks: expected none in a sweep on a cluster, got {', '.join(sorted(sinks))}. Remove "
            "them, or use --executor local. The run folders contain the metrics in any case."
        )


def _name(stack: list[SweepPoint]) -> str:
    if len(stack) > 1:
        return f"runs {stack[0].folder} to {stack[-1].folder}, together"
    label = f" ({stack[0].label})" if stack[0].label else ""
    return f"run {stack[0].folder}{label}, seed {stack[0].seed}"
