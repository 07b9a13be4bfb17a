"""Duration of the ledger and of the link in an agent's round, for rows of 80 kB on loopback.

    python benchmarks/agents.py [--rows 200] [--numbers 20000]

Two agents run in two processes and communicate over gRPC with mutual TLS. In each round an agent writes its
charge and the bytes to be sent into the ledger (WAL, synchronous=FULL), sends them from the outbox, and
stores the row that it receives before it answers. The time of a round and link begins before the charge is
written, and ends when the row of the neighbour is in the ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from topdp.agents.agreement import identity, manifest
from topdp.agents.agreement.card_succession import CardDirectory
from topdp.agents.agreement.signatures import RowSignatures
from topdp.agents.ledger.inbox import Inbox
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_entries import ReleaseCost
from topdp.agents.runtime.agent_hooks import AgentHooks
from topdp.agents.runtime.card_updates import CardUpdates
from topdp.agents.runtime.outbox_sender import OutboxSender
from topdp.agents.runtime.peer_contacts import PeerContacts
from topdp.agents.runtime.peer_messages import LinkTerms
from topdp.agents.runtime.request_handlers import RequestHandlers
from topdp.agents.wire import row_payload
from topdp.agents.wire.grpc_transport import GrpcTransport
from topdp.agents.wire.transport import end_all
from topdp.runs.config import RunConfig

NAMES = ("ada", "bob")
WARM_UP_ROUNDS = 10
TARGET_MILLISECONDS = 15.0
LAST_ACKNOWLEDGEMENT_SECONDS = 0.5  # the neighbour may still wait for it


async def exchange_rows(folder: Path, name: str, rounds: int, numbers: int) -> dict[str, list[float]]:
    """Run one agent. Return the seconds of each round, and those that the charge took."""
    neighbour = NAMES[1 - NAMES.index(name)]
    terms = manifest.read_manifest(folder / "manifest.toml")
    ledger = Ledger(folder / name / "state", terms.hash, name)
    own_identity = identity.load_identity(folder / name / "identity")
    transport = GrpcTransport(own_identity, terms)
    directory = CardDirectory(terms)
    peers = PeerContacts(
        terms=LinkTerms(terms.hash, "benchmark", "benchmark"),
        ledger=ledger,
        inbox=Inbox(ledger, {neighbour: range(rounds)}),
        transport=transport,
        check_row=lambda peer, round, body: row_payload.decode(body, numbers),
        signatures=RowSignatures(directory, own_identity),
        last_round=rounds - 1,
        hooks=AgentHooks(),
        card_updates=CardUpdates(name, ledger, directory),
    )
    await transport.start(RequestHandlers(peers).handle)
    peers.spawn(OutboxSender(peers).serve(neighbour))
    generator = np.random.default_rng()
    seconds: dict[str, list[float]] = {"round": [], "ledger": []}
    for round in range(rounds):
        body = row_payload.encode(generator.standard_normal(numbers, dtype=np.float32))
        start = time.perf_counter()
        applied = [(neighbour, round - 1)] if round else []
        ledger.release(round, ReleaseCost(0.01, 0.01, 0.01), {neighbour: body}, b"state", applied)
        seconds["ledger"].append(time.perf_counter() - start)
        peers.wake_senders()
        while ledger.unapplied_body(neighbour, round) is None:
            peers.changed.clear()
            await peers.changed.wait()
        seconds["round"].append(time.perf_counter() - start)
    await asyncio.sleep(LAST_ACKNOWLEDGEMENT_SECONDS)
    await end_all(list(peers.tasks), "neighbours")
    await transport.close()
    ledger.close()
    return seconds


def run_both_agents(folder: Path, rounds: int, numbers: int) -> dict[str, list[float]]:
    """Run both agents. Return the seconds of all rounds of both."""
    cards = []
    for name in NAMES:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        cards.append(identity.create_identity(folder / name / "identity", name, f"127.0.0.1:{port}").card)
    manifest.new_manifest(cards, [NAMES], RunConfig()).write(folder / "manifest.toml")
    command = [sys.executable, __file__, "--rows", str(rounds), "--numbers", str(numbers)]
    processes = [
        subprocess.Popen([*command, "--as-agent", str(folder), name], stdout=subprocess.PIPE)
        for name in NAMES
    ]
    outputs = [json.loads(process.communicate(timeout=300)[0]) for process in processes]
    return {
        part: [seconds for output in outputs for seconds in output[part][WARM_UP_ROUNDS:]]
        for part in outputs[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200, help="rounds, each with one row per agent")
    parser.add_argument("--numbers", type=int, default=20_000, help="float32 numbers in a row")
    parser.add_argument("--as-agent", nargs=2, metavar=("FOLDER", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rows <= WARM_UP_ROUNDS:
        parser.error(f"Expected --rows above {WARM_UP_ROUNDS}, which are not counted; got {options.rows}.")
    if options.as_agent:
        folder, name = options.as_agent
        print(json.dumps(asyncio.run(exchange_rows(Path(folder), name, options.rows, options.numbers))))
        return
    with tempfile.TemporaryDirectory() as folder:
        seconds = run_both_agents(Path(folder), options.rows, options.numbers)
    for part, label in (("round", "round and link"), ("ledger", "of these, the charge")):
        milliseconds = [1e3 * value for value in seconds[part]]
        median, high = statistics.median(milliseconds), float(np.percentile(milliseconds, 95))
        print(f"{label:22} median {median:6.2f} ms   95th percentile {high:6.2f} ms")
    print(f"target: {TARGET_MILLISECONDS:g} ms per round and link")


if __name__ == "__main__":
    main()
