"""Links over gRPC with mutual TLS: which end dials, who is let in, reconnecting. `links` is what one link
does.

One bidirectional stream per link. Either end may dial; the manifest's rule says which one does, so that there
is one link and not two. A site that nobody dials opens no port; two that have none meet at a relay
(`relay_tunnels`). There is no plaintext.

Never fork once this module is imported: gRPC has threads. Start processes with the spawn method.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from topdp.agents.agreement.card_succession import CardDirectory
from topdp.agents.agreement.identity import Identity
from topdp.agents.agreement.identity_card import Card, check_address
from topdp.agents.agreement.manifest import Manifest
from topdp.agents.wire import configure_grpc, grpc_channels, handshake
from topdp.agents.wire.byte_pipes import FLUSH_SECONDS, ConnectionServer, SocketFolder
from topdp.agents.wire.grpc_channels import METHOD_PATH, AcceptedStream, DialledStream
from topdp.agents.wire.handshake import FrameStream, HandshakeParty
from topdp.agents.wire.link_limits import Backoff
from topdp.agents.wire.link_refusals import OUR_FAULT, LinkEnded, RefusalLog
from topdp.agents.wire.links import Link, Neighbour
from topdp.agents.wire.port_guard import PortGuard
from topdp.agents.wire.transport import Handler, Message, Reply, Transport, Unreachable, end_all, ends
from topdp.errors import TrustError

if TYPE_CHECKING:
    from topdp.agents.wire.relay_tunnels import RelayListener, RelayRoute

MAX_HANDSHAKES = 2
"""Handshakes that one neighbour may have under way."""


class GrpcTransport(Transport):
    """The transport over gRPC.

    `listen`: the address to bind if it is not that of our card (behind a router).
    """

    def __init__(
        self,
        identity: Identity,
        manifest: Manifest,
        *,
        listen: str | None = None,
        chance: random.Random | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        directory: CardDirectory | None = None,
        listed: Identity | None = None,
    ) -> None:
        """`directory`: cards that agents have had since the manifest was made; read at every handshake.

        `listed`: the identity whose card is in the manifest, if `identity` is a later one.
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
        self._chance, self._pause = chance or random.SystemRandom(), pause
        self._peers: dict[str, Neighbour] = {}
        self._server: Any = None
        self._front: PortGuard | None = None
        self._relays: list[RelayListener | ConnectionServer] = []
        self._folder: SocketFolder | None = None
        self._dialing: list[asyncio.Task[None]] = []
        self._closed = False

    async def start(self, handle: Handler) -> None:
        self._handle = handle
        self._peers = {name: Neighbour(card, self.rules.in_flight) for name, card in self.neighbours.items()}
        if self.dialers:
            await self._bind()
        for name in self.relayed & set(self.dials):
            from topdp.agents.wire.relay_tunnels import open_tunnel

            route = self._route(name, name, self.name)
            self._relays.append(await open_tunnel(self._tunnel(name), route, self.rules.idle_timeout))
        self._dialing = [asyncio.create_task(self._dial(self._peers[name])) for name in self.dials]

    async def request(self, peer: str, message: Message) -> Reply:
        if peer not in self.neighbours:
            raise ValueError(f"Expected a neighbour of {self.name}, got {peer!r}.")
        if self._closed or not self._peers:
            raise Unreachable(f"{self.name} is not started, or was closed.")
        link = await self._peers[peer].reached(self.rules.idle_timeout)
        return await link.request(message)

    def reaches(self, peer: str) -> bool:
        return peer in self._peers and self._peers[peer].link is not None

    @property
    def refused(self) -> Mapping[tuple[str, str], int]:
        return self._refusals.counts

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))
        await end_all(self._dialing, "dialing")
        if self._server is not None:
            await ends([asyncio.create_task(self._server.stop(grace=FLUSH_SECONDS))], "gRPC")
        if self._front is not None:
            await self._front.close()
        for relayed in self._relays:
            await relayed.close()
        for peer in self._peers.values():
            await peer.pending.cancel()
        if self._folder is not None:
            self._folder.remove()

    async def _bind(self) -> None:
        self._front = PortGuard(
            self._own_folder(), self.rules.idle_timeout, len(self.dialers), self._refusals
        )
        if set(self.dialers) - self.relayed:
            await self._front.server.listen(self.listen)
        self._server = grpc_channels.server(self._accept, self.rules.idle_timeout, 2 * MAX_HANDSHAKES)
        credentials = grpc_channels.server_credentials(self.identity, self._dialing_cards)
        self._server.add_secure_port(f"unix:{self._front.socket}", credentials)
        await self._server.start()
        for name in self.relayed & set(self.dialers):
            from topdp.agents.wire.relay_tunnels import RelayListener

            route = self._route(name, self.name, name)
            self._relays.append(RelayListener(route, self._front.admit, self._chance, self._pause))

    def _route(self, peer: str, listener: str, dialer: str) -> RelayRoute:
        """The way to `peer` through the relay. The meeting place follows from the cards in the manifest: both
        have those after any renewal.
        """
        from topdp.agents.wire.relay_tunnels import RelayRoute, meeting_place

        secret = self._listed.shared_secret(self.manifest.card(peer), "meeting place")
        place = meeting_place(secret, self.manifest.hash, listener, dialer)
        return RelayRoute(self.rules.relay, place, peer, self._refusals)

    def _tunnel(self, name: str) -> Path:
        return self._own_folder() / f"to-{self.manifest.number(name)}"

    def _own_folder(self) -> Path:
        """The private folder of sockets that only this process uses."""
        if self._folder is None:
            self._folder = SocketFolder()
        return self._folder.path

    def _dialing_cards(self) -> list[Card]:
        """The cards that neighbours who dial us may show."""
        return [card for name in self.dialers for card in self.directory.acceptable(name)]

    def _channel(self, card: Card) -> Any:
        target = f"unix:{self._tunnel(card.name)}" if card.name in self.relayed else card.address
        return grpc_channels.channel(target, card, self.identity, self.rules.idle_timeout)

    async def _accept(self, _: Any, context: Any) -> None:
        """Serve one stream that a peer opened, from its first frame to its end."""
        name = "someone"
        try:
            shown = self._card_of(context)
            name = shown.name
            stream = AcceptedStream(context)
            await self._greet(stream, shown)
            if self._front is not None:
                self._front.knows(context.peer(), name)
            self.directory.mark_shown(shown)
            ended = await self._serve(self._peers[name], stream)
        except LinkEnded as refused:
            ended = refused
        except ConnectionError as error:
            ended = LinkEnded("lost", str(error))
        except asyncio.CancelledError:  # by gRPC: the stream is gone, or carried a message that is too large
            self._tell(name, LinkEnded("lost", "the stream broke off"))
            raise
        except Exception as error:  # nothing that a peer sends should cause this; it is logged once
            self._refusals.report(name, "failed", "the link, by our fault", logging.ERROR, error)
            ended = LinkEnded("failed", OUR_FAULT)
        self._tell(name, ended)
        if ended.kind != "lost":
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, ended.words)

    async def _greet(self, stream: FrameStream, shown: Card) -> None:
        peer = self._peers[shown.name]
        if peer.greetings >= MAX_HANDSHAKES:
            raise LinkEnded("flood", f"expected at most {MAX_HANDSHAKES} handshakes at a time")
        peer.greetings += 1
        try:
            await self._in_time(handshake.listen(stream, self._party, shown))
        finally:
            peer.greetings -= 1

    async def _in_time(self, greeting: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self.rules.idle_timeout):
                await greeting
        except TimeoutError:
            raise LinkEnded("silent", f"no handshake in {self.rules.idle_timeout:g} s") from None

    def _card_of(self, context: Any) -> Card:
        certificates = context.auth_context().get("x509_pem_cert") or []
        if len(certificates) != 1:
            raise LinkEnded("stranger", "it showed no certificate")
        return handshake.card_of_leaf(
            certificates[0], {card.fingerprint: card for card in self._dialing_cards()}
        )

    async def _dial(self, peer: Neighbour) -> None:
        """Keep a link to one neighbour, as long as we run."""
        backoff = Backoff(self._chance)
        while True:
            try:
                await self._dial_once(peer, backoff)
            except LinkEnded as refused:
                self._tell(peer.card.name, refused)
            except ConnectionError as error:
                self._tell(peer.card.name, LinkEnded("lost", str(error)))
            except Exception as error:
                self._refusals.report(peer.card.name, "failed", "dialing, by our fault", logging.ERROR, error)
            await self._pause(backoff.next())

    async def _dial_once(self, peer: Neighbour, backoff: Backoff) -> None:
        acceptable = self.directory.acceptable(peer.card.name)
        card = acceptable[peer.dialled % len(acceptable)]  # alternate: it may not show its newest yet
        peer.dialled += 1
        channel = self._channel(card)
        call = channel.stream_stream(METHOD_PATH)()
        try:
            stream = DialledStream(call)
            await self._in_time(handshake.dial(stream, self._party, card))
            backoff.reset()
            peer.dialled = 0
            self.directory.mark_shown(card)
            raise await self._serve(peer, stream)
        finally:
            call.cancel()
            await channel.close()

    async def _serve(self, peer: Neighbour, stream: FrameStream) -> LinkEnded:
        link = Link(
            peer.card.name,
            stream,
            handle=self._handle,
            rules=self.rules,
            pending=peer.pending,
            refusals=self._refusals,
        )
        if self._closed:
            return LinkEnded("lost", "this agent closes")
        self._refusals.report(peer.card.name, "linked", "both ends have proved who they are", logging.INFO)
        return await peer.serve(link)

    def _tell(self, name: str, refused: LinkEnded) -> None:
        if name in self._peers and self._peers[name].link is None:
            self._peers[name].trouble = refused.words
        level = logging.INFO if refused.kind in ("lost", "replaced") else logging.WARNING
        self._refusals.report(refused.culprit or name, refused.kind, refused.words, level)
