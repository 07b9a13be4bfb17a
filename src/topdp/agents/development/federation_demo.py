"""A whole federation on one machine: one process per agent, with gRPC and mutual TLS, from one command.

Each process has its own identity, its own records and the manifest, like an agent on a separate machine, and
ends by itself. Only this demonstration collects the final estimates and results; real organisations keep
theirs. The run folder has the format of the simulator's.
"""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from topdp.agents.agreement import federation_manifest, identity
from topdp.agents.agreement.manifest import Manifest, Rules
from topdp.agents.agreement.run_setup import RunSetup
from topdp.agents.development import child_processes
from topdp.agents.development.rehearsal_audit import MANIFEST_FILE, plant
from topdp.agents.runtime.agent import ESTIMATE_FILE, RESULT_FILE
from topdp.agents.runtime.agent_timing import TIMED_PARTS
from topdp.audit import AuditRequest
from topdp.audit.rehearsal_record import CANARIES_FILE
from topdp.base.progress import Progress, silent
from topdp.data import Shards
from topdp.errors import ExitCode, InputError
from topdp.privacy.accounting import Account
from topdp.runs.assembly import Assembly
from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.model_export import notes_of
from topdp.runs.named_records import load_shards
from topdp.runs.result import metrics_of
from topdp.runs.run import PlannedRun, new_run_folder
from topdp.runs.run_outline import RunOutline
from topdp.simulator.simulation import State

SUCCESS_CODES = (ExitCode.DONE, ExitCode.BUDGET)
SIGNAL_CHECK_SECONDS = 0.25  # how often the demonstration checks whether a signal asks it to end


def run(
    config: RunConfig,
    out: Path,
    seeded: bool = False,
    budgets: dict[int, float] | None = None,
    progress: Progress = silent,
    rehearse: bool = False,
    relay: bool = False,
) -> dict[str, Any]:
    """Execute `config` on processes; return the JSON object of `topdp federation demo --json`.

    `budgets`: smaller budgets of some agents. `rehearse`: plant canaries in the records of the agent with the
    largest privacy loss, and record all rows for an audit. `relay`: no agent opens a port.
    """
    start = time.perf_counter()
    config = config.model_copy(update={"noise_seed": config.seed if seeded else None})
    rules = Rules(idle_timeout=60.0, relay=_free_addresses(1)[0] if relay else "")
    parts, manifest, account = prepare(config, out / "agents", rules)
    folder, names, shards = out / "agents", manifest.names, parts.shards
    if rehearse:
        outputs = parts.task.outputs(shards.targets.flatten(0, 1), shards.classes)
        planted = plant(RunSetup.of(manifest), tuple(shards.inputs.shape[2:]), outputs, AuditRequest())
        planted.save(folder / CANARIES_FILE)
        progress(f"{len(planted.canaries)} canaries in the records of {names[planted.canaries.owner]}")
    progress(f"{len(names)} processes on this machine, manifest {manifest.hash[:16]}")
    with ExitStack() as stack:
        if rules.relay:
            words = ["relay", "--listen", rules.relay, "--manifest", str(folder / MANIFEST_FILE)]
            server = child_processes.start(words, folder / "relay.log")
            stack.callback(child_processes.terminate_all, {0: server}, ["the relay"], lambda _: None)
        codes = run_processes(folder, names, seeded, budgets or {}, progress)
    results = []
    ended_by_demo = -signal.SIGTERM  # because another agent failed, which is reported instead
    for name, code in sorted(zip(names, codes, strict=True), key=lambda agent: agent[1] == ended_by_demo):
        path = folder / name / "state" / RESULT_FILE
        if code not in SUCCESS_CODES or not path.exists():
            log = (folder / name / "log.jsonl").read_text(encoding="utf-8").splitlines()
            raise InputError(f"{name} ended with exit code {code}: {log[-1] if log else 'its log is empty'}")
        results.append({**json.loads(path.read_text(encoding="utf-8")), "code": code})
    job = PlannedRun(parts, RunSetup.of(manifest).plan, account)
    return _collect(job, manifest, out, results, time.perf_counter() - start)


def prepare(config: RunConfig, folder: Path, rules: Rules) -> tuple[Assembly, Manifest, Account]:
    """Write identities, records and the manifest of all agents to `folder`."""
    out = folder.parent
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"Expected a new or empty folder, {out} exists. Name another one with --out.")
    parts = Assembly.of(RunOutline.of(config))
    graph, shards = parts.run.graph, parts.shards
    names = [f"agent{i}" for i in range(graph.agents)]
    addresses = [""] * len(names) if rules.relay else _free_addresses(len(names))
    cards = [
        identity.create_identity(folder / name / "identity", name, address).card
        for name, address in zip(names, addresses, strict=True)
    ]
    manifest, account, _ = federation_manifest.build_manifest(cards, graph, shards.unit_counts, config, rules)
    manifest.write(folder / MANIFEST_FILE)
    records = _records(parts)
    for i, name in enumerate(names):
        _write_records(folder / name / "records.npz", records, i, config.person_column)
    return parts, manifest, account


def parse_budgets(texts: list[str], agents: int) -> dict[int, float]:
    """Parse `["0=0.25"]` to `{0: 0.25}`."""
    budgets: dict[int, float] = {}
    for text in texts:
        number, _, value = text.partition("=")
        try:
            agent, epsilon = int(number), float(value)
        except ValueError:
            agent, epsilon = -1, 0.0
        if not 0 <= agent < agents or not 0 < epsilon < float("inf"):
            raise ConfigError(
                f"--budget: expected AGENT=EPSILON with AGENT 0 to {agents - 1} and EPSILON > 0, "
                f"got {text!r}."
            )
        budgets[agent] = epsilon
    return budgets


def run_processes(
    folder: Path,
    names: Sequence[str],
    seeded: bool = False,
    budgets: Mapping[int, float] = MappingProxyType({}),
    progress: Progress = silent,
) -> list[int]:
    """Start one process per agent and wait for all; return their exit codes.

    A signal ends all agents, and then this process.
    """
    has_canaries = (folder / CANARIES_FILE).exists()

    def start_agent(i: int) -> BaseProcess:
        agent_folder = folder / names[i]
        command = ["agent", "rehearse" if seeded or has_canaries else "start", "--json", "--json-log"]
        command += ["--manifest", str(folder / MANIFEST_FILE), "--identity", str(agent_folder / "identity")]
        command += ["--data", str(agent_folder / "records.npz"), "--state", str(agent_folder / "state")]
        command += ["--site", str(agent_folder / "site")]  # a demonstration leaves nothing elsewhere
        command += ["--canaries", str(folder / CANARIES_FILE)] if has_canaries else []
        command += ["--seeded"] * seeded + (["--epsilon", str(budgets[i])] if i in budgets else [])
        return child_processes.start(command, agent_folder / "log.jsonl")

    running: dict[int, BaseProcess] = {}
    codes: dict[int, int] = {}
    with child_processes.note_end_signals() as signals:
        try:
            for i in range(len(names)):
                running[i] = start_agent(i)
            while running:
                wait([process.sentinel for process in running.values()], SIGNAL_CHECK_SECONDS)
                child_processes.expect_no_signal(signals)
                for i, process in list(running.items()):
                    if (code := process.exitcode) is not None:
                        del running[i]
                        codes[i] = code
                if any(code not in SUCCESS_CODES for code in codes.values()):
                    break  # the other agents would wait for this one
        finally:
            codes |= child_processes.terminate_all(running, names, progress)
    return [codes[i] for i in range(len(names))]


def _collect(
    job: PlannedRun, manifest: Manifest, out: Path, results: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    """Write the run folder `out` from the files of all agents; return the summary with their results."""
    parts = job.parts
    estimates = torch.stack(
        [load_file(out / "agents" / name / "state" / ESTIMATE_FILE)["estimate"] for name in manifest.names]
    ).to(parts.flat.dtype)
    metrics = []
    if parts.shards.test_inputs is not None:
        scores = parts.engine(job.plan).evaluate(State(0, estimates))
        metrics = [metrics_of(parts.run.config.rounds, scores)]
    folder = new_run_folder(out / "agents" / "run", job)  # moved to `out` below, which is not empty
    folder.save_metrics(metrics)
    folder.finish(
        estimates.numpy(),
        notes_of(parts.flat),
        seconds=round(seconds, 3),
        plan=job.plan.digest(),
        federation=manifest.hash,
        agents=results,
    )
    for file in folder.path.iterdir():
        file.replace(out / file.name)
    folder.path.rmdir()
    summary = job.result(metrics, estimates, seconds, out, best=None).summary()
    per_round = {
        part: float(np.mean([result["milliseconds_per_round"][part] for result in results]))
        for part in TIMED_PARTS
    }
    seeded = any(result["seeded"] for result in results)
    return {**summary, "agents": results, "milliseconds_per_round": per_round, "seeded": seeded}


def _records(parts: Assembly) -> Shards:
    """Return the agents' records without features, because each agent computes its features itself."""
    config = parts.run.config
    if config.data.features == "none":
        return parts.shards
    plain = config.data.model_copy(update={"features": "none"})
    return load_shards(replace(parts.run, config=config.model_copy(update={"data": plain})))


def _write_records(path: Path, shards: Shards, agent: int, person: str | None) -> None:
    """Write an agent's records in the format of user data; without test records, which agents do not use.

    `person`: the name of the array with the persons, if there are any.
    """
    count = shards.counts[agent]
    target_name = "targets" if shards.classes is None else "labels"
    arrays: dict[str, Any] = {
        "train_inputs": shards.inputs[agent, :count].numpy(),
        f"train_{target_name}": shards.targets[agent, :count].numpy(),
    }
    if shards.classes is not None:
        arrays["classes"] = np.array(shards.classes)
    if person is not None and shards.persons is not None:
        arrays[f"train_{person}"] = shards.persons[agent, :count].numpy()
    np.savez(path, **arrays)


def _free_addresses(count: int) -> list[str]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
