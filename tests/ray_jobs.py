"""The jobs of test_ray_cluster.py on a real cluster: two nodes on the loopback interface, and several sweeps.

This is a process of its own, because Ray leaves threads and signal handlers behind, and because its nodes
end with the process that started them. The outcome of every job is written to the folder as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from topdp.errors import TopdpError
from topdp.runs import config, ray_cluster, sweep
from topdp.runs.cluster_tasks import StackResult
from topdp.runs.sweep_grid import Axis, resolved_points

BASE = [
    "noise_seed=0",
    "topology.agents=4", "topology.kind=ring", "rounds=6", "privacy.sigma=0.05", "privacy.clip=1.0",
    "privacy.guarantee=worst-case", "train.evaluate_every=2", "method.name=muffliato", "method.gossip=2",
]  # fmt: skip
ALONE = ["train.optimiser=adam"]  # runs with Adam are not stacked: one task each
RATES = "train.learning_rate=0.1,0.2,0.4"
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}


def points(folder: Path, *over: str, changes: list[str]) -> list[Any]:
    base = config.read(changes=[f'data.name="{folder / "blobs.npz"}"', *BASE, *changes]).to_toml()
    return resolved_points(sweep.SweepRequest(base, tuple(map(Axis.of, over)), 1).points())


def there() -> bool:
    """Whether this process is a worker; the driver also builds models, to measure their size."""
    return "TOPDP_CORES" in os.environ


def marked(name: str) -> bool:
    """Whether this worker is the first that calls it with this name."""
    try:
        (Path(os.environ["RAY_JOBS"]) / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def linear(shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, outputs))


def killed_once(shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    if there() and marked("worker killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    return linear(shape, outputs)


def always_killed(shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    if there():
        os.kill(os.getpid(), signal.SIGKILL)
    return linear(shape, outputs)


def on_a_node_that_dies(shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    """The first task on the second node waits until the node is killed."""
    import ray

    second = (Path(os.environ["RAY_JOBS"]) / "second").read_text()
    if there() and ray.get_runtime_context().get_node_id() == second:
        marked("node waits")
        time.sleep(600)
    return linear(shape, outputs)


def failing(shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    if there():
        raise OSError("no weights on this machine")
    return linear(shape, outputs)


class Watched:
    """Record where runs were computed and what was reported; act once, when a file appears."""

    def __init__(self) -> None:
        self.where: list[str] = []
        self.said: list[str] = []
        self.act: Any = None
        self.when: Path | None = None

    def __call__(self, stage: str, done: int = 0, total: int | None = None, /, **details: Any) -> None:
        self.said.append(f"{stage} {done} of {total}")
        if self.when is not None and self.when.exists():
            self.when = None
            self.act()


def outcome(folder: Path, name: str, wanted: list[Any], cluster: Any, watched: Watched) -> None:
    began = time.monotonic()
    told: dict[str, Any] = {"code": 0, "error": ""}
    try:
        sweep.run_all(wanted, folder / name, "auto", watched, "again", cluster)
    except TopdpError as error:
        told = {"code": int(error.code), "error": str(error)}
    told |= {"where": watched.where, "said": watched.said, "seconds": time.monotonic() - began}
    (folder / f"{name}.json").write_text(json.dumps(told))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    ray_cluster.MAX_TASK_RETRIES, ray_cluster.WAIT_SECONDS = 1, 0.1
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    second = nodes.add_node(**NODE)
    nodes.wait_for_nodes()
    (folder / "second").write_text(second.node_id)
    try:
        with ray_cluster.ray_cluster(nodes.address) as cluster:
            jobs(folder, cluster, lambda: nodes.remove_node(second, allow_graceful=False))
    finally:
        nodes.shutdown()


def jobs(folder: Path, cluster: Any, end_node: Any) -> None:
    import ray

    watched = Watched()
    real = ray.get

    def get(handle: Any) -> Any:
        result = real(handle)
        if isinstance(result, StackResult) and result.error is None:
            watched.where.append(result.where)
        return result

    cluster._ray = SimpleNamespace(**{**vars(ray), "get": get})

    def run(name: str, wanted: list[Any], watching: Watched | None = None) -> None:
        nonlocal watched
        watched = watching or Watched()
        outcome(folder, name, wanted, cluster, watched)

    alone = points(folder, RATES, changes=ALONE)
    with_fault = points(folder, "model.name=linear,ray_jobs:failing", changes=ALONE)
    killed = points(folder, "model.name=linear,ray_jobs:always_killed", changes=ALONE)
    run("alone", alone)
    run("together", points(folder, RATES, changes=[]))
    run("failing", with_fault)
    run("worker", points(folder, changes=[*ALONE, "model.name=ray_jobs:killed_once"]))
    run("always", killed)
    true, ray_cluster.fingerprint = ray_cluster.fingerprint, older
    run("older", alone)
    ray_cluster.fingerprint = true
    dying = Watched()
    dying.when, dying.act = folder / "node waits", end_node
    run("node", points(folder, RATES, changes=[*ALONE, "model.name=ray_jobs:on_a_node_that_dies"]), dying)


def older(modules: tuple[str, ...]) -> dict[str, str]:
    """The code fingerprints of a driver of another version."""
    from topdp.runs.code_fingerprint import fingerprint

    return {**fingerprint(modules), "topdp": "9.9.9"}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
