"""One agent as a process: from files to an exit code. `commands` parses, `agent` works; this is between them.

Exit codes: 0 done or asked to stop, 2 bad configuration or state folder, 3 budget exhausted, 4 peer or trust,
5 data.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import dataclass
from pathlib import Path

import torch

from topdp import data
from topdp.agents.books.database import LedgerError, TamperedError
from topdp.agents.life.agent import Agent, Outcome
from topdp.agents.life.equipment import Equipment, equip
from topdp.agents.life.failpoints import Failpoints
from topdp.agents.life.peers import TrustError
from topdp.agents.site import metrics
from topdp.agents.terms import identity, manifest, setup
from topdp.agents.wire.grpc_transport import GrpcTransport
from topdp.errors import DataError
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


def run(options: Options) -> Outcome:
    """The whole life of the process; its errors have exit codes (`code_of`)."""
    torch.set_num_threads(1)
    terms = manifest.read(options.manifest)
    me = identity.load(options.identity)
    number = terms.number(me.card.name)
    rules = terms.rules
    made = setup.Setup.of(
        terms.config,
        terms.topology,
        terms.names,
        terms.hash,
        goes_on=rules.dead_neighbour == "go-on",
        idle_timeout=rules.idle_timeout,
    )
    if options.live_pairing and terms.config.method.mode != "async":
        raise ConfigError("--live-pairing: expected a manifest with method.mode = async, got sync.")
    dataset = data.load(options.data)
    inputs, labels = dataset.train()
    if len(labels) != made.counts[number]:
        raise DataError(
            f"{options.data}: expected {made.counts[number]} training records, as the manifest says for "
            f"{me.card.name}, got {len(labels)}. The noise is calibrated for that number."
        )
    records = (torch.from_numpy(inputs), torch.from_numpy(labels))
    work = equip(made, number, records, dataset.classes, options.seeded, options.epsilon, in_thread=True)
    if options.seeded:
        logger.warning("%s: SEEDED: noise can be repeated by whoever knows the seed; for tests", me.card.name)
    # One gradient before the first greeting: what is wrong with model or data is said here.
    work.gradients.mean(0, work.start)
    return asyncio.run(_live(options, made, work, me, terms))


async def _live(
    options: Options, made: setup.Setup, work: Equipment, me: identity.Identity, terms: manifest.Manifest
) -> Outcome:
    transport = GrpcTransport(me, terms, listen=options.listen)
    agent = Agent(
        made,
        work,
        options.state,
        transport,
        Failpoints.from_environment(),
        terms.rules.largest_norm,
        options.live_pairing,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.stop)
    server = await metrics.serve(agent, options.metrics_port) if options.metrics_port is not None else None
    try:
        return await agent.run()
    finally:
        if server is not None:
            server.close()


def code_of(error: Exception) -> int | None:
    """The exit code of an error of ours; None for one that is not."""
    if isinstance(error, TrustError | TamperedError | manifest.ManifestError | identity.IdentityError):
        return 4
    if isinstance(error, DataError):
        return 5
    if isinstance(error, LedgerError | ValueError | FloatingPointError):
        return 2
    return None
