"""One agent as a process: from files to an outcome. `commands` parses, `agent` works; this is in between."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from topdp import data
from topdp.agents.life.agent import Agent, Outcome
from topdp.agents.life.equipment import Equipment, Rehearse, equip
from topdp.agents.life.failpoints import Failpoints
from topdp.agents.life.sharing import PrivateFiles
from topdp.agents.life.timing import Stages
from topdp.agents.site import budgets
from topdp.agents.terms import identity, manifest
from topdp.agents.terms.identity import Identity
from topdp.agents.terms.setup import Setup
from topdp.audit.recording import NOTES, Planted
from topdp.errors import DataError
from topdp.plan.arrays import AnyArray
from topdp.settings import build
from topdp.settings.config import ConfigError

logger = logging.getLogger("topdp.agents")


@dataclass(frozen=True)
class Options:
    """What `topdp agent start` was told."""

    manifest: Path
    identity: Path
    data: str
    state: Path
    epsilon: float | None = None
    seeded: bool = False
    listen: str | None = None
    metrics_port: int | None = None
    live_pairing: bool = False
    canaries: Path | None = None
    site: Path | None = None


def run(options: Options) -> Outcome:
    """The whole life of the process."""
    stages = Stages()
    stages.over("imports")
    torch.set_num_threads(1)
    terms = manifest.read(options.manifest)
    me = identity.load(options.identity)
    number = terms.number(me.card.name)
    setup = Setup.of(terms)
    stages.over("plan")
    if options.live_pairing and terms.config.method.mode != "async":
        raise ConfigError("--live-pairing: expected a manifest with method.mode = async, got sync.")
    if options.live_pairing and options.canaries is not None:
        raise ConfigError("--canaries: an audit follows a plan; leave --live-pairing away.")
    dataset = _records(options.data, terms)
    inputs, targets = dataset.train()
    if len(targets) != setup.counts[number]:
        raise DataError(
            f"{options.data}: expected {setup.counts[number]} training records, as the manifest says for "
            f"{me.card.name}, got {len(targets)}. The noise is calibrated for that number."
        )
    rehearsal = None
    if options.canaries is not None:
        rehearsal = Rehearse(Planted.load(options.canaries), options.state)
        logger.warning(
            "%s: REHEARSAL: canaries stand in the place of records, and gradients are written down without "
            "noise in %s; not for data that others must not see",
            me.card.name,
            options.state / NOTES,
        )
    records = (torch.from_numpy(inputs), torch.from_numpy(targets))
    stages.over("data")
    mine = equip(
        setup,
        number,
        records,
        dataset.classes,
        options.seeded,
        options.epsilon,
        in_thread=True,
        key=me.secret("order of records"),
        rehearsal=rehearsal,
        progress=_told,
    )
    if options.seeded:
        logger.warning("%s: SEEDED: noise can be repeated by whoever knows the seed; for tests", me.card.name)
    stages.over("features and account")
    # One gradient before the first greeting: what is wrong with model or data is said here.
    mine.gradients.mean(0, mine.start)
    stages.over("first gradient")
    return asyncio.run(_live(options, mine, me, stages, (inputs, targets)))


def _records(path: str, terms: manifest.Manifest) -> data.Dataset:
    """The records of this site. What their labels mean is agreed on, and not found in one site's folders."""
    schema = build.schema(terms.config)
    dataset = data.load(path, schema=schema)
    if dataset.class_names is not None and (schema is None or schema.classes is None):
        raise DataError(
            f"{path}: expected the classes of images in the manifest, got none: a site without a folder of "
            "some class would number the others differently. State them where the manifest is made: "
            f"data.schema = {{ classes = {list(dataset.class_names)} }}."
        )
    return dataset


def _told(message: str, done: int = 0, total: int | None = None) -> None:
    """Features in the log, when they begin and every tenth of the way."""
    if message and total and (done == 0 or 10 * done // total > 10 * (done - total // 50) // total):
        logger.info("%s: %.0f of %.0f MB", message, done / 1e6, total / 1e6)


async def _live(
    options: Options, mine: Equipment, me: Identity, stages: Stages, records: tuple[AnyArray, AnyArray]
) -> Outcome:
    # Has threads, so nobody may fork once it is imported: those who fork agents have done so by now.
    from topdp.agents.wire.grpc_transport import GrpcTransport

    transport = GrpcTransport(me, mine.manifest, listen=options.listen)
    private = PrivateFiles(me, options.identity)
    places = Failpoints.from_environment()
    agent = Agent(mine, options.state, transport, places, options.live_pairing, private)
    try:
        entry = budgets.entered(agent, options.site, options.identity, records, options.data)
    except BaseException:
        agent.ledger.close()
        raise
    stages.over("links and books")
    logger.info(
        "%s: ready after %s", agent.name, stages.words(), extra={"agent": agent.name, "event": "ready"}
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.stop)
    async with AsyncExitStack() as stack:
        if options.metrics_port is not None:
            from topdp.agents.site import metrics

            await stack.enter_async_context(metrics.served(agent, options.metrics_port))
        outcome = await agent.run()
    if entry is not None:
        entry.end()
    return outcome
