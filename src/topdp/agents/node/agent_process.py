"""One agent as a process: from options and files to an outcome.

The command line parses options (`cli/agent_commands`); `runtime/agent` takes part in the run.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from topdp import data
from topdp.agents.agreement import amendments, card_succession
from topdp.agents.agreement.manifest import Manifest, read_manifest
from topdp.agents.agreement.run_setup import RunSetup
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_entries import LedgerError, TamperedError
from topdp.agents.node import agent_model_file, site_reservation
from topdp.agents.node.agent_log import AgentLogFilter
from topdp.agents.node.carried_budget import carry_budget_over
from topdp.agents.node.node_monitor import NodeMonitor
from topdp.agents.node.operator_orders import OperatorOrders
from topdp.agents.node.shutdown import Shutdown
from topdp.agents.runtime import card_updates
from topdp.agents.runtime.agent import Agent, AgentOutcome
from topdp.agents.runtime.agent_context import PrivateFiles, build_context
from topdp.agents.runtime.agent_hooks import AgentHooks
from topdp.agents.runtime.agent_timing import StartTiming
from topdp.agents.wire.link_refusals import RefusalLog, quoted
from topdp.agents.wire.transport import end_all
from topdp.data.person_records import PersonRecords
from topdp.errors import DataError, ExitCode, TopdpError
from topdp.runs.named_records import named_schema

if TYPE_CHECKING:
    from topdp.agents.node.owner_evaluation import OwnerEvaluation

logger = logging.getLogger("topdp.agents")


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The options of `topdp agent start`, which fills them in by name."""

    manifest: Path
    identity: Path
    data: str
    state: Path
    epsilon: float | None = None
    listen: str | None = None
    metrics: str | None = None  # PORT or HOST:PORT
    live_pairing: bool = False
    evaluate: int | None = None
    report: float = 30.0
    amended_by: Path | None = None  # the manifest that replaces this one
    after: Path | None = None  # under an amendment, the state folder of the previous run
    site: Path | None = None


def run(
    options: AgentOptions, log_filter: AgentLogFilter | None = None, hooks: AgentHooks | None = None
) -> AgentOutcome:
    """Run an agent until its last round, or until it is stopped.

    `log_filter` names the agent in log lines. `hooks`: replacements of steps for development; None in
    production.
    """
    return asyncio.run(_AgentProcess(options, log_filter or AgentLogFilter(), hooks).run())


class _AgentProcess:
    """An agent with its options and files. It computes one gradient before it opens its ledger and links."""

    def __init__(self, options: AgentOptions, log_filter: AgentLogFilter, hooks: AgentHooks | None) -> None:
        self.options, self.log_filter, self.timing = options, log_filter, StartTiming()
        self.timing.end_stage("imports")
        torch.set_num_threads(1)
        manifest = read_manifest(options.manifest)
        self.identities = card_succession.load_identities(options.identity)
        first = self.identities[0]  # its key derives secrets that must stay the same after a renewal
        name, number = first.card.name, manifest.number(first.card.name)
        meta = _read_ledger_meta(options.state)
        self.identity = card_updates.choose_identity(manifest, self.identities, meta)
        own = card_updates.renewals(options.identity, manifest, name)
        self.directory = card_updates.restore_directory(manifest, meta, own)
        log_filter.agent, self.log = name, RefusalLog(name)
        epsilon = _own_budget(options, manifest, name)
        setup = RunSetup.of(manifest)
        self.timing.end_stage("plan")
        if ":" in manifest.config.model.name:
            words = "the manifest names code of this machine, which is imported and called: model.name ="
            self.log.note("code", f"{words} {quoted(manifest.config.model.name)}")
        self.dataset = _load_records(options.data, manifest)
        self.records = inputs, targets = self.dataset.train()
        self.timing.end_stage("data")
        self.context = build_context(
            setup,
            number,
            (torch.from_numpy(inputs), torch.from_numpy(targets)),
            self.dataset.classes,
            epsilon,
            in_thread=True,
            key=first.secret("order of records"),
            hooks=hooks,
            progress=_log_features,
            persons=None if self.dataset.persons is None else PersonRecords([self.dataset.persons]),
        )
        self.timing.end_stage("features and account")
        # One gradient before the first greeting, so that faults of the model or the data are reported.
        self.context.gradients.mean(0, self.context.start)
        self.timing.end_stage("first gradient")
        self.evaluation: OwnerEvaluation | None = None
        if options.evaluate is not None:
            from topdp.agents.node.owner_evaluation import OwnerEvaluation

            self.evaluation = OwnerEvaluation(setup, self.dataset, name, options.evaluate)
            records = f"{self.evaluation.records} {self.evaluation.on} records of its own"
            words = (
                f"evaluates every {options.evaluate} rounds on {records}: for its owner, not for publishing"
            )
            self.log.note("evaluate", words, logging.INFO)

    def _open(self) -> Agent:
        """Open the ledger, and prepare the links, which begin with the agent's run."""
        # gRPC starts threads, so a process must not fork after this import.
        from topdp.agents.wire.grpc_transport import GrpcTransport

        options, manifest = self.options, self.context.manifest
        amended = None if options.amended_by is None else read_manifest(options.amended_by)
        last_round = None if amended is None else amendments.final_round(manifest, amended)
        fingerprint = manifest.card(self.context.name).fingerprint
        listed = next(each for each in self.identities if each.card.fingerprint == fingerprint)
        agent = Agent(
            self.context,
            options.state,
            transport=GrpcTransport(
                self.identity, manifest, listen=options.listen, directory=self.directory, listed=listed
            ),
            live_pairing=options.live_pairing,
            private=PrivateFiles(self.identity, options.identity),
            directory=self.directory,
        )
        if amended is not None and last_round is not None:
            agent.ledger.end_with(last_round, [name for name in manifest.names if name not in amended.names])
            words = f"this run was amended: it ends with round {last_round}"
            self.log.note("amended", words, logging.INFO)
        return agent

    async def run(self) -> AgentOutcome:
        options, agent = self.options, self._open()
        self.timing.end_stage("links and ledger")
        self.log.note("ready", f"ready after {self.timing.describe()}", logging.INFO)
        shutdown = Shutdown(agent.stop, agent.ledger.close)
        shutdown.listen()
        async with AsyncExitStack() as stack:
            stack.callback(agent.ledger.close)
            reservation = site_reservation.reserve_site_budget(
                agent,
                options.site,
                options.identity,
                self.records,
                options.data,
                self.dataset.identifiers,
            )
            self.log_filter.round = lambda: agent.ledger.round
            agent_model_file.write_model_facts(options.state, self.context, self.dataset.classes)
            monitor = NodeMonitor(
                agent,
                OperatorOrders(options.state),
                lambda: shutdown.ask(signal.SIGTERM),
                report=options.report,
                evaluation=self.evaluation,
            )
            if options.metrics is not None:
                from topdp.agents.node import prometheus_metrics

                await stack.enter_async_context(prometheus_metrics.serve_metrics(agent, options.metrics))
            monitoring, code = asyncio.create_task(monitor.run()), ExitCode.UNEXPECTED
            try:
                outcome = await agent.run()
                code = outcome.code
            except TopdpError as error:
                code = error.code
                raise
            finally:
                await end_all([monitoring], "the monitor")
                monitor.end(code)  # writes the code to the state folder
            if reservation is not None:
                reservation.end()
            return outcome


def _own_budget(options: AgentOptions, manifest: Manifest, name: str) -> float | None:
    """Return the agent's own budget: the smaller of the option and the rest of an earlier run's budget."""
    amendments.expect_all_signed(manifest)
    remaining = carry_budget_over(manifest, name, options.after, options.identity)
    return min((budget for budget in (remaining, options.epsilon) if budget is not None), default=None)


def _read_ledger_meta(state: Path) -> dict[str, str]:
    """Return the facts in the ledger of a state folder; none if it cannot be read (`Agent` reports why)."""
    try:
        with closing(Ledger(state, writable=False)) as ledger:
            return ledger.meta
    except (LedgerError, TamperedError):
        return {}


def _load_records(path: str, manifest: Manifest) -> data.Dataset:
    """Return the records of this site. The manifest, not this site, defines the classes of images."""
    schema = named_schema(manifest.config)
    dataset = data.load(path, schema=schema, person=manifest.config.person_column)
    if dataset.class_names is not None and (schema is None or schema.classes is None):
        raise DataError(
            f"{path}: expected the classes of images in the manifest, got none: a site without a folder of "
            "some class would number the others differently. State them where the manifest is made: "
            f"data.schema = {{ classes = {list(dataset.class_names)} }}."
        )
    return dataset


def _log_features(message: str, done: int = 0, total: int | None = None, /, **details: object) -> None:
    """Log the computation of features when it begins and at every tenth."""
    if total and (done == 0 or 10 * done // total > 10 * (done - total // 50) // total):
        logger.info("%s: %.0f of %.0f MB", message, done / 1e6, total / 1e6, extra={"event": "features"})
