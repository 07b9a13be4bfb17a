"""A run over several ranks, which take the steps of `run.py` together.

Every rank reads the configuration and the records of its own agents. Rank 0 assigns agents to ranks, writes
the plan, computes the account and writes the run folder. The other ranks write only their parts of
checkpoints. If one rank fails, all ranks end, and the same command continues from the newest checkpoint that
all ranks have.

**Guarantees.** Plan and account are those of a single process, for all agents. Rank 0 computes the account
once, and every rank compares the digests of plan and account with its own before the first round. The ranks
execute this plan, however agents are assigned to them. A rank receives only data that a single process would
have in memory.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from topdp import __version__
from topdp.base.array_types import Ints
from topdp.base.progress import Progress, silent
from topdp.data import Shards
from topdp.learning.gradients.path_check import draws_dropout
from topdp.learning.pretrained_models import split_backbone
from topdp.plan import prune
from topdp.plan.noise_key import NoiseKey
from topdp.privacy.accounting import Account
from topdp.runs import metric_sinks
from topdp.runs import run as runs
from topdp.runs.assembly import Assembly, Everyone, choose_device
from topdp.runs.callbacks import Callbacks
from topdp.runs.checkpoints import Checkpoints
from topdp.runs.config import ConfigError, RunConfig, parse
from topdp.runs.memory_check import expect_room
from topdp.runs.named_model import named_task
from topdp.runs.named_records import load_shards
from topdp.runs.planning import seal_of, sealed
from topdp.runs.result import Result
from topdp.runs.run_folder import STARTING, RunFolder
from topdp.runs.run_outline import RunOutline, method_of
from topdp.runs.statistics.standardisation_cost import standardises
from topdp.simulator.ranks.process_group import ProcessGroup, join_group, local_device
from topdp.simulator.ranks.ranked_engine import AgentPartition, BorderExchange, RankedEngine, partition
from topdp.simulator.ranks.torchrun_environment import others
from topdp.simulator.row_layout import RowLayout

AGENTS_PER_DIGEST_MESSAGE = 64  # agents whose records rank 0 receives at once, to compute the digest


def run_on_ranks(
    config: RunConfig | None,
    out: Path,
    device: str = "auto",
    progress: Progress = silent,
) -> Result | None:
    """Begin or continue a run in `out`. Return the result on rank 0, and None on the other ranks.

    `config`: None: continue the run in `out` with its own configuration.
    """
    rank_device = choose_device(local_device(device))
    if config is not None:
        _expect_supported(config)
    if count := others():
        progress(f"waiting for {count} other rank{'s' if count > 1 else ''}")
    with join_group(rank_device) as group:
        progress("reading records")
        # First of all, because ranks with different steps would wait for each other for ever.
        group.expect_same("folder (--out or --resume)", str(out), "give every rank the same folder.")
        facts = {
            "configuration": None if config is None else config.to_toml(),
            "device": rank_device.type,
            "topdp": __version__,
            "torch": torch.__version__,
        }
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        group.expect_same(
            "configuration", digest, "give every rank the same file, --set and version of topdp."
        )
        return _joined_run(group, config, out, rank_device, progress)


def supports(config: RunConfig, parts: Assembly | None = None) -> str | None:
    """Return None if several ranks can execute a run, and otherwise what needs all agents in one process.

    `parts`: the assembly of this rank; None: before any data are read.
    """
    for key, value in (("attack.name", config.attack.name), ("data.features", config.data.features)):
        if value != "none":
            return f"{key}: expected none with several ranks, got {value!r}"
    if standardises(config):
        return 'data.standardise: expected "none" with several ranks, got "private"'
    if method_of(config).pools:
        return (
            f"method.name: expected a method on a graph with several ranks, got {config.method.name!r}, "
            "which has all records in one place"
        )
    sites = config.data.sites or ([config.data.name] if "*" in config.data.name else [])
    if config.data.schema is None and any(not path.endswith(".npz") for path in sites):
        return (
            "data.schema: expected a schema with several ranks and a file for each agent, got none. No rank "
            "reads all files, so the schema must state the classes"
        )
    if parts is not None and any(map(draws_dropout, parts.flat.module.modules())):
        return (
            f"model.name: expected a model without dropout with several ranks, got {config.model.name!r}. "
            "Its random numbers follow the order of all agents"
        )
    if parts is not None and split_backbone(parts.flat.module) is not None:
        return (
            "model.name: expected a model that does not begin with frozen layers with several ranks, got "
            f"{config.model.name!r}. These layers need all records"
        )
    return None


def _expect_supported(config: RunConfig, parts: Assembly | None = None) -> None:
    if reason := supports(config, parts):
        raise ConfigError(f"{reason}. Start one process without torchrun.")


def _joined_run(
    group: ProcessGroup,
    config: RunConfig | None,
    out: Path,
    device: torch.device,
    progress: Progress,
) -> Result | None:
    state = group.led(group.together(lambda: _state_of(out, config) if group.leads else ""))
    if state not in ("", STARTING) or config is None:
        # A run continues with its own configuration, which has a number for every `auto`.
        text = group.together(lambda: RunFolder.open(out).config.to_toml() if group.leads else "")
        config = parse(tomllib.loads(group.led(text)))
        _expect_supported(config)
    outline = group.together(lambda: RunOutline.of(config))
    graph = outline.graph
    assignment: AgentPartition = group.led(
        group.together(lambda: partition(graph, group.size) if group.leads else None)
    )
    parts = _assembled(group, outline, assignment.home, device, progress)
    folder = RunFolder(out) if group.leads else None
    reported = progress if group.leads else silent
    new = state in ("", STARTING)
    job = _job(group, parts, None if new else folder, reported)
    if group.leads and new:
        folder = runs.new_run_folder(out, job)
    if state == "done":
        return None if folder is None else job.read(folder)
    with ExitStack() as resources:
        group.together(lambda: resources.enter_context(runs.locked(out)) if group.leads else None)
        if folder is not None:
            folder.mark("running", ranks=group.size, cut=assignment.statement)
        plan = prune(job.plan)
        layout = RowLayout(plan, assignment.home, group.rank)
        engine = parts.engine(plan, job.key, layout, BorderExchange(layout, group))
        expect_room(engine, group)
        called = metric_sinks.callbacks_of(config) if group.leads else Callbacks()
        checkpoints = Checkpoints(out, layout, group)
        result = runs.execute(job, folder, reported, called, (RankedEngine(engine, group), checkpoints))
        group.any(False)  # wait until rank 0 has written everything
        if result.stopped is None:
            checkpoints.forget()
        return result if group.leads else None


def _state_of(out: Path, config: RunConfig | None) -> str:
    """Return the state of the run in `out`; empty if there is none. Raise RunFolderError for a run with other
    settings, or one that cannot be resumed.
    """
    if config is not None and not (out / "run.json").exists():
        with runs.prepared_folder(out):
            return ""
    folder = RunFolder.open(out)
    if config is None:
        return runs.unfinished(out).state
    if folder.state == STARTING:
        folder.forget_start()
        return STARTING
    runs.expect_settings(folder, config)
    return folder.state if folder.state == "done" else runs.unfinished(out).state


def _assembled(
    group: ProcessGroup, outline: RunOutline, home: Ints, device: torch.device, progress: Progress
) -> Assembly:
    """Return the assembly of this rank: its own agents' records, and facts about the records of all agents.

    `home` [agents]: the rank of each agent.
    """
    agents = np.flatnonzero(home == group.rank).tolist()
    shards = group.together(lambda: load_shards(outline, progress, device, agents))
    kind = (shards.inputs.shape[2:], shards.inputs.dtype, shards.targets.shape[2:], shards.targets.dtype)
    group.expect_same("shape and type of records", str(kind), "check the files of its agents.")
    counts = _counts_of_all(home, group.all(shards.counts))
    units = _counts_of_all(home, group.all(shards.unit_counts))
    class_counts = [count for count in group.all(shards.classes) if count is not None]
    shards = replace(shards.padded(max(counts)), classes=max(class_counts) if class_counts else None)
    task = group.together(lambda: named_task(outline.config))
    everyone = Everyone(units, _digest(group, shards, home, counts))
    parts = group.together(lambda: Assembly.of_records(outline, shards, task, device, everyone))
    group.together(lambda: _expect_supported(outline.config, parts))
    start = hashlib.sha256(parts.start.numpy().tobytes()).hexdigest()
    group.expect_same("start of the model", start, "make the model from the seed alone.")
    return parts


def _counts_of_all(home: Ints, counts_by_rank: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the number of records of each agent, from the numbers on each rank."""
    all_counts = np.empty(len(home), np.int64)
    for rank, counts in enumerate(counts_by_rank):
        all_counts[home == rank] = counts
    return tuple(all_counts.tolist())


def _digest(group: ProcessGroup, shards: Shards, home: Ints, counts: tuple[int, ...]) -> str:
    """Return `Shards.digest` of all records. Rank 0 receives the records of some agents at a time."""
    position = {agent: i for i, agent in enumerate(np.flatnonzero(home == group.rank).tolist())}
    sha = hashlib.sha256(shards.heading(counts))
    for first in range(0, len(home), AGENTS_PER_DIGEST_MESSAGE):
        agents = range(first, min(first + AGENTS_PER_DIGEST_MESSAGE, len(home)))
        own = {agent: shards.digested(position[agent]) for agent in agents if agent in position}
        records: dict[int, Any] = {}
        for part in group.gathered(own) or []:
            records |= part
        for agent in agents if group.leads else ():
            for values in records[agent]:
                sha.update(values.data)
    return str(group.led(sha.hexdigest()))


def _job(
    group: ProcessGroup, parts: Assembly, begun: RunFolder | None, progress: Progress
) -> runs.PlannedRun:
    """Return the planned run of this rank. `begun`: the run folder on rank 0 if the run continues.

    Rank 0 computes the plan and the account, or reads them from its folder. The other ranks write the plan
    with the same noise. An error is raised if plans or accounts differ.
    """

    def led_job() -> runs.PlannedRun | None:
        if not group.leads:
            return None
        return runs.plan_run(parts, progress) if begun is None else runs.reopen_run(parts, begun)

    job = group.together(led_job)
    deviation = group.led(None if job is None else job.plan.full_scale)
    account = group.led(None if job is None else sealed(job.plan, job.privacy))
    key: NoiseKey = group.led(None if job is None else job.key)  # in memory; only rank 0 keeps a file
    if job is None:
        plan = parts.run.write_plan(deviation)
        details = {key: value for key, value in account.items() if key != "seal"}
        job = runs.PlannedRun(parts, plan, Account.from_details(details, parts.run.analysis), key)
        own_details = {**details, "plan": plan.digest()}
        account = {**own_details, "seal": seal_of(own_details)}
    group.expect_same("plan", job.plan.digest(), "use the same versions of topdp and numpy.")
    group.expect_same("account", account["seal"], "use the same versions of topdp and numpy.")
    return job
