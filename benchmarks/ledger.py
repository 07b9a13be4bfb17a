"""Does the ledger's work grow with the rounds? Times what an agent asks of its books, early and late.

python benchmarks/ledger.py                    # 8,000 rounds, two neighbours, rows of 8 kB; about a minute
python benchmarks/ledger.py --rounds 2000 --neighbours 5 --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from topdp.agents.ledger import ledger_database
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_entries import ReleaseCost, digest_of
from topdp.agents.ledger.pairing_records import PairingRecords

AT = (100, 1000, 8000)


def measured(rounds: int, neighbours: list[str], body: bytes) -> dict[str, dict[int, float]]:
    """{what: {round: median milliseconds over the 50 rounds up to it}}"""
    ledger_database.SYNCHRONOUS_MODE = "OFF"  # the disk's own time does not grow, and would hide what does
    folder = Path(tempfile.mkdtemp())
    ledger = Ledger(folder, "federation", "ada")
    pairing = PairingRecords(ledger)
    times: dict[str, list[float]] = {}

    def clock(what: str, job: object) -> None:
        begin = time.perf_counter()
        job()  # type: ignore[operator]
        times.setdefault(what, []).append(1000 * (time.perf_counter() - begin))

    def one(round: int) -> None:
        for peer in neighbours:
            clock("store", lambda p=peer: ledger.store_row(p, round, digest_of(body), body))
        used = [(peer, round - 1) for peer in neighbours] if round else []
        bodies = dict.fromkeys(neighbours, body)
        clock("release", lambda: ledger.release(round, ReleaseCost(0.001, 1.0, 0.1), bodies, body, used))
        clock("waiting", lambda: [ledger.unacknowledged(peer) for peer in neighbours])
        clock("charged", lambda: ledger.last_sent_round)
        clock("seen", lambda: [ledger.last_received(peer) for peer in neighbours])
        clock("received", lambda: [ledger.unapplied_body(peer, round) for peer in neighbours])
        clock("open pairs", pairing.prepared)
        for peer in neighbours:
            ledger.acknowledge(peer, round)

    for round in range(rounds):
        one(round)
    size = (folder / ledger_database.LEDGER_FILE).stat().st_size
    ledger.close()
    per_round = {what: len(each) // rounds for what, each in times.items()}
    found = {
        what: {at: statistics.median(each[(at - 50) * n : at * n]) for at in AT if at <= rounds}
        for (what, each), n in zip(times.items(), per_round.values(), strict=True)
    }
    return {**found, "bytes a round": {rounds: size / rounds}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=max(AT))
    parser.add_argument("--neighbours", type=int, default=2)
    parser.add_argument("--row", type=int, default=8192, help="bytes")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measured(given.rounds, [f"agent{i}" for i in range(given.neighbours)], bytes(given.row))
    if given.json:
        print(json.dumps(found))
        return
    for what, each in found.items():
        first = next(iter(each.values()))
        words = [f"round {at}: {value:8.3f} ({value / first:.2f})" for at, value in each.items()]
        print(f"{what:14}", *words, sep="  ")


if __name__ == "__main__":
    main()
