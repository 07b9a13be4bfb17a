"""One of the three processes of test_ranked_run.py: executes a list of jobs with some other ranks.

The arguments are the address of the store, this process's number and a folder. The process keeps no state
between jobs: it joins, runs and leaves, as a process that torchrun started.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from pytest import MonkeyPatch

from topdp.errors import DataError, TopdpError
from topdp.plan.noise_key import NoiseKey
from topdp.runs import config, memory_check, ranked_run
from topdp.simulator.engine import Engine

AGENTS, ROUNDS = 7, 6

BASE = [
    f"topology.agents={AGENTS}", "topology.connection=0.5", f"rounds={ROUNDS}", "model.name=linear",
    "seed=3", "noise_seed=3",
    "privacy.sigma=0.05", "privacy.guarantee=worst-case", "privacy.clip=1.0", "train.learning_rate=0.5",
    "train.evaluate_every=2", "train.checkpoint_every=2",
]  # fmt: skip

EQUAL: dict[str, tuple[int, list[str]]] = {
    "top": (2, ["method.name=top"]),
    "top of one": (1, ["method.name=top"]),
    "top in pairs": (3, ["method.name=top", "method.mode=async"]),
    "plain": (3, ["method.name=plain", "data.batch={cycle=5}"]),
    "dsgd with momentum": (2, ["method.name=dsgd", "train.optimiser=momentum", "train.average=0.5"]),
    "correlated": (3, ["method.name=correlated", "data.batch={poisson=6}"]),
    "muffliato with Adam": (2, ["method.name=muffliato", "method.gossip=2", "train.optimiser=adam"]),
    "dsgd in bfloat16": (2, ["method.name=dsgd", "train.optimiser=momentum", "train.rows=bfloat16"]),
    "dsgd, trimmed": (2, ["method.name=dsgd", "robust.rule=trimmed"]),
    "persons": (2, ["method.name=dsgd", "privacy.unit=person", "data.batch={cycle=4}"]),
}
"""Ranks and settings of runs that end as in one process."""

REFUSED: dict[str, tuple[int, list[str]]] = {
    "more ranks than agents": (3, ["topology.agents=2"]),
    "another seed on rank 1": (2, []),
    "an attack": (2, ["attack.name=drift"]),
    "all records in one place": (2, ["method.name=central"]),
    "features": (2, ["data.features=scattering"]),
    "no such file on rank 1": (2, []),
    "no memory": (2, []),
    "no GPU": (2, []),
    "diverged": (2, ["train.learning_rate=1e30", "privacy.clip=1e30", "privacy.sigma=0"]),
    "dropout": (2, ["model.name=rank_jobs:dropping"]),
}

BROKEN: list[tuple[str, int]] = [("stopped", 2), ("stopped", 3), ("lost", 2)]
"""In sequence: stopped by a signal on rank 1, continued by three ranks, then a rank dies."""


SECRET = "secret key"
"""A run without a noise seed; each rank would draw another key."""


def dropping(shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, outputs), torch.nn.Dropout(0.5))


def settings(folder: Path, changes: list[str]) -> config.RunConfig:
    return config.read(None, None, [*BASE, f"data.name={folder / 'blobs.npz'}", *changes])


def after(releases: int, act: Any) -> Any:
    """`Engine.advance` that calls `act` after the given number of releases."""
    real = Engine.advance

    def advance(self: Engine, state: Any) -> Any:
        if state.releases == releases:
            act()
        return real(self, state)

    return advance


def main(folder: Path, rank: int) -> None:
    jobs = [(name, *job, "run") for name, job in EQUAL.items()]
    jobs += [(name, *job, name) for name, job in REFUSED.items()]
    jobs += [(SECRET, 2, ["method.name=top"], SECRET)]
    jobs += [(name, ranks, ["method.name=top"], f"{name} {ranks}") for name, ranks in BROKEN]
    for number, (name, ranks, changes, what) in enumerate(jobs):
        if rank < ranks:
            os.environ |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "TORCHELASTIC_RESTART_COUNT": str(number),
            }
            said = outcome(folder, rank, name, changes, what)
            (folder / f"{what if what != 'run' else name}.{rank}.json").write_text(json.dumps(said))


def outcome(folder: Path, rank: int, name: str, changes: list[str], what: str) -> dict[str, Any]:
    """The outcome of the run on this rank; planted faults occur in this job only."""
    device = "cuda" if what == "no GPU" else "cpu"
    with MonkeyPatch.context() as patched:
        if what == "another seed on rank 1" and rank == 1:
            changes = [*changes, "seed=4"]
        elif what == "no such file on rank 1" and rank == 1:
            patched.setattr(ranked_run, "load_shards", gone)
        elif what == "no memory":
            patched.setattr(memory_check, "free_on", lambda device: 1000)
            patched.setattr(memory_check, "UNCHECKED_BYTES", 0)
        elif what == "stopped 2" and rank == 1:
            patched.setattr(Engine, "advance", after(3, lambda: os.kill(os.getpid(), signal.SIGTERM)))
        elif what == "lost 2" and rank == 1:
            patched.setattr(Engine, "advance", after(4, lambda: os._exit(9)))
        wanted = settings(folder, changes)
        if what == SECRET:
            wanted = wanted.model_copy(update={"noise_seed": None})
            patched.setattr(NoiseKey, "fresh", classmethod(lambda cls: NoiseKey.of_seed(40 + rank)))
        try:
            result = ranked_run.run_on_ranks(wanted, folder / name, device)
        except TopdpError as error:
            return {"code": int(error.code), "said": str(error), "kind": type(error).__name__}
    return {"code": 0, "said": "", "found": result is not None}


def gone(*_: Any) -> Any:
    raise DataError("Expected the file of an agent, found none.")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]))
