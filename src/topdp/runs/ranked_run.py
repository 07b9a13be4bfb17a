"""A run over several ranks: the walk of `run.py`, taken by all of them together.

Every rank reads the configuration and the records of its own agents. Rank 0 decides who holds whom, plans,
accounts and writes the run folder; the others write nothing but their parts of checkpoints. Where one rank
fails, all end, and the same command goes on from the newest checkpoint that all have.

**Guarantees.** Plan and account are those of one process, for all agents: the account is taken once, by rank
0, and every rank compares digests of both before its first round. What is computed is the plan, whoever holds
whom; nothing is sent between ranks that one process would not have in memory.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
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
from topdp.privacy.accounting import Account
from topdp.runs import metric_sinks
from topdp.runs import run as runs
from topdp.runs.assembly import Assembly, Everyone, choose_device
from topdp.runs.callbacks import Callbacks
from topdp.runs.checkpoints import Checkpoints
from topdp.runs.config import ConfigError, RunConfig, parse
from topdp.runs.memory_check import expect_room
from topdp.runs.methods import METHODS
from topdp.runs.named_model import named_task
from topdp.runs.named_records import load_shards
from topdp.runs.planning import seal_of, sealed
from topdp.runs.result import Result
from topdp.runs.run_folder import STARTING, RunFolder
from topdp.runs.run_outline import RunOutline
from topdp.simulator.ranks.process_group import ProcessGroup, join_group, local_device
from topdp.simulator.ranks.ranked_engine import AgentPartition, BorderExchange, RankedEngine, partition
from topdp.simulator.ranks.torchrun_environment import others
from topdp.simulator.row_layout import RowLayout

AGENTS_PER_DIGEST_MESSAGE = 64  # agents whose records are shown to rank 0 at once, for the digest


def run_on_ranks(
    config: RunConfig | None,
    out: Path,
    device: str = "auto",
    progress: Progress = silent,
) -> Result | None:
    """The run of `config` in `out`, begun or continued; None: the configuration is that of the folder.

    What it returns is rank 0's; None on the others.
    """
    place = choose_device(local_device(device))
    if config is not None:
        expect_supported(config)
    if left := others():
        progress(f"waiting for {left} other rank{'s' if left > 1 else ''}")
    with join_group(place) as group:
        progress("reading records")
        # Before anything else: ranks that do different things would wait for each other for ever.
        group.expect_same("folder (--out or --resume)", str(out), "give every rank the same.")
        facts = {
            "configuration": None if config is None else config.to_toml(),
            "device": place.type,
            "topdp": __version__,
            "torch": torch.__version__,
        }
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        group.expect_same(
            "configuration", digest, "give every rank the same file, --set and version of topdp."
        )
        return _joined_run(group, config, out, place, progress)


def expect_supported(config: RunConfig) -> None:
    """Refuse settings that need all agents in one process, before any data are read."""
    refused = {
        "attack.name": config.attack.name if config.attack.name != "none" else None,
        "data.features": config.data.features if config.data.features != "none" else None,
    }
    for key, value in refused.items():
        if value is not None:
            raise ConfigError(
                f"{key}: {value!r} is not for several ranks: start one process, without torchrun."
            )
    if METHODS[config.method.name].pools:
        raise ConfigError(
            f"method.name: {config.method.name!r} has all records in one place: start one process, without "
            "torchrun."
        )
    sites = config.data.sites or ([config.data.name] if "*" in config.data.name else [])
    if config.data.schema is None and any(not path.endswith(".npz") for path in sites):
        raise ConfigError(
            "data.schema: expected one where each agent has a file of its own and several ranks read them: "
            "it says which classes there are, before anybody has seen all files."
        )


def _joined_run(
    group: ProcessGroup,
    config: RunConfig | None,
    out: Path,
    device: torch.device,
    progress: Progress,
) -> Result | None:
    state = group.led(group.together(lambda: _state_of(out, config) if group.leads else ""))
    if state not in ("", STARTING) or config is None:
        # As it was begun: with the numbers that were settled then.
        text = group.together(lambda: RunFolder.open(out).config.to_toml() if group.leads else "")
        config = parse(tomllib.loads(group.led(text)))
        expect_supported(config)
    outline = group.together(lambda: RunOutline.of(config))
    graph = outline.graph
    cut: AgentPartition = group.led(
        group.together(lambda: partition(graph, group.size) if group.leads else None)
    )
    parts = _assembled(group, outline, cut.home, device, progress)
    folder = RunFolder(out) if group.leads else None
    reported = progress if group.leads else silent
    new = state in ("", STARTING)
    job = _job(group, parts, None if new else folder, reported)
    if group.leads and new:
        folder = runs.new_run_folder(out, job)
    if state == "done":
        return None if folder is None else job.read(folder)
    if folder is not None:
        folder.mark("running", ranks=group.size, cut=cut.statement)
    plan = prune(job.plan)
    layout = RowLayout(plan, cut.home, group.rank)
    engine = parts.engine(plan, layout, BorderExchange(layout, group))
    expect_room(engine, group)
    called = metric_sinks.callbacks_of(config) if group.leads else Callbacks()
    checkpoints = Checkpoints(out, layout, group)
    ranked = runs.Ranked(RankedEngine(engine, group), checkpoints)
    result = runs.execute(job, folder, reported, called, ranked)
    group.any(False)  # rank 0 has written everything
    if result.stopped is None:
        checkpoints.forget()
    return result if group.leads else None


def _state_of(out: Path, config: RunConfig | None) -> str:
    """Return the state of the run in `out`, empty if there is none. Refuse a run with other settings."""
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
    """The graph, the model, and the records of the agents held here; with what has to be known of all."""
    mine = np.flatnonzero(home == group.rank).tolist()
    shards = group.together(lambda: load_shards(outline, progress, device, mine))
    kind = (shards.inputs.shape[2:], shards.inputs.dtype, shards.targets.shape[2:], shards.targets.dtype)
    group.expect_same("shape and type of records", str(kind), "look at the files of its agents.")
    counts = _of_all(home, group.all(shards.counts))
    class_counts = [count for count in group.all(shards.classes) if count is not None]
    shards = replace(shards.padded(max(counts)), classes=max(class_counts) if class_counts else None)
    task = group.together(lambda: named_task(outline.config))
    everyone = Everyone(counts, _digest(group, shards, home, counts))
    parts = group.together(lambda: Assembly.of_records(outline, shards, task, device, everyone))
    group.together(lambda: _expect_supported_model(parts))
    start = hashlib.sha256(parts.start.numpy().tobytes()).hexdigest()
    group.expect_same("start of the model", start, "a model of one's own has to be made from the seed alone.")
    return parts


def _expect_supported_model(parts: Assembly) -> None:
    name = parts.run.config.model.name
    if any(map(draws_dropout, parts.flat.module.modules())):
        raise ConfigError(
            f"model.name: {name!r} has layers that drop at random, in an order that goes "
            "over all agents: start one process, without torchrun."
        )
    if split_backbone(parts.flat.module) is not None:
        raise ConfigError(
            f"model.name: {name!r} begins with frozen layers, which are applied to all "
            "records at once: start one process, without torchrun."
        )


def _of_all(home: Ints, said: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Gather one number for each agent from the ranks that hold them."""
    all_counts = np.empty(len(home), np.int64)
    for rank, counts in enumerate(said):
        all_counts[home == rank] = counts
    return tuple(all_counts.tolist())


def _digest(group: ProcessGroup, shards: Shards, home: Ints, counts: tuple[int, ...]) -> str:
    """Return `Shards.digest` of all records. Rank 0 receives the records of some agents at a time."""
    place = {agent: at for at, agent in enumerate(np.flatnonzero(home == group.rank).tolist())}
    sha = hashlib.sha256(shards.heading(counts))
    for first in range(0, len(home), AGENTS_PER_DIGEST_MESSAGE):
        some = range(first, min(first + AGENTS_PER_DIGEST_MESSAGE, len(home)))
        mine = {agent: shards.records(place[agent]) for agent in some if agent in place}
        known: dict[int, Any] = {}
        for part in group.gathered(mine) or []:
            known |= part
        for agent in some if group.leads else ():
            for values in known[agent]:
                sha.update(values.data)
    return str(group.led(sha.hexdigest()))


def _job(
    group: ProcessGroup, parts: Assembly, begun: RunFolder | None, progress: Progress
) -> runs.PlannedRun:
    """Return the planned run.

    Rank 0 plans and accounts, or reads its folder; the others write the plan and compare.
    """

    def led_job() -> runs.PlannedRun | None:
        if not group.leads:
            return None
        return runs.plan_run(parts, progress) if begun is None else runs.reopen_run(parts, begun)

    job = group.together(led_job)
    deviation = group.led(None if job is None else job.plan.full_scale)
    account = group.led(None if job is None else sealed(job.plan, job.privacy))
    if job is None:
        plan = parts.run.write_plan(deviation)
        details = {key: value for key, value in account.items() if key != "seal"}
        job = runs.PlannedRun(parts, plan, Account.from_details(details, parts.run.analysis))
        mine = {**details, "plan": plan.digest()}
        account = {**mine, "seal": seal_of(mine)}
    group.expect_same("plan", job.plan.digest(), "use the same versions of topdp and numpy.")
    group.expect_same("account", account["seal"], "use the same versions of topdp and numpy.")
    return job
