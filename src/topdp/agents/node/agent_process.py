"""One agent as a process: from files to an outcome. `commands` parses, `agent` works; this is in between."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from topdp import data
from topdp.agents.agreement import amendments, card_succession, manifest
from topdp.agents.agreement.card_succession import Directory
from topdp.agents.agreement.identity import Identity
from topdp.agents.agreement.run_setup import Setup
from topdp.agents.ledger import start_choices
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_database import LedgerError, TamperedError
from topdp.agents.node import agent_model_file, amending, site_entry
from topdp.agents.node.agent_log import Speaker
from topdp.agents.node.node_monitor import Monitor
from topdp.agents.node.operator_orders import Orders
from topdp.agents.node.shutdown import Shutdown
from topdp.agents.runtime import card_updates
from topdp.agents.runtime.agent import Agent, Outcome
from topdp.agents.runtime.agent_context import Equipment, equip
from topdp.agents.runtime.agent_hooks import AgentHooks
from topdp.agents.runtime.run_end import end_with
from topdp.agents.runtime.shared_draws import PrivateFiles
from topdp.agents.runtime.stage_timing import Stages
from topdp.agents.wire.link_refusals import quoted
from topdp.agents.wire.transport import end_all
from topdp.base.array_types import AnyArray
from topdp.errors import DataError, ExitCode, TopdpError
from topdp.runs import builders
from topdp.runs.config import ConfigError

if TYPE_CHECKING:
    from topdp.agents.node.site_scores import Scores

logger = logging.getLogger("topdp.agents")


@dataclass(frozen=True)
class Options:
    """What `topdp agent start` was told."""

    manifest: Path
    identity: Path
    data: str
    state: Path
    epsilon: float | None = None
    listen: str | None = None
    metrics_port: int | None = None
    live_pairing: bool = False
    evaluate: int | None = None
    report: float = 30.0
    amended_by: Path | None = None  # the manifest that takes the place of this one
    after: Path | None = None  # under an amendment, the state folder of the run before
    site: Path | None = None
    upgrade: bool = False  # a run that an older version began is gone on with


def run(options: Options, speaker: Speaker | None = None, hooks: AgentHooks | None = None) -> Outcome:
    """The process from files to the outcome. `speaker` names the agent in its log lines.

    `hooks`: what development replaces; None in production.
    """
    speaker = speaker or Speaker()
    stages = Stages()
    stages.over("imports")
    torch.set_num_threads(1)
    terms = manifest.read(options.manifest)
    held = card_succession.generations(options.identity)
    first = held[0]  # its key is the root of what must be the same after a renewal
    number = terms.number(first.card.name)
    books = _books(options.state, options.upgrade)
    me = card_updates.chosen(terms, held, books)
    own = card_updates.since(
        card_succession.successors(options.identity), card_succession.digest(terms.card(me.card.name))
    )
    directory = card_updates.restored(terms, books, own[: card_succession.MOST])
    speaker.agent = me.card.name
    epsilon = _left(options, terms, first.card.name)
    setup = Setup.of(terms)
    stages.over("plan")
    if ":" in terms.config.model.name:
        logger.warning(
            "%s: the manifest names code of this machine, which is imported and called: model.name = %s",
            me.card.name,
            quoted(terms.config.model.name),
            extra={"event": "code"},
        )
    if options.live_pairing and terms.config.method.mode != "async":
        raise ConfigError("--live-pairing: expected a manifest with method.mode = async, got sync.")
    dataset = _records(options.data, terms)
    inputs, targets = dataset.train()
    if len(targets) != setup.counts[number]:
        raise DataError(
            f"{options.data}: expected {setup.counts[number]} training records, as the manifest says for "
            f"{me.card.name}, got {len(targets)}. The noise is calibrated for that number."
        )
    records = (torch.from_numpy(inputs), torch.from_numpy(targets))
    stages.over("data")
    mine = equip(
        setup,
        number,
        records,
        dataset.classes,
        epsilon,
        in_thread=True,
        key=first.secret("order of records"),
        hooks=hooks,
        progress=_told,
    )
    stages.over("features and account")
    # One gradient before the first greeting: what is wrong with model or data is said here.
    mine.gradients.mean(0, mine.start)
    stages.over("first gradient")
    scores = _scores(options.evaluate, setup, dataset, me.card.name)

    def beside(agent: Agent, stop: Callable[[], None]) -> Monitor:
        speaker.round = lambda: agent.ledger.round
        agent_model_file.note(options.state, mine, dataset.classes)
        return Monitor(agent, Orders(options.state), stop, options.report, scores)

    return asyncio.run(_live(options, mine, me, directory, stages, beside, (inputs, targets)))


def _scores(every: int | None, setup: Setup, dataset: data.Dataset, name: str) -> Scores | None:
    """Who evaluates this agent's model for its owner, where that is wanted."""
    if every is None:
        return None
    from topdp.agents.node.site_scores import Scores

    scores = Scores(setup, dataset, name, every)
    logger.info(
        "%s: evaluates every %d rounds on %d %s records of its own: for its owner, not for publishing",
        name,
        every,
        scores.records,
        scores.on,
        extra={"event": "evaluate"},
    )
    return scores


def _left(options: Options, terms: manifest.Manifest, name: str) -> float | None:
    """The budget that this agent holds itself to: the option's, or what an earlier run has left of it."""
    amendments.expect_agreed(terms)
    left = amending.carried_over(terms, name, options.after, options.identity)
    return min((one for one in (left, options.epsilon) if one is not None), default=None)


def _listed(options: Options, terms: manifest.Manifest) -> Identity:
    """The identity whose card the manifest has: `cards.chosen` has found it there."""
    held = card_succession.generations(options.identity)
    fingerprint = terms.card(held[0].card.name).fingerprint
    return next(one for one in held if one.card.fingerprint == fingerprint)


def _books(state: Path, upgrade: bool) -> dict[str, str]:
    """What a state folder remembers; nothing where it cannot be read: the agent says why when it opens it."""
    try:
        ledger = Ledger(state, writable=False)
    except (LedgerError, TamperedError):
        return {}
    try:
        start_choices.expect_upgrade_agreed(ledger, upgrade)
    finally:
        ledger.close()
    return ledger.meta


def _records(path: str, terms: manifest.Manifest) -> data.Dataset:
    """The records of this site. What their labels mean is agreed on, and not found in one site's folders."""
    schema = builders.schema(terms.config)
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
        logger.info("%s: %.0f of %.0f MB", message, done / 1e6, total / 1e6, extra={"event": "features"})


async def _live(
    options: Options,
    mine: Equipment,
    me: Identity,
    directory: Directory,
    stages: Stages,
    beside: Callable[[Agent, Callable[[], None]], Monitor],
    records: tuple[AnyArray, AnyArray],
) -> Outcome:
    # Has threads, so nobody may fork once it is imported: those who fork agents have done so by now.
    from topdp.agents.wire.grpc_transport import GrpcTransport

    ends: int | None = None
    leaves: tuple[str, ...] = ()
    if options.amended_by is not None:
        amended = manifest.read(options.amended_by)
        ends = amendments.end_of(mine.manifest, amended)
        leaves = tuple(name for name in mine.manifest.names if name not in amended.names)
    transport = GrpcTransport(
        me, mine.manifest, listen=options.listen, directory=directory, listed=_listed(options, mine.manifest)
    )
    private = PrivateFiles(me, options.identity)
    agent = Agent(mine, options.state, transport, options.live_pairing, private, directory)
    if options.upgrade:
        start_choices.agree_to_upgrade(agent.ledger)
    if ends is not None:
        end_with(agent.ledger, ends, leaves)
        logger.info(
            "%s: this run ends with round %d: it was amended", agent.name, ends, extra={"event": "amended"}
        )
    stages.over("links and books")
    logger.info(
        "%s: ready after %s", agent.name, stages.words(), extra={"agent": agent.name, "event": "ready"}
    )
    shutdown = Shutdown(agent.stop, agent.ledger.close)
    shutdown.listen()
    async with AsyncExitStack() as stack:
        stack.callback(agent.ledger.close)
        entry = site_entry.entered(agent, options.site, options.identity, records, options.data)
        monitor = beside(agent, lambda: shutdown.ask(signal.SIGTERM))
        if options.metrics_port is not None:
            from topdp.agents.node import prometheus_metrics

            await stack.enter_async_context(prometheus_metrics.served(agent, options.metrics_port))
        outcome = await _watched(agent, monitor)
        if entry is not None:
            entry.end()
        return outcome


async def _watched(agent: Agent, monitor: Monitor) -> Outcome:
    """The agent's life, with somebody beside it; how it ends is left in the state folder."""
    watching, code = asyncio.create_task(monitor.run()), ExitCode.UNEXPECTED
    try:
        outcome = await agent.run()
        code = outcome.code
        return outcome
    except TopdpError as error:
        code = error.code
        raise
    finally:
        await end_all([watching], "the monitor")
        monitor.end(code)
