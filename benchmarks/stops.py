"""Time in which real agents end after SIGTERM at random moments.

    python benchmarks/stops.py                 # thirty stops
    python benchmarks/stops.py --stops 4 --seed 7

Two agents run on loopback over gRPC with mutual TLS, forked from a process that has imported torch. Each of
them in turn gets SIGTERM at a random moment and is started again, while the other runs on. Exit with 1 if an
agent takes longer to end than it promises, writes no log after a start, or has a damaged ledger. An agent
that gets the signal before it handles signals ends with code -15; it has made no release by then.
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

NAMES = ("ada", "bob")
RECORDS_PER_AGENT = 40
ROUNDS = 20_000  # more than the agents execute before the last stop
MAX_START_SECONDS = 120.0  # until an agent has written to its log, on a busy machine
MAX_RUN_SECONDS = 2.0  # from then until SIGTERM


def prepare_sites(folder: Path) -> None:
    """Write identities, records and the manifest of both agents."""
    for name in NAMES:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            identity.create_identity(folder / name, name, f"127.0.0.1:{probe.getsockname()[1]}")
    cards = [folder / name / "card.toml" for name in NAMES]
    changes = [f"rounds={ROUNDS}", "topology.agents=2", "privacy.guarantee=worst-case", "model.name=linear"]
    manifest, _, _ = federation_manifest.create_manifest(
        cards, str(RECORDS_PER_AGENT), config.read(changes=changes), "-".join(NAMES), {}
    )
    manifest.write(folder / "manifest.toml")
    inputs = np.random.default_rng(0).normal(size=(RECORDS_PER_AGENT, 4))
    labels = np.arange(RECORDS_PER_AGENT) % 2
    np.savez(folder / "records.npz", train_inputs=inputs, train_labels=labels, classes=np.array(2))


def start_agent(folder: Path, name: str) -> BaseProcess:
    command = ["agent", "start", "--json", "--json-log"]
    command += ["--manifest", str(folder / "manifest.toml"), "--identity", str(folder / name)]
    command += ["--data", str(folder / "records.npz"), "--state", str(folder / f"state-{name}")]
    command += ["--site", str(folder / f"site-{name}")]
    (folder / f"{name}.log").touch()
    return child_processes.start(command, folder / f"{name}.log")


def log_bytes(folder: Path, name: str) -> int:
    return (folder / f"{name}.log").stat().st_size


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stops", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    random_source, seconds, codes = random.Random(options.seed), [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare_sites(folder)
        child_processes.warm_up()
        log_bytes_at_start = dict.fromkeys(NAMES, 0)
        processes = {name: start_agent(folder, name) for name in NAMES}
        try:
            for stop in range(1, options.stops + 1):
                name = NAMES[(stop - 1) % len(NAMES)]
                process, start = processes[name], time.monotonic()
                while log_bytes(folder, name) == log_bytes_at_start[name] and process.exitcode is None:
                    time.sleep(0.01)
                    if time.monotonic() - start > MAX_START_SECONDS:
                        print(f"{stop}: {name} has written nothing to its log for {MAX_START_SECONDS:g} s")
                        return 1
                time.sleep(random_source.uniform(0, MAX_RUN_SECONDS))
                start = time.monotonic()
                process.terminate()
                process.join(10 * AGENT_SHUTDOWN_SECONDS)
                seconds.append(time.monotonic() - start)
                codes.append(process.exitcode)
                print(f"{stop}: {name} ended after {seconds[-1]:.2f} s with code {codes[-1]}", flush=True)
                if codes[-1] is None:
                    return 1
                log_bytes_at_start[name] = log_bytes(folder, name)
                if stop < options.stops:
                    processes[name] = start_agent(folder, name)
        finally:
            for process in processes.values():
                process.kill()
                process.join()
        for name in NAMES:
            ledger = Ledger(folder / f"state-{name}", writable=False)
            verify(ledger)
            if ledger.round >= ROUNDS:
                print(f"{name} completed all rounds; an agent that has ended cannot be stopped")
                return 1
            print(f"{name} made {ledger.round + 1} releases; its ledger verifies")
    median, longest = np.median(seconds), max(seconds)
    print(f"{len(seconds)} stops: median {median:.2f} s, longest {longest:.2f} s, codes {sorted(set(codes))}")
    return int(longest > AGENT_SHUTDOWN_SECONDS + BLOCKED_LOOP_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
