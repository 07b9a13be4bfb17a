"""Random kills of real processes: SIGKILL, SIGTERM and SIGSTOP at any moment, under every mode and rule.

    python benchmarks/kills.py --kills 500                      # over all settings
    python benchmarks/kills.py --kills 60 --setting sync,async-go-on --seed 3

Each setting is a federation of processes on loopback, over gRPC and mutual TLS, as in `py`, whose
recorder it uses; but nobody chooses the place. Every now and then a random agent is killed (three of four
times), asked to end, or stopped for a while, and started again with the same command, until enough have been
killed; then training must end. The checker of histories must find nothing, every ledger verify, nobody be
quarantined. Seeded federations that wait must have sent the same bytes, and end with the same estimates to
the bit, as an unbroken one. Ends with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SEEDED_CYCLE = 6
TESTS = Path(__file__).resolve().parent.parent / "tests"
PRELOADED = [
    "scipy.optimize",
    "networkx",
    "topdp.cli.app",
    "topdp.runs.run",
    "topdp.runs.planning",
    "topdp.learning.gradients",
]


@dataclass(frozen=True)
class Setting:
    name: str
    mode: str
    seeded: bool = False
    cycle: int = 0
    goes_on: bool = False


SETTINGS = (
    Setting("sync", "sync", seeded=True),
    Setting("sync-cyclic", "sync", seeded=True, cycle=SEEDED_CYCLE),
    Setting("async", "async", seeded=True),
    Setting("async-cyclic", "async", seeded=True, cycle=SEEDED_CYCLE),
    Setting("sync-real-noise", "sync"),
    Setting("async-real-noise", "async"),
    Setting("sync-go-on", "sync", goes_on=True),
    Setting("async-go-on", "async", goes_on=True),
    Setting("sync-go-on-cyclic", "sync", goes_on=True, cycle=SEEDED_CYCLE),
    Setting("live", "live"),
)


def recorded(pace: str, log: str, history: str, together: str, *arguments: str) -> None:
    """Run the command `topdp` with `arguments`; write all messages on its links to `history`.

    Every request leaves `pace` seconds late, so that there is time to kill the process.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY), 2)

    from topdp.agents.ledger.ledger_entries import digest_of
    from topdp.agents.runtime.peer_messages import Handover
    from topdp.agents.wire.grpc_transport import GrpcTransport
    from topdp.agents.wire.transport import MessageKind
    from topdp.cli import app

    file = os.open(history, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    start, request = GrpcTransport.start, GrpcTransport.request

    def note(
        what: str, sender: str, receiver: str, kind: str, round: int, digest: str, ok: Any = None
    ) -> None:
        event = [what, sender, receiver, kind, round, digest, ok]
        os.write(file, (json.dumps(event) + "\n").encode())

    def handed(sender: str, receiver: str, packed: bytes) -> None:
        row = Handover.unpack(packed)
        note("sent", sender, receiver, "handed", row.round, digest_of(row.body))

    def sent(sender: str, receiver: str, message: Any) -> None:
        note("sent", sender, receiver, message.kind.name.lower(), message.round, digest_of(message.body))
        if message.kind is MessageKind.COMMIT:
            handed(sender, receiver, message.body)

    async def recorded_start(self: Any, handle: Any) -> None:
        async def recorded_handle(peer: str, message: Any) -> Any:
            sent(peer, self.name, message)
            reply = await handle(peer, message)
            kind = message.kind.name.lower()
            note("answered", peer, self.name, kind, message.round, message.digest, reply.ok)
            if message.kind in (MessageKind.PROPOSE, MessageKind.RESOLVE) and reply.body:
                handed(self.name, peer, reply.body)
            return reply

        await start(self, recorded_handle)

    async def recorded_request(self: Any, peer: str, message: Any) -> Any:
        await asyncio.sleep(float(pace))
        sent(self.name, peer, message)
        reply = await request(self, peer, message)
        if message.kind in (MessageKind.PROPOSE, MessageKind.RESOLVE) and reply.body:
            handed(peer, self.name, reply.body)
        return reply

    GrpcTransport.start, GrpcTransport.request = recorded_start, recorded_request  # type: ignore[method-assign]
    limit = time.monotonic() + 60
    while len(list(Path(history).parent.glob("*.history"))) < int(together) and time.monotonic() < limit:
        time.sleep(0.05)
    sys.argv = ["topdp", *arguments]
    app.main()


def records(path: Path, agents: int, each: int) -> None:
    """Separable images of 1x4x4 in three classes."""
    import numpy as np

    generator = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", agents * each), ("test", 60)):
        labels = generator.integers(0, 3, count)
        inputs = generator.normal(0, 0.3, (count, 1, 4, 4)).astype(np.float32)
        inputs[np.arange(count), 0, labels, :] += 1.5
        arrays |= {f"{part}_inputs": inputs, f"{part}_labels": labels}
    np.savez(path, **arrays)


class Federation:
    """Identities, manifest and records in a folder, and the processes of its agents."""

    pace = 0.0

    def __init__(
        self,
        folder: Path,
        config: Any,
        seeded: bool,
        live_pairing: bool,
        idle: float,
        goes_on: bool = False,
    ) -> None:
        from topdp.agents.agreement import federation_manifest, identity
        from topdp.agents.agreement.manifest import Rules
        from topdp.agents.development import federation_demo
        from topdp.runs.named_records import load_shards
        from topdp.runs.run_outline import RunOutline

        self.folder, self.seeded, self.live_pairing = folder, seeded, live_pairing
        self.graph = RunOutline.of(config).graph
        self.names = tuple(f"agent{i}" for i in range(self.graph.agents))
        shards = load_shards(RunOutline.of(config))
        cards = [
            identity.create_identity(folder / name / "identity", name, address).card
            for name, address in zip(self.names, free_addresses(len(self.names)), strict=True)
        ]
        rules = Rules(dead_neighbour="go-on" if goes_on else "wait", idle_timeout=idle)
        self.manifest, _, _ = federation_manifest.build_manifest(
            cards, self.graph, shards.counts, config, rules
        )
        self.manifest.write(folder / "manifest.toml")
        for i, name in enumerate(self.names):
            federation_demo._write_records(folder / name / "records.npz", shards, i)

    def state(self, number: int) -> Path:
        return self.folder / self.names[number] / "state"

    def start(self, i: int) -> Any:
        place = self.folder / self.names[i]
        command = [
            "agent",
            "rehearse",
            "--json-log",
            "--json",
            "--manifest",
            str(self.folder / "manifest.toml"),
        ]
        command += ["--identity", str(place / "identity"), "--data", str(place / "records.npz")]
        command += ["--state", str(place / "state")]
        command += ["--seeded"] * self.seeded + ["--live-pairing"] * self.live_pairing
        history = self.folder / f"{self.names[i]}.history"
        together = str(len(self.names) if self.live_pairing else 0)
        arguments = (str(self.pace), str(place / "log.jsonl"), str(history), together, *command)
        process = multiprocessing.Process(target=recorded, args=arguments)
        process.start()
        return process

    def lived(self, chance: random.Random, kills: int, every: float, limit: float, goes_on: bool) -> Any:
        """(how many of each signal, how many were left waiting, what went wrong)"""
        sent: Counter[str] = Counter()
        wrong: list[str] = []
        running = {i: self.start(i) for i in range(len(self.names))}
        asked: dict[int, str] = {}  # by process: which signal ended it
        stopped: list[tuple[float, Any]] = []
        back: list[tuple[float, int]] = []  # when, who
        next_kill, end, left = time.monotonic() + every, time.monotonic() + limit, 0
        try:
            while (running or back) and not wrong:
                time.sleep(0.02)
                now = time.monotonic()
                for at, process in stopped:
                    if now >= at:
                        _signal(process, signal.SIGCONT)
                stopped = [(at, process) for at, process in stopped if now < at]
                for at, i in back:
                    if now >= at:
                        running[i] = self.start(i)
                back = [(at, i) for at, i in back if now < at]
                if running and now >= next_kill and sent["KILL"] + sent["TERM"] < kills:
                    next_kill = now + chance.expovariate(1 / every)
                    process = running[chance.choice(sorted(running))]
                    kind = chance.choices(["KILL", "TERM", "STOP"], [75, 15, 10])[0]
                    if process.exitcode is None and process.pid not in asked:
                        sent[kind] += 1
                        if kind == "STOP":
                            stopped.append((now + chance.uniform(0.1, 3.0), process))
                        else:
                            asked[process.pid] = kind
                        _signal(process, getattr(signal, f"SIG{kind}"))
                for i, process in list(running.items()):
                    if process.exitcode is None:
                        continue
                    del running[i]
                    if process.pid in asked:
                        back.append((now + (chance.uniform(0, 8) if goes_on else chance.uniform(0, 0.5)), i))
                    elif process.exitcode not in ((0, 3) if goes_on or self.live_pairing else (0,)):
                        wrong.append(f"{self.names[i]} ended with {process.exitcode}: {self._last_words(i)}")
                if now > end and not wrong:
                    if goes_on and len(running) == 1 and not back:
                        left = 1  # all others have ended: it waits, by its rule
                        break
                    wrong.append(f"after {limit:g} s had not ended: {[self.names[i] for i in running]}")
        finally:
            for process in running.values():
                _signal(process, signal.SIGCONT)
                process.kill()
                process.join()
        return sent, left, wrong

    def events(self, history: Any) -> list[Any]:
        lines = [
            json.loads(line)
            for file in sorted(self.folder.glob("*.history"))
            for line in file.read_text(encoding="utf-8").splitlines()
        ]
        return [history.Event(*line) for line in lines]

    def faults(self) -> tuple[int, list[str], int]:
        """(ledgers that verify, what the checker and the books say, bodies of rows on the wire)."""
        from topdp.agents.ledger.ledger import Ledger
        from topdp.agents.ledger.ledger_check import verify
        from topdp.agents.ledger.ledger_entries import TamperedError

        sys.path[:0] = [path for path in (str(TESTS), str(TESTS / "agents")) if path not in sys.path]
        import history

        events = self.events(history)
        setup = SimpleNamespace(manifest=self.manifest)
        faults = history.faults(
            SimpleNamespace(
                federation=SimpleNamespace(setup=setup, state=self.state), wire=SimpleNamespace(events=events)
            )
        )
        whole = 0
        for i, name in enumerate(self.names):
            if not self.state(i).exists():
                continue  # it ended before it had books
            ledger = Ledger(self.state(i), writable=False)
            try:
                verify(ledger)
                whole += 1
            except TamperedError:
                pass  # the checker has said so
            quarantined = ledger.database.rows(
                "SELECT name, quarantined FROM peers WHERE quarantined NOT NULL"
            )
            faults += [f"{name} has quarantined {peer}: {reason}" for peer, reason in quarantined]
            ledger.close()
        return whole, faults, sum(e.what == "sent" and e.kind in ("row", "handed") for e in events)

    def _last_words(self, i: int) -> str:
        lines = (self.folder / self.names[i] / "log.jsonl").read_text(encoding="utf-8").splitlines()
        return lines[-1] if lines else "it said nothing"


def _signal(process: Any, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)


def free_addresses(count: int) -> list[str]:
    """Below the ports that the system hands out to dialers: ours must still be free after a kill."""
    addresses: list[str] = []
    first = 20_000 + os.getpid() * 37 % 10_000
    for port in range(first, first + 1000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        addresses.append(f"127.0.0.1:{port}")
        if len(addresses) == count:
            return addresses
    raise SystemExit("Expected free ports on loopback, found too few.")


def configuration(mode: str, data: Path, agents: int, rounds: int, cycle: int) -> Any:
    from topdp.runs import config

    changes = [f'data.name="{data}"', f"topology.agents={agents}", "topology.kind=ring", "privacy.clip=1.0"]
    changes += ["privacy.guarantee=worst-case", "privacy.epsilon=50.0", f"rounds={rounds}"]
    changes += [f"method.mode={'sync' if mode == 'sync' else 'async'}", "method.offline=0.2"]
    changes += ["method.name=plain"] if mode == "live" else []
    changes += [f"data.batch={{cycle={cycle}}}", "privacy.sigma=1e-6"] if cycle else []
    return config.read(changes=changes)


def outcome(made: Federation) -> tuple[Any, dict[Any, set[str]]]:
    """(estimates, digests of every row that was sent), to be compared bit by bit."""
    import numpy as np
    from safetensors.numpy import load_file

    sys.path[:0] = [str(TESTS), str(TESTS / "agents")]
    import history

    estimates = np.stack(
        [load_file(made.state(i) / "estimate.safetensors")["estimate"] for i in range(len(made.names))]
    )
    rows: dict[Any, set[str]] = {}
    for e in made.events(history):
        if e.what == "sent" and e.kind == "row":
            rows.setdefault((e.sender, e.receiver, e.round), set()).add(e.digest)
    return estimates, rows


def differences(rows: dict[Any, set[str]], expected: dict[Any, set[str]], last: int) -> list[str]:
    """What was sent in one of two federations and not in the other, or with other bytes.

    A row of the last round nobody needs: it is not sent to who has said before that it has all its rounds.
    """
    both = {key: (rows.get(key), expected.get(key)) for key in {**rows, **expected}}
    other = [f"{key} was sent with other bytes" for key, (a, b) in both.items() if a and b and a != b]
    once = [key for key, (a, b) in both.items() if not (a and b)]
    return other + [f"{key} was sent by one and not by the other" for key in once if key[2] != last]


def federation(setting: Setting, folder: Path, options: argparse.Namespace, data: Path) -> Federation:
    config = configuration(setting.mode, data, options.agents, options.rounds, setting.cycle)
    live = setting.mode == "live"
    return Federation(folder, config, setting.seeded, live, options.idle, setting.goes_on)


def row(setting: Setting, kills: int, options: argparse.Namespace, data: Path) -> dict[str, Any]:
    import numpy as np

    begun, same = time.monotonic(), None
    chance = random.Random(f"{setting.name} {options.seed}")
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        made = federation(setting, Path(folder), options, data)
        made.pace = options.pace
        sent, left, wrong = made.lived(chance, kills, options.every, options.limit, setting.goes_on)
        verified, faults, bodies = made.faults()
        wrong += faults
        if verified < options.agents:
            wrong.append(f"only {verified} of {options.agents} ledgers verify")
        if setting.seeded and not wrong:
            with tempfile.TemporaryDirectory(prefix="kills-") as beside:
                unbroken = federation(setting, Path(beside), options, data)
                _, _, wrong = unbroken.lived(chance, 0, 1.0, options.limit, False)
                if not wrong:
                    (mine, rows), (theirs, expected) = outcome(made), outcome(unbroken)
                    other = differences(rows, expected, options.rounds)
                    if not np.array_equal(mine, theirs):
                        other.append(f"estimates differ by {abs(mine - theirs).max():.3g}")
                    same = not other
                    wrong += other
    return {
        "setting": setting.name,
        **{kind: sent[kind] for kind in ("KILL", "TERM", "STOP")},
        "verified": verified,
        "bodies": bodies,
        "same": same,
        "left": left,
        "wrong": wrong,
        "seconds": round(time.monotonic() - begun, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=500, help="SIGKILL and SIGTERM, over all settings")
    parser.add_argument("--setting", help="names with commas; else all")
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--every", type=float, default=0.7, help="seconds between kills, on average")
    parser.add_argument("--pace", type=float, default=0.3, help="seconds before a message leaves")
    parser.add_argument("--idle", type=float, default=6.0, help="the federation's idle timeout, seconds")
    parser.add_argument("--limit", type=float, default=420.0, help="seconds for one federation")
    parser.add_argument("--seed", type=int, default=0, help="of who is killed when; not of the scheduler")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    multiprocessing.set_start_method("forkserver")
    multiprocessing.set_forkserver_preload(PRELOADED)

    wanted = options.setting.split(",") if options.setting else [setting.name for setting in SETTINGS]
    chosen = [setting for setting in SETTINGS if setting.name in wanted]
    say = sys.stderr if options.json else sys.stdout
    heads = ("setting", "KILL", "TERM", "STOP", "verified", "bodies", "same", "left", "seconds")
    print("| " + " | ".join(heads) + " | wrong |\n" + "|---" * (len(heads) + 1) + "|", file=say, flush=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="kills-data-") as folder:
        data = Path(folder) / "blobs.npz"
        records(data, options.agents, each=20)
        for setting in chosen:
            found = row(setting, -(-options.kills // len(chosen)), options, data)
            rows.append(found)
            cells = [*(found[head] for head in heads), len(found["wrong"])]
            print("| " + " | ".join(map(str, cells)) + " |", file=say, flush=True)
            for fault in found["wrong"]:
                print(f"WRONG: {fault}", file=say, flush=True)
    sums = {kind: sum(found[kind] for found in rows) for kind in ("KILL", "TERM", "STOP")}
    good = bool(rows) and not any(found["wrong"] for found in rows)
    print(f"{sums}, {'nothing wrong' if good else 'SOMETHING WRONG'}", file=say)
    if options.json:
        print(json.dumps({"good": good, "sums": sums, "rows": rows}))
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
