"""Federations in one process in virtual time, a wire that records everything, and a checker of histories."""

from __future__ import annotations

import asyncio
import contextlib
import json
import selectors
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from builders import blobs, linear_model
from topdp import topology
from topdp.agents.agreement import run_setup as setups
from topdp.agents.agreement.federation_manifest import complete_config
from topdp.agents.agreement.identity import generate
from topdp.agents.agreement.manifest import Rules, new_manifest
from topdp.agents.development.development_hooks import DevelopmentHooks, Failpoints
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_check import verify
from topdp.agents.ledger.ledger_entries import TamperedError, digest_of
from topdp.agents.ledger.stored_rows import ANY_RECEIVER
from topdp.agents.runtime import agent_context
from topdp.agents.runtime.agent import Agent
from topdp.agents.runtime.agent_context import PrivateFiles, build_context
from topdp.agents.runtime.budget_meter import build_meter
from topdp.agents.runtime.peer_messages import Handover
from topdp.agents.wire.transport import Handler, MessageKind, Transport, Unreachable
from topdp.data.person_records import PersonRecords
from topdp.learning.gradients import ClippedGradients
from topdp.plan.noise_key import NoiseKey
from topdp.runs import config as configurations
from topdp.runs.run_outline import batches_of
from topdp.simulator.engine import Engine

NAMES = ("ada", "bob", "cleo", "dan", "eve", "fay")
IDENTITIES = {name: generate(name, f"127.0.0.1:{7400 + k}") for k, name in enumerate(NAMES)}
CARDS = [identity.card for identity in IDENTITIES.values()]


class Crash(BaseException):
    """Raised where an agent is killed."""


def abandon(agent):
    """Ends the remains of an agent that was killed."""
    for task in list(agent.peers.tasks):
        task.cancel()
    agent.ledger.close()


class _Selector(selectors.DefaultSelector):
    """Does not wait: it advances the clock of the loop instead."""

    loop: VirtualLoop

    def select(self, timeout=None):
        if timeout is None:
            raise RuntimeError("Everybody waits for somebody: the federation is stuck.")
        self.loop.now += max(timeout, 0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self.now = 0.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self):
        return self.now


def on_virtual_time(coroutine, limit=300.0):
    """Runs to the end without sleeping; more than `limit` virtual seconds raise `TimeoutError`."""
    found = []

    async def limited():
        async with asyncio.timeout(limit):
            found.append(await coroutine)

    # Not as the task's own result: at its end a runner formats that as text, which takes half a second.
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(limited())
    return found[0]


@dataclass
class Event:
    what: str  # sent, answered
    sender: str
    receiver: str
    kind: str
    round: int
    digest: str
    ok: bool | None = None


@dataclass
class Wire:
    """A recording network in memory; an agent whose handler crashes is gone until it starts again."""

    handlers: dict[str, Handler] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)
    on_crash: dict[str, object] = field(default_factory=dict)
    cut: set[frozenset[str]] = field(default_factory=set)  # links that are down
    waited: list[tuple[str, str, str]] = field(default_factory=list)  # (sender, absent receiver, kind)
    delay: float = 0.0  # virtual seconds per message
    lose: object = None  # (sender, receiver, message) -> "request", "reply" or None

    def transport(self, name):
        return Recorded(self, name)

    def handed(self, sender, receiver, packed):
        """Records a row that was handed over in an exchange."""
        row = Handover.unpack(packed)
        self.events.append(Event("sent", sender, receiver, "handed", row.round, digest_of(row.body)))


class Recorded(Transport):
    def __init__(self, wire, name):
        self.wire, self.name = wire, name
        self.open = False

    async def start(self, handle):
        self.wire.handlers[self.name] = handle
        self.open = True

    def reaches(self, peer):
        return peer in self.wire.handlers and frozenset((self.name, peer)) not in self.wire.cut

    async def request(self, peer, message):
        await asyncio.sleep(self.wire.delay)
        if not self.reaches(peer):
            self.wire.waited.append((self.name, peer, message.kind.name.lower()))
        lost = self.wire.lose(self.name, peer, message) if self.wire.lose else None
        if not self.open or frozenset((self.name, peer)) in self.wire.cut or lost == "request":
            raise Unreachable("no link")
        handle = self.wire.handlers.get(peer)
        if handle is None:
            raise Unreachable(f"{peer} is not there")
        # From here on the bytes have been sent, even if they never arrive.
        facts = (self.name, peer, message.kind.name.lower(), message.round, message.digest)
        self.wire.events.append(Event("sent", *facts))
        try:
            reply = await handle(self.name, message)
        except Crash as crash:
            self.wire.handlers.pop(peer, None)
            self.wire.on_crash[peer](crash)
            raise Unreachable(f"{peer} is gone") from None
        self.wire.events.append(Event("answered", *facts, reply.ok))
        if message.kind is MessageKind.COMMIT:
            self.wire.handed(self.name, peer, message.body)
        if message.kind in (MessageKind.PROPOSE, MessageKind.RESOLVE) and reply.body:
            self.wire.handed(peer, self.name, reply.body)
        if lost == "reply" or not self.open:
            raise Unreachable("the reply was lost")
        return reply

    async def close(self):
        self.end()

    def end(self):
        self.open = False
        self.wire.handlers.pop(self.name, None)


@dataclass
class Federation:
    """A small job for n agents: the setup, the data, and the simulator's result."""

    setup: setups.RunSetup
    shards: object
    folder: Path
    identities: dict[str, object] = field(default_factory=lambda: IDENTITIES)
    _meters: dict[tuple, object] = field(default_factory=dict, repr=False)

    @property
    def names(self):
        return self.setup.manifest.names

    def context(self, agent, **options):
        records = (
            self.shards.inputs[agent, : self.shards.counts[agent]],
            self.shards.targets[agent, : self.shards.counts[agent]],
        )
        hooks = DevelopmentHooks(
            seeded=options.pop("seeded", True),
            rehearsal=options.pop("rehearsal", None),
            failpoints=options.pop("failpoints", None),
        )
        persons = None
        if self.shards.persons is not None:
            persons = PersonRecords([self.shards.persons[agent, : self.shards.counts[agent]].numpy()])
        with mock.patch.object(agent_context, "build_meter", self._meter):
            return build_context(
                self.setup, agent, records, self.shards.classes, hooks=hooks, persons=persons, **options
            )

    def _meter(self, setup, agent):
        """Builds the meters of a federation once, however often its agents start."""
        key = id(setup.plan), id(setup.manifest), agent
        if key not in self._meters:
            self._meters[key] = build_meter(setup, agent)
        return self._meters[key]

    def state(self, agent):
        return self.folder / self.names[agent]

    def agent(self, number, transport, failpoints=None, **options):
        pairing = options.pop("live_pairing", False)
        mine = self.context(number, failpoints=failpoints, **options)
        return Agent(
            mine, self.state(number), transport=transport, live_pairing=pairing, private=self.private(number)
        )

    def private(self, agent):
        name = self.names[agent]
        return PrivateFiles(self.identities[name], self.folder / "private" / name)

    def simulated(self, dtype=torch.float32):
        """[agents, d]: the final estimates of the simulator when it computes in `dtype`."""
        config = self.setup.manifest.config
        model = self.setup.model(tuple(self.shards.inputs.shape[2:]), self.shards.classes).to(dtype)
        engine = Engine(
            self.setup.plan,
            ClippedGradients(model, config.privacy.clip),
            self.shards,
            batches_of(config, self.shards.unit_counts),
            seed=config.seed,
            key=NoiseKey.of_seed(config.seed),
        )
        state = engine.start(engine.gradients.flat.flatten())
        for _ in range(self.setup.plan.releases):
            state = engine.advance(state)
        return engine.reported(state)

    def estimates(self):
        from safetensors.torch import load_file

        return torch.stack(
            [load_file(self.state(i) / "estimate.safetensors")["estimate"] for i in range(len(self.names))]
        )

    def results(self):
        return [json.loads((self.state(i) / "result.json").read_text()) for i in range(len(self.names))]


def model_of_blobs(shape, classes):
    """Configurations name it as `history:model_of_blobs`."""
    return linear_model(classes)


def federation(
    folder,
    *changes,
    graph=None,
    agents=6,
    rounds=6,
    tolerates_silence=False,
    idle_timeout=4.0,
    cards=None,
    guarantee="worst-case",
    departures=0,
    shards=None,
    **more_rules,
) -> Federation:
    """A federation of small runs on blobs; `guarantee` None means the default of a configuration."""
    graph = graph or topology.ring(agents)
    n = graph.agents
    shards = shards or blobs(n, records=30)
    basis = [
        f"topology.agents={n}",
        f"rounds={rounds}",
        "privacy.clip=1.0",
        *([f"privacy.guarantee={guarantee}"] if guarantee else []),
        *([] if any(change.startswith("privacy.sigma=") for change in changes) else ["privacy.epsilon=50.0"]),
        'model.name="history:model_of_blobs"',
        "method.offline=0.2",
    ]
    config = configurations.read(changes=[*basis, *changes])
    rule = "go-on" if tolerates_silence else "wait"
    rules = Rules(dead_neighbour=rule, idle_timeout=idle_timeout, departures=departures, **more_rules)
    complete, _ = complete_config(config, graph, shards.unit_counts, rules)
    cards = cards or CARDS[:n]
    links = [(cards[i].name, cards[j].name) for i, j in graph.edges.tolist()]
    manifest = new_manifest(cards, links, complete, rules)
    return Federation(setups.RunSetup.of(manifest), shards, Path(folder))


def sharing(folder, *changes, graph=None, gossip=0, **how) -> Federation:
    """Agents with pair noise between all pairs, which charge by the adaptive answer."""
    shared = (
        "method.name=correlated",
        "method.secrets=all",
        "method.pair_noise=3.0",
        f"method.gossip={gossip}",
    )
    return federation(folder, *shared, *changes, graph=graph, guarantee="adaptive", **how)


@dataclass
class Run:
    """The result of a federation: outcomes by agent, the wire, and the number of starts of each agent."""

    federation: Federation
    wire: Wire
    outcomes: dict[int, object]
    starts: dict[int, int]


async def live(
    made: Federation, wire=None, failpoints=None, options=None, agents=None, restart_after=1.0, for_good=()
) -> Run:
    """Runs every agent to its end; a killed agent starts again on its folder, or is gone `for_good`.

    `failpoints`: per agent the point where it is killed, or one for each of its first starts.
    """
    wire = wire or Wire()
    given = failpoints or {}
    failpoints = {i: [each] if isinstance(each, str) else list(each) for i, each in given.items()}
    options = options or {}
    run = Run(made, wire, {}, defaultdict(int))

    async def life(number):
        name = made.names[number]
        while number not in run.outcomes:
            run.starts[number] += 1
            choices = failpoints.get(number, [])
            choice = choices.pop(0) if choices else None

            transport = wire.transport(name)

            def die(where, transport=transport):
                transport.end()  # no task of a killed agent sends or receives anything more
                raise Crash(where)

            try:
                agent = made.agent(
                    number, transport, Failpoints(choice, die), **dict(options.get(number, {}))
                )
            except Crash:
                wire.crashed.append(name)
                if number in for_good:
                    return
                continue
            task = asyncio.create_task(agent.run())
            dead = asyncio.Event()

            def gone(crash, agent=agent, dead=dead):
                abandon(agent)
                wire.crashed.append(agent.name)
                dead.set()

            wire.on_crash[name] = gone
            ended = asyncio.create_task(dead.wait())
            await asyncio.wait([task, ended], return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if dead.is_set():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            else:
                try:
                    run.outcomes[number] = await task
                    return
                except Crash:
                    wire.handlers.pop(name, None)
                    wire.crashed.append(name)
            if number in for_good:
                return
            await asyncio.sleep(restart_after)

    numbers = range(len(made.names)) if agents is None else agents
    async with asyncio.TaskGroup() as group:
        for number in numbers:
            group.create_task(life(number))
    return run


def faults(run: Run) -> list[str]:
    """All faults of a history.

    `run.lost`, if present: the entries of ledgers before these were replaced by an old copy.
    """
    found: list[str] = []
    lost = getattr(run, "lost", {})
    names = run.federation.setup.manifest.names
    graph = run.federation.setup.manifest.topology
    books = {}
    for number, name in enumerate(names):
        if not run.federation.state(number).exists():
            continue
        ledger = Ledger(run.federation.state(number), writable=False)
        try:
            verify(ledger)
        except TamperedError as error:
            found.append(f"{name}: {error}")
        entries = list(ledger.entries())
        applied = ledger.database.rows("SELECT sender, round, applied FROM inbox WHERE applied IS NOT NULL")
        pairs = ledger.database.rows("SELECT id, partner, status, applied FROM pairs")
        found_on_the_way = ledger.meta.get("partners") == "found"
        books[name] = (entries, applied, pairs, ledger.meta.get("stopped"), found_on_the_way)
        ledger.close()

    seen = defaultdict(set)
    for event in run.wire.events:
        if event.what == "sent" and event.kind in ("row", "handed"):
            seen[event.sender, event.receiver, event.round].add(event.digest)
        i, j = (names.index(n) if n in names else None for n in (event.sender, event.receiver))
        neighbours = i is not None and j is not None and graph.adjacency[i, j]
        if event.what == "answered" and event.ok and not neighbours:
            found.append(f"{event.receiver} accepted {event.kind} from the stranger {event.sender}")
    for (sender, receiver, round), digests in seen.items():
        if sender not in books:
            continue
        charged = {
            digest
            for entry in [*books[sender][0], *lost.get(sender, [])]
            if entry.round == round and entry.kind != "skip"
            for to, digest in entry.digests.items()
            if to in (receiver, ANY_RECEIVER)
        }
        if not digests <= charged:
            found.append(
                f"{sender} sent {len(digests)} bodies for round {round} to {receiver}, charged {len(charged)}"
            )
    rules = run.federation.setup.manifest.rules
    for name, (entries, applied, _, stopped, found_on_the_way) in books.items():
        for entry in entries:
            late = stopped is not None and entry.round >= int(stopped)
            # Some neighbour was not heard after a start; under the rule `wait` the agent waits for it.
            doubted = entry.kind == "noise" and (rules.tolerates_silence or found_on_the_way)
            if (entry.kind == "release") == late and entry.kind not in ("skip", "late") and not doubted:
                found.append(
                    f"{name} charged a {entry.kind} in round {entry.round}, its budget ended at {stopped}"
                )
        rounds = [entry.round for entry in entries if entry.kind != "late"]
        if len(set(rounds)) != len(rounds):
            found.append(f"{name} did a round twice")
        keys = [(sender, round) for sender, round, _ in applied]
        if len(set(keys)) != len(keys):
            found.append(f"{name} applied a row twice")
        for entry in entries:
            if not (np.isfinite(entry.charge) and entry.charge >= 0):
                found.append(f"{name} charged {entry.charge}")
    for sender, before in lost.items():
        found += drawn_twice(sender, before, books[sender][0], _kept(run))
    found += asymmetric({name: book[2] for name, book in books.items() if name not in lost})
    return found


def _kept(run):
    """{(sender, receiver, round): digests} of rows that some ledger contains.

    Only these can be shown to an old copy. Bytes that reached nobody were seen only by the network, which
    sees TLS. Bytes that reached a process which was killed, or whose disk was full, before it stored them
    were seen by that process. Nobody can then detect that a machine that was put back as a whole draws again,
    and `beliefs` promises no more.
    """
    kept = defaultdict(set)
    for event in run.wire.events:
        if event.kind == "handed" or (event.what == "answered" and event.kind == "row" and event.ok):
            kept[event.sender, event.receiver, event.round].add(event.digest)
    for number, name in enumerate(run.federation.names):
        with contextlib.closing(Ledger(run.federation.state(number), writable=False)) as ledger:
            for sender, round, digest in ledger.database.rows("SELECT sender, round, digest FROM inbox"):
                kept[sender, name, round].add(digest)
    return kept


def drawn_twice(sender, before, after, seen) -> list[str]:
    """Rounds of which neighbours saw two draws: of a lost ledger, and of the ledger that replaced it."""
    found = []
    # The same bytes are one draw, repeated from a seed.
    entries = {str(entry.digests): entry for entry in [*before, *after] if entry.digests}.values()
    for round in sorted({entry.round for entry in entries}):
        shown = [
            entry
            for entry in entries
            if entry.round == round
            and any(
                digest in digests
                for to, digest in entry.digests.items()
                for (one, receiver, of), digests in seen.items()
                if (one, of) == (sender, round) and to in (receiver, ANY_RECEIVER)
            )
        ]
        if len(shown) > 1:
            found.append(f"{sender} showed {len(shown)} draws of round {round}, and its ledger has one")
    return found


def asymmetric(pairs) -> list[str]:
    """Exchanges that only one side committed, and agents that are in doubt about a partner more than once.

    One exchange per partner may end in doubt: an agent that has made its rounds waits for nobody for ever,
    and a partner that is slow or cut off for more than two idle timeouts cannot inform it. The agent has then
    used no row and has charged its own, so nothing is under-counted. It begins no second exchange with that
    partner.
    """
    status = {(name, pair): state for name, rows in pairs.items() for pair, _, state, _ in rows}
    found = []
    for name, rows in pairs.items():
        for pair, partner, state, _ in rows:
            other = status.get((partner, pair))
            if state == "committed" and partner in pairs and other not in ("committed", "prepared"):
                found.append(f"{name} committed {pair} with {partner}, who did not")
        in_doubt = Counter(partner for _, partner, state, _ in rows if state == "prepared")
        found += [f"{name} is in doubt {n} times with {partner}" for partner, n in in_doubt.items() if n > 1]
    return found
