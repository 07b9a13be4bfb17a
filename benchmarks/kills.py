"""Random SIGKILL, SIGTERM and SIGSTOP signals to processes of real agents, in every mode.

    python benchmarks/kills.py --kills 500                      # for all settings together
    python benchmarks/kills.py --kills 60 --setting sync,async-go-on --seed 3

Each setting is a federation of processes on loopback, over gRPC with mutual TLS. At random times, a random
agent gets a signal. An agent that was killed or asked to end is started again with the same command; a
stopped agent continues after a while. After the last signal, training must end. The recorded messages must
pass the checks of `tests/agents/history.py`, every ledger must verify, and no agent may be in quarantine.
Seeded federations under the rule to wait must send the same bytes, and end with the same estimates, as a
federation without signals. Exit with 1 if a condition is violated.
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
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests"
PRELOADED_MODULES = [
    "scipy.optimize",
    "networkx",
    "topdp.cli.app",
    "topdp.runs.run",
    "topdp.runs.planning",
    "topdp.learning.gradients",
]
SIGNAL_WEIGHTS = {"KILL": 75, "TERM": 15, "STOP": 10}
MEAN_SIGNAL_INTERVAL_SECONDS = 0.7
MAX_STOP_SECONDS = 3.0
MAX_DOWNTIME_SECONDS = {"wait": 0.5, "go-on": 8.0}  # before an agent is started again, by rule
IDLE_TIMEOUT_SECONDS = 6.0  # in the manifest
MESSAGE_DELAY_SECONDS = 0.3  # gives the benchmark time to kill a process between two messages
MAX_FEDERATION_SECONDS = 420.0
RECORDS_PER_AGENT = 20
TEST_RECORDS = 60
CYCLE = 6  # the batch size of the cyclic settings


@dataclass(frozen=True)
class Setting:
    """The mode of a federation, its noise and batches, and its rule for a neighbour that is gone."""

    name: str
    mode: str
    seeded: bool = False
    cycle: int = 0
    goes_on: bool = False


SETTINGS = (
    Setting("sync", "sync", seeded=True),
    Setting("sync-cyclic", "sync", seeded=True, cycle=CYCLE),
    Setting("async", "async", seeded=True),
    Setting("async-cyclic", "async", seeded=True, cycle=CYCLE),
    Setting("sync-real-noise", "sync"),
    Setting("async-real-noise", "async"),
    Setting("sync-go-on", "sync", goes_on=True),
    Setting("async-go-on", "async", goes_on=True),
    Setting("sync-go-on-cyclic", "sync", goes_on=True, cycle=CYCLE),
    Setting("live", "live"),
)


def run_recorded(delay: str, log: str, history: str, expected_agents: str, *arguments: str) -> None:
    """Run the command `topdp` with `arguments`; write all messages on its links to the file `history`.

    Every request is sent `delay` seconds late. The command begins when as many agents as expected have opened
    their histories.
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

    def record(
        event: str, sender: str, receiver: str, kind: str, round: int, digest: str, ok: Any = None
    ) -> None:
        os.write(file, (json.dumps([event, sender, receiver, kind, round, digest, ok]) + "\n").encode())

    def record_handover(sender: str, receiver: str, packed: bytes) -> None:
        row = Handover.unpack(packed)
        record("sent", sender, receiver, "handed", row.round, digest_of(row.body))

    def record_request(sender: str, receiver: str, message: Any) -> None:
        kind = message.kind.name.lower()
        record("sent", sender, receiver, kind, message.round, digest_of(message.body))
        if message.kind is MessageKind.COMMIT:
            record_handover(sender, receiver, message.body)

    async def recorded_start(self: Any, handle: Any) -> None:
        async def recorded_handle(peer: str, message: Any) -> Any:
            record_request(peer, self.name, message)
            reply = await handle(peer, message)
            kind = message.kind.name.lower()
            record("answered", peer, self.name, kind, message.round, message.digest, reply.ok)
            if message.kind in (MessageKind.PROPOSE, MessageKind.RESOLVE) and reply.body:
                record_handover(self.name, peer, reply.body)
            return reply

        await start(self, recorded_handle)

    async def recorded_request(self: Any, peer: str, message: Any) -> Any:
        await asyncio.sleep(float(delay))
        record_request(self.name, peer, message)
        reply = await request(self, peer, message)
        if message.kind in (MessageKind.PROPOSE, MessageKind.RESOLVE) and reply.body:
            record_handover(peer, self.name, reply.body)
        return reply

    GrpcTransport.start, GrpcTransport.request = recorded_start, recorded_request  # type: ignore[method-assign]
    deadline, folder = time.monotonic() + 60, Path(history).parent
    while len(list(folder.glob("*.history"))) < int(expected_agents) and time.monotonic() < deadline:
        time.sleep(0.05)
    sys.argv = ["topdp", *arguments]
    app.main()


def write_image_records(path: Path, agents: int, records_per_agent: int) -> None:
    """Write separable images of 1x4x4 in three classes, with a bright stripe for each class."""
    import numpy as np

    generator = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", agents * records_per_agent), ("test", TEST_RECORDS)):
        labels = generator.integers(0, 3, count)
        inputs = generator.normal(0, 0.3, (count, 1, 4, 4)).astype(np.float32)
        inputs[np.arange(count), 0, labels, :] += 1.5
        arrays |= {f"{part}_inputs": inputs, f"{part}_labels": labels}
    np.savez(path, **arrays)


@dataclass
class SignalResult:
    """The signals that a federation got, and the outcome."""

    counts: Counter[str] = field(default_factory=Counter)  # by signal
    left_waiting: int = 0  # agents that wait for one that has ended, as their rule demands
    violations: list[str] = field(default_factory=list)


class ProcessFederation:
    """Identities, manifest and records in a folder, and the processes of the agents."""

    def __init__(self, folder: Path, setting: Setting, config: Any) -> None:
        from topdp.agents.agreement import federation_manifest, identity
        from topdp.agents.agreement.manifest import Rules
        from topdp.agents.development import federation_demo
        from topdp.runs.named_records import load_shards
        from topdp.runs.run_outline import RunOutline

        self.folder, self.setting = folder, setting
        outline = RunOutline.of(config)
        self.names = tuple(f"agent{i}" for i in range(outline.graph.agents))
        shards = load_shards(outline)
        cards = [
            identity.create_identity(folder / name / "identity", name, address).card
            for name, address in zip(self.names, free_addresses(len(self.names)), strict=True)
        ]
        rule = "go-on" if setting.goes_on else "wait"
        rules = Rules(dead_neighbour=rule, idle_timeout=IDLE_TIMEOUT_SECONDS)
        self.max_downtime = MAX_DOWNTIME_SECONDS[rule]
        self.manifest, _, _ = federation_manifest.build_manifest(
            cards, outline.graph, shards.counts, config, rules
        )
        self.manifest.write(folder / "manifest.toml")
        for i, name in enumerate(self.names):
            federation_demo._write_records(folder / name / "records.npz", shards, i)

    def state(self, number: int) -> Path:
        return self.folder / self.names[number] / "state"

    def start(self, number: int, delay: float) -> Any:
        """Start the process of an agent."""
        live = self.setting.mode == "live"
        site = self.folder / self.names[number]
        command = ["agent", "rehearse", "--json-log", "--json"]
        command += ["--manifest", str(self.folder / "manifest.toml")]
        command += ["--identity", str(site / "identity"), "--data", str(site / "records.npz")]
        command += ["--state", str(site / "state")]
        command += ["--seeded"] * self.setting.seeded + ["--live-pairing"] * live
        history = self.folder / f"{self.names[number]}.history"
        expected_agents = len(self.names) if live else 0
        arguments = (str(delay), str(site / "log.jsonl"), str(history), str(expected_agents), *command)
        process = multiprocessing.Process(target=run_recorded, args=arguments)
        process.start()
        return process

    def run(self, random_source: random.Random, kills: int, delay: float) -> SignalResult:
        """Run all agents to their end, and send signals until `kills` of them were SIGKILL or SIGTERM."""
        result, goes_on = SignalResult(), self.setting.goes_on
        running = {i: self.start(i, delay) for i in range(len(self.names))}
        ended_by_signal: set[int] = set()  # process numbers
        stopped: list[tuple[float, Any]] = []  # when to continue, and the process
        restarts: list[tuple[float, int]] = []  # when to start which agent
        expected_codes = (0, 3) if goes_on or self.setting.mode == "live" else (0,)
        next_signal = time.monotonic() + MEAN_SIGNAL_INTERVAL_SECONDS
        deadline = time.monotonic() + MAX_FEDERATION_SECONDS
        try:
            while (running or restarts) and not result.violations:
                time.sleep(0.02)
                now = time.monotonic()
                for due, process in stopped:
                    if now >= due:
                        _signal(process, signal.SIGCONT)
                stopped = [(due, process) for due, process in stopped if now < due]
                for due, i in restarts:
                    if now >= due:
                        running[i] = self.start(i, delay)
                restarts = [(due, i) for due, i in restarts if now < due]
                if running and now >= next_signal and result.counts["KILL"] + result.counts["TERM"] < kills:
                    next_signal = now + random_source.expovariate(1 / MEAN_SIGNAL_INTERVAL_SECONDS)
                    process = running[random_source.choice(sorted(running))]
                    (name,) = random_source.choices(list(SIGNAL_WEIGHTS), list(SIGNAL_WEIGHTS.values()))
                    if process.exitcode is None and process.pid not in ended_by_signal:
                        result.counts[name] += 1
                        if name == "STOP":
                            stopped.append((now + random_source.uniform(0.1, MAX_STOP_SECONDS), process))
                        else:
                            ended_by_signal.add(process.pid)
                        _signal(process, getattr(signal, f"SIG{name}"))
                for i, process in list(running.items()):
                    if process.exitcode is None:
                        continue
                    del running[i]
                    if process.pid in ended_by_signal:
                        restarts.append((now + random_source.uniform(0, self.max_downtime), i))
                    elif process.exitcode not in expected_codes:
                        result.violations.append(
                            f"{self.names[i]} ended with code {process.exitcode}: {self._last_log_line(i)}"
                        )
                if now > deadline and not result.violations:
                    if goes_on and len(running) == 1 and not restarts:
                        result.left_waiting = 1  # all others have ended
                        break
                    waiting = ", ".join(self.names[i] for i in running)
                    result.violations.append(f"still running after {MAX_FEDERATION_SECONDS:g} s: {waiting}")
        finally:
            for process in running.values():
                _signal(process, signal.SIGCONT)
                process.kill()
                process.join()
        return result

    def events(self) -> list[Any]:
        """Return the recorded messages of all agents."""
        history = _history_checks()
        lines = [
            json.loads(line)
            for file in sorted(self.folder.glob("*.history"))
            for line in file.read_text(encoding="utf-8").splitlines()
        ]
        return [history.Event(*line) for line in lines]

    def check(self) -> tuple[int, int, list[str]]:
        """Return the number of ledgers that verify, the number of rows that were sent, and violations."""
        from topdp.agents.ledger.ledger import Ledger
        from topdp.agents.ledger.ledger_check import verify
        from topdp.agents.ledger.ledger_entries import TamperedError

        events = self.events()
        federation = SimpleNamespace(setup=SimpleNamespace(manifest=self.manifest), state=self.state)
        recorded_run = SimpleNamespace(federation=federation, wire=SimpleNamespace(events=events))
        violations = _history_checks().faults(recorded_run)
        verified = 0
        for i, name in enumerate(self.names):
            if not self.state(i).exists():
                continue  # the agent ended before it had a ledger
            ledger = Ledger(self.state(i), writable=False)
            with contextlib.suppress(TamperedError):  # already among the violations
                verify(ledger)
                verified += 1
            quarantined = ledger.database.rows(
                "SELECT name, quarantined FROM peers WHERE quarantined NOT NULL"
            )
            violations += [f"{name} has quarantined {peer}: {reason}" for peer, reason in quarantined]
            ledger.close()
        rows = sum(event.what == "sent" and event.kind in ("row", "handed") for event in events)
        return verified, rows, violations

    def sent_digests(self) -> dict[Any, set[str]]:
        """Return the digests of all rows that were sent, by sender, receiver and round."""
        digests: dict[Any, set[str]] = {}
        for event in self.events():
            if event.what == "sent" and event.kind == "row":
                digests.setdefault((event.sender, event.receiver, event.round), set()).add(event.digest)
        return digests

    def estimates(self) -> Any:
        import numpy as np
        from safetensors.numpy import load_file

        files = [self.state(i) / "estimate.safetensors" for i in range(len(self.names))]
        return np.stack([load_file(file)["estimate"] for file in files])

    def _last_log_line(self, number: int) -> str:
        lines = (self.folder / self.names[number] / "log.jsonl").read_text(encoding="utf-8").splitlines()
        return lines[-1] if lines else "its log is empty"


def _history_checks() -> Any:
    """Return the module `tests/agents/history.py`."""
    sys.path[:0] = [path for path in (str(TESTS), str(TESTS / "agents")) if path not in sys.path]
    import history

    return history


def _signal(process: Any, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)


def free_addresses(count: int) -> list[str]:
    """Return free addresses on loopback, with ports that the system does not assign to clients.

    The ports of an agent therefore remain free after the agent was killed.
    """
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
    raise SystemExit(f"Expected {count} free ports on loopback, found {len(addresses)}.")


def configuration(setting: Setting, data: Path, agents: int, rounds: int) -> Any:
    from topdp.runs import config

    mode = "sync" if setting.mode == "sync" else "async"
    changes = [f'data.name="{data}"', f"topology.agents={agents}", "topology.kind=ring", "privacy.clip=1.0"]
    changes += ["privacy.guarantee=worst-case", "privacy.epsilon=50.0", f"rounds={rounds}"]
    changes += [f"method.mode={mode}", "method.offline=0.2"]
    changes += ["method.name=plain"] if setting.mode == "live" else []
    changes += [f"data.batch={{cycle={setting.cycle}}}", "privacy.sigma=1e-6"] if setting.cycle else []
    return config.read(changes=changes)


def row_differences(rows: dict[Any, set[str]], expected: dict[Any, set[str]], last_round: int) -> list[str]:
    """Return the rows that only one of two federations sent, or that they sent with different bytes.

    Rows of the last round may be missing: an agent does not send them to a neighbour that has reported that
    it has all its rounds.
    """
    both = {key: (rows.get(key), expected.get(key)) for key in {**rows, **expected}}
    different = [f"{key} has different bytes" for key, (a, b) in both.items() if a and b and a != b]
    single = [key for key, (a, b) in both.items() if not (a and b)]
    return different + [f"only one federation sent {key}" for key in single if key[2] != last_round]


def differences_from_undisturbed(
    disturbed: ProcessFederation, setting: Setting, config: Any, rounds: int
) -> list[str]:
    """Run the same federation without signals, and return the differences."""
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        undisturbed = ProcessFederation(Path(folder), setting, config)
        violations = undisturbed.run(random.Random(0), kills=0, delay=0.0).violations
        if violations:
            return violations
        differences = row_differences(disturbed.sent_digests(), undisturbed.sent_digests(), rounds)
        estimates, expected = disturbed.estimates(), undisturbed.estimates()
        if not (estimates == expected).all():
            differences.append(f"estimates differ by {abs(estimates - expected).max():.3g}")
        return differences


def run_setting(setting: Setting, kills: int, options: argparse.Namespace, data: Path) -> dict[str, Any]:
    """Run the federation of a setting; return the cells of its line, and the violations."""
    start = time.monotonic()
    same_as_undisturbed = None
    config = configuration(setting, data, options.agents, options.rounds)
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        federation = ProcessFederation(Path(folder), setting, config)
        random_source = random.Random(f"{setting.name} {options.seed}")
        result = federation.run(random_source, kills, MESSAGE_DELAY_SECONDS)
        verified, rows, violations = federation.check()
        violations = result.violations + violations
        if verified < options.agents:
            violations.append(f"only {verified} of {options.agents} ledgers verify")
        if setting.seeded and not violations:
            violations = differences_from_undisturbed(federation, setting, config, options.rounds)
            same_as_undisturbed = not violations
    return {
        "setting": setting.name,
        **{name: result.counts[name] for name in SIGNAL_WEIGHTS},
        "verified": verified,
        "rows": rows,
        "same": {None: "", True: "yes", False: "no"}[same_as_undisturbed],
        "left waiting": result.left_waiting,
        "seconds": f"{time.monotonic() - start:.1f}",
        "violations": violations,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=500, help="SIGKILL and SIGTERM, for all settings")
    parser.add_argument("--setting", help="names, separated by commas; by default all settings")
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0, help="determines the signals, not their exact times")
    options = parser.parse_args()
    names = [setting.name for setting in SETTINGS]
    wanted = options.setting.split(",") if options.setting else names
    if unknown := sorted(set(wanted) - set(names)):
        parser.error(f"Expected --setting with names of {', '.join(names)}; got {', '.join(unknown)}.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    multiprocessing.set_start_method("forkserver")
    multiprocessing.set_forkserver_preload(PRELOADED_MODULES)

    settings = [setting for setting in SETTINGS if setting.name in wanted]
    results = []
    with tempfile.TemporaryDirectory(prefix="kills-data-") as folder:
        data = Path(folder) / "records.npz"
        write_image_records(data, options.agents, RECORDS_PER_AGENT)
        for setting in settings:
            result = run_setting(setting, -(-options.kills // len(settings)), options, data)
            if not results:
                print("| " + " | ".join(result) + " |\n" + "|---" * len(result) + "|")
            results.append(result)
            cells = {**result, "violations": len(result["violations"])}
            print("| " + " | ".join(map(str, cells.values())) + " |", flush=True)
            for violation in result["violations"]:
                print(f"WRONG: {violation}", flush=True)
    sums = ", ".join(f"{sum(result[name] for result in results)} SIG{name}" for name in SIGNAL_WEIGHTS)
    violations = sum(len(result["violations"]) for result in results)
    print(f"{sums}; {violations} violations")
    raise SystemExit(int(violations > 0))


if __name__ == "__main__":
    main()
