"""The transport over gRPC with mutual TLS: it dials, accepts and reconnects; `links` serves one open link.

A link is one bidirectional stream. Either end could dial; a rule of the manifest determines which end does,
so two neighbours have one link. An agent that nobody dials opens no port; two neighbours without ports meet
at a relay (`relay_tunnels`). There is no plaintext.

A process must not fork after it has imported this module, because gRPC has threads. Start processes with the
spawn method.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any

import grpc

from topdp.agents.agreement.card_succession import CardDirectory
from topdp.agents.agreement.identity import Identity
from topdp.agents.agreement.identity_card import Card, check_address
from topdp.agents.agreement.manifest import Manifest
from topdp.agents.wire import configure_grpc, grpc_channels, handshake
from topdp.agents.wire.byte_pipes import FLUSH_SECONDS, ConnectionServer, SocketFolder
from topdp.agents.wire.grpc_channels import METHOD_PATH, REFUSAL_CODES, AcceptedStream, DialledStream
from topdp.agents.wire.handshake import FrameStream, HandshakeParty
from topdp.agents.wire.link_limits import Backoff
from topdp.agents.wire.link_refusals import OUR_FAULT, LinkEnded, RefusalLog
from topdp.agents.wire.links import Link, Neighbour
from topdp.agents.wire.port_guard import PortGuard
from topdp.agents.wire.relay_tunnels import (
    RelayListener,
    RelayRoute,
    meeting_place,
    open_tunnel,
    waiting_token,
)
from topdp.agents.wire.transport import Handler, Message, Reply, Transport, Unreachable, end_all, ends
from topdp.errors import TrustError

MAX_HANDSHAKES = 2
"""How many handshakes of one neighbour may be under way."""


class GrpcTransport(Transport):
    """The links of one agent over gRPC."""

    def __init__(
        self,
        identity: Identity,
        manifest: Manifest,
        *,
        listen: str | None = None,
        directory: CardDirectory | None = None,
        listed: Identity | None = None,
    ) -> None:
        """`listen`: the address to bind if it is not that of the agent's card (behind a router).

        `directory`: the successors of the manifest's cards, which is read at every handshake. `listed`: the
        identity whose card is in the manifest, if `identity` is a later one.
        """
        configure_grpc()
        self.name = identity.card.name
        self.directory = directory or CardDirectory(manifest)
        if identity.card.fingerprint not in [card.fingerprint for card in self.directory.cards(self.name)]:
            raise TrustError(
                f"Expected the certificate that the manifest lists for {self.name}, got "
                f"{identity.card.fingerprint}: use the identity whose card is in the manifest."
            )
        self.identity, self.manifest = identity, manifest
        self._listed = listed or identity
        self.rules = manifest.rules
        self.listen = check_address(listen or identity.card.address)
        self.neighbours = {name: manifest.card(name) for name in manifest.neighbours(self.name)}
        self.dials = [name for name in self.neighbours if manifest.dialer(self.name, name) == self.name]
        self.dialers = {name: card for name, card in self.neighbours.items() if name not in self.dials}
        self.relayed = {name for name in self.neighbours if manifest.relayed(self.name, name)}
        self._party = HandshakeParty(identity, manifest.hash)
        self._refusals = RefusalLog(self.name)
        self._peers: dict[str, Neighbour] = {}
        self._server: Any = None
        self._guard: PortGuard | None = None
        self._relays: list[RelayListener | ConnectionServer] = []
        self._folder: SocketFolder | None = None
        self._dial_tasks: list[asyncio.Task[None]] = []
        self._is_closed = False

    async def start(self, handle: Handler) -> None:
        self._handle = handle
        self._peers = {name: Neighbour(card, self.rules.in_flight) for name, card in self.neighbours.items()}
        if self.dialers:
            await self._bind()
        for name in self.relayed & set(self.dials):
            route = self._route(name, name, self.name)
            self._relays.append(await open_tunnel(self._tunnel_socket(name), route, self.rules.idle_timeout))
        self._dial_tasks = [asyncio.create_task(self._keep_linked(self._peers[name])) for name in self.dials]

    async def request(self, peer: str, message: Message) -> Reply:
        if peer not in self.neighbours:
            raise ValueError(f"Expected a neighbour of {self.name}, got {peer!r}.")
        if self._is_closed or not self._peers:
            raise Unreachable(f"{self.name} is not started, or was closed.")
        link = await self._peers[peer].open_link(self.rules.idle_timeout)
        return await link.request(message)

    def reaches(self, peer: str) -> bool:
        return peer in self._peers and self._peers[peer].link is not None

    @property
    def refused(self) -> Mapping[tuple[str, str], int]:
        return self._refusals.counts

    async def close(self) -> None:
        self._is_closed = True
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))
        await end_all(self._dial_tasks, "dialing")
        if self._server is not None:
            await ends([asyncio.create_task(self._server.stop(grace=FLUSH_SECONDS))], "gRPC")
        if self._guard is not None:
            await self._guard.close()
        for relay in self._relays:
            await relay.close()
        for peer in self._peers.values():
            await end_all(peer.pending.running, "requests of a peer")
        if self._folder is not None:
            self._folder.remove()

    async def _bind(self) -> None:
        """Open the port, and wait for calls at the relay, as far as neighbours dial this agent."""
        self._guard = PortGuard(
            self._folder_path(), self.rules.idle_timeout, len(self.dialers), self._refusals
        )
        if set(self.dialers) - self.relayed:
            await self._guard.server.listen(self.listen)
        self._server = grpc_channels.server(self._accept, self.rules.idle_timeout, 2 * MAX_HANDSHAKES)
        credentials = grpc_channels.server_credentials(self.identity, self._cards_of_dialers)
        self._server.add_secure_port(f"unix:{self._guard.socket}", credentials)
        await self._server.start()
        for name in self.relayed & set(self.dialers):
            route = self._route(name, self.name, name)
            self._relays.append(RelayListener(route, self._guard.admit))

    def _route(self, peer: str, listener: str, dialer: str) -> RelayRoute:
        """Return the route to `peer` through the relay.

        The meeting place depends on the cards in the manifest, which both ends have after any renewal.
        """
        secret = self._listed.shared_secret(self.manifest.card(peer), "meeting place")
        place = meeting_place(secret, self.manifest.hash, listener, dialer)
        return RelayRoute(
            relay=self.rules.relay,
            place=place,
            peer=peer,
            refusals=self._refusals,
            token=waiting_token(self._listed, place),
        )

    def _tunnel_socket(self, name: str) -> Path:
        return self._folder_path() / f"to-{self.manifest.number(name)}"

    def _folder_path(self) -> Path:
        """Return the private folder of this process's sockets; make it on the first call."""
        if self._folder is None:
            self._folder = SocketFolder()
        return self._folder.path

    def _cards_of_dialers(self) -> list[Card]:
        """Return the cards that neighbours may present when they dial this agent."""
        return [card for name in self.dialers for card in self.directory.acceptable(name)]

    def _channel(self, card: Card) -> Any:
        target = f"unix:{self._tunnel_socket(card.name)}" if card.name in self.relayed else card.address
        return grpc_channels.channel(target, card, self.identity, self.rules.idle_timeout)

    async def _accept(self, _: Any, context: Any) -> None:
        """Serve one stream that a peer opened, from its first frame to its end."""
        name = "someone"
        try:
            card = self._card_of(context)
            name = card.name
            stream = AcceptedStream(context)
            await self._answer_handshake(stream, card)
            if self._guard is not None:
                self._guard.mark_proved(context.peer(), name)
            self.directory.mark_shown(card)
            ended = await self._serve(self._peers[name], stream)
        except LinkEnded as error:
            ended = error
        except asyncio.CancelledError:  # gRPC cancels it if the stream fails or a message is too large
            self._report(name, LinkEnded("lost", "the stream broke off"))
            raise
        except Exception as error:  # nothing that a peer sends should cause this
            ended = self._report_fault(name, error)
        self._report(name, ended)
        if ended.kind != "lost":
            await context.abort(
                REFUSAL_CODES.get(ended.kind, grpc.StatusCode.PERMISSION_DENIED), ended.reason
            )

    async def _answer_handshake(self, stream: FrameStream, card: Card) -> None:
        peer = self._peers[card.name]
        if peer.handshakes >= MAX_HANDSHAKES:
            raise LinkEnded("flood", f"expected at most {MAX_HANDSHAKES} handshakes at a time")
        peer.handshakes += 1
        try:
            await self._limit_time(handshake.listen(stream, self._party, card))
        finally:
            peer.handshakes -= 1

    async def _limit_time(self, shaking_hands: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self.rules.idle_timeout):
                await shaking_hands
        except TimeoutError:
            raise LinkEnded("silent", f"no handshake in {self.rules.idle_timeout:g} s") from None

    def _card_of(self, context: Any) -> Card:
        """Return the card that the dialer presented to TLS."""
        certificates = context.auth_context().get("x509_pem_cert") or []
        if len(certificates) != 1:
            raise LinkEnded("stranger", "it presented no certificate")
        return handshake.card_of_leaf(
            certificates[0], {card.fingerprint: card for card in self._cards_of_dialers()}
        )

    async def _keep_linked(self, peer: Neighbour) -> None:
        """Dial a neighbour again whenever there is no link, until this task is cancelled."""
        backoff = Backoff()
        while True:
            try:
                ended = await self._dial(peer, backoff)
            except LinkEnded as error:
                ended = error
            except Exception as error:
                ended = self._report_fault(peer.card.name, error)
            self._report(peer.card.name, ended)
            await backoff.pause()

    async def _dial(self, peer: Neighbour, backoff: Backoff) -> LinkEnded:
        """Open a link, and serve it until it ends."""
        acceptable = self.directory.acceptable(peer.card.name)
        card = acceptable[peer.attempts % len(acceptable)]  # alternate: it may not present its newest yet
        peer.attempts += 1
        channel = self._channel(card)
        call = channel.stream_stream(METHOD_PATH)()
        try:
            stream = DialledStream(call)
            await self._limit_time(handshake.dial(stream, self._party, card))
            backoff.reset()
            peer.attempts = 0
            self.directory.mark_shown(card)
            return await self._serve(peer, stream)
        finally:
            call.cancel()
            await channel.close()

    async def _serve(self, peer: Neighbour, stream: FrameStream) -> LinkEnded:
        if self._is_closed:
            return LinkEnded("lost", "this agent closes")
        link = Link(
            peer.card.name,
            stream,
            handle=self._handle,
            rules=self.rules,
            pending=peer.pending,
            refusals=self._refusals,
        )
        self._refusals.report(
            peer.card.name, "linked", "both ends have proved their identities", logging.INFO
        )
        return await peer.serve(link)

    def _report(self, name: str, ended: LinkEnded) -> None:
        """Log why a link ended or did not open."""
        if name in self._peers and self._peers[name].link is None:
            self._peers[name].problem = ended.reason
        if ended.kind == "manifest" and name in self._peers:
            self.on_other_manifest(name)
        level = logging.INFO if ended.kind in ("lost", "replaced") else logging.WARNING
        self._refusals.report(ended.culprit or name, ended.kind, ended.reason, level)

    def _report_fault(self, name: str, error: Exception) -> LinkEnded:
        """Log a fault of this agent with its traceback, and return it as the end of a link."""
        text = "the link ended because of a fault in this agent"
        self._refusals.report(name, "failed", text, logging.ERROR, error)
        return LinkEnded("failed", OUR_FAULT)
