"""kill -9 at every failpoint in real processes: what the tests of crashes show in one, here in six.

    python benchmarks/kill_matrix.py --seeded                 # every failpoint, both modes
    python benchmarks/kill_matrix.py --mode sync --only after_ledger,after_send
    python benchmarks/kill_matrix.py --json                   # one JSON object as the last line

For each mode and failpoint a federation of processes on loopback, over gRPC and mutual TLS. Every agent is
armed (`TOPDP_FAILPOINT=name:pass`, staggered passes), dies by a real SIGKILL and is started again without it,
with the same command on the same state folder. Training must end; then every ledger must verify and the
checker of `tests/agents/history.py` must find nothing in the books and in everything that went over the wire.

`--seeded` takes the simulator's noise, and the estimates must equal those of `topdp run`. Without it noise is
real: then a row that is drawn a second time after a crash has another digest, and the checker finds it.

Modes: `sync` and `async` execute the plan and pass the failpoints of a round; `live` is asynchronous with
`--live-pairing` and passes those of a pairing. There is no simulator to compare it with, for partners are
found on the way, and an agent that is not chosen as often as its failpoint wants may survive: half must die.
It may also stop at its budget (exit code 3) if it did more than the plan drew.

By default agents are forked from a server that has only imported torch and its like (not gRPC), which saves
most of the time; `--fresh` gives each start an interpreter of its own.

A process is `topdp agent start` with a recorder around its transport: every body that is handed to the link
or comes from it is written down first, to a file that survives the kill. Ends with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests"
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}
NOISY = {"rtol": 0.0, "atol": 1e-4}  # of real noise with --cycle
PRELOADED = [
    "scipy.optimize",
    "networkx",
    "topdp.cli.app",
    "topdp.runs.run",
    "topdp.runs.planning",
    "topdp.learning.gradients",
]
RECORDED = "recorded"  # first argument of an agent's process


def recorded(log: str, failpoint: str, history: str, together: str, *arguments: str) -> None:
    """One agent: the command `topdp` with `arguments`, and everything on its links written to `history`."""
    os.environ.pop("TOPDP_FAILPOINT", None)
    if failpoint:
        os.environ["TOPDP_FAILPOINT"] = failpoint
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY), 2)

    from topdp.agents.ledger.ledger_entries import digest_of
    from topdp.agents.runtime.handover import Handover
    from topdp.agents.wire.grpc_transport import GrpcTransport
    from topdp.agents.wire.wire_codes import MessageKind
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


class Started:
    """A process of an agent: forked from the server, or an interpreter of its own."""

    def __init__(self, fresh: bool, log: Path, failpoint: str | None, arguments: list[str]) -> None:
        self.process: Any
        if fresh:
            command = [sys.executable, __file__, RECORDED, str(log), failpoint or "", *arguments]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        else:
            self.process = multiprocessing.Process(target=recorded, args=(log, failpoint or "", *arguments))
            self.process.start()

    def poll(self) -> int | None:
        """As of waitpid: minus the signal for who was killed."""
        fresh = isinstance(self.process, subprocess.Popen)
        code = self.process.poll() if fresh else self.process.exitcode
        return None if code is None else int(code)

    def end(self) -> None:
        self.process.kill()
        while self.poll() is None:
            time.sleep(0.01)


class Federation:
    """Identities, manifest and records in a folder; `live` is the life of its processes."""

    def __init__(
        self,
        folder: Path,
        config: Any,
        seeded: bool,
        live_pairing: bool,
        idle: float,
        fresh: bool,
        goes_on: bool = False,
    ) -> None:
        from topdp.agents.agreement import federation_manifest, identity
        from topdp.agents.agreement.manifest import Rules
        from topdp.agents.development import federation_demo
        from topdp.runs import builders

        self.folder, self.seeded, self.live_pairing, self.fresh = folder, seeded, live_pairing, fresh
        self.graph = builders.graph(config)
        self.names = tuple(f"agent{i}" for i in range(self.graph.agents))
        shards = builders.shards(config, self.graph.agents)
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

    def _start(self, i: int, failpoint: str | None) -> Started:
        place = self.folder / self.names[i]
        history = self.folder / f"{self.names[i]}.history"
        together = len(self.names) if self.live_pairing else 0
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
        return Started(self.fresh, place / "log.jsonl", failpoint, [str(history), str(together), *command])

    def live(self, failpoints: list[str], limit: float) -> tuple[list[str], list[str], list[str]]:
        """(killed, started again, what went wrong); no process is left, whatever happens."""
        killed: list[str] = []
        again: list[str] = []
        wrong: list[str] = []
        end = time.monotonic() + limit
        running: dict[int, Started] = {}
        try:
            for i, failpoint in enumerate(failpoints):
                running[i] = self._start(i, failpoint)
            while running and not wrong:
                time.sleep(0.05)
                for i, process in list(running.items()):
                    code = process.poll()
                    if code is None:
                        continue
                    del running[i]
                    name = self.names[i]
                    if code == -signal.SIGKILL and name not in killed:
                        killed.append(name)
                        running[i] = self._start(i, None)
                        again.append(name)
                    elif code != 0 and not (self.live_pairing and code == 3):
                        log = (self.folder / name / "log.jsonl").read_text(encoding="utf-8").splitlines()
                        wrong.append(f"{name} ended with {code}: {log[-1] if log else 'it said nothing'}")
                if running and time.monotonic() > end:
                    late = ", ".join(self.names[i] for i in running)
                    wrong.append(f"after {limit:g} s {late} had not ended")
        finally:
            for process in running.values():
                process.end()
        return killed, again, wrong

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
        from topdp.agents.ledger.ledger_database import TamperedError

        sys.path[:0] = [path for path in (str(TESTS), str(TESTS / "agents")) if path not in sys.path]
        import history

        events = self.events(history)
        setup = SimpleNamespace(manifest=self.manifest)
        found = history.faults(
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
            found += [f"{name} has quarantined {peer}: {reason}" for peer, reason in quarantined]
            ledger.close()
        return whole, found, sum(e.what == "sent" and e.kind in ("row", "handed") for e in events)

    def difference(self, simulated: Any, tolerance: dict[str, float]) -> tuple[float, bool]:
        import numpy as np
        from safetensors.numpy import load_file

        estimates = np.stack(
            [load_file(self.state(i) / "estimate.safetensors")["estimate"] for i in range(len(self.names))]
        )
        return float(np.abs(estimates - simulated).max()), bool(
            np.allclose(estimates, simulated, **tolerance)
        )


def free_addresses(count: int) -> list[str]:
    """Below the ports that the system hands out to dialers: ours must still be free after a kill."""
    found: list[str] = []
    first = 20_000 + os.getpid() * 37 % 10_000
    for port in range(first, first + 1000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(f"127.0.0.1:{port}")
        if len(found) == count:
            return found
    raise SystemExit("Expected free ports on loopback, found too few.")


def configuration(mode: str, data: Path, agents: int, rounds: int, cycle: int) -> Any:
    from topdp.runs import config

    changes = [f'data.name="{data}"', f"topology.agents={agents}", "topology.kind=ring", "privacy.clip=1.0"]
    changes += ["privacy.guarantee=worst-case", "privacy.epsilon=50.0", f"rounds={rounds}"]
    changes += [f"method.mode={'sync' if mode == 'sync' else 'async'}", "method.offline=0.2"]
    changes += ["method.name=plain"] if mode == "live" else []
    changes += [f"data.batch={{cycle={cycle}}}", "privacy.sigma=1e-6"] if cycle else []
    return config.read(changes=changes)


def row(mode: str, place: str, options: argparse.Namespace, data: Path, simulated: Any) -> dict[str, Any]:
    """One federation: every agent armed with `place`."""
    live = mode == "live"
    rounds = options.live_rounds if live else options.rounds
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kill-matrix-") as folder:
        config = configuration(mode, data, options.agents, rounds, options.cycle)
        made = Federation(
            Path(folder), config, options.seeded and not live, live, options.idle, options.fresh
        )
        failpoints = [f"{place}:{1 + i % options.stagger}" for i in range(options.agents)]
        killed, again, wrong = made.live(failpoints, options.limit)
        seconds = time.monotonic() - begun
        if len(killed) < (options.agents / 2 if live else options.agents):
            wrong.append(f"only {len(killed)} of {options.agents} were killed")
        verified, faults, bodies = made.faults()
        if verified < options.agents:
            wrong.append(f"only {verified} of {options.agents} ledgers verify")
        difference = None
        if simulated is not None and not wrong:
            difference, close = made.difference(simulated, TOLERANCE if options.seeded else NOISY)
            if not close:
                wrong.append(f"differs from the simulator by {difference:.3g}")
    return {
        "mode": mode,
        "failpoint": place,
        "killed": len(killed),
        "restarted": len(again),
        "verified": verified,
        "bodies": bodies,
        "faults": faults,
        "difference": difference,
        "seconds": round(seconds, 1),
        "wrong": wrong,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mode", choices=("sync", "async", "live", "both"), default="both")
    parser.add_argument("--only", help="failpoints with commas; else all")
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=6, help="of a planned federation")
    parser.add_argument("--live-rounds", type=int, default=8, help="of one that finds its partners")
    parser.add_argument("--stagger", type=int, default=2, help="agent i dies at pass 1 + i %% STAGGER")
    parser.add_argument("--seeded", action="store_true", help="compare with the simulator")
    parser.add_argument(
        "--cycle",
        type=int,
        default=0,
        help="cyclic batches of so many of 20 records, with next to no noise: who shuffles anew is found out",
    )
    parser.add_argument("--idle", type=float, default=6.0, help="the federation's idle timeout, seconds")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for one federation")
    parser.add_argument("--fresh", action="store_true", help="an interpreter for every start")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes are ended then, too
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    multiprocessing.set_start_method("forkserver")
    multiprocessing.set_forkserver_preload(PRELOADED)

    from topdp.agents.development import failpoints
    from topdp.runs import run

    modes = ("sync", "async", "live") if options.mode == "both" else (options.mode,)
    if options.mode == "async":
        modes = ("async", "live")
    say = sys.stderr if options.json else sys.stdout
    heads = ("mode", "failpoint", "killed", "restarted", "verified", "bodies", "faults", "difference", "s")
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", file=say, flush=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="kill-matrix-data-") as folder:
        data = Path(folder) / "blobs.npz"
        records(data, options.agents, each=20)
        for mode in modes:
            simulated = None
            if (options.seeded or options.cycle) and mode != "live":
                config = configuration(mode, data, options.agents, options.rounds, options.cycle)
                simulated = run.run(config, Path(folder) / mode, "cpu").estimates.numpy()
            for place in failpoints.PAIRING if mode == "live" else failpoints.ROUNDS:
                if options.only and place not in options.only.split(","):
                    continue
                found = row(mode, place, options, data, simulated)
                rows.append(found)
                difference = "-" if found["difference"] is None else f"{found['difference']:.1e}"
                cells = [found[key] for key in heads[:6]] + [
                    len(found["faults"]),
                    difference,
                    found["seconds"],
                ]
                print("| " + " | ".join(map(str, cells)) + " |", file=say, flush=True)
                for fault in found["wrong"] + found["faults"]:
                    print(f"WRONG: {fault}", file=say, flush=True)
    good = bool(rows) and not any(each["wrong"] or each["faults"] for each in rows)
    if options.json:
        print(json.dumps({"good": good, "agents": options.agents, "seeded": options.seeded, "rows": rows}))
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == [RECORDED]:
        recorded(*sys.argv[2:])
    else:
        main()
