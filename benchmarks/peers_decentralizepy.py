"""The job of peers.py for decentralizepy: a model, records and a node, as its users write them.

This file is no command; `python benchmarks/peers.py --who decentralizepy` imports it. The processes of
decentralizepy import these classes by the names in a configuration, so they need a module of their own.
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

from peers import BATCH, LEARNING_RATE, batch_of, network

MAX_WAIT_SECONDS = 300  # for other processes, which may have died


class Network(Model):
    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, x):
        return self.layers(x)


class Records(Dataset):
    """One batch, made in advance because loading records is no part of the job."""

    def __init__(self, rank, machine_id, mapping, **settings) -> None:
        super().__init__(rank, machine_id, mapping, **settings)
        self.batches = [batch_of(self.uid)]

    def get_trainset(self, batch_size=1, shuffle=False):
        return self.batches

    def get_testset(self):
        return None


class RoundClock:
    """A callback at the end of each round, which waits for all nodes after the first and reports the last."""

    def __init__(self, first_round, done) -> None:
        self.first_round, self.done, self.rounds = first_round, done, 0

    def __call__(self, iterations: int) -> None:
        self.rounds += 1
        if self.rounds == 1:
            self.first_round.wait(MAX_WAIT_SECONDS)
        if self.rounds == iterations:
            self.done.put(iterations)


class Node(DPSGDNode):
    def __init__(self, clock, *settings) -> None:
        self.clock = clock
        super().__init__(*settings)

    def init_sharing(self, sharing_configs) -> None:
        super().init_sharing(sharing_configs)
        # The callback has no reference to the node: a cycle would keep the node and its sockets alive.
        self.sharing._post_step = partial(self.clock, self.iterations)


def configuration(folder: Path) -> dict[str, dict[str, object]]:
    """Return the sections of the ini file of a user; all nodes are on loopback."""
    addresses = folder / "addresses.json"
    addresses.write_text(json.dumps({"0": "127.0.0.1"}))
    return {
        "DATASET": {"dataset_package": __name__, "dataset_class": "Records", "model_class": "Network"},
        "OPTIMIZER_PARAMS": {
            "optimizer_package": "torch.optim",
            "optimizer_class": "SGD",
            "lr": LEARNING_RATE,
        },
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


def time_rounds(agents: int, rounds: int) -> float:
    """Return the seconds from the end of the first round of all agents to the end of their last round."""
    # Like the scripts of decentralizepy, this forks; a server that only imports, because an import takes 2 s.
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["decentralizepy.node.DPSGDNode", "torch._dynamo"])
    first_round, done = context.Barrier(agents + 1), context.Queue()
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        config = configuration(Path(name))
        # Rounds, folders of logs and weights, log level, test and evaluation intervals, new optimizers.
        never = rounds + 2
        settings = (rounds + 1, name, name, logging.INFO, never, never, 0)
        shared = (0, Linear(1, agents), Ring(agents), config, *settings)
        nodes = [
            context.Process(target=Node, args=(RoundClock(first_round, done), i, *shared), daemon=True)
            for i in range(agents)
        ]
        for node in nodes:
            node.start()
        first_round.wait(MAX_WAIT_SECONDS)
        start = time.perf_counter()
        for _ in nodes:
            done.get(timeout=MAX_WAIT_SECONDS)
        seconds = time.perf_counter() - start
        for node in nodes:
            node.join(MAX_WAIT_SECONDS)
    return seconds
