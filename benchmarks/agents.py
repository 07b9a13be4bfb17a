"""What a round costs an agent beside computing: ledger and link, for rows of 80 kB on loopback.

    python benchmarks/agents.py [--rows 200] [--numbers 20000] [--json]

Two agents in two processes over gRPC and mutual TLS. For every round each books its charge with the bytes to
be sent (WAL, synchronous=FULL), sends them from the outbox, and books what it receives before it answers. One
round and link is the time from the start of the booking until the neighbour's row is in and booked.
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
WARM_UP = 10


async def measured(folder: Path, name: str, rows: int, numbers: int) -> dict[str, list[float]]:
    other = NAMES[1 - NAMES.index(name)]
    terms = manifest.read_manifest(folder / "manifest.toml")
    ledger = Ledger(folder / name / "state", terms.hash, name)
    me = identity.load_identity(folder / name / "identity")
    transport = GrpcTransport(me, terms)
    directory = CardDirectory(terms)
    peers = PeerContacts(
        terms=LinkTerms(terms.hash, "benchmark", "benchmark"),
        ledger=ledger,
        inbox=Inbox(ledger, {other: range(rows)}),
        transport=transport,
        check_row=lambda peer, round, body: row_payload.decode(body, numbers),
        signatures=RowSignatures(directory, me),
        last_round=rows - 1,
        hooks=AgentHooks(),
        card_updates=CardUpdates(name, ledger, directory),
    )
    await transport.start(RequestHandlers(peers).handle)
    peers.spawn(OutboxSender(peers).serve(other))
    generator = np.random.default_rng()
    seconds: dict[str, list[float]] = {"round": [], "ledger": []}
    for r in range(rows):
        body = row_payload.encode(generator.standard_normal(numbers, dtype=np.float32))
        begun = time.perf_counter()
        applied = [(other, r - 1)] if r else []
        ledger.release(r, ReleaseCost(0.01, 0.01, 0.01), {other: body}, b"state", applied)
        seconds["ledger"].append(time.perf_counter() - begun)
        peers.wake_senders()
        while ledger.unapplied_body(other, r) is None:
            peers.changed.clear()
            await peers.changed.wait()
        seconds["round"].append(time.perf_counter() - begun)
    await asyncio.sleep(0.5)  # the other may still wait for the last acknowledgement
    await end_all(list(peers.tasks), "neighbours")
    await transport.close()
    ledger.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--numbers", type=int, default=20_000, help="of float32 in a row")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--as-agent", nargs=2, metavar=("FOLDER", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_agent:
        folder, name = options.as_agent
        found = asyncio.run(measured(Path(folder), name, options.rows, options.numbers))
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as place:
        seconds = _both(Path(place), options.rows, options.numbers)
    milliseconds = {part: [1e3 * s for s in values[WARM_UP:]] for part, values in seconds.items()}
    report = {
        "row_bytes": 4 * options.numbers,
        "rounds": options.rows - WARM_UP,
        "median_ms": {part: round(statistics.median(values), 2) for part, values in milliseconds.items()},
        "p95_ms": {part: round(float(np.percentile(values, 95)), 2) for part, values in milliseconds.items()},
        "target_ms": 15.0,
    }
    if options.json:
        print(json.dumps(report))
        return
    for part in ("round", "ledger"):
        label = {"round": "round and link", "ledger": "of which own booking"}[part]
        print(f"{label:22} median {report['median_ms'][part]:6.2f} ms   95% {report['p95_ms'][part]:6.2f} ms")


def _both(folder: Path, rows: int, numbers: int) -> dict[str, list[float]]:
    cards = []
    for name in NAMES:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        cards.append(identity.create_identity(folder / name / "identity", name, f"127.0.0.1:{port}").card)
    manifest.new_manifest(cards, [NAMES], RunConfig()).write(folder / "manifest.toml")
    command = [sys.executable, __file__, "--rows", str(rows), "--numbers", str(numbers)]
    running = [
        subprocess.Popen([*command, "--as-agent", str(folder), name], stdout=subprocess.PIPE)
        for name in NAMES
    ]
    found = [json.loads(process.communicate(timeout=300)[0]) for process in running]
    return {part: [value for each in found for value in each[part]] for part in found[0]}


if __name__ == "__main__":
    main()
