"""Duration of an agent's operations on its ledger, early and late in a run.

python benchmarks/ledger.py                    # 8,000 rounds, two neighbours, rows of 8 kB; about a minute
python benchmarks/ledger.py --rounds 2000 --neighbours 5 --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from topdp.agents.ledger import ledger_database
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_entries import ReleaseCost, digest_of
from topdp.agents.ledger.pairing_records import PairingRecords

REPORTED_ROUNDS = (100, 1000, 8000)
MEDIAN_ROUNDS = 50  # a reported time is the median over this many rounds


def measure(rounds: int, neighbours: list[str], body: bytes) -> dict[str, dict[int, float]]:
    """Return the median milliseconds by operation and round, and the bytes per round."""
    # The ledger does not wait for the disk, whose time is long and does not depend on the round.
    ledger_database.SYNCHRONOUS_MODE = "OFF"
    folder = Path(tempfile.mkdtemp())
    ledger = Ledger(folder, "federation", "ada")
    pairing = PairingRecords(ledger)
    milliseconds: dict[str, list[float]] = {}

    def time_operation(name: str, operation: Callable[[], object]) -> None:
        start = time.perf_counter()
        operation()
        milliseconds.setdefault(name, []).append(1000 * (time.perf_counter() - start))

    def execute_round(round: int) -> None:
        for peer in neighbours:
            time_operation("store", lambda p=peer: ledger.store_row(p, round, digest_of(body), body))
        applied = [(peer, round - 1) for peer in neighbours] if round else []
        bodies, cost = dict.fromkeys(neighbours, body), ReleaseCost(0.001, 1.0, 0.1)
        time_operation("release", lambda: ledger.release(round, cost, bodies, body, applied))
        time_operation("waiting", lambda: [ledger.unacknowledged(peer) for peer in neighbours])
        time_operation("charged", lambda: ledger.last_sent_round)
        time_operation("seen", lambda: [ledger.last_received(peer) for peer in neighbours])
        time_operation("received", lambda: [ledger.unapplied_body(peer, round) for peer in neighbours])
        time_operation("open pairs", pairing.prepared)
        for peer in neighbours:
            ledger.acknowledge(peer, round)

    for round in range(rounds):
        execute_round(round)
    file_bytes = (folder / ledger_database.LEDGER_FILE).stat().st_size
    ledger.close()
    medians = {}
    for name, times in milliseconds.items():
        calls = len(times) // rounds  # per round
        medians[name] = {
            round: statistics.median(times[(round - MEDIAN_ROUNDS) * calls : round * calls])
            for round in REPORTED_ROUNDS
            if round <= rounds
        }
    return {**medians, "bytes a round": {rounds: file_bytes / rounds}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=max(REPORTED_ROUNDS))
    parser.add_argument("--neighbours", type=int, default=2)
    parser.add_argument("--row", type=int, default=8192, help="bytes of a row")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.rounds < min(REPORTED_ROUNDS):
        parser.error(f"Expected at least {min(REPORTED_ROUNDS)} rounds, got {options.rounds}.")
    neighbours = [f"agent{i}" for i in range(options.neighbours)]
    results = measure(options.rounds, neighbours, bytes(options.row))
    if options.json:
        print(json.dumps(results))
        return
    for name, values in results.items():
        first = next(iter(values.values()))
        cells = [f"round {round}: {value:8.3f} ({value / first:.2f})" for round, value in values.items()]
        print(f"{name:14}", *cells, sep="  ")


if __name__ == "__main__":
    main()
