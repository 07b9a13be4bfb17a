"""The job of peers.py for decentralizepy: a model, records and a node as its users write them.

Its processes read the names of these classes from a configuration and import them, so they are in a file of
their own. Not a command: `python benchmarks/peers.py --who decentralizepy`.
"""

from __future__ import annotations

import json
import logging
import multiprocessing as mp
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from decentralizepy.datasets.Dataset import Dataset
from decentralizepy.graphs.Ring import Ring
from decentralizepy.mappings.Linear import Linear
from decentralizepy.models.Model import Model
from decentralizepy.node.DPSGDNode import DPSGDNode

from peers import BATCH, RATE, batch_of, network

PATIENCE = 300  # seconds, after which a run in which a process has died ends


class Network(Model):
    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, x):
        return self.layers(x)


class Records(Dataset):
    """One batch that is ready: loading records is no part of the job."""

    def __init__(self, rank, machine_id, mapping, **settings) -> None:
        super().__init__(rank, machine_id, mapping, **settings)
        self.batches = [batch_of(self.uid)]

    def get_trainset(self, batch_size=1, shuffle=False):
        return self.batches

    def get_testset(self):
        return None


class Clock:
    """Called at the end of a round: meets all nodes after the first, and says when the last is over."""

    def __init__(self, meet, done) -> None:
        self.meet, self.done, self.rounds = meet, done, 0

    def __call__(self, iterations: int) -> None:
        self.rounds += 1
        if self.rounds == 1:
            self.meet.wait(PATIENCE)
        if self.rounds == iterations:
            self.done.put(iterations)


class Node(DPSGDNode):
    def __init__(self, clock, *settings) -> None:
        self.clock = clock
        super().__init__(*settings)

    def init_sharing(self, sharing_configs) -> None:
        super().init_sharing(sharing_configs)
        # Without a reference to the node: in a cycle it would not be freed, and its sockets never closed.
        self.sharing._post_step = partial(self.clock, self.iterations)


def configuration(folder: Path) -> dict[str, dict[str, object]]:
    """What its users write into an ini file; all nodes are on loopback."""
    addresses = folder / "addresses.json"
    addresses.write_text(json.dumps({"0": "127.0.0.1"}))
    return {
        "DATASET": {"dataset_package": __name__, "dataset_class": "Records", "model_class": "Network"},
        "OPTIMIZER_PARAMS": {"optimizer_package": "torch.optim", "optimizer_class": "SGD", "lr": RATE},
        "TRAIN_PARAMS": {
            "training_package": "decentralizepy.training.Training",
            "training_class": "Training",
            "rounds": 1,
            "batch_size": BATCH,
            "loss_package": "torch.nn",
            "loss_class": "CrossEntropyLoss",
        },
        "COMMUNICATION": {
            "comm_package": "decentralizepy.communication.TCP",
            "comm_class": "TCP",
            "addresses_filepath": str(addresses),
        },
        "SHARING": {"sharing_package": "decentralizepy.sharing.Sharing", "sharing_class": "Sharing"},
    }


def seconds_of(agents: int, rounds: int) -> float:
    """Seconds from when all have ended their first round until all have ended their last."""
    # Forks, as its own scripts do, but of a process that has only imported: thirty imports take a minute.
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["decentralizepy.node.DPSGDNode", "torch._dynamo"])
    meet, done = context.Barrier(agents + 1), context.Queue()
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        config = configuration(Path(name))
        # Rounds, folders of logs and weights, log level, tests and evaluations (never), new optimizers (no).
        rest = (rounds + 1, name, name, logging.INFO, rounds + 2, rounds + 2, 0)
        shared = (0, Linear(1, agents), Ring(agents), config, *rest)
        nodes = [
            context.Process(target=Node, args=(Clock(meet, done), i, *shared), daemon=True)
            for i in range(agents)
        ]
        for node in nodes:
            node.start()
        meet.wait(PATIENCE)
        begun = time.perf_counter()
        for _ in nodes:
            done.get(timeout=PATIENCE)
        seconds = time.perf_counter() - begun
        for node in nodes:
            node.join(PATIENCE)
    return seconds
