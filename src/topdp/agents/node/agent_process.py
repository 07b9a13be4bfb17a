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
from topdp.agents.agreement.card_succession import CardDirectory
from topdp.agents.agreement.identity import Identity
from topdp.agents.agreement.run_setup import RunSetup
from topdp.agents.ledger import start_choices
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_entries import LedgerError, TamperedError
from topdp.agents.node import agent_model_file, amending, site_reservation
from topdp.agents.node.agent_log import AgentLogFilter
from topdp.agents.node.node_monitor import NodeMonitor
from topdp.agents.node.operator_orders import OperatorOrders
from topdp.agents.node.shutdown import Shutdown
from topdp.agents.runtime import card_updates
from topdp.agents.runtime.agent import Agent, AgentOutcome
from topdp.agents.runtime.agent_context import AgentContext, build_context
from topdp.agents.runtime.agent_hooks import AgentHooks
from topdp.agents.runtime.agent_timing import StartTiming
from topdp.agents.runtime.run_end import end_with
from topdp.agents.runtime.shared_draws import PrivateFiles
from topdp.agents.wire.link_refusals import quoted
from topdp.agents.wire.transport import end_all
from topdp.base.array_types import AnyArray
from topdp.errors import DataError, ExitCode, TopdpError
from topdp.runs import builders
from topdp.runs.config import ConfigError

if TYPE_CHECKING:
    from topdp.agents.node.owner_evaluation import OwnerEvaluation

logger = logging.getLogger("topdp.agents")


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
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


def run(
    options: AgentOptions, speaker: AgentLogFilter | None = None, hooks: AgentHooks | None = None
) -> AgentOutcome:
    """The process from files to the outcome. `speaker` names the agent in its log lines.

    `hooks`: what development replaces; None in production.
    """
    speaker = speaker or AgentLogFilter()
    stages = StartTiming()
    stages.over("imports")
    torch.set_num_threads(1)
    terms = manifest.read_manifest(options.manifest)
    held = card_succession.load_identities(options.identity)
    first = held[0]  # its key is the root of what must be the same after a renewal
    number = terms.number(first.card.name)
    books = _read_ledger_facts(options.state, options.upgrade)
    me = card_updates.chosen(terms, held, books)
    own = card_updates.since(
        card_succession.load_successors(options.identity),
        card_succession.card_digest(terms.card(me.card.name)),
    )
    directory = card_updates.restored(terms, books, own[: card_succession.MAX_SUCCESSORS])
    speaker.agent = me.card.name
    epsilon = _own_budget(options, terms, first.card.name)
    setup = RunSetup.of(terms)
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
    dataset = _load_records(options.data, terms)
    inputs, targets = dataset.train()
    if len(targets) != setup.counts[number]:
        raise DataError(
            f"{options.data}: expected {setup.counts[number]} training records, as the manifest says for "
            f"{me.card.name}, got {len(targets)}. The noise is calibrated for that number."
        )
    records = (torch.from_numpy(inputs), torch.from_numpy(targets))
    stages.over("data")
    mine = build_context(
        setup,
        number,
        records,
        dataset.classes,
        epsilon,
        in_thread=True,
        key=first.secret("order of records"),
        hooks=hooks,
        progress=_log_features,
    )
    stages.over("features and account")
    # One gradient before the first greeting: what is wrong with model or data is said here.
    mine.gradients.mean(0, mine.start)
    stages.over("first gradient")
    scores = _owner_evaluation(options.evaluate, setup, dataset, me.card.name)

    def beside(agent: Agent, stop: Callable[[], None]) -> NodeMonitor:
        speaker.round = lambda: agent.ledger.round
        agent_model_file.write_model_facts(options.state, mine, dataset.classes)
        return NodeMonitor(agent, OperatorOrders(options.state), stop, options.report, scores)

    return asyncio.run(_run_agent(options, mine, me, directory, stages, beside, (inputs, targets)))


def _owner_evaluation(
    every: int | None, setup: RunSetup, dataset: data.Dataset, name: str
) -> OwnerEvaluation | None:
    """Who evaluates this agent's model for its owner, where that is wanted."""
    if every is None:
        return None
    from topdp.agents.node.owner_evaluation import OwnerEvaluation

    scores = OwnerEvaluation(setup, dataset, name, every)
    logger.info(
        "%s: evaluates every %d rounds on %d %s records of its own: for its owner, not for publishing",
        name,
        every,
        scores.records,
        scores.on,
        extra={"event": "evaluate"},
    )
    return scores


def _own_budget(options: AgentOptions, terms: manifest.Manifest, name: str) -> float | None:
    """The budget that this agent holds itself to: the option's, or what an earlier run has left of it."""
    amendments.expect_all_signed(terms)
    left = amending.carried_over(terms, name, options.after, options.identity)
    return min((one for one in (left, options.epsilon) if one is not None), default=None)


def _listed_identity(options: AgentOptions, terms: manifest.Manifest) -> Identity:
    """The identity whose card the manifest has: `cards.chosen` has found it there."""
    held = card_succession.load_identities(options.identity)
    fingerprint = terms.card(held[0].card.name).fingerprint
    return next(one for one in held if one.card.fingerprint == fingerprint)


def _read_ledger_facts(state: Path, upgrade: bool) -> dict[str, str]:
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


def _load_records(path: str, terms: manifest.Manifest) -> data.Dataset:
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


def _log_features(message: str, done: int = 0, total: int | None = None, /, **details: object) -> None:
    """Features in the log, when they begin and every tenth of the way."""
    if total and (done == 0 or 10 * done // total > 10 * (done - total // 50) // total):
        logger.info("%s: %.0f of %.0f MB", message, done / 1e6, total / 1e6, extra={"event": "features"})


async def _run_agent(
    options: AgentOptions,
    mine: AgentContext,
    me: Identity,
    directory: CardDirectory,
    stages: StartTiming,
    beside: Callable[[Agent, Callable[[], None]], NodeMonitor],
    records: tuple[AnyArray, AnyArray],
) -> AgentOutcome:
    # Has threads, so nobody may fork once it is imported: those who fork agents have done so by now.
    from topdp.agents.wire.grpc_transport import GrpcTransport

    ends: int | None = None
    leaves: tuple[str, ...] = ()
    if options.amended_by is not None:
        amended = manifest.read_manifest(options.amended_by)
        ends = amendments.final_round(mine.manifest, amended)
        leaves = tuple(name for name in mine.manifest.names if name not in amended.names)
    transport = GrpcTransport(
        me,
        mine.manifest,
        listen=options.listen,
        directory=directory,
        listed=_listed_identity(options, mine.manifest),
    )
    private = PrivateFiles(me, options.identity)
    agent = Agent(mine, options.state, transport, options.live_pairing, private, directory)
    if options.upgrade:
        start_choices.record_upgrade(agent.ledger)
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
        entry = site_reservation.reserve_site_budget(
            agent, options.site, options.identity, records, options.data
        )
        monitor = beside(agent, lambda: shutdown.ask(signal.SIGTERM))
        if options.metrics_port is not None:
            from topdp.agents.node import prometheus_metrics

            await stack.enter_async_context(prometheus_metrics.serve_metrics(agent, options.metrics_port))
        outcome = await _run_monitored(agent, monitor)
        if entry is not None:
            entry.end()
        return outcome


async def _run_monitored(agent: Agent, monitor: NodeMonitor) -> AgentOutcome:
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
