"""Small federations on loopback for tests: identities, a manifest, transports, and a handler that echoes."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import hashlib
import itertools
import socket

from topdp.agents.agreement.identity import Identity, generate
from topdp.agents.agreement.identity_card import Card
from topdp.agents.agreement.manifest import Manifest, Rules, new_manifest
from topdp.agents.wire import grpc_channels
from topdp.agents.wire.grpc_transport import GrpcTransport
from topdp.agents.wire.transport import Message, Reply, ReplyCode, Unreachable
from topdp.runs.config import RunConfig

NAMES = ("ant", "bee", "cat", "dog")
MADE = {name: generate(name) for name in NAMES}  # keys are made once; addresses differ between tests
LIMIT = 120.0
"""Seconds after which a test is given up. It only ends hanging tests: on a busy machine tests take long."""


RUNNER = asyncio.Runner()
atexit.register(RUNNER.close)


def run(coroutine):
    """Runs a test with a time limit, always on one loop: gRPC sends late events to loops that have ended."""

    async def limited():
        async with asyncio.timeout(LIMIT):
            return await coroutine

    return RUNNER.run(limited())


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def at(identity: Identity, address: str) -> Identity:
    return Identity(Card(identity.card.name, address, identity.card.certificate), identity.key)


class Federation:
    """Agents linked in a row, or by `links`; those in `closed` open no port."""

    def __init__(self, names=("ant", "bee"), closed=(), links=None, identities=None, addresses=None, **rules):
        known = {**MADE, **(identities or {})}
        addresses = addresses or {}
        self.identities = {
            name: at(known[name], "" if name in closed else addresses.get(name) or free_address())
            for name in names
        }
        links = links or list(itertools.pairwise(names))
        settings = {"idle_timeout": 5.0, "largest_body": 4 * 2**20, **rules}
        self.manifest: Manifest = new_manifest(
            [identity.card for identity in self.identities.values()], links, RunConfig(), Rules(**settings)
        )

    def transport(self, name, plain=False, **options) -> GrpcTransport:
        """`plain`: without TLS."""
        kind = PlainTransport if plain else GrpcTransport
        return kind(self.identities[name], self.manifest, **options)

    @contextlib.asynccontextmanager
    async def started(self, *names, **options):
        """The transports of these agents, by default of all, each with an `Echo`."""
        transports = [self.transport(name, **options) for name in names or self.identities]
        for transport in transports:
            transport.echo = Echo(transport.name)
        try:
            for transport in transports:
                await transport.start(transport.echo)
            yield transports
        finally:
            await asyncio.gather(*(transport.close() for transport in transports))


class PlainTransport(GrpcTransport):
    """Links without TLS: the dialling agent states its name, and only the handshake proves it."""

    def _channel(self, card):
        return _NamedChannel(grpc_channels.aio.insecure_channel(card.address), self.name)

    async def _bind(self):
        self._server = grpc_channels.server(self._accept, self.rules.idle_timeout, 4)
        self._server.add_insecure_port(self.listen)
        await self._server.start()

    def _card_of(self, context):
        return self.dialers[dict(context.invocation_metadata())[CLAIM]]


CLAIM = "claim"


class _NamedChannel:
    """A channel whose calls state who dials."""

    def __init__(self, channel, name):
        self._channel, self._name, self.close = channel, name, channel.close

    def stream_stream(self, path):
        return lambda: self._channel.stream_stream(path)(metadata=[(CLAIM, self._name)])


class Echo:
    """Replies with the digest of each body, and records the senders."""

    def __init__(self, name):
        self.name, self.seen = name, []

    async def __call__(self, peer, message: Message) -> Reply:
        self.seen.append((peer, message.kind, message.round))
        return Reply(ReplyCode.OK, f"{self.name} heard {peer}", hashlib.sha256(message.body).digest())


async def until_answered(transport, peer, message):
    """Sends the same message until it is answered, as an agent does."""
    while True:
        with contextlib.suppress(Unreachable):
            return await transport.request(peer, message)
        await asyncio.sleep(0)
