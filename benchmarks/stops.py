"""SIGTERM at random moments to real agents: how long until each has ended, and that each has.

    python benchmarks/stops.py                 # thirty stops
    python benchmarks/stops.py --stops 4 --seed 7

Two agents on loopback, over gRPC and mutual TLS, forked from a process that has torch imported. One is
stopped at a random moment, started again, and so on; the other lives on. Prints the times; ends with 1 if a
stop took longer than an agent promises, an agent does not come to speak, or its books are not whole. An agent
that is stopped before it listens to signals ends by the signal itself (-15): nothing has been made by then.
"""

from __future__ import annotations

import argparse
import random
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from topdp.agents.agreement import federation_manifest, identity
from topdp.agents.development import child_processes
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_check import verify
from topdp.agents.node.shutdown import AGENT_SHUTDOWN_SECONDS, BLOCKED_LOOP_SECONDS
from topdp.runs import config

ROUNDS = 20_000  # more than there is time for
SPEAKS = 120.0  # seconds until an agent that was started must have said something, on a busy machine


def sites(folder: Path) -> None:
    for name in ("ada", "bob"):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            identity.create_identity(folder / name, name, f"127.0.0.1:{probe.getsockname()[1]}")
    cards = [folder / name / "card.toml" for name in ("ada", "bob")]
    changes = [f"rounds={ROUNDS}", "topology.agents=2", "privacy.guarantee=worst-case", "model.name=linear"]
    terms, _, _ = federation_manifest.create_manifest(
        cards, "40", config.read(changes=changes), "ada-bob", {}
    )
    terms.write(folder / "manifest.toml")
    chance = np.random.default_rng(0)
    arrays = {"train_inputs": chance.normal(size=(40, 4)), "train_labels": np.arange(40) % 2}
    np.savez(folder / "records.npz", **arrays, classes=np.array(2))


def started(folder: Path, name: str) -> BaseProcess:
    command = ["agent", "start", "--json", "--json-log"]
    command += ["--manifest", str(folder / "manifest.toml"), "--identity", str(folder / name)]
    command += ["--data", str(folder / "records.npz"), "--state", str(folder / f"state-{name}")]
    (folder / f"{name}.log").touch()
    return child_processes.start(command, folder / f"{name}.log")


def said(folder: Path, name: str) -> int:
    """Bytes in the agent's log."""
    return (folder / f"{name}.log").stat().st_size


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stops", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    chance, seconds, codes = random.Random(given.seed), [], []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sites(folder)
        child_processes.warm_up()
        spoken = {"ada": 0, "bob": 0}  # bytes of the log before this life
        processes = {name: started(folder, name) for name in ("ada", "bob")}
        try:
            for k in range(given.stops):
                name = ("ada", "bob")[k % 2]
                began = time.monotonic()
                while said(folder, name) == spoken[name] and processes[name].exitcode is None:
                    time.sleep(0.01)  # it has not begun to speak
                    if time.monotonic() - began > SPEAKS:
                        print(f"{k + 1}: {name} has said nothing for {SPEAKS:g} s")
                        return 1
                time.sleep(chance.uniform(0, 2))
                began = time.monotonic()
                processes[name].terminate()
                processes[name].join(10 * AGENT_SHUTDOWN_SECONDS)
                seconds.append(time.monotonic() - began)
                codes.append(processes[name].exitcode)
                print(f"{k + 1}: {name} ended after {seconds[-1]:.2f} s with {codes[-1]}", flush=True)
                if codes[-1] is None:
                    return 1
                spoken[name] = said(folder, name)
                if k + 1 < given.stops:
                    processes[name] = started(folder, name)
        finally:
            for process in processes.values():
                process.kill()
                process.join()
        for name in processes:
            books = Ledger(folder / f"state-{name}", writable=False)
            verify(books)
            if books.round >= ROUNDS:
                print(f"{name} had done all its rounds: who has ended cannot be stopped")
                return 1
            print(f"{name} has made {books.round + 1} releases; its books are whole")
    median, longest = np.median(seconds), max(seconds)
    print(f"{len(seconds)} stops: median {median:.2f} s, longest {longest:.2f} s, codes {sorted(set(codes))}")
    return int(max(seconds) > AGENT_SHUTDOWN_SECONDS + BLOCKED_LOOP_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
