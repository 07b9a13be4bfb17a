"""The machines of a Ray cluster, for sweeps (`cluster_sweep.py`): the only file that knows Ray.

Every order is one task with the processors and GPUs that it is said to need; records are put into Ray's
object store once. Ray retries nothing: `cluster_sweep.py` counts lost tasks, up to a limit, also if a
node runs out of memory. Tasks write no files; what Ray itself keeps, and where, is in docs/scale.md.

**Guarantees.** Every task compares the code of its machine with that of the driver before anything is
computed (`code_fingerprint.py`), on nodes that came later, too.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, final
from urllib.parse import urlsplit

from topdp.runs.cluster_orders import Answer, Differs, Failed, Lost, Order, own_modules
from topdp.runs.cluster_sweep import Cluster, ClusterError
from topdp.runs.code_fingerprint import fingerprint
from topdp.runs.config import ConfigError

CONNECT = 5.0  # seconds until a port answers
JOIN = 40.0  # seconds until a cluster has let us in
FETCH = 300.0  # seconds until what a task made is here

QUIET = {"log_to_driver": False, "configure_logging": False, "logging_level": "error"}

# As the driver will do it, in a process that can be ended: Ray waits for ever where nobody answers, and ends
# the process where it does not like what it finds.
PROBE = f"""
import sys
import ray
try:
    ray.init(address=sys.argv[1], **{QUIET!r})
except BaseException as error:
    print(f"{{type(error).__name__}}: {{error}}")
    sys.exit(3)
ray.shutdown()
"""


@contextmanager
def ray_cluster(address: str | None = None, cpus: int = 1, gpus: float = 0.0) -> Iterator[RayCluster]:
    """A Ray cluster that is there (None: RAY_ADDRESS, else the one on this machine), or "local", a new one.

    Where Ray is in use already, that connection is taken, and left as it is.
    """
    ray = _ray()
    if ray.is_initialized():
        yield RayCluster(ray, cpus, gpus)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to others unless they ask for it
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    asked = address or os.environ.get("RAY_ADDRESS") or "auto"
    if asked == "local":
        ray.init(address="local", include_dashboard=False, **QUIET)
    else:
        expect_answer(asked)
        _expect_to_be_let_in(asked)
        ray.init(address=asked, **QUIET)
    try:
        yield RayCluster(ray, cpus, gpus)
    finally:
        ray.shutdown()


@final
class RayCluster(Cluster):
    """An open connection to a cluster. An order gets so many processors, as many threads, and GPUs."""

    def __init__(self, ray: Any, cpus: int, gpus: float) -> None:
        self._ray = ray
        self.cpus, self.gpus, self.device = cpus, gpus, "cuda" if gpus else "cpu"
        self._out: list[Any] = []
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": 0, "scheduling_strategy": "SPREAD"}
        self._task = ray.remote(task()).options(**options)
        if not self.places():
            most = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            held = "; ".join(f"{one.get('CPU', 0):g} and {one.get('GPU', 0):g}" for one in most)
            raise ClusterError(
                f"Expected a node with {cpus} CPUs and {gpus:g} GPUs for each run, the cluster's nodes have "
                f"{held or 'none'}: ask for less with --cpus and --gpus, or add nodes first."
            )

    def put(self, records: dict[str, Any]) -> Any:
        return self._ray.put(records)

    def give(self, order: Order, records: Sequence[Any]) -> Any:
        modules = own_modules(order.configs)
        sent = pickle.dumps(order)
        handle = self._task.remote(fingerprint(modules), modules, self.cpus, sent, *records)
        self._out.append(handle)
        return handle

    def answers(self, seconds: float) -> list[tuple[Any, Answer]]:
        if not self._out:
            return []
        ready, self._out = self._ray.wait(self._out, num_returns=1, timeout=seconds)
        return [(handle, self._answer(handle)) for handle in ready]

    def _answer(self, handle: Any) -> Answer:
        errors = self._ray.exceptions
        try:
            found: Answer = self._ray.get(handle, timeout=FETCH)
            return Differs(found) if isinstance(found, str) else found
        except errors.RayTaskError as error:
            return Failed(str(error), None)
        except (errors.RayError, TimeoutError) as error:
            return Lost(f"{type(error).__name__}: {_line(error)}")

    def places(self) -> int:
        """Of nodes that are alive, whoever else uses them."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return sum(self._places_on(node) for node in nodes)

    def _places_on(self, node: Mapping[str, float]) -> int:
        each = [(node.get("CPU", 0.0), self.cpus), (node.get("GPU", 0.0), self.gpus)]
        return min(int(held / needed + 1e-9) for held, needed in each if needed)

    def cancel(self) -> None:
        """By force: a process in the middle of a product does not hear anything else."""
        out, self._out = self._out, []
        for handle in out:
            self._ray.cancel(handle, force=True)


def task() -> Callable[..., Any]:
    """The function that Ray sends to other machines; as a text, where the machine must not compute."""

    # Inside another function Ray sends its code, not its name: so it can speak where topdp is missing or old.
    def carry_out_there(
        told: dict[str, str], modules: tuple[str, ...], cpus: int, order: bytes, *sent: Any
    ) -> Any:
        import os
        import socket

        import ray

        # Before torch is imported: threads that spin make everything slower on a shared machine.
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ["OMP_NUM_THREADS"] = str(cpus)
        where = f"{socket.gethostname()} (node {ray.get_runtime_context().get_node_id()[:8]})"
        refusal = (
            f"Expected the code of this machine on every node: on {where} {{}}. Install the same version of "
            "topdp there, with the same constraints. Nothing was computed there; what is done is kept."
        )
        try:
            from topdp.runs.code_fingerprint import difference, fingerprint
        except ImportError as error:
            return refusal.format(f"topdp could not be imported, or is older ({error})")
        if differs := difference(told, fingerprint(modules)):
            return refusal.format(differs)
        from topdp.runs.cluster_orders import answer

        return answer(order, sent, where)

    return carry_out_there


def expect_answer(address: str) -> None:
    """Refuses an address at which nobody listens, soon: Ray would try for a long time."""
    if address == "auto":
        return
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if scheme not in ("", "ray") or not host or (port is None and scheme != "ray"):
        raise ConfigError(
            f"--address: expected auto, local, host:port or ray://host:port, got {address!r}. The last is "
            "for a driver that is no node of the cluster."
        )
    try:
        socket.create_connection((host, port or 10001), CONNECT).close()
    except OSError as error:
        raise ClusterError(
            f"--address: nobody answers at {address}: {error.strerror or error}. Start a node there (ray "
            "start --head), or name the address that it said; host:port is its GCS port, usually 6379."
        ) from error


def _expect_to_be_let_in(address: str) -> None:
    command = [sys.executable, "-c", PROBE, address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=JOIN)
    except subprocess.TimeoutExpired as error:
        raise ClusterError(
            f"--address: expected a Ray cluster at {address}, which let nobody in within {JOIN:.0f} s: it is "
            "something else, or its nodes are gone. host:port is the GCS port (usually 6379), not the "
            "dashboard's."
        ) from error
    if done.returncode:
        said = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()[-1:]
        raise ClusterError(
            f"--address: could not join a Ray cluster at {address}: {said[0] if said else 'Ray ended'} Start "
            "one with ray start --head, or use --address local for this machine alone."
        )


def _line(error: BaseException) -> str:
    """The first sentence: Ray says much."""
    return " ".join(str(error).split()).partition(". ")[0].rstrip(".")


def _ray() -> Any:
    try:
        return import_module("ray")
    except ImportError as error:
        raise ConfigError(
            f"--executor ray: expected the package 'ray', which could not be imported ({error}): "
            "pip install -c constraints.txt '.[ray]'  (or pip install 'topdp[ray]')."
        ) from error
